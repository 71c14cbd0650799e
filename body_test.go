package botapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"

	"example.com/botapi/internal/readtext"
)

// A conversationWithABody is what a client sends on one connection, and what it gets.
type conversationWithABody struct {
	send        string
	readTimeout time.Duration // the server's
	want        []string      // the responses, after which the server closes the connection
	took        time.Duration // until the last response
}

// play also returns how many bytes the server has read: the connection is a pipe, which has no
// buffer.
func (c conversationWithABody) play(t *testing.T, h http.Handler) (read int) {
	t.Helper()
	is := is.New(t)
	is.Helper()
	conn := serveInMemory(t, h, func(s *http.Server) { s.ReadTimeout = c.readTimeout }).dial()
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
	closed := time.AfterFunc(time.Hour, func() { conn.Close() }) // otherwise, the test would hang
	rest, err := io.ReadAll(from)
	is.True(closed.Stop()) // the server has closed the connection
	is.NoErr(err)
	is.Equal(string(rest), "")
	is.True(time.Since(start) < c.took+time.Second) // without waiting for more
	return <-sent
}

// Many clients read nothing before they have sent everything: without reading what they
// send, the connection is reset, and the error response is lost. So the handler discards the
// body of a rejected request, up to a size and a time. A client that stops sending gets its
// response, whatever length it has announced. A list reads no body. On a writer that has only
// Unwrap, the response is sent when the handler returns.
func TestBodyIsDiscarded(t *testing.T) {
	const silent, chunked, expect = "Content-Length: 999999999", "Transfer-Encoding: chunked", "Expect: 100-continue"
	const post10 = "POST /v1/chat HTTP/1.0"
	noKey, tooLarge := `401 {"detail":"Not authenticated"}`, `413 {"detail":"Request body too large"}`
	notFound, notAllowed := `404 {"detail":"Not Found"}`, `405 {"detail":"Method Not Allowed"}`
	tooSlow := `408 {"detail":"Request body did not arrive in time"}`
	listed, last := "200 "+listedBots, lines(listLine, host, key, closing)
	long, most, tooMuch := strings.Repeat(" ", 7<<19), strings.Repeat("x", discardBytes), strings.Repeat(" ", 64<<20)
	length, more := fmt.Sprint("Content-Length: ", len(long)), fmt.Sprint("Content-Length: ", discardBytes+100<<10)
	chunks := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(long), long)
	for name, c := range map[string]conversationWithABody{
		"too large":                     {lines(chatLine, host, key, length) + long + last, 0, []string{tooLarge, listed}, 0},
		"too large, in chunks":          {lines(chatLine, host, key, chunked) + chunks + last, 0, []string{tooLarge, listed}, 0},
		"too large, and silent":         {lines(chatLine, host, key, chunked) + "100001\r\n" + long[:1<<20+1], time.Hour, []string{tooLarge}, discardTime},
		"too large, after 100 Continue": {lines(chatLine, host, key, expect, chunked) + chunks + last, 0, []string{"100 ", tooLarge, listed}, 0},
		"too large, on HTTP/1.0":        {lines(post10, key, expect, length) + long, 0, []string{tooLarge}, 0},
		"out of time":                   {lines(chatLine, host, key, "Content-Length: 100") + `{"bot`, 20 * time.Second, []string{tooSlow}, 20 * time.Second},
		"wrong path":                    {lines("POST /v1/chats HTTP/1.1", host, key, length) + long + last, 0, []string{notFound, listed}, 0},
		"wrong method":                  {lines("PUT /v1/bots HTTP/1.1", host, key, length) + long + last, 0, []string{notAllowed, listed}, 0},

		"without a key":                            {lines(chatLine, host, length) + long + last, 0, []string{noKey, listed}, 0},
		"without a key, in chunks":                 {lines(chatLine, host, chunked) + chunks + last, 0, []string{noKey, listed}, 0},
		"without a key, on HTTP/1.0":               {lines(post10, expect, length) + long, 0, []string{noKey}, 0},
		"without a key, and endless":               {lines(chatLine, host, silent) + tooMuch, 0, []string{noKey}, 0},
		"without a key, and silent":                {lines(chatLine, host, silent) + "x", 0, []string{noKey}, discardTime},
		"without a key, and out of time":           {lines(chatLine, host, silent) + "x", time.Second, []string{noKey}, discardTime}, // which replaces the server's ReadTimeout
		"without a key, silent after the maximum":  {lines(chatLine, host, more) + most, 0, []string{noKey}, 0},
		"without a key, silent far from the end":   {lines(chatLine, host, silent) + most, 0, []string{noKey}, 0},
		"without a key, silent before it closes":   {lines(chatLine, host, closing, more) + most, 0, []string{noKey}, 0},
		"without a key, silent on HTTP/1.0":        {lines(post10, more) + most, 0, []string{noKey}, 0},
		"without a key, silent between two chunks": {lines(chatLine, host, chunked) + fmt.Sprintf("%x\r\n%s\r\n", len(most), most), 0, []string{noKey}, 0},
		"without a key, silent within a chunk":     {lines(chatLine, host, chunked) + fmt.Sprintf("%x\r\n%s", len(most)+1, most), 0, []string{noKey}, 0},
		"without a key, silent until it may go on": {lines(chatLine, host, expect, "Content-Length: 100"), 0, []string{noKey}, 0},

		"a list":                                  {lines(listLine, host, key, "Content-Length: 2") + "{}" + last, 0, []string{listed}, 0},
		"a list, in chunks":                       {lines(listLine, host, key, chunked) + "2\r\n{}\r\n0\r\n\r\n" + last, 0, []string{listed}, 0},
		"a list, and silent":                      {lines(listLine, host, key, "Content-Length: 1"), 0, []string{listed}, 0},
		"a list, silent within a body":            {lines(listLine, host, key, silent) + long, time.Hour, []string{listed}, 0},
		"a list, silent between chunks":           {lines(listLine, host, key, chunked), 0, []string{listed}, 0},
		"a list, waiting for 100":                 {lines(listLine, host, key, "Content-Length: 10", expect), 0, []string{listed}, 0},
		"a list that has not changed, and silent": {lines(listLine, host, key, "Content-Length: 10", "If-None-Match: *"), 0, []string{"304 "}, 0},
	} {
		for writer, mount := range map[string]func(http.Handler) http.Handler{"": way{}.mount, ", wrapped": wrapped} {
			t.Run(name+writer, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					is := is.New(t)
					read := c.play(t, mount(New(testOptions(t, t.Output()))))
					is.True(strings.HasPrefix(name, "a list") || read >= min(len(c.send), discardBytes))
					is.True(read < discardBytes+1<<20)
				})
			})
		}
	}
}

