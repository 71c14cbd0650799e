package openai_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/openai"
	"example.com/botapi/examples/openai/runtimetest"
	"github.com/matryer/is"
)

var helper = botapi.Bot{UID: "u1", Slug: "helper", Name: "Helper", Model: "m1"}

const (
	stream   = `{"bot_slug":"helper","prompt":"Hi","stream":true}`
	noStream = `{"bot_slug":"helper","prompt":"Hi","stream":false}`
)

// serve starts a service whose bots use an engine of this package, and returns its URL.
func serve(t *testing.T, c openai.Config, options ...func(*botapi.Options)) string {
	t.Helper()
	engine, err := openai.NewEngine(c)
	if err != nil {
		t.Fatal(err)
	}
	api := newAPI(t, engine, options...)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, _ := openai.CountTokens(r.Context())
		api.ServeHTTP(w, r.WithContext(ctx))
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// newAPI returns the botapi handler of an engine, with two bots and the key "key".
func newAPI(t testing.TB, engine botapi.ChatEngine, options ...func(*botapi.Options)) http.Handler {
	t.Helper()
	bots, err := botapi.NewMemoryStore(helper, botapi.Bot{UID: "u2", Slug: "pirate", Name: "Pi\"rate", Description: "Arr.", Model: "m2"})
	if err != nil {
		t.Fatal(err)
	}
	o := botapi.Options{
		Bots:   bots,
		Keys:   botapi.StaticKeys(map[string]string{"key": "acme"}),
		Engine: engine,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	for _, option := range options {
		option(&o)
	}
	return botapi.New(o)
}

// reportsTo sends the Err of each chat's report to a channel.
func reportsTo(reports chan<- error) func(*botapi.Options) {
	return func(o *botapi.Options) {
		o.OnChat = func(_ context.Context, r botapi.ChatReport) { reports <- r.Err }
	}
}

// runtimeSays starts a runtime that calls answer for every chat.
func runtimeSays(t *testing.T, answer func(*runtimetest.Stream)) *runtimetest.Server {
	return runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { answer(s) })
}

var post, chat, text = runtimetest.Post, runtimetest.Chat, runtimetest.Text

func TestRecordedStreams(t *testing.T) {
	files, err := filepath.Glob("testdata/*.sse")
	if err != nil || len(files) == 0 {
		t.Fatal("no recorded streams", err)
	}
	for _, file := range files {
		recorded, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, size := range []int{1, 7, 1 << 20} { // 1 and 7 split characters
			for name, body := range map[string]string{"stream": stream, "JSON response": noStream} {
				t.Run(filepath.Base(file)+"/"+name, func(t *testing.T) {
					is := is.New(t)
					runtime := runtimeSays(t, func(s *runtimetest.Stream) {
						for rest := string(recorded); rest != ""; {
							n := min(size, len(rest))
							s.Raw(rest[:n])
							rest = rest[n:]
						}
					})
					response, answer := chat(t, serve(t, openai.Config{BaseURL: runtime.URL}), body)
					is.Equal(response.StatusCode, http.StatusOK)
					is.Equal(text(t, answer), "Grüße, 世界 👋🏽\n")
					is.Equal(strings.HasSuffix(answer, "data: [DONE]"), name == "stream")
				})
			}
		}
	}
}

// TestEvents has the forms of events, TestReadChunk those of the text in a chunk.
func TestCompleteStreams(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(*runtimetest.Stream)
		want   string
	}{
		"no text":                         {func(s *runtimetest.Stream) { s.Stop(); s.Done() }, ""},
		"without [DONE]":                  {func(s *runtimetest.Stream) { s.Text("complete"); s.Stop() }, "complete"},
		"aborted after the finish_reason": {func(s *runtimetest.Stream) { s.Text("complete"); s.Stop(); s.Break() }, "complete"},
		"comments and other fields": {func(s *runtimetest.Stream) {
			s.Raw(": processing\n\n: processing\r\n\r\nid: 7\nretry: 10\nevent: message\ndata: {\"choices\":\n")
			s.Raw("data: [{\"delta\":{\"content\":\"complete\"}}]}\n\n")
			s.Stop()
			s.Done()
		}, "complete"},
		"reasoning is omitted": {func(s *runtimetest.Stream) {
			s.Raw(`data: {"choices":[{"delta":{"role":"assistant","reasoning_content":"hm","reasoning":"hm","content":null}}]}` + "\n\n")
			s.Text("complete")
			s.Stop()
			s.Done()
		}, "complete"},
		"messages": {func(s *runtimetest.Stream) {
			s.Raw(`data: {"choices":[{"message":{"role":"assistant","content":"com"}}]}` + "\n\n")
			s.Raw(`data: {"choices":[{"message":{"content":"plete"},"finish_reason":"stop"}]}` + "\n\n")
		}, "complete"},
		"a message that repeats the deltas": {func(s *runtimetest.Stream) {
			s.Raw(`data: {"choices":[{"delta":{"content":"com"},"message":{"content":"com"}}]}` + "\n\n")
			s.Raw(`data: {"choices":[{"delta":{"content":"plete"},"message":{"content":"complete"}}]}` + "\n\n")
			s.Raw(`data: {"object":"chat.completion.done","choices":[{"message":{"content":"complete"},"finish_reason":"stop"}]}` + "\n\n")
		}, "complete"},
		"text and tool calls": {func(s *runtimetest.Stream) {
			s.Text("complete")
			s.Raw(`data: {"choices":[{"delta":{"tool_calls":[{"index":0}]},"finish_reason":"tool_calls"}]}` + "\n\n")
		}, "complete"},
		"reasoning alone": {func(s *runtimetest.Stream) {
			s.Raw(`data: {"choices":[{"delta":{"reasoning_content":"hm","content":"","tool_calls":null},"finish_reason":"length"}]}` + "\n\n")
		}, ""},
		"an unknown finish_reason": {func(s *runtimetest.Stream) {
			s.Raw(`data: {"choices":[{"delta":{"content":"complete"},"finish_reason":"eos"}]}` + "\n\n")
		}, "complete"},
		"the same, and the connection is aborted": {func(s *runtimetest.Stream) {
			s.Text("com")
			s.Raw(`data: {"choices":[{"delta":{"content":"plete"},"finish_reason":"stop"}]}`)
			s.Break()
		}, "complete"},
		"a character split into escapes": {func(s *runtimetest.Stream) {
			s.Raw(`data: {"choices":[{"delta":{"content":"a \ud83d"}}]}` + "\n\n")
			s.Raw(": ping\n\n" + `data: {"choices":[{"delta":{"content":""}}]}` + "\n\n")
			s.Raw(`data: {"choices":[{"delta":{"content":"\ude00 b \ud83d"}}]}` + "\n\n")
			s.Raw(`data: {"choices":[{"delta":{"content":"\ude01"},"finish_reason":"stop"}]}` + "\n\n")
		}, "a 😀 b 😁"},
		"half a character": {func(s *runtimetest.Stream) {
			s.Raw(`data: {"choices":[{"delta":{"content":"\ud83d"}}]}` + "\n\n")
			s.Stop()
		}, "\ufffd"},
		"an error without content": {func(s *runtimetest.Stream) {
			for _, none := range []string{`""`, `{}`, `false`, `null`} {
				s.Raw(`data: {"error":` + none + `,"choices":[{"delta":{"content":"x"}}]}` + "\n\n")
			}
			s.Stop()
		}, "xxxx"},
		"text that looks like the end": {func(s *runtimetest.Stream) {
			s.Text("data: [DONE]\n\n\x00\u2028")
			s.Stop()
			s.Done()
		}, "data: [DONE]\n\n\x00\u2028"},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			response, answer := chat(t, serve(t, openai.Config{BaseURL: runtimeSays(t, c.answer).URL}), stream)
			is.Equal(response.StatusCode, http.StatusOK)
			is.Equal(text(t, answer), c.want)
			is.True(strings.HasSuffix(answer, "data: [DONE]"))
		})
	}
}

