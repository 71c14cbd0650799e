package botapi

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"
)

// Many clients read nothing before they have sent everything: a refusal that does
// not take what they send is lost to a reset. So it is taken, within bounds of size
// and time, and one that falls silent gets its refusal, whatever it has announced. A
// list has no use for a body, either. On a pipe no buffer of the system takes it in
// the handler's stead. Behind a writer that only unwraps, the answer leaves when the
// handler has returned.
func TestBodyRest(t *testing.T) {
	const silent, chunked, expect = "Content-Length: 999999999", "Transfer-Encoding: chunked", "Expect: 100-continue"
	const post10 = "POST /v1/chat HTTP/1.0"
	refused, tooLarge := `401 {"detail":"Not authenticated"}`, `413 {"detail":"Request body too large"}`
	notFound, notAllowed := `404 {"detail":"Not Found"}`, `405 {"detail":"Method Not Allowed"}`
	tooSlow := `408 {"detail":"Request body did not arrive in time"}`
	listed, last := "200 "+listedBots, lines(listLine, host, key, closing)
	long, most, tooMuch := strings.Repeat(" ", 7<<19), strings.Repeat("x", discardBytes), strings.Repeat(" ", 64<<20)
	length, more := fmt.Sprint("Content-Length: ", len(long)), fmt.Sprint("Content-Length: ", discardBytes+100<<10)
	chunks := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(long), long)
	for name, c := range map[string]struct {
		send        string
		readTimeout time.Duration // the server's
		want        []string      // the answers
		took        time.Duration
	}{
		"too large":                      {lines(chatLine, host, key, length) + long + last, 0, []string{tooLarge, listed}, 0},
		"too large, in chunks":           {lines(chatLine, host, key, chunked) + chunks + last, 0, []string{tooLarge, listed}, 0},
		"too large, and silent":          {lines(chatLine, host, key, chunked) + "100001\r\n" + long[:1<<20+1], time.Hour, []string{tooLarge}, discardTime},
		"too large, behind 100 Continue": {lines(chatLine, host, key, expect, chunked) + chunks + last, 0, []string{"100 ", tooLarge, listed}, 0},
		"too large, on HTTP/1.0":         {lines(post10, key, expect, length) + long, 0, []string{tooLarge}, 0},
		"out of time":                    {lines(chatLine, host, key, "Content-Length: 100") + `{"bot`, 20 * time.Second, []string{tooSlow}, 20 * time.Second},
		"wrong path":                     {lines("POST /v1/chats HTTP/1.1", host, key, length) + long + last, 0, []string{notFound, listed}, 0},
		"wrong method":                   {lines("PUT /v1/bots HTTP/1.1", host, key, length) + long + last, 0, []string{notAllowed, listed}, 0},

		"without a key":                            {lines(chatLine, host, length) + long + last, 0, []string{refused, listed}, 0},
		"without a key, in chunks":                 {lines(chatLine, host, chunked) + chunks + last, 0, []string{refused, listed}, 0},
		"without a key, on HTTP/1.0":               {lines(post10, expect, length) + long, 0, []string{refused}, 0},
		"without a key, and endless":               {lines(chatLine, host, silent) + tooMuch, 0, []string{refused}, 0},
		"without a key, and silent":                {lines(chatLine, host, silent) + "x", 0, []string{refused}, discardTime},
		"without a key, and out of time":           {lines(chatLine, host, silent) + "x", time.Second, []string{refused}, time.Second},
		"without a key, silent behind the most":    {lines(chatLine, host, more) + most, 0, []string{refused}, 0},
		"without a key, silent far from the end":   {lines(chatLine, host, silent) + most, 0, []string{refused}, 0},
		"without a key, silent before it closes":   {lines(chatLine, host, closing, more) + most, 0, []string{refused}, 0},
		"without a key, silent on HTTP/1.0":        {lines(post10, more) + most, 0, []string{refused}, 0},
		"without a key, silent between two chunks": {lines(chatLine, host, chunked) + fmt.Sprintf("%x\r\n%s\r\n", len(most), most), 0, []string{refused}, 0},
		"without a key, silent within a chunk":     {lines(chatLine, host, chunked) + fmt.Sprintf("%x\r\n%s", len(most)+1, most), 0, []string{refused}, 0},
		"without a key, silent until it may go on": {lines(chatLine, host, expect, "Content-Length: 100"), 0, []string{refused}, 0},

		"a list":                          {lines(listLine, host, key, "Content-Length: 10") + long[:10] + last, 0, []string{listed, listed}, 0},
		"a list, and silent":              {lines(listLine, host, key, "Content-Length: 1"), 0, []string{listed}, discardTime},
		"a list, silent for long":         {lines(listLine, host, key, silent), time.Hour, []string{listed}, discardTime},
		"a list, silent between chunks":   {lines(listLine, host, key, chunked), 0, []string{listed}, discardTime},
		"a list, out of time":             {lines(listLine, host, key, "Content-Length: 10"), time.Second, []string{listed}, time.Second},
		"a list, waiting for 100":         {lines(listLine, host, key, "Content-Length: 10", expect), 0, []string{listed}, 0},
		"a list that is the same, silent": {lines(listLine, host, key, "Content-Length: 10", "If-None-Match: *"), 0, []string{"304 "}, discardTime},
	} {
		for writer, mount := range map[string]func(http.Handler) http.Handler{"": way{}.mount, ", wrapped": wrapped} {
			t.Run(name+writer, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					is := is.New(t)
					conn := serveInMemory(t, mount(New(testOptions(t, t.Output()))), func(s *http.Server) { s.ReadTimeout = c.readTimeout }).dial()
					defer conn.Close()
					start, sent := time.Now(), make(chan int, 1)
					go func() {
						n, _ := io.WriteString(conn, c.send)
						sent <- n
					}()
					from := bufio.NewReader(conn)
					for _, want := range c.want {
						res, err := http.ReadResponse(from, nil)
						is.NoErr(err)
						body, err := io.ReadAll(res.Body)
						is.NoErr(err)
						is.Equal(fmt.Sprint(res.StatusCode, " ", string(body)), want)
					}
					is.Equal(time.Since(start), c.took)
					rest, err := io.ReadAll(from)
					is.NoErr(err) // the server has closed the connection
					is.Equal(string(rest), "")
					is.True(time.Since(start) < c.took+time.Second) // and waits for no more
					taken := <-sent
					is.True(taken >= min(len(c.send), discardBytes))
					is.True(taken < discardBytes+1<<20)
				})
			})
		}
	}
}