// What a route reads of its body, and what it returns, is named by the query of its path.
func bodyRoute() Route {
	return routeTo(func(r *http.Request) (Response, error) {
		reads, returns, _ := strings.Cut(r.URL.RawQuery, ",")
		var err error
		switch reads {
		case "all":
			_, err = ReadBody(r)
		case "half":
			_, err = io.ReadFull(r.Body, make([]byte, 5))
		case "JSON":
			err = json.NewDecoder(r.Body).Decode(new(json.RawMessage))
		case "again":
			_, err = io.Copy(io.Discard, r.Body)
			if n, again := r.Body.Read(make([]byte, 10)); n != 0 || again == nil {
				err = errors.New("it goes on after its end")
			}
		}
		if err != nil {
			return nil, fmt.Errorf("reading: %w", err)
		}
		switch returns {
		case "error":
			return nil, errOverloaded
		case "reply":
			return Reply{Body: []byte("{}")}, nil
		}
		return echoChat("hi", returns == "stream"), nil
	})
}

// The body of a route is the handler's: bounded in size and time, whichever way the route
// reads it, and read or ended before the response.
func TestBodyOfARoute(t *testing.T) {
	const chunked, expect, hundred = "Transfer-Encoding: chunked", "Expect: 100-continue", "Content-Length: 100"
	const replied, echoed, streamed = `200 {}`, `200 {"content":"hi"}`, "200 data: {\"content\":\"hi\"}\n\ndata: [DONE]\n\n"
	const overloaded, tooLarge, tooSlow = `529 {"detail":"Overloaded"}`, `413 {"detail":"Request body too large"}`, `408 {"detail":"Request body did not arrive in time"}`
	post := func(query string, header ...string) string {
		return lines(append([]string{"POST " + routePath + "?" + query + " HTTP/1.1", host, key}, header...)...)
	}
	get := func(query string, header ...string) string {
		return strings.Replace(post(query, header...), "POST", "GET", 1)
	}
	last, full, half := lines(listLine, host, key, closing), strings.Repeat(" ", 100), strings.Repeat(" ", 50)
	long := strings.Repeat(" ", 1<<20+1)
	length, listed := fmt.Sprint("Content-Length: ", len(long)), "200 "+listedBots
	chunks := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(long), long)
	for name, c := range map[string]conversationWithABody{
		"announced, and never sent, before a reply":                  {get("none,reply", hundred), 0, []string{replied}, 0},
		"announced, and never sent, before a reply, in chunks":       {get("none,reply", chunked), 0, []string{replied}, 0},
		"announced, and never sent, before a chat":                   {get("none,chat", hundred), 0, []string{tooSlow}, discardTime},
		"announced, and never sent, before a stream":                 {get("none,stream", hundred), 0, []string{tooSlow}, discardTime},
		"announced, and never sent, before a stream, with a timeout": {get("none,stream", hundred), time.Second, []string{tooSlow}, discardTime}, // which replaces the server's
		"announced, and never sent, before an error":                 {get("none,error", hundred), 0, []string{overloaded}, discardTime},
		"waiting for 100, before a reply":                            {post("none,reply", hundred, expect), 0, []string{replied}, 0},
		"waiting for 100, before a stream":                           {post("none,stream", hundred, expect) + full + last, 0, []string{"100 ", streamed, listed}, 0},
		"waiting for 100, before a stream, and silent":               {post("none,stream", hundred, expect), 0, []string{"100 ", tooSlow}, discardTime},
		"not read, and much too large, before a chat":                {post("none,chat", "Content-Length: 5000000") + strings.Repeat(" ", 5_000_000) + last, 0, []string{tooLarge, listed}, 0},
		"not read, and cut short, before a chat":                     {post("none,chat", chunked) + "zz\r\n", 0, []string{`400 {"detail":"Request body could not be read"}`}, 0},
		"not read, before a reply":                                   {post("none,reply", hundred) + full + last, 0, []string{replied}, 0},
		"not read, before a chat":                                    {post("none,chat", hundred) + full + last, 0, []string{echoed, listed}, 0},
		"not read, before a stream, in chunks":                       {post("none,stream", chunked) + chunks + last, 0, []string{streamed, listed}, 0},
		"not read, and too large, before a chat":                     {post("none,chat", length) + long + last, 0, []string{echoed, listed}, 0},
		"half read, before a reply":                                  {post("half,reply", hundred) + full + last, 0, []string{replied}, 0},
		"half read, before a chat":                                   {post("half,chat", hundred) + full + last, 0, []string{echoed, listed}, 0},
		"half read, and then silent, before a reply":                 {post("half,reply", hundred) + half, 0, []string{replied}, 0},
		"half read, and then silent, before a stream":                {post("half,stream", hundred) + half, 0, []string{tooSlow}, discardTime},
		"half read, and then silent, before an error":                {post("half,error", hundred) + half, 0, []string{overloaded}, discardTime},
		"read as JSON":                           {post("JSON,reply", "Content-Length: 2") + "{}" + last, 0, []string{replied, listed}, 0},
		"read as JSON, and too large":            {post("JSON,reply", length) + long + last, 0, []string{tooLarge, listed}, 0},
		"read as JSON, and too large, in chunks": {post("JSON,chat", chunked) + chunks + last, 0, []string{tooLarge, listed}, 0},
		"read as JSON, and out of time":          {post("JSON,chat", hundred) + half, 20 * time.Second, []string{tooSlow}, 20 * time.Second},
		"read to its end":                        {post("all,reply", hundred) + full + last, 0, []string{replied, listed}, 0},
		"read to its end, and too large":         {post("all,reply", chunked) + chunks + last, 0, []string{tooLarge, listed}, 0},
		"read to its end, and out of time":       {post("all,chat", hundred) + half, 20 * time.Second, []string{tooSlow}, 20 * time.Second},
		"read after its end":                     {post("again,reply", hundred) + full + last, 0, []string{replied, listed}, 0},
		"read after its end, and too large":      {post("again,reply", length) + long + last, 0, []string{tooLarge, listed}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := testOptions(t, t.Output())
				o.Routes = []Route{bodyRoute()}
				c.play(t, New(o))
			})
		})
	}
}