// Engines that wrap this one see that a runtime is alive, and clients do not.
func TestSignsOfLife(t *testing.T) {
	is := is.New(t)
	runtime := runtimeSays(t, func(s *runtimetest.Stream) {
		s.Raw(": keep-alive\n\ndata:\n\nevent: ping\n\n")
		s.Text("Hi")
		s.Raw(": keep-alive\n")
		s.Stop()
		s.Done()
	})
	engine, err := openai.NewEngine(openai.Config{BaseURL: runtime.URL})
	is.NoErr(err)
	var alive []bool
	for chunk, err := range engine.Chunks(t.Context(), &botapi.ChatRequest{Bot: helper}) {
		is.NoErr(err)
		alive = append(alive, chunk.Alive)
	}
	is.Equal(alive, []bool{true, true, true, false, true, false})
	_, answer := chat(t, serve(t, openai.Config{BaseURL: runtime.URL}), stream)
	is.Equal(answer, "data: {\"content\":\"Hi\"}\n\ndata: [DONE]")
}

func TestFragmentsPassImmediately(t *testing.T) {
	is := is.New(t)
	next := make(chan string, 1)
	runtime := runtimeSays(t, func(s *runtimetest.Stream) {
		s.Role()
		for fragment := range next {
			s.Text(fragment)
		}
		s.Stop()
		s.Done()
	})
	defer close(next)
	next <- "fragment"
	response := post(t, t.Context(), serve(t, openai.Config{BaseURL: runtime.URL}), stream)
	lines := bufio.NewScanner(response.Body)
	for range 5 {
		is.True(lines.Scan())
		is.Equal(lines.Text(), `data: {"content":"fragment"}`)
		is.True(lines.Scan())
		next <- "fragment" // the client has read the one before
	}
}

