package openai_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/openai"
	"github.com/matryer/is"
)

// speaks returns an engine that yields texts and then, unless it is nil, an error.
func speaks(failure error, texts ...string) botapi.ChatEngine {
	return botapi.ChatEngineFunc(func(_ context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			for _, text := range texts {
				if !yield(text, nil) {
					return
				}
			}
			if failure != nil {
				yield("", failure)
			}
		}
	})
}

// counts returns an engine that reports tokens, as an engine of any protocol may.
func counts(tokens openai.Tokens, finish string, texts ...string) botapi.ChatEngine {
	return botapi.ChatEngineFunc(func(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
		usage := openai.UsageFrom(ctx)
		usage.Report(tokens)
		usage.Finish(finish)
		return speaks(nil, texts...).Chat(ctx, req)
	})
}

func handlerFor(t testing.TB, engine botapi.ChatEngine, options ...func(*botapi.Options)) http.Handler {
	t.Helper()
	all := []func(*botapi.Options){func(o *botapi.Options) { o.MaxBodyBytes = 64 << 10 }}
	return newAPI(t, engine, append(append(all, options...), withRoutes())...)
}

// withRoutes serves OpenAI's clients, and says that the engine honours some fields.
func withRoutes(honours ...string) func(*botapi.Options) {
	return func(o *botapi.Options) {
		o.Routes = append(openai.Routes(openai.Options{Bots: o.Bots, Honours: honours}), o.Routes...)
		o.NotFound = openai.NotFound(o.Routes)
	}
}

func serveHandler(t testing.TB, engine botapi.ChatEngine, options ...func(*botapi.Options)) string {
	t.Helper()
	server := httptest.NewServer(handlerFor(t, engine, options...))
	t.Cleanup(server.Close)
	return server.URL
}

// newRequest returns a request with the key. headers are pairs of a name and a value.
func newRequest(t testing.TB, ctx context.Context, method, url, body string, headers ...string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer key")
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return r
}

// call sends a request, and returns the response and its body, which may be incomplete.
func call(t *testing.T, method, url, body string, headers ...string) (*http.Response, string, error) {
	t.Helper()
	response, err := http.DefaultClient.Do(newRequest(t, t.Context(), method, url, body, headers...))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	return response, string(answer), err
}

func complete(t *testing.T, url, body string) (*http.Response, string, error) {
	t.Helper()
	return call(t, "POST", url+"/v1/chat/completions", body)
}

const (
	ask       = `{"model":"helper","messages":[{"role":"user","content":"Hi"}]}`
	askStream = `{"model":"helper","messages":[{"role":"user","content":"Hi"}],"stream":true}`
)

