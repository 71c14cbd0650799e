package generated

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/resume"
	"github.com/matryer/is"
)

// TestConformance sends every conformance case to the handler. The response must be
// the recorded one and match the document. The document must reject exactly the
// requests that the handler rejects as invalid.
func TestConformance(t *testing.T) {
	api := loadDocument(t)
	server := serve(t, botapi.Options{})
	for _, c := range conformanceCases(t) {
		for _, path := range []string{"/v1/chat", "/chat"} {
			t.Run(c.Name+path, func(t *testing.T) {
				is := is.New(t)
				x := send(t, http.MethodPost, server.URL+path, c.text(t), nil)
				is.Equal(x.response.StatusCode, c.Status)
				c.checkBody(t, x.received)

				is.NoErr(api.checkResponse(t.Context(), x))
				rejection := api.checkRequest(t.Context(), x)
				if c.Status != http.StatusUnprocessableEntity {
					is.NoErr(rejection)
				} else if reason, ok := beyondSchema[c.Name]; ok {
					is.NoErr(rejection) // remove it from beyondSchema
					t.Log("the document cannot reject it:", reason)
				} else {
					is.True(rejection != nil) // the document must reject it too
				}
			})
		}
	}
}

// beyondSchema has the invalid requests that a JSON schema cannot reject.
var beyondSchema = map[string]string{
	"bot_slug-exponent-alone":     "1e2 is an integer to JSON Schema; the document's description excludes it",
	"user_id-whole-fraction-echo": "1.0 is an integer to JSON Schema; the document's description excludes it",
}

type conformanceCase struct {
	Name       string
	Body       string
	BodyBase64 string `json:"body_base64"`
	Status     int
	Response   json.RawMessage
}

func conformanceCases(t *testing.T) []conformanceCase {
	t.Helper()
	is := is.New(t)
	file, err := os.Open("../../testdata/conformance/chat_422.jsonl")
	is.NoErr(err)
	defer file.Close()
	var cases []conformanceCase
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var c conformanceCase
		is.NoErr(json.Unmarshal(lines.Bytes(), &c))
		cases = append(cases, c)
	}
	is.NoErr(lines.Err())
	is.True(len(cases) > 0)
	return cases
}

func (c conformanceCase) text(t *testing.T) string {
	t.Helper()
	if c.BodyBase64 == "" {
		return c.Body
	}
	text, err := base64.StdEncoding.DecodeString(c.BodyBase64)
	is.New(t).NoErr(err)
	return string(text)
}

// checkBody compares a response with the recorded one. The position and the text of
// a syntax error may differ, since they depend on the parser.
func (c conformanceCase) checkBody(t *testing.T, received []byte) {
	t.Helper()
	is := is.New(t)
	if strings.Contains(string(c.Response), "value_error.jsondecode") {
		is.True(strings.Contains(string(received), "value_error.jsondecode"))
		return
	}
	var want, got any
	is.NoErr(json.Unmarshal(c.Response, &want))
	is.NoErr(json.Unmarshal(received, &got))
	is.True(reflect.DeepEqual(got, want)) // the recorded response
}

// TestEveryAnswer makes the handler send every response that the document describes,
// on both paths of each operation.
func TestEveryAnswer(t *testing.T) {
	api := loadDocument(t)
	for _, prefix := range []string{"/v1", ""} {
		t.Run("under "+prefix+"/", func(t *testing.T) {
			testBots(t, api, prefix+"/bots")
			testChat(t, api, prefix+"/chat")
			testBadBodies(t, api, prefix+"/chat")
			testFullSlots(t, api, prefix+"/chat")
			testAnswers(t, api, prefix)
		})
	}
	is.New(t).Equal(api.unseen(), []string(nil)) // described, but never sent
}