// readsBefore is middleware that reads the body and puts it back.
func readsBefore(t *testing.T, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		is.New(t).NoErr(err)
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		next.ServeHTTP(w, r)
	})
}

// Middleware may have read the body and put it back: net/http, which has seen its end, waits
// for a disconnect, whether or not the route reads to the end of what was put back.
func TestBodyOfARouteThatMiddlewareHasRead(t *testing.T) {
	for _, reads := range []string{"none", "half", "all"} {
		for _, returns := range []string{"chat", "stream"} {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				o := testOptions(t, t.Output())
				o.Routes = []Route{bodyRoute()}
				o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
					select {
					case <-ctx.Done():
					case <-time.After(2 * discardTime):
						yield("late", nil)
					}
				})
				conn := serveInMemory(t, readsBefore(t, New(o))).dial()
				defer conn.Close()
				_, err := io.WriteString(conn, lines("POST "+routePath+"?"+reads+","+returns+" HTTP/1.1", host, key, "Content-Length: 100")+strings.Repeat(" ", 100))
				is.NoErr(err)
				res, err := http.ReadResponse(bufio.NewReader(conn), nil)
				is.NoErr(err)
				body, err := io.ReadAll(res.Body)
				is.NoErr(err)
				is.True(strings.Contains(string(body), `"late"`))
			})
		}
	}
}