func TestModels(t *testing.T) {
	url := serveHandler(t, speaks(nil))
	const (
		first   = `{"id":"helper","object":"model","created":0,"owned_by":"botapi","name":"Helper","description":""}`
		second  = `{"id":"pirate","object":"model","created":0,"owned_by":"botapi","name":"Pi\"rate","description":"Arr."}`
		noModel = `{"error":{"message":"the model does not exist","type":"invalid_request_error","param":"model","code":"model_not_found"}}`
	)
	for name, c := range map[string]struct {
		method, path string
		status       int
		want         string
	}{
		"all":                    {"GET", "/v1/models", 200, `{"object":"list","data":[` + first + `,` + second + `]}`},
		"without a version":      {"GET", "/models", 200, `{"object":"list","data":[` + first + `,` + second + `]}`},
		"one":                    {"GET", "/v1/models/pirate", 200, second},
		"an unknown one":         {"GET", "/v1/models/parrot", 404, noModel},
		"HEAD of all":            {"HEAD", "/v1/models", 200, ""},
		"HEAD of one":            {"HEAD", "/v1/models/helper", 200, ""},
		"HEAD of an unknown one": {"HEAD", "/v1/models/parrot", 404, ""},
		"another method":         {"POST", "/v1/models", 405, `{"error":{"message":"Method Not Allowed","type":"invalid_request_error","param":null,"code":"method_not_allowed"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			response, answer, err := call(t, c.method, url+c.path, "")
			is.NoErr(err)
			is.Equal(response.StatusCode, c.status)
			is.Equal(answer, c.want)
			is.Equal(response.Header.Get("Content-Type"), "application/json")
		})
	}

	is := is.New(t)
	response, _, _ := call(t, "GET", url+"/v1/models", "")
	response, answer, err := call(t, "GET", url+"/v1/models", "", "If-None-Match", response.Header.Get("ETag"))
	is.NoErr(err)
	is.Equal(response.StatusCode, http.StatusNotModified)
	is.Equal(answer, "")
	response, _, _ = call(t, "GET", url+"/v1/models/helper", "", "If-None-Match", response.Header.Get("ETag"))
	is.Equal(response.StatusCode, http.StatusOK) // the ETag is that of the list
	is.Equal(response.Header.Get("ETag"), "")
}

// Slugs may have slashes, as names of models do. For what no bot can be called, the store is
// not asked.
func TestNamesOfModels(t *testing.T) {
	var asked []string
	url := serveHandler(t, speaks(nil), func(o *botapi.Options) { o.Bots = askedStore{&asked} })
	for path, c := range map[string]struct {
		status int
		asked  []string
	}{
		"/v1/models/meta/llama-3":        {200, []string{"meta/llama-3"}},
		"/v1/models/meta%2Fllama-3":      {200, []string{"meta/llama-3"}},
		"/models/a%26b?x=y":              {200, []string{"a&b"}},
		"/v1/models/":                    {404, nil},
		"/v1/models/a%20b":               {404, nil},
		"/v1/models/a%00b":               {404, nil},
		"/v1/models/a%FFb":               {404, nil},
		"/v1/models/" + "a%E2%80%A8b":    {404, nil},
		"/v1/chat/completions/models/ab": {404, nil},
	} {
		is := is.New(t)
		asked = nil
		response, answer, err := call(t, "GET", url+path, "")
		is.NoErr(err)
		is.Equal(response.StatusCode, c.status)
		is.Equal(asked, c.asked)
		if c.status == 200 {
			is.True(strings.HasPrefix(answer, `{"id":`+string(encode(t, c.asked[0]))+`,"object":"model",`))
		}
	}
}

// An askedStore has every bot, and notes for which it was asked.
type askedStore struct{ asked *[]string }

func (s askedStore) Bots(context.Context) ([]botapi.Bot, error) { return nil, nil }

func (s askedStore) BotByUID(context.Context, string) (botapi.Bot, error) {
	return botapi.Bot{}, botapi.ErrBotNotFound
}

func (s askedStore) BotBySlug(_ context.Context, slug string) (botapi.Bot, error) {
	*s.asked = append(*s.asked, slug)
	return botapi.Bot{UID: "u", Slug: slug}, nil
}

func TestNoModels(t *testing.T) {
	is := is.New(t)
	url := serveHandler(t, speaks(nil), func(o *botapi.Options) { o.Bots = new(botapi.MemoryStore) })
	_, answer, err := call(t, "GET", url+"/v1/models", "")
	is.NoErr(err)
	is.Equal(answer, `{"object":"list","data":[]}`)
}

// textOfChunks parses a stream line by line, as clients do.
func textOfChunks(t *testing.T, answer string) (text string, events []string) {
	t.Helper()
	lines := bufio.NewScanner(strings.NewReader(answer))
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		events = append(events, data)
		var chunk struct {
			Choices []struct{ Delta struct{ Content string } }
		}
		if data != "[DONE]" {
			if err := json.Unmarshal([]byte(data), &chunk); err != nil {
				t.Fatalf("%q: %v", data, err)
			}
		}
		for _, choice := range chunk.Choices {
			text += choice.Delta.Content
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return text, events
}

// All of a text arrives, whatever it is, also in the events of a response that repeat it.
func TestHostileText(t *testing.T) {
	hostile := []string{"caf\xc3", "\xa9 \"\\", "data: [DONE]\n\n", "\u2028\u2029\u0085\x00\r\n", "\xf0\x9f\x91", "\x8b", strings.Repeat("long ", 100_000), "}]}"}
	for want, fragments := range map[string][]string{
		"café \"\\data: [DONE]\n\n\u2028\u2029\u0085\x00\r\n👋" + strings.Repeat("long ", 100_000) + "}]}": hostile, "": nil,
	} {
		is := is.New(t)
		url := serveHandler(t, speaks(nil, fragments...))

		_, answer, err := complete(t, url, askStream)
		is.NoErr(err)
		text, events := textOfChunks(t, answer)
		is.Equal(text, want)
		is.Equal(events[len(events)-1], "[DONE]")

		_, answer, err = complete(t, url, ask)
		is.NoErr(err)
		var completion struct {
			Choices []struct{ Message struct{ Content string } }
		}
		is.NoErr(json.Unmarshal([]byte(answer), &completion))
		is.Equal(completion.Choices[0].Message.Content, want)

		_, answer, err = call(t, "POST", url+"/v1/responses", respondStream)
		is.NoErr(err)
		text, kinds, last := eventsOfResponse(t, answer)
		is.Equal(text, want)
		is.Equal(kinds[len(kinds)-1], "completed")
		is.Equal(textOfResponse(t, encode(t, last["response"])), want)

		response, answer, err := call(t, "POST", url+"/v1/responses", respond)
		is.NoErr(err)
		is.Equal(response.ContentLength, int64(len(answer)))
		is.Equal(textOfResponse(t, []byte(answer)), want)
	}
}

// A translation is a request, and what its engine gets.
type translation struct {
	body     string
	messages []botapi.ChatMessage
	extra    map[string]string
	userID   string
	stream   bool
}

func testTranslations(t *testing.T, path string, translations map[string]translation) {
	for name, c := range translations {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			var got *botapi.ChatRequest
			url := serveHandler(t, botapi.ChatEngineFunc(func(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
				got = req
				return speaks(nil).Chat(ctx, req)
			}))
			response, answer, _ := call(t, "POST", url+path, c.body)
			if response.StatusCode != http.StatusOK {
				t.Fatal(answer)
			}
			is.Equal(got.Bot.Slug, "helper")
			is.Equal(got.Messages, c.messages)
			is.Equal(got.UserID, c.userID)
			is.Equal(got.Stream, c.stream)
			is.Equal(len(got.Extra), len(c.extra))
			for name, value := range c.extra {
				is.Equal(string(got.Extra[name]), value)
			}
		})
	}
}

func TestTranslatedRequests(t *testing.T) {
	hi := []botapi.ChatMessage{{Role: "user", Content: "Hi"}}
	with := func(fields string) string { return ask[:len(ask)-1] + "," + fields + "}" }
	translations := map[string]translation{
		"plain": {body: ask, messages: hi},
		"all roles": {
			body: `{"model":"helper","messages":[{"role":"developer","content":"d"},{"role":"system","content":"s","name":"n"},
				{"role":"assistant","content":"a","tool_calls":[],"refusal":null},{"role":"assistant","content":null,"refusal":"no"},{"role":"user","content":""}]}`,
			messages: []botapi.ChatMessage{{Role: "system", Content: "d"}, {Role: "system", Content: "s"}, {Role: "assistant", Content: "a"}, {Role: "assistant", Content: "no"}, {Role: "user", Content: ""}},
		},
		"parts": {
			body:     `{"model":"helper","messages":[{"role":"user","content":[{"type":"text","text":"a\"é"},{"type":"text","text":"b"}]},{"role":"assistant","content":[{"type":"refusal","refusal":"no"}]},{"role":"user","content":[]}]}`,
			messages: []botapi.ChatMessage{{Role: "user", Content: "a\"é\nb"}, {Role: "assistant", Content: "no"}, {Role: "user", Content: ""}},
		},
		"other fields": {
			body: askStream[:len(askStream)-1] + `,"user":"someone","temperature":0.50,"max_tokens":5,"stop":["a"],"seed":null,"x":{"y":[1, 2]},"stream_options":{"include_usage":false},
				"n":1,"tools":[],"tool_choice":"auto","logprobs":false,"modalities":[ "text" ],"response_format":{"type":"text"}}`,
			messages: hi,
			extra:    map[string]string{"temperature": "0.50", "max_tokens": "5", "stop": `["a"]`, "x": `{"y":[1, 2]}`},
			userID:   "someone", stream: true,
		},
		"values that ask for nothing": {
			body: ask[:len(ask)-1] + `,"n":1e0,"top_logprobs":0.0,"logprobs": false ,"modalities":[ ],"response_format":{ "type" : "t\u0065xt" },
				"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"none","functions":[{"name":"f"}],"function_call":"none"}`,
			messages: hi,
		},
		"the last of a repeated field counts": {
			body:     `{"model":"pirate","messages":1,"model":"helper","messages":[{"role":"system","role":"user","content":"\ud83d\udc4b"}]}`,
			messages: []botapi.ChatMessage{{Role: "user", Content: "👋"}},
		},
		"a byte order mark": {body: "\ufeff" + ask, messages: hi},

		// safety_identifier has replaced user in OpenAI's APIs. Engines get it, too.
		"a safety identifier":        {body: with(`"safety_identifier":"someone"`), messages: hi, userID: "someone", extra: map[string]string{"safety_identifier": `"someone"`}},
		"a user and an identifier":   {body: with(`"safety_identifier":"someone","user":"you"`), messages: hi, userID: "you", extra: map[string]string{"safety_identifier": `"someone"`}},
		"an empty user":              {body: with(`"user":"","safety_identifier":"someone"`), messages: hi, userID: "someone", extra: map[string]string{"safety_identifier": `"someone"`}},
		"a number as the identifier": {body: with(`"user":null,"safety_identifier":7`), messages: hi, userID: "7", extra: map[string]string{"safety_identifier": "7"}},
		"null as the identifier":     {body: with(`"safety_identifier":null`), messages: hi},
	}
	for name, text := range map[string]string{ // which, translated, must not push a body over the limit
		"tags": strings.Repeat("<&>", 20<<10), "separators": strings.Repeat("\u2028\u2029", 10<<10), "escapes": strings.Repeat("\\u2028\"\\", 4<<10),
	} {
		quoted := strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text)
		translations[name] = translation{
			body:     `{"model":"helper","messages":[{"role":"user","content":[{"type":"text","text":"` + quoted + `"}]}]}`,
			messages: []botapi.ChatMessage{{Role: "user", Content: text}},
		}
	}
	testTranslations(t, "/v1/chat/completions", translations)
}