func testBots(t *testing.T, api *document, path string) {
	server := serve(t, botapi.Options{})
	failing := serve(t, botapi.Options{Bots: failingStore{io.ErrUnexpectedEOF}})
	closed := serve(t, botapi.Options{Bots: failingStore{botapi.StatusError{Status: http.StatusTeapot, Detail: "Closed", RetryAfter: time.Minute}}})
	empty, _ := botapi.NewMemoryStore()
	tests := []struct {
		name, method string
		server       *httptest.Server
		header       http.Header
		status       int
		valid        bool // whether the document allows the request
	}{
		{"bots", "GET", server, nil, 200, true},
		{"no bots", "GET", serve(t, botapi.Options{Bots: empty}), nil, 200, true},
		{"head", "HEAD", server, nil, 200, true},
		{"unchanged bots", "GET", server, http.Header{"If-None-Match": {"*"}}, 304, true},
		{"own request id", "GET", server, http.Header{"X-Request-Id": {"checkout-7f3a"}}, 200, true},
		{"unusable request id", "GET", server, http.Header{"X-Request-Id": {"two words"}}, 200, false},
		{"no key", "GET", server, http.Header{"Authorization": nil}, 401, false},
		{"wrong key", "GET", server, http.Header{"Authorization": {"Bearer wrong"}}, 401, true},
		{"wrong method", "DELETE", server, nil, 405, true},
		{"failing store", "GET", failing, nil, 500, true},
		{"application's error", "GET", closed, nil, 418, true},
	}
	for _, test := range tests {
		t.Run("bots/"+test.name, func(t *testing.T) {
			is := is.New(t)
			x := send(t, test.method, test.server.URL+path, "", test.header)
			is.Equal(x.response.StatusCode, test.status)
			is.NoErr(api.checkResponse(t.Context(), x))
			is.Equal(api.checkRequest(t.Context(), x) == nil, test.valid)
		})
	}
}

func testChat(t *testing.T, api *document, path string) {
	server := serve(t, botapi.Options{MaxBodyBytes: 512, ChatTimeout: 2 * time.Second})
	tests := []struct {
		name, method, body string
		header             http.Header
		status             int
		valid              bool // whether the document allows the request
	}{
		{"answer", "POST", `{"bot_slug":"echo","prompt":"hi","stream":false}`, nil, 200, true},
		{"stream", "POST", `{"bot_slug":"echo","prompt":"[DONE] \u2028","stream":true}`, nil, 200, true},
		{"failed stream", "POST", `{"bot_slug":"echo","prompt":"fail halfway","stream":true}`, nil, 200, true},
		{"no key", "POST", `{"bot_slug":"echo","prompt":"hi","stream":false}`, http.Header{"Authorization": nil}, 401, false},
		{"wrong key", "POST", `{"bot_slug":"echo","prompt":"hi","stream":false}`, http.Header{"Authorization": {"Bearer wrong"}}, 401, true},
		{"no bot", "POST", `{"bot_slug":"nobody","prompt":"hi","stream":false}`, nil, 404, true},
		{"two bots", "POST", `{"bot_slug":"echo","bot_uid":"` + otherBot.UID + `","prompt":"hi","stream":false}`, nil, 404, true},
		{"wrong method", "PUT", `{"bot_slug":"echo","prompt":"hi","stream":false}`, nil, 405, true},
		{"large body", "POST", `{"bot_slug":"echo","prompt":"` + strings.Repeat("a", 512) + `","stream":false}`, nil, 413, true},
		{"invalid", "POST", `{}`, nil, 422, false},
		{"invalid for the engine", "POST", `{"bot_slug":"echo","prompt":"be invalid","stream":false}`, nil, 422, true},
		{"engine fails", "POST", `{"bot_slug":"echo","prompt":"fail","stream":true}`, nil, 500, true},
		{"engine takes too long", "POST", `{"bot_slug":"echo","prompt":"wait","stream":true}`, nil, 504, true},
		{"application's error", "POST", `{"bot_slug":"echo","prompt":"be closed","stream":true}`, nil, 418, true},
	}
	for _, test := range tests {
		t.Run("chat/"+test.name, func(t *testing.T) {
			is := is.New(t)
			x := send(t, test.method, server.URL+path, test.body, test.header)
			is.Equal(x.response.StatusCode, test.status)
			is.NoErr(api.checkResponse(t.Context(), x))
			is.Equal(api.checkRequest(t.Context(), x) == nil, test.valid)
		})
	}
}