func TestUpstreamRequest(t *testing.T) {
	const conversation = `"messages":[{"role":"system","content":"s"},{"role":"assistant","content":"<a>"},{"role":"user","content":"Hi"}]`
	const tail = `"stream":true,"stream_options":{"include_usage":true}}`
	for name, c := range map[string]struct {
		config openai.Config
		extra  string
		want   string
	}{
		"plain":                     {want: `{` + conversation + `,"model":"m1",` + tail},
		"its own model":             {config: openai.Config{Model: "llama3.2"}, want: `{` + conversation + `,"model":"llama3.2",` + tail},
		"count along":               {config: openai.Config{Count: openai.CountAlong}, want: `{` + conversation + `,"model":"m1","stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`},
		"count never":               {config: openai.Config{Count: openai.CountNever}, want: `{` + conversation + `,"model":"m1","stream":true}`},
		"checked fields":            {extra: `,"max_tokens":5,"seed":-1,"stop":["a"],"temperature":0.5,"top_p":null`, want: `{"max_tokens":5,` + conversation + `,"model":"m1","seed":-1,"stop":["a"],"stream":true,"stream_options":{"include_usage":true},"temperature":0.5}`},
		"a limit by its newer name": {extra: `,"max_completion_tokens":5`, want: `{"max_tokens":5,` + conversation + `,"model":"m1",` + tail},
		"a limit by both names":     {extra: `,"max_tokens":6,"max_completion_tokens":5`, want: `{"max_tokens":5,` + conversation + `,"model":"m1",` + tail},
		"a limit for OpenAI": {config: openai.Config{MaxCompletionTokens: true}, extra: `,"max_tokens":5,"max_completion_tokens":null`,
			want: `{"max_completion_tokens":5,` + conversation + `,"model":"m1",` + tail},
		"rejected fields": {extra: `,"model":"gpt-9","n":7,"stream_options":{},"tools":[],"chat_template":"x","user":"x"`, want: `{` + conversation + `,"model":"m1",` + tail},
		"named fields":    {config: openai.Config{Extra: []string{"top_k"}}, extra: `,"top_k":{"a":[1]},"top_j":1`, want: `{` + conversation + `,"model":"m1","stream":true,"stream_options":{"include_usage":true},"top_k":{"a":[1]}}`},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			runtime := runtimeSays(t, func(s *runtimetest.Stream) { s.Whole("ok") })
			c.config.BaseURL = runtime.URL + "/?version=1"
			c.config.Key = "sk-1"
			chat(t, serve(t, c.config), `{"bot_slug":"helper","stream":false,"user_id":"someone@example.com","prompt":"Hi",
				"messages":[{"role":"system","content":"s"},{"role":"assistant","content":"<a>"}]`+c.extra+`}`)
			is.Equal(len(runtime.Requests()), 1)
			request := runtime.Requests()[0]
			is.Equal(strings.TrimSpace(request.Body), c.want)
			is.Equal(request.URL.RawQuery, "version=1")
			is.Equal(request.Header.Get("X-Request-Id"), "request-1")
			is.Equal(request.Header.Get("Authorization"), "Bearer sk-1")
			is.Equal(request.Header.Get("Accept-Encoding"), "identity")
		})
	}
}

func TestInvalidExtra(t *testing.T) {
	runtime := runtimeSays(t, func(s *runtimetest.Stream) { s.Whole("ok") })
	service := serve(t, openai.Config{BaseURL: runtime.URL})
	problem := func(field, msg, kind string) string {
		return `{"loc":["body","` + field + `"],"msg":"` + msg + `","type":"` + kind + `"}`
	}
	for extra, want := range map[string]string{
		`"temperature":true`:  problem("temperature", "value is not a valid float", "type_error.float"),
		`"temperature":1e999`: problem("temperature", "value is not a valid float", "type_error.float"),
		`"temperature":-0.1`:  problem("temperature", "ensure this value is greater than or equal to 0", "value_error.number.not_ge"),
		`"max_tokens":1.5`:    problem("max_tokens", "value is not a valid integer", "type_error.integer"),
		`"max_tokens":0`:      problem("max_tokens", "ensure this value is greater than or equal to 1", "value_error.number.not_ge"),
		`"stop":[1]`:          problem("stop", "str or list of str expected", "type_error.str"),
		`"top_p":2,"seed":"x"`: problem("seed", "value is not a valid integer", "type_error.integer") + "," +
			problem("top_p", "ensure this value is less than or equal to 1", "value_error.number.not_le"),
	} {
		t.Run(extra, func(t *testing.T) {
			is := is.New(t)
			response, answer := chat(t, service, `{"bot_slug":"helper","prompt":"Hi","stream":true,`+extra+`}`)
			is.Equal(response.StatusCode, http.StatusUnprocessableEntity)
			is.Equal(answer, `{"detail":[`+want+`]}`)
			is.Equal(len(runtime.Requests()), 0)
		})
	}
}