func TestInvalidRequests(t *testing.T) {
	url := serveHandler(t, speaks(nil, "Hi"))
	with := func(fields string) string { return ask[:len(ask)-1] + "," + fields + "}" }
	saying := func(content string) string {
		return `{"model":"helper","messages":[{"role":"user","content":"Hi"},` + content + `]}`
	}
	testInvalidRequests(t, url+"/v1/chat/completions", map[string]invalidRequest{
		"not JSON":            {`{"model":`, "", "invalid_json", ""},
		"not UTF-8":           {"{\"model\":\"helper\",\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}", "", "invalid_json", ""},
		"not an object":       {`[]`, "", "invalid_type", ""},
		"no body":             {``, "", "missing_required_parameter", ""},
		"no model":            {`{"messages":[{"role":"user","content":"Hi"}]}`, "model", "missing_required_parameter", "model"},
		"an empty model":      {`{"model":"","messages":[{"role":"user","content":"Hi"}]}`, "model", "missing_required_parameter", "model"},
		"an invalid model":    {`{"model":true,"messages":[{"role":"user","content":"Hi"}]}`, "model", "invalid_type", "str type expected"},
		"no messages":         {`{"model":"helper"}`, "messages", "missing_required_parameter", "messages"},
		"null messages":       {`{"model":"helper","messages":null}`, "messages", "missing_required_parameter", "messages"},
		"empty messages":      {`{"model":"helper","messages":[ ]}`, "messages", "missing_required_parameter", "messages"},
		"invalid messages":    {`{"model":"helper","messages":{}}`, "messages", "invalid_type", "list"},
		"a null message":      {saying(`null`), "messages[1]", "invalid_type", "none is not an allowed value"},
		"an invalid message":  {saying(`"Hi"`), "messages[1]", "invalid_type", "dict"},
		"no role":             {saying(`{"content":"Hi"}`), "messages[1].role", "missing_required_parameter", "field required"},
		"an invalid role":     {saying(`{"role":"God","content":"Hi"}`), "messages[1].role", "invalid_type", "permitted: 'system', 'user', 'assistant'"},
		"no content":          {saying(`{"role":"user"}`), "messages[1].content", "missing_required_parameter", "field required"},
		"invalid content":     {saying(`{"role":"user","content":1}`), "messages[1].content", "invalid_type", "str type expected"},
		"a tool's message":    {saying(`{"role":"tool","content":"1","tool_call_id":"x"}`), "messages[1].role", "unsupported_value", "tools"},
		"tool calls":          {saying(`{"role":"assistant","content":null,"tool_calls":[{}]}`), "messages[1].tool_calls", "unsupported_value", "tools"},
		"an audio answer":     {saying(`{"role":"assistant","content":"Hi","audio":{"id":"x"}}`), "messages[1].audio", "unsupported_value", "audio"},
		"an image":            {saying(`{"role":"user","content":[{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":"x"}}]}`), "messages[1].content[1].type", "unsupported_value", "text only"},
		"a part without text": {saying(`{"role":"user","content":[{"type":"text"}]}`), "messages[1].content[0]", "missing_required_parameter", "text"},
		"an invalid part":     {saying(`{"role":"user","content":["Hi"]}`), "messages[1].content[0]", "invalid_type", "type"},
		"a TYPE":              {saying(`{"role":"user","content":[{"TYPE":"text","text":"Hi"}]}`), "messages[1].content[0]", "invalid_type", "type"},
		"a Text":              {saying(`{"role":"user","content":[{"type":"text","Text":"Hi"}]}`), "messages[1].content[0]", "missing_required_parameter", "text"},
		"a type TEXT":         {saying(`{"role":"user","content":[{"type":"TEXT","text":"Hi"}]}`), "messages[1].content[0].type", "unsupported_value", "text only"},
		"a text of a number":  {saying(`{"role":"user","content":[{"type":"text","text":1}]}`), "messages[1].content[0].text", "invalid_type", "str"},
		"a format":            {with(`"response_format":{"type":"json_object"}`), "response_format", "unsupported_value", "response_format"},
		"INCLUDE_USAGE":       {with(`"stream_options":{"include_usage":"yes"}`), "stream_options", "invalid_type", "include_usage"},
		"an invalid stream":   {with(`"stream":1`), "stream", "invalid_type", "boolean"},
		"invalid options":     {with(`"stream_options":[]`), "stream_options", "invalid_type", "include_usage"},
		"an invalid user":     {with(`"user":true`), "user", "invalid_type", "str type expected"},
		"two answers":         {with(`"n":2`), "n", "unsupported_value", "n"},
		"tools":               {with(`"tools":[{"type":"function"}]`), "tools", "unsupported_value", "tools"},
		"a forced tool":       {with(`"tool_choice":"required"`), "tool_choice", "unsupported_value", "tool_choice"},
		"functions":           {with(`"functions":[{}]`), "functions", "unsupported_value", "functions"},
		"logprobs":            {with(`"logprobs":true`), "logprobs", "unsupported_value", "logprobs"},
		"audio":               {with(`"modalities":["text","audio"],"audio":{"voice":"x"}`), "audio", "unsupported_value", "audio"},
		"botapi's own field":  {with(`"bot_slug":"pirate"`), "bot_slug", "unknown_parameter", "bot_slug"},
	})
}

