package responsewriter_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/matryer/is"

	"example.com/botapi/internal/responsewriter"
)

// A wrapper hides what the writer can do, as the writers of middleware do.
type wrapper struct{ http.ResponseWriter }

func (w wrapper) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// The client gets the response before it has sent anything of the body that it announced,
// and the connection is closed once it has.
func TestCloseAfterResponse(t *testing.T) {
	for name, wrap := range map[string]func(http.ResponseWriter) http.ResponseWriter{
		"the server's own writer": func(w http.ResponseWriter) http.ResponseWriter { return w },
		"a wrapper":               func(w http.ResponseWriter) http.ResponseWriter { return wrapper{w} },
		"three wrappers":          func(w http.ResponseWriter) http.ResponseWriter { return wrapper{wrapper{wrapper{w}}} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // net/http waits half a second before it closes a connection
			is := is.New(t)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				responsewriter.CloseAfterResponse(wrap(w))
				_, _ = io.WriteString(w, "done")
			}))
			defer server.Close()
			client, err := net.Dial("tcp", server.Listener.Addr().String())
			is.NoErr(err)
			defer client.Close()
			is.NoErr(client.SetDeadline(time.Now().Add(20 * time.Second))) // so that a defect does not hang the test

			_, err = io.WriteString(client, "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 4\r\n\r\n")
			is.NoErr(err)
			reader := bufio.NewReader(client)
			res, err := http.ReadResponse(reader, nil)
			is.NoErr(err)
			is.True(res.Close)
			body, err := io.ReadAll(res.Body)
			is.NoErr(err)
			is.Equal(string(body), "done")
			_, err = io.WriteString(client, "body")
			is.NoErr(err)
			_, err = reader.ReadByte()
			is.Equal(err, io.EOF)
		})
	}
}

// A writer that is not net/http's is left as it is.
func TestCloseAfterResponseOfAnotherWriter(t *testing.T) {
	is := is.New(t)
	recorder := httptest.NewRecorder()
	responsewriter.CloseAfterResponse(recorder)
	responsewriter.CloseAfterResponse(wrapper{recorder})
	is.Equal(len(recorder.Header()), 0)
	is.Equal(recorder.Body.Len(), 0)
	is.True(!recorder.Flushed)
	recorder.WriteHeader(http.StatusTeapot) // no status was sent before
	is.Equal(recorder.Code, http.StatusTeapot)
}

type plainWriter struct{ http.ResponseWriter }

type flushWriter struct {
	http.ResponseWriter
	flushes *int
}

func (w flushWriter) Flush() { *w.flushes++ }

type flushErrorWriter struct {
	http.ResponseWriter
	flushes *int
	err     error
}

func (w flushErrorWriter) FlushError() error { *w.flushes++; return w.err }

// bothWriter has both methods, as net/http's own writer has.
type bothWriter struct{ flushErrorWriter }

func (w bothWriter) Flush() { *w.flushes += 100 }

func TestFlushOutermost(t *testing.T) {
	errBroken := errors.New("broken")
	var flushes int
	for name, c := range map[string]struct {
		w       http.ResponseWriter
		flushes int
		flushed bool
		err     error
	}{
		"no method":                   {plainWriter{}, 0, false, nil},
		"Flush":                       {flushWriter{flushes: &flushes}, 1, true, nil},
		"FlushError":                  {flushErrorWriter{flushes: &flushes}, 1, true, nil},
		"FlushError fails":            {flushErrorWriter{flushes: &flushes, err: errBroken}, 1, false, errBroken},
		"both":                        {bothWriter{flushErrorWriter{flushes: &flushes}}, 1, true, nil},
		"both, and FlushError fails":  {bothWriter{flushErrorWriter{flushes: &flushes, err: errBroken}}, 1, false, errBroken},
		"Flush only behind Unwrap":    {wrapper{flushWriter{flushes: &flushes}}, 0, false, nil},
		"FlushError behind an Unwrap": {wrapper{flushErrorWriter{flushes: &flushes}}, 0, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			flushes = 0
			flushed, err := responsewriter.FlushOutermost(c.w)
			is.Equal(flushed, c.flushed)
			is.Equal(err, c.err)
			is.Equal(flushes, c.flushes)
		})
	}
}
