package openai_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"example.com/botapi"
	"github.com/matryer/is"
)

func TestChunksPassImmediately(t *testing.T) {
	t.Parallel()
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
			response, err := server.Client().Do(newRequest(t, t.Context(), "POST", server.URL+"/v1/chat/completions", askStream))
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
			is.True(bytes.HasSuffix(rest, []byte(`data: {"error":{"message":"Internal Server Error","type":"server_error","param":null,"code":"server_error"}}`+"\n\n")))
		})
	}
}

// A writesRecorder also counts the writes.
type writesRecorder struct {
	*httptest.ResponseRecorder
	writes int
}

func (w *writesRecorder) Write(p []byte) (int, error) {
	w.writes++
	return w.ResponseRecorder.Write(p)
}

// record calls a handler without a server, so that synctest controls the time.
func record(h http.Handler, path, body string) *writesRecorder {
	r := httptest.NewRequest("POST", path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer key")
	w := &writesRecorder{ResponseRecorder: httptest.NewRecorder()}
	h.ServeHTTP(w, r)
	return w
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
		h := handlerFor(t, slow, func(o *botapi.Options) { o.KeepAlive = 10 * time.Second })
		body := record(h, "/v1/chat/completions", askStream).Body.String()
		is.True(strings.HasPrefix(body, ": keep-alive\n: keep-alive\ndata: {")) // without a blank line
		is.Equal(strings.Count(body, "keep-alive\n"), 3)
		text, _ := textOfChunks(t, body)
		is.Equal(text, "Hi")
	})
}

func TestClientThatDisconnects(t *testing.T) {
	const completions, responses = "/v1/chat/completions", "/v1/responses"
	for name, c := range map[string]struct {
		path, body string
		begun      bool
	}{
		"a stream":                       {completions, askStream, true},
		"a stream before its first text": {completions, askStream, false},
		"a JSON response":                {completions, ask, true},
		"a streamed response":            {responses, respondStream, true},
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
				if response, err := http.DefaultClient.Do(newRequest(t, ctx, "POST", url+c.path, c.body)); err == nil {
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

// Fragments that are ready together are few events, in few writes.
func TestFragmentsAreJoined(t *testing.T) {
	for path, c := range map[string]struct {
		body, event string
		fixed       int // events that are not of a text
	}{
		"/v1/chat/completions": {askStream, "data: ", 2},
		"/v1/responses":        {respondStream, "event: ", 8},
	} {
		t.Run(path, func(t *testing.T) {
			is := is.New(t)
			const fragments = 5000
			w := record(handlerFor(t, speaks(nil, slices.Repeat([]string{"word "}, fragments)...)), path, c.body)
			body := w.Body.String()
			texts := strings.Count(body, c.event) - c.fixed
			is.True(texts < fragments/10)
			is.True(w.writes < fragments/10)
			text := ""
			if path == "/v1/responses" {
				text, _, _ = eventsOfResponse(t, body)
			} else {
				text, _ = textOfChunks(t, body)
			}
			is.Equal(text, strings.Repeat("word ", fragments))
		})
	}
}

// A body takes about three times its bytes before its chat has a slot, whatever is in it.
func TestMemoryOfBodies(t *testing.T) {
	const size = 1 << 20
	fill := func(before, repeated, after string) string {
		return before + strings.Repeat(repeated, (size-len(before)-len(after))/len(repeated)) + after
	}
	for name, c := range map[string]struct {
		path, body string
		status     int
	}{
		"no messages":      {"/v1/chat/completions", fill(`{"model":"helper","messages":[`, `1,`, `1]}`), 400},
		"empty messages":   {"/v1/chat/completions", fill(`{"model":"helper","messages":[`, `{"":1},`, `{}]}`), 400},
		"short messages":   {"/v1/chat/completions", fill(`{"model":"helper","messages":[`, `{"role":"user","content":""},`, `{"role":"user","content":""}]}`), 429},
		"short parts":      {"/v1/chat/completions", fill(`{"model":"helper","messages":[{"role":"user","content":[`, `{"type":"text","text":""},`, `{"type":"text","text":""}]}]}`), 429},
		"an escaped text":  {"/v1/chat/completions", fill(`{"model":"helper","messages":[{"role":"user","content":"`, `\n`, `"}]}`), 429},
		"many fields":      {"/v1/chat/completions", fill(ask[:len(ask)-1], `,"":1`, `}`), 429},
		"many tools":       {"/v1/chat/completions", fill(ask[:len(ask)-1]+`,"tools":[`, `{},`, `1]}`), 400},
		"no items":         {"/v1/responses", fill(`{"model":"helper","input":[`, `1,`, `1]}`), 400},
		"many metadata":    {"/v1/responses", fill(respond[:len(respond)-1]+`,"metadata":{`, `"":"",`, `"":""}}`), 429},
		"an escaped input": {"/v1/responses", fill(`{"model":"helper","input":"`, `\n`, `"}`), 429},
		"instructions":     {"/v1/responses", fill(`{"model":"helper","input":"a","instructions":"`, `\n`, `"}`), 429},
		"a schema":         {"/v1/responses", fill(respond[:len(respond)-1]+`,"text":{"format":{"type":"json_schema","schema":{"a":[`, `1,`, `1]}}}}`), 400},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			held := make(chan bool)
			started := make(chan bool)
			h := handlerFor(t, botapi.CallbackEngine(func(context.Context, *botapi.ChatRequest, func(string) error) error {
				started <- true
				<-held
				return nil
			}), quietOptions, func(o *botapi.Options) { o.MaxBodyBytes, o.MaxChatsPerAccount = 2<<20, 1 })
			ended := make(chan bool)
			go func() {
				defer close(ended)
				record(h, "/v1/chat/completions", ask)
			}()
			<-started
			var before, after runtime.MemStats
			is.Equal(record(h, c.path, c.body).Code, c.status)
			runtime.ReadMemStats(&before)
			record(h, c.path, c.body)
			runtime.ReadMemStats(&after)
			took := float64(after.TotalAlloc-before.TotalAlloc) / size
			if took > 9 { // all that was allocated, with what was garbage soon
				t.Errorf("allocates %.1f times the body", took)
			}
			close(held)
			<-ended
		})
	}
}

func quietOptions(o *botapi.Options) { o.Logger = slog.New(slog.DiscardHandler) }