// A request that is rejected leaves no deadline behind, if middleware has read its body and put
// it back: it would cancel the next request of the connection.
func TestRejectedBodyThatMiddlewareHasRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		o := testOptions(t, t.Output())
		o.OnRequest = func(context.Context, RequestReport) { time.Sleep(2 * discardTime) }
		h := New(o)
		conn := serveInMemory(t, readsBefore(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.ServeHTTP(w, r)
			is.NoErr(r.Context().Err())
		}))).dial()
		defer conn.Close()
		from := bufio.NewReader(conn)
		for _, c := range []struct{ key, want string }{{"Accept: */*", "401"}, {key, "200"}} {
			_, err := io.WriteString(conn, lines(chatLine, host, c.key, "Content-Length: "+strconv.Itoa(len(echoBody)))+echoBody)
			is.NoErr(err)
			res, err := http.ReadResponse(from, nil)
			is.NoErr(err)
			_, err = io.Copy(io.Discard, res.Body)
			is.NoErr(err)
			is.Equal(strconv.Itoa(res.StatusCode), c.want)
			time.Sleep(3 * discardTime)
		}
	})
}

// A client that disconnects is noticed, although its route has read nothing of its body.
func TestBodyOfARouteWhoseClientDisconnects(t *testing.T) {
	for _, reads := range []string{"none", "half", "all"} {
		synctest.Test(t, func(t *testing.T) {
			is := is.New(t)
			reports := make(chan ChatReport, 1)
			o := testOptions(t, t.Output())
			o.Engine, o.Routes = engineEnd(untilDone).engine(), []Route{bodyRoute()}
			o.OnChat = func(_ context.Context, r ChatReport) { reports <- r }
			conn := serveInMemory(t, New(o)).dial()
			_, err := io.WriteString(conn, lines("POST "+routePath+"?"+reads+",chat HTTP/1.1", host, key, "Content-Length: 48")+echoBody)
			is.NoErr(err)
			synctest.Wait()
			is.NoErr(conn.Close())
			report := <-reports
			is.True(errors.Is(report.Err, ErrClientLeft))
			is.Equal(report.Duration, time.Duration(0))
		})
	}
}

// On HTTP/2, where a disconnect is noticed at any time, the response need not wait for the
// body.
func TestBodyIsNotAwaitedOnHTTP2(t *testing.T) {
	const ofRoute = routePath + "?none,"
	for path, status := range map[string]int{
		ofRoute + "reply": 200, ofRoute + "chat": 200, ofRoute + "stream": 200, ofRoute + "error": 529, "/v1/chats": 404,
	} {
		synctest.Test(t, func(t *testing.T) {
			is := is.New(t)
			o := testOptions(t, t.Output())
			o.Routes = []Route{bodyRoute()}
			client := way{http2: true}.serve(t, New(o)).client()
			body, sending := io.Pipe()
			defer sending.Close()
			began := time.Now()
			r, err := http.NewRequest("POST", "http://memory"+path, body)
			is.NoErr(err)
			setHeader(r, nil)
			res, err := client.Do(r)
			is.NoErr(err)
			defer res.Body.Close()
			text, err := io.ReadAll(res.Body)
			is.NoErr(err)
			is.True(len(text) > 0)
			is.Equal(res.StatusCode, status)
			is.Equal(time.Since(began), time.Duration(0))
		})
	}
}