func TestUpstreamFailures(t *testing.T) {
	const (
		unavailable = `{"detail":"The model is unavailable for the moment"}`
		failed      = `{"detail":"The model failed"}`
		notAccepted = `{"detail":"The model did not accept the request"}`
		tooLong     = `{"detail":[{"loc":["body","messages"],"msg":"the conversation is too long for the model","type":"value_error.messages.too_long"}]}`
	)
	for name, c := range map[string]struct {
		upstream int
		body     string
		header   []string

		status     int
		answer     string
		retryAfter string
	}{
		"our key is rejected":            {401, `{"error":{"message":"Incorrect API key","type":"invalid_request_error","code":"invalid_api_key"}}`, nil, 502, failed, ""},
		"our account is forbidden":       {403, `{"error":{"message":"Forbidden"}}`, nil, 502, failed, ""},
		"no such model":                  {404, `{"object":"error","message":"The model does not exist.","code":404}`, nil, 502, failed, ""},
		"rate limit":                     {429, `{"error":{"message":"Rate limit reached"}}`, []string{"Retry-After", "17"}, 503, unavailable, "17"},
		"without a Retry-After":          {429, ``, nil, 503, unavailable, "2"},
		"a huge Retry-After":             {429, ``, []string{"Retry-After", "99999999999"}, 503, unavailable, "2"},
		"its queue is full":              {503, `{"error":{"message":"server busy, please try again.  maximum pending requests exceeded","type":"api_error","param":null,"code":null}}`, nil, 503, unavailable, "2"},
		"it is overloaded":               {529, `{"error":{"message":"Overloaded","type":"overloaded_error"}}`, nil, 503, unavailable, "2"},
		"it is starting":                 {503, `{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}`, nil, 503, unavailable, "2"},
		"a proxy without a server":       {502, `<html>Bad Gateway</html>`, nil, 503, unavailable, "2"},
		"an internal error":              {500, `Internal Server Error`, nil, 502, failed, ""},
		"a redirect to GET":              {301, ``, []string{"Location", "/elsewhere"}, 502, failed, ""},
		"a redirect to POST":             {307, ``, []string{"Location", "/elsewhere"}, 502, failed, ""},
		"a body that is too large":       {413, `<html>413 Request Entity Too Large</html>`, nil, 422, tooLong, ""},
		"an HTML page":                   {200, `<html>Welcome!</html>`, nil, 502, failed, ""},
		"a JSON response":                {200, `{"choices":[{"message":{"content":"Hi"},"finish_reason":"stop"}]}`, nil, 502, failed, ""},
		"no content":                     {204, ``, nil, 502, failed, ""},
		"an invalid request":             {400, `{"error":{"message":"temperature is not supported","type":"invalid_request_error"}}`, nil, 502, notAccepted, ""},
		"an error as text":               {400, `{"error":"temperature is not supported"}`, nil, 502, notAccepted, ""},
		"an error of other types":        {400, `{"error":{"message":{},"type":[],"code":{}}}`, nil, 502, notAccepted, ""},
		"an error without an end":        {400, `{"error":{"message":"` + strings.Repeat("x", 1<<20), nil, 502, notAccepted, ""},
		"too long for OpenAI":            {400, `{"error":{"message":"Too many tokens.","type":"invalid_request_error","code":"context_length_exceeded"}}`, nil, 422, tooLong, ""},
		"too long for old vLLM":          {400, `{"object":"error","message":"This model's maximum context length is 4096 tokens. However, you requested 5000.","type":"BadRequestError","param":null,"code":400}`, nil, 422, tooLong, ""},
		"too long for vLLM":              {400, `{"error":{"message":"This model's maximum context length is 4096 tokens. However, you requested 5000.","type":"BadRequestError","param":null,"code":400}}`, nil, 422, tooLong, ""},
		"too long for SGLang":            {400, `{"object":"error","message":"The input (5000 tokens) is longer than the model's context length (4096 tokens).","type":"BadRequestError","param":null,"code":400}`, nil, 422, tooLong, ""},
		"too long for llama.cpp":         {400, `{"error":{"code":400,"message":"the request exceeds the available context size","type":"exceed_context_size_error","n_ctx":4096}}`, nil, 422, tooLong, ""},
		"the same with status 200":       {200, `{"error":{"code":400,"message":"the request exceeds the available context size","type":"exceed_context_size_error","n_ctx":4096}}`, nil, 422, tooLong, ""},
		"too long for Ollama":            {400, `{"error":{"message":"the input length exceeds the context length","type":"invalid_request_error","param":null,"code":null}}`, nil, 422, tooLong, ""},
		"too long for vLLM in 2026":      {400, `{"error":{"message":"You passed 8193 input tokens and requested 512 output tokens. However, the model's context length is only 8192 tokens, resulting in a maximum input length of 7680 tokens. Please reduce the length of the input prompt.","type":"BadRequestError","param":"input_tokens","code":400}}`, nil, 422, tooLong, ""},
		"too long for hosted Ollama":     {400, `{"error":{"message":"prompt too long; exceeded max context length by 540451 tokens (ref: 00ad71bb)","type":"invalid_request_error","param":null,"code":null}}`, nil, 422, tooLong, ""},
		"too long for Gemini":            {400, `[{"error":{"code":400,"message":"The input token count (218152) exceeds the maximum number of tokens allowed (65536).","status":"INVALID_ARGUMENT"}}]`, nil, 422, tooLong, ""},
		"too long for xAI":               {400, `{"code":"Client specified an invalid argument","error":"This model's maximum prompt length is 131072 but the request contains 537812 tokens."}`, nil, 422, tooLong, ""},
		"too long for Kimi":              {400, `{"error":{"message":"Invalid request: Your request exceeded model token limit: 8192","type":"invalid_request_error"}}`, nil, 422, tooLong, ""},
		"too long for DeepSeek":          {400, `{"error":{"message":"This model's maximum context length is 131072 tokens. However, you requested 131134 tokens (122942 in the messages, 8192 in the completion). Please reduce the length of the messages or completion.","type":"invalid_request_error","param":null,"code":"invalid_request_error"}}`, nil, 422, tooLong, ""},
		"too long for LM Studio in 2025": {400, `{"error":"The number of tokens to keep from the initial prompt is greater than the context length (n_keep: 13055>= n_ctx: 4096). Try to load the model with a larger context length, or provide a shorter input."}`, nil, 422, tooLong, ""},
		"too long for LM Studio 0.4":     {400, `{"error":"Cannot truncate prompt with n_keep (15028) >= n_ctx (7424)"}`, nil, 422, tooLong, ""},
		"too long, as plain text":        {400, `Validation: prompt is too long`, nil, 422, tooLong, ""},
		"no error":                       {400, `[]`, nil, 502, notAccepted, ""},
		"too long for LM Studio":         {400, `{"error":"Trying to keep the first 9000 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens"}`, nil, 422, tooLong, ""},
	} {
		t.Run(name, func(t *testing.T) {
			for _, body := range []string{stream, noStream} {
				is := is.New(t)
				runtime := runtimeSays(t, func(s *runtimetest.Stream) { s.Refuse(c.upstream, c.body, c.header...) })
				response, answer := chat(t, serve(t, openai.Config{BaseURL: runtime.URL}), body)
				is.Equal(response.StatusCode, c.status)
				is.Equal(answer, c.answer)
				is.Equal(response.Header.Get("Retry-After"), c.retryAfter)
			}
		})
	}
}