type invalidRequest struct {
	body        string
	param, code string // null where empty
	message     string // contained in the message
}

func testInvalidRequests(t *testing.T, url string, requests map[string]invalidRequest) {
	for name, c := range requests {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			response, answer, err := call(t, "POST", url, c.body)
			is.NoErr(err)
			if response.StatusCode != http.StatusBadRequest {
				t.Fatal(response.StatusCode, answer)
			}
			is.Equal(response.ContentLength, int64(len(answer)))
			var got struct {
				Error struct {
					Message, Type string
					Param, Code   *string
				}
			}
			is.NoErr(json.Unmarshal([]byte(answer), &got))
			is.Equal(got.Error.Type, "invalid_request_error")
			is.True(got.Error.Message != "")
			is.True(strings.Contains(got.Error.Message, c.message))
			is.Equal(textOf(got.Error.Param), c.param)
			is.Equal(textOf(got.Error.Code), c.code)
		})
	}
}

func textOf(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// Errors before the first text are the same in completions and responses, but for the names of
// their fields.
func TestErrorsOfTheAPI(t *testing.T) {
	fails := func(err error) func(*botapi.Options) {
		return func(o *botapi.Options) { o.Engine = speaks(err) }
	}
	failure := func(message, kind, param, code string) string {
		return `{"error":{"message":"` + message + `","type":"` + kind + `","param":` + param + `,"code":` + code + `}}`
	}
	for name, c := range map[string]struct {
		option  func(*botapi.Options)
		headers []string
		body    func(string) string // changes that of a good request
		status  int
		want    string
		header  [2]string
	}{
		"no key":         {headers: []string{"Authorization", ""}, status: 401, want: failure("Not authenticated", "invalid_request_error", "null", `"invalid_api_key"`), header: [2]string{"WWW-Authenticate", "Bearer"}},
		"a wrong key":    {headers: []string{"Authorization", "Bearer x"}, status: 401, want: failure("Invalid API key", "invalid_request_error", "null", `"invalid_api_key"`)},
		"no such bot":    {body: func(good string) string { return strings.Replace(good, "helper", "parrot", 1) }, status: 404, want: failure("the model does not exist", "invalid_request_error", `"model"`, `"model_not_found"`)},
		"too large":      {body: with64KiB, status: 413, want: failure("Request body too large", "invalid_request_error", "null", `"request_too_large"`)},
		"too many chats": {option: fails(&botapi.StatusError{Status: 429, Detail: "Slow down", RetryAfter: 7 * time.Second}), status: 429, want: failure("Slow down", "rate_limit_error", "null", `"rate_limit_exceeded"`), header: [2]string{"Retry-After", "7"}},
		"forbidden":      {option: fails(&botapi.StatusError{Status: 403, Detail: "Not yours"}), status: 403, want: failure("Not yours", "invalid_request_error", "null", "null")},
		"too long": {option: fails(&botapi.HTTPValidationError{Detail: []botapi.ValidationError{{Loc: []any{"body", "messages"}, Msg: "the conversation is too long for the model", Type: "value_error.messages.too_long"}}}),
			status: 400, want: failure("messages: the conversation is too long for the model", "invalid_request_error", `"messages"`, `"context_length_exceeded"`)},
		"a failure":    {option: fails(errors.New("SECRET")), status: 500, want: failure("Internal Server Error", "server_error", "null", "null")},
		"a bad model":  {option: fails(&botapi.StatusError{Status: 502, Detail: "The model failed"}), status: 502, want: failure("The model failed", "server_error", "null", "null")},
		"a busy model": {option: fails(&botapi.StatusError{Status: 503, Detail: "Busy", RetryAfter: time.Second}), status: 503, want: failure("Busy", "server_error", "null", "null"), header: [2]string{"Retry-After", "1"}},
		"timed out": {option: func(o *botapi.Options) {
			o.ChatTimeout = time.Millisecond
			o.Engine = botapi.CallbackEngine(func(ctx context.Context, _ *botapi.ChatRequest, _ func(string) error) error {
				<-ctx.Done()
				return nil
			})
		}, status: 504, want: failure("The answer took too long", "server_error", "null", "null")},
	} {
		t.Run(name, func(t *testing.T) {
			if c.option == nil {
				c.option = fails(nil)
			}
			url := serveHandler(t, speaks(nil), c.option)
			for body, path := range map[string]string{
				ask: "/v1/chat/completions", askStream: "/v1/chat/completions", respond: "/v1/responses", respondStream: "/v1/responses",
			} {
				is := is.New(t)
				if c.body != nil {
					body = c.body(body)
				}
				want := c.want
				if path == "/v1/responses" {
					want = strings.NewReplacer(`"messages:`, `"input:`, `"messages"`, `"input"`).Replace(want)
				}
				response, answer, err := call(t, "POST", url+path, body, c.headers...)
				is.NoErr(err)
				is.Equal(response.StatusCode, c.status)
				is.Equal(answer, want)
				is.Equal(response.Header.Get("Content-Type"), "application/json")
				is.True(strings.HasPrefix(response.Header.Get(c.header[0]), c.header[1]))
				is.True(response.Header.Get("X-Request-Id") != "")
			}
		})
	}
}

func with64KiB(body string) string {
	return strings.Replace(body, "Hi", strings.Repeat("x", 64<<10), 1)
}

// A client with a wrong base URL, or one that calls what bots do not have, learns what
// the application serves.
func TestUnknownPaths(t *testing.T) {
	url := serveHandler(t, speaks(nil, "Hi"), func(o *botapi.Options) {
		o.Routes = []botapi.Route{{Patterns: []string{"GET /v1/usage/{month}", "GET /v1/usage", "PUT /v1/usage"}, Serve: func(*http.Request) (botapi.Response, error) {
			return botapi.Reply{}, nil
		}}}
	})
	for name, c := range map[string]struct{ method, path string }{
		"embeddings":           {"POST", "/v1/embeddings"},
		"v1 twice":             {"POST", "/v1/v1/chat/completions"},
		"the root":             {"GET", "/v1/"},
		"without a version":    {"POST", "/embeddings"},
		"a stored completion":  {"GET", "/v1/chat/completions/chatcmpl-1"},
		"a stored response":    {"GET", "/v1/responses/resp_1"},
		"a response to delete": {"DELETE", "/v1/responses/resp_1"},
		"a response to cancel": {"POST", "/v1/responses/resp_1/cancel"},
		"below a path of ours": {"GET", "/v1/bots/helper"},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			response, answer, err := call(t, c.method, url+c.path, "", "Authorization", "")
			is.NoErr(err)
			is.Equal(response.StatusCode, http.StatusNotFound)
			is.Equal(response.Header.Get("Content-Type"), "application/json")
			is.Equal(response.ContentLength, int64(len(answer)))
			is.True(response.Header.Get("X-Request-Id") != "")
			is.Equal(answer, `{"error":{"message":"this path is not served: there are GET /v1/models, GET /v1/models/{model}, POST /v1/chat/completions, POST /v1/responses, `+
				`GET /v1/usage/{month}, GET /v1/usage, PUT /v1/usage, GET /v1/bots and POST /v1/chat; the base URL of a client of OpenAI ends in /v1, once; responses are not stored",`+
				`"type":"invalid_request_error","param":null,"code":"unknown_url"}}`)
		})
	}
}

