package aisdk_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"example.com/botapi"
	"example.com/botapi/examples/aisdk"
	"example.com/botapi/examples/resume"
	"github.com/matryer/is"
)

var (
	mira    = botapi.Bot{UID: "u1", Slug: "mira", Name: "Mira", Model: "m1"}
	juniper = botapi.Bot{UID: "u2", Slug: "juniper", Name: "Juniper", Model: "m1"}
	keys    = botapi.StaticKeys(map[string]string{"key": "acme", "other": "other"})
)

func apiOptions(t testing.TB, engine botapi.ChatEngine, change ...func(*botapi.Options)) botapi.Options {
	t.Helper()
	bots, err := botapi.NewMemoryStore(mira, juniper)
	is.New(t).NoErr(err)
	o := botapi.Options{Bots: bots, Keys: keys, Engine: engine, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}
	for _, f := range change {
		f(&o)
	}
	return o
}

// newHandler returns a handler whose answers end with their connections.
func newHandler(t testing.TB, engine botapi.ChatEngine, o aisdk.Options, change ...func(*botapi.Options)) http.Handler {
	t.Helper()
	options := apiOptions(t, engine, change...)
	options.Routes = aisdk.Routes(o)
	return botapi.New(options)
}

// serve starts a server for a handler.
func serve(t testing.TB, h http.Handler) (url string) {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL
}

// serveAnswers starts a server whose answers outlive their connections.
func serveAnswers(t testing.TB, o resume.Options, change ...func(*botapi.Options)) (url string) {
	t.Helper()
	h, answers := answersHandler(t, o, change...)
	url = serve(t, h)
	closeAfter(t, answers)
	return url
}

func answersHandler(t testing.TB, o resume.Options, change ...func(*botapi.Options)) (http.Handler, *aisdk.Answers) {
	t.Helper()
	o.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	answers := aisdk.NewAnswers(o)
	return handlerOf(t, answers, change...), answers
}

func handlerOf(t testing.TB, answers *aisdk.Answers, change ...func(*botapi.Options)) http.Handler {
	t.Helper()
	return newHandler(t, answers, aisdk.Options{Answers: answers}, append(change, func(o *botapi.Options) { o.OnLimit = answers.OnLimit })...)
}

// closeAfter closes answers at the end of a test, before the server that was started
// first.
func closeAfter(t testing.TB, answers *aisdk.Answers) {
	t.Cleanup(func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		is.New(t).NoErr(answers.Close(ended))
	})
}

// says is an engine that yields these fragments, and an error if it is not nil.
func says(err error, fragments ...string) botapi.ChatEngine {
	return botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			for _, fragment := range fragments {
				if !yield(fragment, nil) {
					return
				}
			}
			if err != nil {
				yield("", err)
			}
		}
	})
}

const ask = `{"id":"chat-1","messages":[{"id":"m1","role":"user","parts":[{"type":"text","text":"Hi"}]}],"trigger":"submit-message"}`

func request(t testing.TB, method, url, body string, headers ...string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	is.New(t).NoErr(err)
	r.Header.Set("Authorization", "Bearer key")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return r
}

// call returns a complete response; err is that of reading its body.
func call(t testing.TB, method, url, body string, headers ...string) (response *http.Response, text string, err error) {
	t.Helper()
	response, err = http.DefaultClient.Do(request(t, method, url, body, headers...))
	is.New(t).NoErr(err)
	defer response.Body.Close()
	all, err := io.ReadAll(response.Body)
	return response, string(all), err
}

// A part is one part of a UI message stream.
type part struct {
	Type, MessageID, ID, Delta, ErrorText, FinishReason string
	MessageMetadata                                     any
}

// An answer is what a page makes of a stream.
type answer struct {
	messageID, text, failure, finish string
	metadata                         any
	done                             bool
}

// readAnswer reads a stream as the AI SDK does, and fails if it is malformed.
func readAnswer(t testing.TB, stream string) (a answer) {
	t.Helper()
	open := false
	lines := bufio.NewScanner(strings.NewReader(stream))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if line == "" || strings.HasPrefix(line, ":") {
			continue
		}
		data, isData := strings.CutPrefix(line, "data: ")
		if !isData || a.done {
			t.Fatalf("%q in %q", line, stream)
		}
		if data == "[DONE]" {
			a.done = true
			continue
		}
		var p part
		if err := json.Unmarshal([]byte(data), &p); err != nil {
			t.Fatalf("%q: %v", data, err)
		}
		switch {
		case p.Type == "start" && a.messageID == "":
			a.messageID = p.MessageID
		case p.Type == "text-start" && !open && a.text == "", p.Type == "text-end" && open:
			open = !open
		case p.Type == "text-delta" && open:
			a.text += p.Delta
		case p.Type == "finish" && !open:
			a.finish, a.metadata = p.FinishReason, p.MessageMetadata
		case p.Type == "error":
			a.failure = p.ErrorText
		default:
			t.Fatalf("%+v in %q", p, stream)
		}
	}
	return a
}
