package openai_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/openai"
	"github.com/matryer/is"
)

func TestChunksPassImmediately(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprint("HTTP/2 ", http2), func(t *testing.T) {
			is := is.New(t)
			next := make(chan string, 1)
			server := httptest.NewUnstartedServer(handlerFor(t, botapi.CallbackEngine(func(_ context.Context, _ *botapi.ChatRequest, emit func(string) error) error {
				for text := range next {
					if err := emit(text); err != nil {
						return err
					}
				}
				return errors.New("it fails")
			})))
			server.EnableHTTP2 = http2
			server.StartTLS()
			defer server.Close()
			next <- "word"
			r, _ := http.NewRequestWithContext(t.Context(), "POST", server.URL+"/v1/chat/completions", strings.NewReader(askStream))
			r.Header.Set("Authorization", "Bearer key")
			response, err := server.Client().Do(r)
			is.NoErr(err)
			defer response.Body.Close()
			is.Equal(response.ProtoMajor == 2, http2)
			lines := bufio.NewReader(response.Body)
			for range 5 {
				line, err := lines.ReadString('\n')
				is.NoErr(err)
				is.True(strings.Contains(line, `"content":"word"`))
				_, _ = lines.ReadString('\n')
				next <- "word" // the client has read the one before
			}
			close(next)
			rest, err := io.ReadAll(lines)
			is.True(err != nil) // aborted
			is.True(bytes.HasSuffix(rest, []byte(`data: {"error":{"message":"Internal Server Error","type":"server_error","param":null,"code":null}}`+"\n\n")))
		})
	}
}

// record calls a handler without a server, so that synctest controls the time.
func record(t *testing.T, h http.Handler, body string) (recorder *httptest.ResponseRecorder, panicked any) {
	r := httptest.NewRequestWithContext(t.Context(), "POST", "/v1/chat/completions", strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer key")
	recorder = httptest.NewRecorder()
	defer func() { panicked = recover() }()
	h.ServeHTTP(recorder, r)
	return recorder, nil
}

func TestKeepAliveIsPassedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		slow := botapi.CallbackEngine(func(_ context.Context, _ *botapi.ChatRequest, emit func(string) error) error {
			time.Sleep(25 * time.Second)
			_ = emit("Hi")
			time.Sleep(15 * time.Second)
			return nil
		})
		recorder, panicked := record(t, handlerFor(t, slow, func(o *botapi.Options) { o.KeepAlive = 10 * time.Second }), askStream)
		is.Equal(panicked, nil)
		body := recorder.Body.String()
		is.True(strings.HasPrefix(body, ": keep-alive\n: keep-alive\ndata: {")) // without a blank line
		is.Equal(strings.Count(body, "keep-alive\n"), 3)
		text, _ := textOfChunks(t, body)
		is.Equal(text, "Hi")
	})
}

func TestAbortPassesThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a stream is aborted after a pause
		is := is.New(t)
		_, panicked := record(t, handlerFor(t, speaks(errors.New("it fails"), "Hi")), askStream)
		is.Equal(panicked, http.ErrAbortHandler)
	})
}