// The application says what its engine honours. What changes an answer otherwise is
// rejected, with its name and a way out; what only tunes it reaches the engine.
func TestHonouredFields(t *testing.T) {
	extras := make(map[string]json.RawMessage)
	engine := botapi.ChatEngineFunc(func(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
		extras = req.Extra
		return speaks(nil, "{}").Chat(ctx, req)
	})
	with := func(path, field string) string {
		if path == "/v1/responses" {
			return respond[:len(respond)-1] + "," + field + "}"
		}
		return ask[:len(ask)-1] + "," + field + "}"
	}
	both := []string{"/v1/chat/completions", "/v1/responses"}
	for name, c := range map[string]struct {
		paths         []string
		field, param  string // of the request
		honour, extra string // the name in Honours, and what reaches the engine
		nothing       string // a value that asks for nothing
	}{
		"JSON":       {both[:1], `"response_format":{"type":"json_object"}`, "response_format", "response_format", `{"type":"json_object"}`, `"response_format":{"type": "text"}`},
		"a schema":   {both[1:], `"text":{"format":{"type":"json_schema","name":"a","strict":true,"schema":{"type":"object"}}}`, "text.format", "response_format", `{"json_schema":{"name":"a","schema":{"type":"object"},"strict":true},"type":"json_schema"}`, `"text":{"format":{"type":"text"}}`},
		"moderation": {both, `"moderation":{"model":"m","policy":{"input":{"mode":"block"}}}`, "moderation", "moderation", `{"model":"m","policy":{"input":{"mode":"block"}}}`, `"moderation":null`},
		"web search": {both, `"web_search_options":{}`, "web_search_options", "web_search_options", `{}`, `"web_search_options":null`},
		"no answer":  {both, `"prompt_cache_options":{"prewarm":true,"ttl":"12h"}`, "prompt_cache_options.prewarm", "prompt_cache_options.prewarm", `{"prewarm":true,"ttl":"12h"}`, `"prompt_cache_options":{"prewarm":false}`},
	} {
		for _, path := range c.paths {
			t.Run(name+path, func(t *testing.T) {
				is := is.New(t)
				url := serveHandler(t, engine)
				response, answer, err := call(t, "POST", url+path, with(path, c.field))
				is.NoErr(err)
				is.Equal(response.StatusCode, 400)
				is.True(strings.HasPrefix(answer, `{"error":{"message":"`+c.param+`: bots cannot honour this value: `))
				is.True(strings.HasSuffix(answer, `"param":"`+c.param+`","code":"unsupported_value"}}`))
				response, _, err = call(t, "POST", url+path, with(path, c.nothing))
				is.NoErr(err)
				is.Equal(response.StatusCode, 200)

				server := httptest.NewServer(newAPI(t, engine, withRoutes(c.honour)))
				defer server.Close()
				response, answer, err = call(t, "POST", server.URL+path, with(path, c.field))
				is.NoErr(err)
				if response.StatusCode != 200 {
					t.Fatal(answer)
				}
				name, _, _ := strings.Cut(c.honour, ".")
				is.Equal(string(extras[name]), c.extra)
			})
		}
	}
}