// A runtime may send an error in its stream, before any text.
func TestErrorsBeforeText(t *testing.T) {
	for name, c := range map[string]struct {
		event  string
		status int
	}{
		"OpenAI and vLLM":      {`data: {"error":{"message":"CUDA out of memory","type":"InternalServerError","code":500}}`, 502},
		"old vLLM":             {`data: {"object":"error","message":"boom","code":500}`, 502},
		"a hosted service":     {`data: {"error":{"message":"Rate limited","code":429}}`, 503},
		"a limit by name":      {`data: {"error":{"message":"Rate limit","type":"requests","code":"rate_limit_exceeded"}}`, 503},
		"a limit by type":      {`data: {"error":{"message":"Rate limit","type":"rate_limit_error"}}`, 503},
		"overloaded":           {`data: {"error":{"message":"Overloaded","type":"overloaded_error","code":null}}`, 503},
		"as a finish_reason":   {`data: {"choices":[{"finish_reason":"overloaded_error","delta":{"content":""}}]}`, 503},
		"LM Studio":            {"event: error\ndata: {\"error\":{\"message\":\"Context size has been exceeded.\"}}", 422},
		"llama.cpp":            {`data: {"error":{"code":400,"message":"m","type":"exceed_context_size_error"}}`, 422},
		"old llama.cpp":        {`error: {"code":400,"message":"the request exceeds the available context size"}`, 422},
		"an event named error": {"event: error\ndata: oops", 502},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			runtime := runtimeSays(t, func(s *runtimetest.Stream) { s.Role(); s.Raw(c.event + "\n\n"); s.Done() })
			response, _ := chat(t, serve(t, openai.Config{BaseURL: runtime.URL}), stream)
			is.Equal(response.StatusCode, c.status)
		})
	}
}