func TestWriterThatCannotFlush(t *testing.T) {
	for name, wrap := range map[string]func(http.Handler) http.Handler{
		"outside": func(h http.Handler) http.Handler {
			return http.TimeoutHandler(openai.NewHandler(h, openai.HandlerOptions{}), time.Minute, "")
		},
		"inside": func(h http.Handler) http.Handler {
			return openai.NewHandler(http.TimeoutHandler(h, time.Minute, ""), openai.HandlerOptions{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			server := httptest.NewServer(wrap(handlerFor(t, speaks(nil, "Hi"))))
			defer server.Close()
			_, answer, err := complete(t, server.URL, askStream)
			is.NoErr(err)
			text, events := textOfChunks(t, answer)
			is.Equal(text, "Hi")
			is.Equal(events[len(events)-1], "[DONE]")
			response, answer, err := complete(t, server.URL, ask)
			is.NoErr(err)
			is.True(strings.Contains(answer, `"content":"Hi","refusal":null}`))
			is.Equal(response.StatusCode, http.StatusOK)
			response, answer, err = complete(t, server.URL, `{}`)
			is.NoErr(err)
			is.True(strings.HasPrefix(answer, `{"error":{`))
			is.Equal(response.StatusCode, http.StatusBadRequest)
		})
	}
}

// A plainWriter wraps a ResponseWriter as middleware often does: only Unwrap gives
// access to deadlines.
type plainWriter struct{ http.ResponseWriter }

func (w plainWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func TestClientThatStopsReading(t *testing.T) {
	for name, body := range map[string]string{"stream": askStream, "JSON response": ask} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			reports := make(chan error, 1)
			h := handlerFor(t, speaks(nil, strings.Repeat("x", 32<<20)), reportsTo(reports), func(o *botapi.Options) { o.WriteTimeout = 50 * time.Millisecond })
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(plainWriter{w}, r) }))
			defer server.Close()
			conn, err := net.Dial("tcp", server.Listener.Addr().String())
			is.NoErr(err)
			defer conn.Close()
			fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: bots\r\nAuthorization: Bearer key\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			is.True(errors.Is(<-reports, botapi.ErrClientStalled)) // the client never reads
		})
	}
}

func TestClientThatDisconnects(t *testing.T) {
	for name, c := range map[string]struct {
		body  string
		begun bool
	}{
		"a stream":                       {askStream, true},
		"a stream before its first text": {askStream, false},
		"a JSON response":                {ask, true},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			asked, causes := make(chan bool), make(chan error, 1)
			url := serveHandler(t, botapi.CallbackEngine(func(ctx context.Context, _ *botapi.ChatRequest, emit func(string) error) error {
				if c.begun {
					_ = emit("Once upon")
				}
				asked <- true
				<-ctx.Done()
				causes <- context.Cause(ctx)
				return nil
			}))
			ctx, disconnect := context.WithCancel(t.Context())
			disconnected := make(chan bool)
			go func() {
				defer close(disconnected)
				r, _ := http.NewRequestWithContext(ctx, "POST", url+"/v1/chat/completions", strings.NewReader(c.body))
				r.Header.Set("Authorization", "Bearer key")
				if response, err := http.DefaultClient.Do(r); err == nil {
					_, _ = io.Copy(io.Discard, response.Body)
					response.Body.Close()
				}
			}()
			<-asked
			disconnect()
			is.True(errors.Is(<-causes, botapi.ErrClientLeft))
			<-disconnected
		})
	}
}

// A sizeRecorder records the sizes of writes.
type sizeRecorder struct {
	http.ResponseWriter
	sizes []int
}

func (w *sizeRecorder) Write(p []byte) (int, error) {
	w.sizes = append(w.sizes, len(p))
	return w.ResponseWriter.Write(p)
}

func (w *sizeRecorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// writing stands in for the API: it sends each string in one write.
func writing(kind string, status int, writes ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(status)
		for _, s := range writes {
			if _, err := io.WriteString(w, s); err != nil {
				panic(err)
			}
		}
	})
}

func TestLargeWritesAreKept(t *testing.T) {
	is := is.New(t)
	const event = `data: {"content":"word "}` + "\n\n"
	burst := strings.Repeat(event, (16<<10)/len(event)) // what a fast stream sends in one write
	w := &sizeRecorder{ResponseWriter: httptest.NewRecorder()}
	openai.NewHandler(writing("text/event-stream", 200, burst, event, burst), openai.HandlerOptions{}).
		ServeHTTP(w, httptest.NewRequest("POST", "/v1/chat/completions", nil))
	is.Equal(len(w.sizes), 3)
	text := len("word ") * ((16 << 10) / len(event))
	for i, size := range w.sizes {
		if i != 1 {
			is.True(size > text && size < text+300) // one chunk for all events
		}
	}
}