func TestInvalidOptions(t *testing.T) {
	for want, o := range map[string]openai.Options{
		"openai: Routes: Options.Bots is nil":                                            {},
		"openai: Routes: Options.Honours: an engine cannot honour the field tools":       {Bots: failingStore{}, Honours: []string{"moderation", "tools"}},
		"openai: Routes: Options.Honours: an engine cannot honour the field temperature": {Bots: failingStore{}, Honours: []string{"temperature"}},
	} {
		is := is.New(t)
		func() {
			defer func() { is.Equal(recover(), want) }()
			openai.Routes(o)
		}()
	}
}

// The log says why a request was rejected, without what the client has sent.
func TestLogOfRejectedRequests(t *testing.T) {
	for name, c := range map[string]struct{ path, body, want string }{
		"tools": {"/v1/chat/completions", ask[:len(ask)-1] + `,"tools":["SECRET"]}`, `400 tools: bots cannot honour this value: bots call no tools. ` +
			`Leave tools out, or send tool_choice "none"; in an agent or editor, choose a mode without tools: unsupported_value`},
		"an image": {"/v1/chat/completions", `{"model":"SECRET","messages":[{"role":"user","content":[{"type":"SECRET"}]}]}`, `400 messages[0].content[0].type: bots read text only: unsupported_value`},
		"a storage": {"/v1/responses", `{"model":"helper","input":"SECRET","store":true}`,
			`400 store: bots cannot honour this value: bots store no answers. Leave the field out, or send false: unsupported_value`},
		"not JSON": {"/v1/responses", `{"model":"SECRET",x}`, `400 Expecting property name enclosed in double quotes: line 1 column 19 (char 18): invalid_json`},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			var log bytes.Buffer
			logger := slog.New(slog.NewJSONHandler(&log, nil))
			server := httptest.NewServer(handlerFor(t, speaks(nil), func(o *botapi.Options) { o.Logger = logger }))
			response, _, err := call(t, "POST", server.URL+c.path, c.body)
			is.NoErr(err)
			server.Close()
			var line struct{ Level, Msg, Error, RequestID string }
			is.NoErr(json.Unmarshal([]byte(strings.Replace(log.String(), "request_id", "RequestID", 1)), &line)) // one line
			is.Equal(line.Level, "INFO")
			is.Equal(line.Msg, "request rejected")
			is.Equal(line.Error, c.want)
			is.Equal(line.RequestID, response.Header.Get("X-Request-Id"))
			is.True(!strings.Contains(log.String(), "SECRET"))
		})
	}
}