// A client that disconnects in the middle of its body is not logged, whichever way it
// disconnects and whoever reads the body. If it has only closed its half of the connection,
// it gets a response.
func TestBodyWhoseClientDisconnects(t *testing.T) {
	var log testLog
	begun, reports := make(chan struct{}, 1), make(chan RequestReport, 1)
	o := testOptions(t, &log)
	o.Routes = []Route{bodyRoute()}
	keys := o.Keys
	o.Keys = KeyVerifierFunc(func(ctx context.Context, key string) (string, error) {
		begun <- struct{}{}
		return keys.VerifyKey(ctx, key)
	})
	o.OnRequest = func(_ context.Context, r RequestReport) { reports <- r }
	server := serveLogged(New(o), &log)
	defer server.Close()
	for _, path := range []string{"/v1/chat?", routePath + "?all,chat", routePath + "?JSON,chat", routePath + "?none,chat"} {
		for _, length := range []string{"Content-Length: 100", "Transfer-Encoding: chunked"} {
			for name, disconnect := range map[string]func(*net.TCPConn) error{
				"closes its half": (*net.TCPConn).CloseWrite,
				"closes":          (*net.TCPConn).Close,
				"resets":          func(c *net.TCPConn) error { return errors.Join(c.SetLinger(0), c.Close()) },
			} {
				t.Run(path+", "+length+", "+name, func(t *testing.T) {
					is := is.New(t)
					conn := dialTCP(t, server)
					_, err := io.WriteString(conn, lines("POST "+path+" HTTP/1.1", host, key, length)+"30\r\n"+`{"bot_slug":"echo",`)
					is.NoErr(err)
					received(t, begun, "the request to begin")
					is.NoErr(disconnect(conn))
					report := received(t, reports, "the request to end")
					is.Equal(report.Chat, nil)
					is.True(report.Err != nil)
					is.Equal(log.String(), "")
					if name == "closes its half" {
						res, err := http.ReadResponse(bufio.NewReader(conn), nil)
						is.NoErr(err)
						is.Equal(res.StatusCode, 400)
					}
				})
			}
		}
	}
}

func TestBodyWhoseClientDisconnectsOnHTTP2(t *testing.T) {
	for _, path := range []string{"/v1/chat", routePath + "?all,chat", routePath + "?JSON,chat"} {
		synctest.Test(t, func(t *testing.T) {
			is := is.New(t)
			var log testLog
			reports := make(chan RequestReport, 1)
			o := testOptions(t, &log)
			o.Routes = []Route{bodyRoute()}
			o.OnRequest = func(_ context.Context, r RequestReport) { reports <- r }
			client := way{http2: true}.serve(t, New(o)).client()
			body, sending := io.Pipe()
			ctx, disconnect := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, disconnect)
			r, err := http.NewRequestWithContext(ctx, "POST", "http://memory"+path, body)
			is.NoErr(err)
			setHeader(r, nil)
			go func() { _, _ = io.WriteString(sending, `{"bot_slug":"echo",`) }()
			_, err = client.Do(r)
			is.True(err != nil)
			report := <-reports
			is.True(errors.Is(report.Err, ErrClientLeft))
			is.Equal(report.Status, 0)
			is.Equal(log.String(), "")
		})
	}
}

// A list whose request has a body may take any time: no deadline for the body cancels its
// context. The connection is closed after the response, so that nothing of the body is read
// as a request.
func TestBodyOfSlowList(t *testing.T) {
	for name, rest := range map[string]string{
		"read to its end by net/http":  lines("Content-Length: 2") + "{}",
		"announced, and never sent":    lines("Content-Length: 2"),
		"in chunks, without a request": lines("Transfer-Encoding: chunked") + "2\r\n{}\r\n0\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const took = discardTime + time.Second
				o := bots(t, func(ctx context.Context) ([]Bot, error) {
					time.Sleep(took)
					return nil, ctx.Err()
				})
				head := strings.TrimSuffix(lines(listLine, host, key), "\r\n")
				conversationWithABody{send: head + rest + lines(listLine, host, key), want: []string{"200 []"}, took: took}.play(t, New(o))
			})
		})
	}
}