// testBadBodies sends bodies that HTTP clients do not send.
func testBadBodies(t *testing.T, api *document, path string) {
	server := serveWithin(t, botapi.Options{}, 200*time.Millisecond)
	tests := []struct {
		name, body string
		status     int
	}{
		{"not a chunk", "not a length\r\n", 400},
		{"body without an end", "1\r\n{\r\n", 408},
	}
	for _, test := range tests {
		t.Run("chat/"+test.name, func(t *testing.T) {
			is := is.New(t)
			conn, err := net.Dial("tcp", server.Listener.Addr().String())
			is.NoErr(err)
			defer conn.Close()
			_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n"+
				"Transfer-Encoding: chunked\r\n\r\n%s", path, key, test.body)
			is.NoErr(err)
			request, err := http.NewRequest(http.MethodPost, server.URL+path, nil)
			is.NoErr(err)
			response, err := http.ReadResponse(bufio.NewReader(conn), request)
			is.NoErr(err)
			received, err := io.ReadAll(response.Body)
			is.NoErr(err)
			is.Equal(response.StatusCode, test.status)
			is.NoErr(api.checkResponse(t.Context(), exchange{request, nil, response, received}))
		})
	}
}

// testFullSlots starts one chat more than there are slots.
func testFullSlots(t *testing.T, api *document, path string) {
	tests := []struct {
		name    string
		options botapi.Options
		status  int
	}{
		{"full server", botapi.Options{MaxConcurrentChats: 1}, 503},
		{"full account", botapi.Options{MaxChatsPerAccount: 1}, 429},
	}
	for _, test := range tests {
		t.Run("chat/"+test.name, func(t *testing.T) {
			is := is.New(t)
			begun := make(chan struct{})
			test.options.Engine = botapi.ChatEngineFunc(func(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
				return func(func(string, error) bool) {
					close(begun)
					<-ctx.Done()
				}
			})
			server := serve(t, test.options)
			const body = `{"bot_slug":"echo","prompt":"hi","stream":false}`
			first, disconnect := context.WithCancel(t.Context())
			defer disconnect()
			request, err := http.NewRequestWithContext(first, http.MethodPost, server.URL+path, strings.NewReader(body))
			is.NoErr(err)
			request.Header.Set("Authorization", "Bearer "+key)
			disconnected := make(chan struct{})
			go func() {
				defer close(disconnected)
				if response, err := http.DefaultClient.Do(request); err == nil {
					response.Body.Close()
				}
			}()
			<-begun

			x := send(t, http.MethodPost, server.URL+path, body, nil)
			is.Equal(x.response.StatusCode, test.status)
			is.Equal(x.response.Header.Get("Retry-After"), "1")
			is.NoErr(api.checkResponse(t.Context(), x))
			is.NoErr(api.checkRequest(t.Context(), x))
			disconnect()
			<-disconnected
		})
	}
}