// The error of a stream says what the error response would have said, and always has a code.
func TestFailedStream(t *testing.T) {
	t.Parallel()
	for failure, want := range map[error]string{
		&botapi.StatusError{Status: 502, Detail: "The model's answer is incomplete"}:   `{"error":{"message":"The model's answer is incomplete","type":"server_error","param":null,"code":"server_error"}}`,
		&botapi.StatusError{Status: 429, Detail: "Slow down", RetryAfter: time.Second}: `{"error":{"message":"Slow down","type":"rate_limit_error","param":null,"code":"rate_limit_exceeded","retry_after":1}}`,
		&botapi.StatusError{Status: 403, Detail: "Not that"}:                           `{"error":{"message":"Not that","type":"invalid_request_error","param":null,"code":"invalid_request_error"}}`,
		errors.New("SECRET"): `{"error":{"message":"Internal Server Error","type":"server_error","param":null,"code":"server_error"}}`,
		&botapi.HTTPValidationError{Detail: []botapi.ValidationError{{Loc: []any{"body", "messages"}, Msg: "the conversation is too long for the model", Type: "value_error.messages.too_long"}}}: `{"error":{"message":"messages: the conversation is too long for the model","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}`,
	} {
		is := is.New(t)
		url := serveHandler(t, speaks(failure, "Once upon"))
		_, answer, err := complete(t, url, askStream)
		is.True(err != nil) // aborted
		text, events := textOfChunks(t, answer)
		is.Equal(text, "Once upon")
		is.Equal(events[len(events)-1], want)
		is.True(!strings.Contains(answer, `"finish_reason":"`))
		is.True(!strings.Contains(answer, "[DONE]"))
	}
}

func TestModelsOfFailedStore(t *testing.T) {
	is := is.New(t)
	url := serveHandler(t, speaks(nil), func(o *botapi.Options) { o.Bots = failingStore{} })
	response, answer, _ := call(t, "GET", url+"/v1/models", "")
	is.Equal(response.StatusCode, 500)
	is.Equal(answer, `{"error":{"message":"Internal Server Error","type":"server_error","param":null,"code":null}}`)
}

type failingStore struct{ botapi.BotStore }

func (failingStore) Bots(context.Context) ([]botapi.Bot, error) { return nil, errors.New("SECRET") }