// A runtime may find out only while it answers that the conversation is too long. The error
// is of the same type as before the first text.
func TestTooLongAfterText(t *testing.T) {
	is := is.New(t)
	runtime := runtimeSays(t, func(s *runtimetest.Stream) {
		s.Text("Once upon")
		s.Raw("event: error\ndata: {\"error\":{\"message\":\"Context size has been exceeded.\"}}\n\n")
	})
	engine, err := openai.NewEngine(openai.Config{BaseURL: runtime.URL})
	is.NoErr(err)
	said := ""
	for text, err := range engine.Chat(t.Context(), &botapi.ChatRequest{Bot: helper}) {
		if err == nil {
			said += text
			continue
		}
		invalid, ok := errors.AsType[*botapi.HTTPValidationError](err)
		is.True(ok)
		is.Equal(invalid.Detail[0].Type, "value_error.messages.too_long")
		failure, ok := errors.AsType[*openai.Failure](err)
		is.True(ok)
		is.True(failure.TooLong && failure.Begun && failure.Streamed)
	}
	is.Equal(said, "Once upon")
}

func compressed(s string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	io.WriteString(w, s)
	w.Close()
	return b.String()
}

// incomplete has streams that end before the answer is complete.
var incomplete = map[string]struct {
	answer func(*runtimetest.Stream)
	cause  string
}{
	"error object": {func(s *runtimetest.Stream) {
		s.Raw(`data: {"error":{"message":"CUDA out of memory","type":"InternalServerError","code":500}}` + "\n\n")
		s.Done()
	}, `an error in the stream, of type "InternalServerError" and code "500"`},
	"aborted by vLLM": {func(s *runtimetest.Stream) {
		s.Raw(`data: {"choices":[{"index":0,"delta":{"content":""},"finish_reason":"abort"}]}` + "\n\n")
		s.Usage(9, 2)
		s.Done()
	}, `with the finish_reason "abort"`},
	"a failed model": {func(s *runtimetest.Stream) {
		s.Raw(`data: {"choices":[{"index":0,"delta":{},"finish_reason":"error"}]}` + "\n\n")
		s.Done()
	}, `with the finish_reason "error"`},
	"an error as the finish_reason": {func(s *runtimetest.Stream) { // Portkey's gateway
		s.Raw(`data: {"choices":[{"finish_reason":"api_error","delta":{"content":""}}]}` + "\n\n")
		s.Done()
	}, `with the finish_reason "api_error"`},
	"no resources": {func(s *runtimetest.Stream) {
		s.Raw(`data: {"choices":[{"index":0,"delta":{},"finish_reason":"insufficient_system_resource"}]}` + "\n\n")
		s.Done()
	}, `with the finish_reason "insufficient_system_resource"`},
	"connection aborted":     {func(s *runtimetest.Stream) { s.Break() }, "unexpected EOF"},
	"no finish_reason":       {func(*runtimetest.Stream) {}, "the stream ended before the answer did"},
	"[DONE] alone":           {func(s *runtimetest.Stream) { s.Done() }, "the stream ended before the answer did"},
	"aborted inside a chunk": {func(s *runtimetest.Stream) { s.Raw(`data: {"choices":[{"ind`); s.Break() }, "unexpected EOF"},
	"aborted inside the end": {func(s *runtimetest.Stream) { s.Raw(`data: {"choices":[{"finish_reason":"stop"}]`) }, "the stream ended before the answer did"},
	"not JSON":               {func(s *runtimetest.Stream) { s.Raw("data: oops\n\n") }, "not a JSON object"},
	"an endless line":        {func(s *runtimetest.Stream) { endless(s, "data: ", strings.Repeat("x", 64<<10)) }, "longer than 1048576 bytes"},
	"an endless comment":     {func(s *runtimetest.Stream) { endless(s, ":", strings.Repeat("x", 64<<10)) }, "longer than 1048576 bytes"},
	"an endless event":       {func(s *runtimetest.Stream) { endless(s, "", "data: "+strings.Repeat("x", 32<<10)+"\n") }, "longer than 1048576 bytes"},
}

// endless writes until the client disconnects, up to 1 GiB.
func endless(s *runtimetest.Stream, first, then string) {
	s.Raw(first)
	for n := 0; n < 1<<30 && s.Raw(then); n += len(then) {
	}
}

func TestIncompleteStreams(t *testing.T) {
	t.Parallel()
	for name, c := range incomplete {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // a stream is aborted after a pause
			is := is.New(t)
			reports := make(chan error, 3)
			service := func(before func(*runtimetest.Stream)) string {
				runtime := runtimeSays(t, func(s *runtimetest.Stream) { before(s); c.answer(s) })
				return serve(t, openai.Config{BaseURL: runtime.URL}, reportsTo(reports))
			}

			response, answer := chat(t, service(func(s *runtimetest.Stream) { s.Role() }), stream)
			is.Equal(response.StatusCode, http.StatusBadGateway)
			is.Equal(answer, `{"detail":"The model failed"}`)
			failure, ok := errors.AsType[*openai.Failure](<-reports)
			is.True(ok)
			is.True(failure.Streamed && !failure.Begun)
			is.True(strings.Contains(failure.Error(), c.cause))

			begun := service(func(s *runtimetest.Stream) { s.Text("Once upon") })
			response = post(t, t.Context(), begun, stream)
			aborted, err := io.ReadAll(response.Body)
			is.True(err != nil) // aborted, so that no client takes it for complete
			is.Equal(string(aborted), "data: {\"content\":\"Once upon\"}\n\n"+
				"event: error\ndata: {\"detail\":\"The model's answer is incomplete\",\"status\":502}\n\n")

			response, answer = chat(t, begun, noStream)
			is.Equal(response.StatusCode, http.StatusBadGateway)
			is.Equal(answer, `{"detail":"The model's answer is incomplete"}`)
		})
	}
}