// A connection that is aborted is closed immediately: net/http does not wait for a body that
// the client has announced.
func TestBodyOfAbortedRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		o := testOptions(t, t.Output())
		o.Keys = KeyVerifierFunc(func(context.Context, string) (string, error) { return "", http.ErrAbortHandler })
		conn := serveInMemory(t, New(o)).dial()
		defer conn.Close()
		began := time.Now()
		_, err := io.WriteString(conn, lines(chatLine, host, key, "Content-Length: 100"))
		is.NoErr(err)
		rest, err := io.ReadAll(conn)
		is.NoErr(err)
		is.Equal(len(rest), 0)
		is.Equal(time.Since(began), time.Duration(0))
	})
}

// http.NewRequest, as the tests of applications use it, leaves Body nil if there is no body;
// middleware that has read one may do so, too.
func TestBodyNil(t *testing.T) {
	o := testOptions(t, io.Discard)
	o.Routes = []Route{bodyRoute()}
	for path, status := range map[string]int{"/v1/chat": 422, "/v1/nothing": 404, "/v1/bots": 405, routePath + "?none,chat": 200, routePath + "?all,chat": 200} {
		r := newRequest("POST", path, nil)
		r.Body, r.ContentLength = nil, 100
		is.New(t).Equal(record(New(o), r).Code, status)
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

// Middleware that decompresses a body does not change Content-Length, and a Read may
// return nothing.
func TestBodyIsReadToItsEnd(t *testing.T) {
	is := is.New(t)
	body := `{"bot_slug":"echo","stream":false,"prompt":"` + strings.Repeat("x", 20<<10) + `"}`
	for _, length := range []int64{-1, 0, 10, readtext.ChunkBytes, 16 << 10, int64(len(body)), int64(len(body)) + 1000} {
		r := newRequest("POST", "/v1/chat", &hesitantReader{from: strings.NewReader(body)})
		r.ContentLength = length
		got := record(New(testOptions(t, t.Output())), r)
		is.Equal(got.Code, 200)
		is.Equal(got.Body.Len(), len(`{"content":""}`)+20<<10)
	}
}

// A faultyBody is a body of the application's middleware.
type faultyBody func() error

func (b faultyBody) Read([]byte) (int, error) { return 0, b() }

// A body that fails affects only its own request. Errors and panics may quote what was
// read: of an unknown error or panic, only the type is logged.
func TestBodyFails(t *testing.T) {
	for name, c := range map[string]struct {
		read   faultyBody
		status int // of a chat; 0: none, the connection is aborted
		logged string
	}{
		"a panic":            {func() error { panic("Bearer " + testKey) }, 500, "panic while reading the request body: string"},
		"a panic's error":    {func() error { panic(textproto.ProtocolError(testKey)) }, 500, "panic while reading the request body: textproto.ProtocolError"},
		"an abort":           {func() error { panic(http.ErrAbortHandler) }, 0, ""},
		"an error":           {func() error { return fmt.Errorf("unpacking %q", testKey) }, 400, "reading the request body: *"},
		"an end too early":   {func() error { return io.ErrUnexpectedEOF }, 400, ""},
		"a deadline":         {func() error { return fmt.Errorf("unpacking: %w", os.ErrDeadlineExceeded) }, 408, "timeout"},
		"a bad trailer":      {func() error { return textproto.ProtocolError(testKey) }, 400, "body: malformed trailer"},
		"a limit of its own": {func() error { return &http.MaxBytesError{Limit: 10} }, 413, "http: request body too large"}, // the response does not say whose limit it was
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
					is.Equal(len(w.read), set) // no timer of ours can end the connection's next request
					is.True(!strings.Contains(log.String(), testKey))
					switch {
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

// If reading the body fails because the application has cancelled the request, the cause
// decides the response.
func TestBodyFailsWithItsRequest(t *testing.T) {
	for _, err := range []error{context.Canceled, context.DeadlineExceeded} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errOverloaded)
		body := faultyBody(func() error { return fmt.Errorf("unpacking: %w", err) })
		got := record(New(testOptions(t, io.Discard)), newRequest("POST", "/v1/chat", body).WithContext(ctx))
		is.New(t).Equal(got.Code, errOverloaded.Status)
	}
}

// An application may serve the handler with a later protocol than net/http has. There, a
// deadline that passes ends the stream, as on HTTP/2.
func TestDeadlinesOnHTTP3(t *testing.T) {
	for _, c := range []struct {
		method, path, body, key string
		status                  int
		reads                   bool // the read deadline is cleared
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