// A writer between the API and the handler may split events anywhere.
func TestSplitEvents(t *testing.T) {
	is := is.New(t)
	const stream = "data: {\"content\":\"a\\\"\"}\n\n: keep-alive\ndata: {\"content\":\"b\"}\n\ndata: [DONE]\n\n"
	for size := 1; size <= len(stream); size++ {
		var pieces []string
		for rest := stream; rest != ""; {
			n := min(size, len(rest))
			pieces, rest = append(pieces, rest[:n]), rest[n:]
		}
		recorder := httptest.NewRecorder()
		openai.NewHandler(writing("text/event-stream", 200, pieces...), openai.HandlerOptions{}).
			ServeHTTP(recorder, httptest.NewRequest("POST", "/v1/chat/completions", nil))
		text, events := textOfChunks(t, recorder.Body.String())
		is.Equal(text, `a"b`)
		is.Equal(events[len(events)-1], "[DONE]")
	}
	const response = `{"content":"a\"b"}`
	for size := 1; size <= len(response); size++ {
		var pieces []string
		for rest := response; rest != ""; {
			n := min(size, len(rest))
			pieces, rest = append(pieces, rest[:n]), rest[n:]
		}
		recorder := httptest.NewRecorder()
		openai.NewHandler(writing("application/json", 200, pieces...), openai.HandlerOptions{}).
			ServeHTTP(recorder, httptest.NewRequest("POST", "/v1/chat/completions", nil))
		is.True(strings.Contains(recorder.Body.String(), `"content":"a\"b","refusal":null}`))
	}
}

func TestBuffersAreBounded(t *testing.T) {
	is := is.New(t)
	// A line that never ends is not botapi's format.
	endless := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		sent, err := 0, error(nil)
		for ; err == nil; sent += 1 << 10 {
			_, err = w.Write(bytes.Repeat([]byte("x"), 1<<10))
		}
		is.True(sent <= 128<<10)
	})
	openai.NewHandler(endless, openai.HandlerOptions{}).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "/v1/chat/completions", nil))

	// 64 KiB of an error are kept: the client gets only its first problem.
	problem := `{"loc":["body","messages",7,"role"],"msg":"field required","type":"value_error.missing"},`
	problems := []byte(strings.Repeat(problem, 1000))
	huge := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnprocessableEntity)
		_, _ = io.WriteString(w, `{"detail":[`)
		for range 100 {
			_, _ = w.Write(problems)
		}
	})
	recorder := httptest.NewRecorder()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	openai.NewHandler(huge, openai.HandlerOptions{}).ServeHTTP(recorder, httptest.NewRequest("POST", "/v1/chat/completions", nil))
	runtime.ReadMemStats(&after)
	is.True(after.TotalAlloc-before.TotalAlloc < 1<<20) // of 9 MB
	is.Equal(recorder.Code, http.StatusBadRequest)
	is.Equal(recorder.Body.String(), `{"error":{"message":"messages[7].role: field required","type":"invalid_request_error","param":"messages[7].role","code":"missing_required_parameter"}}`)
}

// The body is read only after the key has been verified.
func TestBodyIsReadAfterTheKey(t *testing.T) {
	is := is.New(t)
	h := handlerFor(t, speaks(nil))
	for header, want := range map[string]int{"": http.StatusUnauthorized, "Bearer x": http.StatusUnauthorized, "Bearer key": http.StatusRequestEntityTooLarge} {
		r := httptest.NewRequest("POST", "/v1/chat/completions", io.LimitReader(endlessBody{}, 1<<30))
		r.Header.Set("Authorization", header)
		recorder := httptest.NewRecorder()
		h.ServeHTTP(recorder, r)
		is.Equal(recorder.Code, want)
	}
}

type endlessBody struct{}

func (endlessBody) Read(p []byte) (int, error) { return len(p), nil }