// An answer of other content than text is never an empty success.
func TestAnswersWithoutText(t *testing.T) {
	for name, events := range map[string][]string{
		"tool calls": {
			`{"choices":[{"delta":{"content":null,"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"SECRET","arguments":"{}"}}]}}]}`,
			`{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}`,
		},
		"a function call":       {`{"choices":[{"message":{"function_call":{"name":"SECRET"}},"finish_reason":"stop"}]}`},
		"tool calls by name":    {`{"choices":[{"delta":{"content":""},"finish_reason":"tool_calls"}]}`},
		"parts of another kind": {`{"choices":[{"delta":{"content":[{"type":"image_url","image_url":"SECRET"}]},"finish_reason":"stop"}]}`},
		"a text as the delta":   {`{"choices":[{"delta":"SECRET","finish_reason":"stop"}]}`},
		"an object":             {`{"choices":[{"delta":{"content":{"SECRET":"a"}},"finish_reason":"stop"}]}`},
	} {
		t.Run(name, func(t *testing.T) {
			for _, body := range []string{stream, noStream} {
				is := is.New(t)
				runtime := runtimeSays(t, func(s *runtimetest.Stream) {
					for _, event := range events {
						s.Raw("data: " + event + "\n\n")
					}
					s.Usage(9, 2)
					s.Done()
				})
				var log bytes.Buffer
				reports := make(chan error, 1)
				response, answer := chat(t, serve(t, openai.Config{BaseURL: runtime.URL}, reportsTo(reports), func(o *botapi.Options) {
					o.Logger = slog.New(slog.NewTextHandler(&log, nil))
				}), body)
				is.Equal(response.StatusCode, http.StatusBadGateway)
				is.Equal(answer, `{"detail":"The model's answer has no text"}`)
				failure, ok := errors.AsType[*openai.Failure](<-reports)
				is.True(ok)
				is.True(failure.NoText && failure.Streamed && !failure.Begun)
				is.True(strings.Contains(log.String(), "the answer has no text, only tool calls or other content"))
				is.True(!strings.Contains(log.String(), "SECRET"))
			}
		})
	}
}

func TestUnrequestedCompression(t *testing.T) {
	is := is.New(t)
	runtime := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Content-Encoding", "gzip")
		io.WriteString(w, compressed(`data: {"choices":[{"finish_reason":"stop"}]}`+"\n\n"))
	}))
	defer runtime.Close()
	reports := make(chan error, 1)
	response, _ := chat(t, serve(t, openai.Config{BaseURL: runtime.URL}, reportsTo(reports)), stream)
	is.Equal(response.StatusCode, http.StatusBadGateway)
	is.True(strings.Contains((<-reports).Error(), `the stream is encoded as "gzip"`))
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	is := is.New(t)
	elsewhere := runtimeSays(t, func(s *runtimetest.Stream) { s.Whole("I have your key now") })
	for _, status := range []int{301, 302, 303, 307, 308} {
		runtime := runtimeSays(t, func(s *runtimetest.Stream) { s.Refuse(status, "", "Location", elsewhere.URL+"/chat/completions") })
		response, _ := chat(t, serve(t, openai.Config{BaseURL: runtime.URL, HTTPClient: new(http.Client)}), stream)
		is.Equal(response.StatusCode, http.StatusBadGateway)
	}
	is.Equal(len(elsewhere.Requests()), 0)
}

func TestUnreachableRuntime(t *testing.T) {
	is := is.New(t)
	// A port that no server gets by asking for any.
	response, answer := chat(t, serve(t, openai.Config{BaseURL: "http://127.0.0.1:1/v1"}), stream)
	is.Equal(response.StatusCode, http.StatusServiceUnavailable)
	is.Equal(response.Header.Get("Retry-After"), "2")
	is.Equal(answer, `{"detail":"The model is unavailable for the moment"}`)
}

func TestLogWithoutTextOfTheRuntime(t *testing.T) {
	is := is.New(t)
	for _, fails := range []func(*runtimetest.Stream){
		func(s *runtimetest.Stream) { s.Refuse(400, `{"error":{"message":"bad prompt: SECRET","type":"bad"}}`) },
		func(s *runtimetest.Stream) { s.Refuse(500, `SECRET`) },
		func(s *runtimetest.Stream) {
			s.Raw(`data: {"error":{"message":"bad prompt: SECRET","type":"bad"}}` + "\n\n")
		},
		func(s *runtimetest.Stream) { s.Raw("data: SECRET\n\n") },
	} {
		var log bytes.Buffer
		reports := make(chan error, 1)
		service := serve(t, openai.Config{BaseURL: runtimeSays(t, fails).URL, Key: "SECRET"}, reportsTo(reports), func(o *botapi.Options) {
			o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		})
		chat(t, service, noStream)
		<-reports
		is.True(strings.Contains(log.String(), "the model runtime failed"))
		is.True(!strings.Contains(log.String(), "SECRET"))
	}
}