// What ends the wait for a body that nobody wants is over before the handler returns,
// and is not done again, even if the list has had its body before it failed.
func TestBodyRestDeadlineIsSetBeforeTheReturn(t *testing.T) {
	for _, c := range []struct {
		method, path, key string
		status            int
	}{{"POST", "/v1/chat", "-", 401}, {"GET", "/v1/bots", "Bearer " + testKey, 500}} {
		synctest.Test(t, func(t *testing.T) {
			is := is.New(t)
			passed, begun, done := make(chan struct{}), 0, 0
			w := faulty("SetReadDeadline", 0, func() error {
				if begun++; begun == 1 {
					close(passed)
				}
				time.Sleep(time.Second)
				done++
				return nil
			})
			o := bots(t, func(context.Context) ([]Bot, error) { return nil, errBroken })
			body := faultyBody(func() error { <-passed; return os.ErrDeadlineExceeded })
			New(o).ServeHTTP(w, newRequest(c.method, c.path, body, "Authorization", c.key))
			is.Equal(w.Code, c.status)
			is.Equal(begun, 1)
			is.Equal(done, 1)
		})
	}
}

// On HTTP/2 a refusal need not wait for what the client still sends.
func TestBodyRestIsNotReadOnHTTP2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		client := way{http2: true}.serve(t, New(testOptions(t, io.Discard))).client()
		body, sending := io.Pipe()
		defer sending.Close()
		began := time.Now()
		res, err := client.Post("http://memory/v1/chat", "application/json", body)
		is.NoErr(err)
		defer res.Body.Close()
		is.Equal(res.StatusCode, 401)
		is.Equal(time.Since(began), time.Duration(0))
	})
}

// http.NewRequest gives a request without a body no Body, as hosts' tests do.
func TestBodyNil(t *testing.T) {
	for path, status := range map[string]int{"/v1/chat": 422, "/v1/nothing": 404, "/v1/bots": 405} {
		r := newRequest("POST", path, nil)
		r.Body = nil
		is.New(t).Equal(record(New(testOptions(t, io.Discard)), r).Code, status)
	}
}

// A hesitantReader returns nothing every other time.
type hesitantReader struct {
	from  io.Reader
	ready bool
}

func (r *hesitantReader) Read(p []byte) (int, error) {
	if r.ready = !r.ready; r.ready {
		return 0, nil
	}
	return r.from.Read(p)
}

// Middleware that unpacks a body leaves its announced length; and a reader may
// return nothing for once.
func TestBodyIsReadToItsEnd(t *testing.T) {
	is := is.New(t)
	body := `{"bot_slug":"echo","stream":false,"prompt":"` + strings.Repeat("x", 20<<10) + `"}`
	for _, length := range []int64{-1, 0, 10, bodyChunk, 16 << 10, int64(len(body)), int64(len(body)) + 1000} {
		r := newRequest("POST", "/v1/chat", &hesitantReader{from: strings.NewReader(body)})
		r.ContentLength = length
		got := record(New(testOptions(t, t.Output())), r)
		is.Equal(got.Code, 200)
		is.Equal(got.Body.Len(), len(`{"content":""}`)+20<<10)
	}
}