// testAnswers stops an answer of examples/resume, and what is none.
func testAnswers(t *testing.T, api *document, prefix string) {
	const kept, unknown = "the-key-of-an-answer", "the-key-of-no-answer"
	server := serve(t, keeping(resume.Options{}))
	own := serve(t, keeping(resume.Options{ValidKey: func(string) bool { return false }}))
	failing := serve(t, keeping(resume.Options{Store: failingAnswers{resume.NewMemory(resume.Settings{}), func() error { return io.ErrUnexpectedEOF }}}))
	panicking := serve(t, keeping(resume.Options{Store: failingAnswers{resume.NewMemory(resume.Settings{}), func() error { panic("a defect") }}}))
	closed := keeping(resume.Options{})
	closed.Keys = botapi.KeyVerifierFunc(func(context.Context, string) (string, error) {
		return "", botapi.StatusError{Status: http.StatusTeapot, Detail: "Closed", RetryAfter: time.Minute}
	})
	tests := []struct {
		name, method string
		server       *httptest.Server
		keys         []string
		header       http.Header
		status       int
		body         string
		valid        bool // whether the document allows the request
	}{
		{"answer", "DELETE", server, []string{kept}, nil, 204, "", true},
		{"no answer", "DELETE", server, []string{unknown}, nil, 404, `{"detail":"Answer not found"}`, true},
		{"nothing is kept", "DELETE", serve(t, botapi.Options{}), []string{kept}, nil, 404, `{"detail":"Not Found"}`, true},
		{"no Idempotency-Key", "DELETE", server, nil, nil, 400, `{"detail":"There must be one Idempotency-Key, of 16 to 255 letters, digits, - and _"}`, false},
		{"short Idempotency-Key", "DELETE", server, []string{"short"}, nil, 400, `{"detail":"There must be one Idempotency-Key, of 16 to 255 letters, digits, - and _"}`, false},
		{"another rule", "DELETE", own, []string{kept}, nil, 400, `{"detail":"There must be one valid Idempotency-Key"}`, true},
		{"no key", "DELETE", server, []string{kept}, http.Header{"Authorization": nil}, 401, `{"detail":"Not authenticated"}`, false},
		{"wrong key", "DELETE", server, []string{kept}, http.Header{"Authorization": {"Bearer wrong"}}, 401, `{"detail":"Invalid API key"}`, true},
		{"wrong method", "GET", server, []string{kept}, nil, 405, `{"detail":"Method Not Allowed"}`, true},
		{"store fails", "DELETE", failing, []string{kept}, nil, 503, `{"detail":"The service is unavailable for the moment"}`, true},
		{"store panics", "DELETE", panicking, []string{kept}, nil, 500, `{"detail":"Internal Server Error"}`, true},
		{"application's error", "DELETE", serve(t, closed), []string{kept}, nil, 418, `{"detail":"Closed"}`, true},
	}
	started := send(t, http.MethodPost, server.URL+prefix+"/chat", `{"bot_slug":"echo","prompt":"hi","stream":true}`, http.Header{resume.Header: {kept}})
	is.New(t).Equal(started.response.Header.Get(resume.OutcomeHeader), string(resume.Kept))
	is.New(t).NoErr(api.checkResponse(t.Context(), started))
	for _, test := range tests {
		t.Run("answers/"+test.name, func(t *testing.T) {
			is := is.New(t)
			header := http.Header{resume.Header: test.keys}
			maps.Copy(header, test.header)
			x := send(t, test.method, test.server.URL+prefix+"/answers", "", header)
			is.Equal(x.response.StatusCode, test.status)
			is.Equal(strings.TrimSpace(string(x.received)), test.body)
			is.Equal(x.response.Header.Get("Retry-After") != "", test.status == 503 || test.status == 418)
			is.NoErr(api.checkResponse(t.Context(), x))
			is.Equal(api.checkRequest(t.Context(), x) == nil, test.valid)
		})
	}
}

// TestKeepAlive pauses a stream until the client has received a comment.
func TestKeepAlive(t *testing.T) {
	is := is.New(t)
	heard := make(chan struct{})
	server := serve(t, botapi.Options{
		KeepAlive: time.Millisecond,
		Engine: botapi.ChatEngineFunc(func(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				if !yield("before", nil) {
					return
				}
				select {
				case <-heard:
					yield("after", nil)
				case <-ctx.Done():
				}
			}
		}),
	})
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/v1/chat",
		strings.NewReader(`{"bot_slug":"echo","prompt":"hi","stream":true}`))
	is.NoErr(err)
	request.Header.Set("Authorization", "Bearer "+key)
	response, err := http.DefaultClient.Do(request)
	is.NoErr(err)
	defer response.Body.Close()

	var received []byte
	body := bufio.NewReader(response.Body)
	for !strings.HasSuffix(string(received), ": keep-alive\n") {
		line, err := body.ReadBytes('\n')
		is.NoErr(err)
		received = append(received, line...)
	}
	close(heard)
	rest, err := io.ReadAll(body)
	is.NoErr(err)
	received = append(received, rest...)
	is.True(strings.HasSuffix(string(received), "data: [DONE]\n\n"))
	is.NoErr(loadDocument(t).checkResponse(t.Context(), exchange{request, nil, response, received}))
}