// A chat that ends closes the connection to the runtime, which stops the model.
func TestEndOfAChatStopsTheModel(t *testing.T) {
	for _, begun := range []bool{false, true} {
		is := is.New(t)
		asked, stopped, returned := make(chan bool), make(chan bool), make(chan bool)
		runtime := runtimetest.New(t, func(s *runtimetest.Stream, r *runtimetest.Request) {
			s.Role()
			if begun {
				s.Text("Once upon")
			}
			asked <- true
			<-r.Context().Done() // the connection was closed
			close(stopped)
		})
		engine, err := openai.NewEngine(openai.Config{BaseURL: runtime.URL})
		is.NoErr(err)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			defer close(returned)
			for range engine.Chat(ctx, &botapi.ChatRequest{Bot: helper}) {
			}
		}()
		<-asked
		cancel()
		<-stopped
		<-returned
	}
}

// The engine waits at most 5 seconds for the body of an error.
func TestErrorWithoutAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		engine, err := openai.NewEngine(openai.Config{BaseURL: "http://runtime/v1", HTTPClient: &http.Client{
			Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
				read, write := io.Pipe()
				context.AfterFunc(r.Context(), func() { write.CloseWithError(r.Context().Err()) })
				return &http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {"9"}}, Body: read}, nil
			}),
		}})
		is.NoErr(err)
		for _, err := range engine.Chat(t.Context(), &botapi.ChatRequest{}) {
			answer, ok := errors.AsType[*botapi.StatusError](err)
			is.True(ok)
			is.Equal(answer.Status, http.StatusServiceUnavailable)
			is.Equal(answer.RetryAfter.String(), "9s")
		}
	})
}

// After the finish_reason, the engine waits at most 1 second for the end of the stream.
func TestCompleteAnswerWithoutAnEnd(t *testing.T) {
	for name, c := range map[string]struct {
		usageAfter time.Duration
		counted    bool
	}{
		"with its usage":   {500 * time.Millisecond, true},
		"a usage too late": {time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				var runtime sync.WaitGroup
				defer runtime.Wait()
				engine, err := openai.NewEngine(openai.Config{BaseURL: "http://runtime/v1", HTTPClient: &http.Client{
					Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
						read, write := io.Pipe()
						context.AfterFunc(r.Context(), func() { write.CloseWithError(r.Context().Err()) })
						runtime.Go(func() {
							io.WriteString(write, `data: {"choices":[{"delta":{"content":"complete"},"finish_reason":"stop"}]}`+"\n\n")
							for began := time.Now(); time.Since(began) < c.usageAfter; time.Sleep(100 * time.Millisecond) {
								if _, err := io.WriteString(write, ": ping\n\n"); err != nil {
									return
								}
							}
							io.WriteString(write, `data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":7}}`+"\n\n")
						})
						return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: read}, nil
					}),
				}})
				is.NoErr(err)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				ctx, usage := openai.CountTokens(ctx)
				said := ""
				for text, err := range engine.Chat(ctx, &botapi.ChatRequest{}) {
					is.NoErr(err)
					said += text
				}
				is.Equal(said, "complete")
				is.NoErr(ctx.Err())
				_, counted := usage.Tokens()
				is.Equal(counted, c.counted)
			})
		})
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestConnectionIsReused(t *testing.T) {
	is := is.New(t)
	var peers []string
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, r *runtimetest.Request) {
		peers = append(peers, r.RemoteAddr)
		s.Whole("ok")
		time.Sleep(20 * time.Millisecond) // the body ends a moment after [DONE]
	})
	service := serve(t, openai.Config{BaseURL: runtime.URL})
	for range 3 {
		chat(t, service, stream)
	}
	is.Equal(len(peers), 3)
	is.Equal(peers[1], peers[0])
	is.Equal(peers[2], peers[0])
}

func TestInvalidConfig(t *testing.T) {
	for _, c := range []openai.Config{
		{},
		{BaseURL: "localhost:11434"},
		{BaseURL: "ftp://localhost/v1"},
		{BaseURL: "http:///v1"},
		{BaseURL: "http://user:SECRET@localhost/v1"},
		{BaseURL: "http://localhost/v1", Key: "SECRET\n"},
		{BaseURL: "http://localhost/v1", Extra: []string{"model"}},
	} {
		is := is.New(t)
		_, err := openai.NewEngine(c)
		is.True(err != nil)
		is.True(!strings.Contains(err.Error(), "SECRET"))
	}
}