// A faultyBody is one of the host's middleware.
type faultyBody func() error

func (b faultyBody) Read([]byte) (int, error) { return 0, b() }

// Whatever the host's body does, its request alone suffers. Errors and panics may
// quote what was read: only those that are known are logged.
func TestBodyFails(t *testing.T) {
	for name, c := range map[string]struct {
		read   faultyBody
		status int // of a chat; 0: none, the connection is cut
		logged string
	}{
		"a panic":            {func() error { panic("Bearer " + testKey) }, 500, "panic while reading the request body: string"},
		"a panic's error":    {func() error { panic(textproto.ProtocolError(testKey)) }, 500, "panic while reading the request body: textproto.ProtocolError"},
		"an order to cut":    {func() error { panic(http.ErrAbortHandler) }, 0, ""},
		"an error":           {func() error { return fmt.Errorf("unpacking %q", testKey) }, 400, "reading the request body: *"},
		"an end too early":   {func() error { return io.ErrUnexpectedEOF }, 400, io.ErrUnexpectedEOF.Error()},
		"a deadline":         {func() error { return fmt.Errorf("unpacking: %w", os.ErrDeadlineExceeded) }, 408, "timeout"},
		"a bad trailer":      {func() error { return textproto.ProtocolError(testKey) }, 400, "body: malformed trailer"},
		"a limit of its own": {func() error { return &http.MaxBytesError{Limit: 10} }, 413, "http: request body too large"}, // the answer does not say whose limit it was
		"runtime.Goexit":     {func() error { runtime.Goexit(); return nil }, 0, ""},
	} {
		for _, request := range []struct {
			method, path string
			status       int
		}{{"POST", "/v1/chat", c.status}, {"PUT", "/v1/bots", 405}} {
			t.Run(name+", "+request.method, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					is := is.New(t)
					var log testLog
					w := faulty("", 0, nil)
					ended := make(chan any)
					go func() {
						defer func() { ended <- recover() }()
						New(testOptions(t, &log)).ServeHTTP(w, newRequest(request.method, request.path, c.read))
					}()
					escaped := <-ended
					set := len(w.read)
					time.Sleep(2 * discardTime)
					is.Equal(len(w.read), set) // nothing is left that would end the connection's next request
					is.True(!strings.Contains(log.String(), testKey))
					switch {
					case name == "runtime.Goexit":
					case request.status == 0:
						is.Equal(escaped, http.ErrAbortHandler)
					default:
						is.Equal(escaped, nil)
						is.Equal(w.Code, request.status)
						if request.method == "POST" && !strings.Contains(log.String(), c.logged) {
							t.Errorf("%q is not in %s", c.logged, log.String())
						}
					}
				})
			})
		}
	}
}

// A body that ends with its request is not what is wrong.
func TestBodyFailsWithItsRequest(t *testing.T) {
	for _, err := range []error{context.Canceled, context.DeadlineExceeded} {
		ctx, end := context.WithCancelCause(t.Context())
		end(errOverloaded)
		body := faultyBody(func() error { return fmt.Errorf("unpacking: %w", err) })
		got := record(New(testOptions(t, io.Discard)), newRequest("POST", "/v1/chat", body).WithContext(ctx))
		is.New(t).Equal(got.Code, errOverloaded.Status)
	}
}

// A host may serve the handler with a later protocol than net/http has. There, each
// deadline that passes ends a stream for good.
func TestDeadlinesOnHTTP3(t *testing.T) {
	for _, c := range []struct {
		method, path, body, key string
		status                  int
		reads                   bool // lifts the time to read the request in
	}{
		{"GET", "/v1/bots", "", testKey, 200, false},
		{"POST", "/v1/chat", chatBodyJSON("hi", false), testKey, 200, true},
		{"POST", "/v1/chat", chatBodyJSON("hi", true), testKey, 200, true},
		{"POST", "/v1/chat", chatBodyJSON("hi", true), "wrong", 401, false},
	} {
		is := is.New(t)
		r := newRequest(c.method, c.path, strings.NewReader(c.body), "Authorization", "Bearer "+c.key)
		r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/3.0", 3, 0
		w := faulty("", 0, nil)
		New(testOptions(t, t.Output())).ServeHTTP(w, r)
		is.Equal(w.Code, c.status)
		is.True(slices.ContainsFunc(w.write, func(at time.Time) bool { return !at.IsZero() }))
		is.True(w.write[len(w.write)-1].IsZero())
		is.Equal(len(w.read) > 0, c.reads)
	}
}
