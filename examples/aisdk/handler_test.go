package aisdk_test

import (
	"context"
	"errors"
	"flag"
	"iter"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/aisdk"
	"example.com/botapi/examples/openai"
	"github.com/matryer/is"
)

var update = flag.Bool("update", false, "write testdata/*.http from the responses")

// TestWire compares responses, byte for byte, with files in testdata.
func TestWire(t *testing.T) {
	counts := botapi.ChatEngineFunc(func(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
		openai.UsageFrom(ctx).Report(openai.Tokens{Prompt: 12, Completion: 3})
		openai.UsageFrom(ctx).Finish("length")
		return says(nil, "Good ", "morning").Chat(ctx, nil)
	})
	broken := &botapi.StatusError{Status: 502, Detail: `The model's answer is incomplete: "why"`, RetryAfter: 2 * time.Second}
	for name, c := range map[string]struct {
		engine botapi.ChatEngine
		key    string
	}{
		"complete":           {counts, "key"},
		"empty":              {says(nil), "key"},
		"empty-fragments":    {says(nil, "", "Hi", ""), "key"},
		"hostile":            {says(nil, hostile), "key"},
		"late-failure":       {says(broken, "Good "), "key"},
		"early-failure":      {says(broken), "key"},
		"invalid-key":        {says(nil, "Hi"), "nonsense"},
		"silent-then-failed": {botapi.ChatEngineFunc(silentThenFails), "key"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				h := counting(newHandler(t, c.engine, aisdk.Options{FinishReason: reason, Metadata: tokens}))
				r := httptest.NewRequest("POST", "/api/chat?bot=mira", strings.NewReader(ask))
				r.Header.Set("Authorization", "Bearer "+c.key)
				r.Header.Set("X-Request-Id", "request-1")
				recorder := &eachWrite{ResponseRecorder: httptest.NewRecorder()}
				aborted := serveAborting(h, recorder, r)
				var got strings.Builder
				got.WriteString(http.StatusText(recorder.Code) + "\n")
				is.NoErr(recorder.Result().Header.Write(&got))
				got.WriteString("\n" + anyID.ReplaceAllString(recorder.Body.String(), `"messageId":"ID"`))
				if aborted {
					got.WriteString("(the connection is aborted)\n")
				}
				wire := strings.ReplaceAll(got.String(), "\r\n", "\n")
				file := "testdata/" + name + ".http"
				if *update {
					is.NoErr(os.WriteFile(file, []byte(wire), 0o644))
				}
				want, err := os.ReadFile(file)
				is.NoErr(err)
				is.Equal(wire, string(want))
			})
		})
	}
}

var anyID = regexp.MustCompile(`"messageId":"[A-Z2-7]{26}"`)

// hostile is text that parsers get wrong.
const hostile = "data: [DONE]\n\n\r\n: c\nevent: error\n{\"type\":\"error\"} Grüße, 世界 👋🏽\u2028\u2029\u0085\x00\"\\</script>\xff"

func silentThenFails(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		time.Sleep(20 * time.Second) // in a bubble
		yield("", errors.New("a secret"))
	}
}

func reason(ctx context.Context) string { return openai.UsageFrom(ctx).FinishReason() }

func tokens(ctx context.Context) any {
	tokens, reported := openai.UsageFrom(ctx).Tokens()
	if !reported {
		return nil
	}
	return map[string]int64{"inputTokens": tokens.Prompt, "outputTokens": tokens.Completion}
}

// counting is middleware that lets an engine report its token counts.
func counting(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, _ := openai.CountTokens(r.Context())
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// An eachWrite counts writes and flushes.
type eachWrite struct {
	*httptest.ResponseRecorder
	writes, flushes int
}

func (w *eachWrite) Write(p []byte) (int, error) { w.writes++; return w.ResponseRecorder.Write(p) }
func (w *eachWrite) Flush()                      { w.flushes++; w.ResponseRecorder.Flush() }

// serveAborting reports whether the handler has aborted the connection.
func serveAborting(h http.Handler, w http.ResponseWriter, r *http.Request) (aborted bool) {
	defer func() {
		if v := recover(); v != nil {
			if aborted = v == any(http.ErrAbortHandler); !aborted {
				panic(v)
			}
		}
	}()
	h.ServeHTTP(w, r)
	return false
}

// Each write of the API is one write, which is flushed immediately.
func TestWritesAreTranslatedOneByOne(t *testing.T) {
	is := is.New(t)
	slow := botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			for _, fragment := range []string{"a ", "b ", "c "} {
				time.Sleep(time.Second) // in a bubble
				if !yield(fragment, nil) {
					return
				}
			}
			time.Sleep(time.Second)
		}
	})
	count := func(h http.Handler, path, body string) (writes, flushes int) {
		w := &eachWrite{ResponseRecorder: httptest.NewRecorder()}
		r := httptest.NewRequest("POST", path, strings.NewReader(body))
		r.Header.Set("Authorization", "Bearer key")
		h.ServeHTTP(w, r)
		is.Equal(w.Code, 200)
		return w.writes, w.flushes
	}
	synctest.Test(t, func(t *testing.T) {
		writes, flushes := count(newHandler(t, slow, aisdk.Options{}), "/api/chat?bot=mira", ask)
		is.Equal([]int{writes, flushes}, []int{4, 4})
	})
	many := make([]string, 10_000)
	for i := range many {
		many[i] = "word "
	}
	url := serve(t, newHandler(t, says(nil, many...), aisdk.Options{}))
	_, text, err := call(t, "POST", url+"/api/chat?bot=mira", ask)
	is.NoErr(err)
	is.Equal(readAnswer(t, text).text, strings.Join(many, ""))
	is.True(strings.Count(text, "text-delta") < 1_000) // fragments that are ready together
}

// TestRequests sends bodies to a bot that says what it was asked.
func TestRequests(t *testing.T) {
	repeats := botapi.ChatEngineFunc(func(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
		said := req.Bot.Slug
		for _, m := range req.Messages {
			said += "|" + string(m.Role) + ":" + m.Content
		}
		for _, name := range []string{"temperature", "id", "bot", "trigger", "messageId"} {
			if value := req.Extra[name]; value != nil {
				said += "|" + name + "=" + string(value)
			}
		}
		if req.UserID != "" {
			said += "|by " + req.UserID
		}
		return says(nil, said).Chat(ctx, req)
	})
	log := new(log)
	url := serve(t, newHandler(t, repeats, aisdk.Options{}, func(o *botapi.Options) { o.MaxBodyBytes, o.Logger = 2000, log.logger() }))
	const user = `{"id":"m1","role":"user","parts":[{"type":"text","text":"Hi"}]}`
	for name, c := range map[string]struct {
		query, body string
		status      int
		want        string // text of the answer, or of the error
	}{
		"a chat":                 {"?bot=mira", `{"id":"c","messages":[` + user + `],"trigger":"submit-message"}`, 200, "mira|user:Hi"},
		"the bot in the body":    {"", `{"id":"c","bot":"juniper","messages":[` + user + `]}`, 200, "juniper|user:Hi"},
		"the same bot twice":     {"?bot=mira", `{"bot":"mira","messages":[` + user + `]}`, 200, "mira|user:Hi"},
		"regenerate":             {"?bot=mira", `{"id":"c","messages":[` + user + `],"trigger":"regenerate-message","messageId":"m2"}`, 200, "mira|user:Hi"},
		"fields of the page":     {"?bot=mira", `{"id":"c","messages":[` + user + `],"temperature":0.5,"user_id":"u7"}`, 200, "mira|user:Hi|temperature=0.5|by u7"},
		"nulls are absent":       {"?bot=mira", `{"id":null,"bot":null,"prompt":null,"messages":[` + user + `]}`, 200, "mira|user:Hi"},
		"a byte order mark":      {"?bot=mira", "\ufeff" + `{"messages":[` + user + `]}`, 200, "mira|user:Hi"},
		"a lone surrogate":       {"?bot=mira", `{"messages":[{"role":"user","parts":[{"type":"text","text":"\ud83d"}]}]}`, 200, "mira|user:\ufffd"},
		"text that looks like":   {"?bot=mira", `{"messages":[{"role":"user","parts":[{"type":"text","text":"<a>\u2028[DONE]\n"}]}]}`, 200, "mira|user:<a>\u2028[DONE]\n"},
		"several texts":          {"?bot=mira", `{"messages":[{"role":"user","parts":[{"type":"text","text":"a"},{"type":"text","text":""},{"type":"text","text":"b"}]}]}`, 200, "mira|user:a\nb"},
		"an empty message":       {"?bot=mira", `{"messages":[{"role":"user","parts":[]}]}`, 200, "mira|user:"},
		"a system message":       {"?bot=mira", `{"messages":[{"role":"system","parts":[{"type":"text","text":"Rhyme"}]},` + user + `]}`, 200, "mira|system:Rhyme|user:Hi"},
		"a part without a text":  {"?bot=mira", `{"messages":[{"role":"user","parts":[{"type":"text"}]}]}`, 400, "messages[0].parts[0] must have a text"},
		"a part without a type":  {"?bot=mira", `{"messages":[` + user + `,{"role":"user","parts":[{"type":"text","text":"a"},{"Type":"text"}]}]}`, 400, "messages[1].parts[1] must have a type"},
		"a null part":            {"?bot=mira", `{"messages":[{"role":"user","parts":[null]}]}`, 400, "messages[0].parts[0] must have a type"},
		"no parts":               {"?bot=mira", `{"messages":[{"role":"user","content":"Hi"}]}`, 400, "messages[0] must have a role and parts"},
		"a role in capitals":     {"?bot=mira", `{"messages":[{"role":"User","parts":[]}]}`, 400, "messages[0].role must be system, user or assistant"},
		"an unknown role":        {"?bot=mira", `{"messages":[{"role":"tool","parts":[]}]}`, 400, "messages[0].role must be system, user or assistant"},
		"a null message":         {"?bot=mira", `{"messages":[null]}`, 400, "messages[0] must have a role and parts"},
		"a file":                 {"?bot=mira", `{"messages":[{"role":"user","parts":[{"type":"file","mediaType":"image/png","url":"data:,"},{"type":"text","text":"?"}]}]}`, 400, "Bots read text only: please remove the file"},
		"data of a user":         {"?bot=mira", `{"messages":[{"role":"user","parts":[{"type":"data-place","data":{}}]}]}`, 400, "messages[0].parts[0] is not text, and bots read text only"},
		"no messages":            {"?bot=mira", `{"messages":[]}`, 400, "messages must have a message"},
		"messages of a text":     {"?bot=mira", `{"messages":"Hi"}`, 400, "messages must be a list"},
		"messages missing":       {"?bot=mira", `{}`, 400, "messages must have a message"},
		"no bot":                 {"", `{"messages":[` + user + `]}`, 400, "bot is required, in the URL or in the body"},
		"two bots":               {"?bot=mira", `{"bot":"juniper","messages":[` + user + `]}`, 400, "bot is not the bot that the URL names"},
		"a number as bot":        {"", `{"bot":7,"messages":[` + user + `]}`, 400, "bot must be a string"},
		"an unknown bot":         {"?bot=parrot", `{"messages":[` + user + `]}`, 404, "Bot not found"},
		"a field of another API": {"?bot=mira", `{"prompt":"Ha","messages":[` + user + `]}`, 400, "prompt is a field of another API"},
		"not JSON":               {"?bot=mira", `{"messages":`, 400, "Expecting value: line 1 column 13 (char 12)"},
		"not an object":          {"?bot=mira", `[]`, 400, "the body must be an object"},
		"not UTF-8":              {"?bot=mira", "{\"id\":\"\xff\"}", 400, "Not UTF-8: line 1 column 8 (char 7)"},
		"nothing":                {"?bot=mira", "", 400, "Expecting value: line 1 column 1 (char 0)"},
		"too large":              {"?bot=mira", `{"messages":"` + strings.Repeat("a", 2000) + `"}`, 413, "Request body too large"},
		"an assistant's parts": {"?bot=mira", `{"messages":[` + user + `,{"role":"assistant","parts":[{"type":"step-start"},{"type":"reasoning","text":"Hm"},
			{"type":"text","text":"Hello","state":"done"},{"type":"data-mood","data":1},{"type":"source-url","url":"u"},{"type":"tool-x"},{"type":"file"}]},` + user + `]}`,
			200, "mira|user:Hi|assistant:Hello|user:Hi"},
		"an assistant that was stopped": {"?bot=mira", `{"messages":[` + user + `,{"role":"assistant","parts":[{"type":"text","text":""}]},{"role":"assistant","parts":[]},` + user + `]}`,
			200, "mira|user:Hi|user:Hi"},
		"a file before its role":                 {"?bot=mira", `{"messages":[{"parts":[{"type":"file"}],"role":"user"}]}`, 400, "Bots read text only: please remove the file"},
		"an assistant's file before its role":    {"?bot=mira", `{"messages":[{"parts":[{"type":"file"},{"type":"text","text":"a"}],"role":"assistant"},` + user + `]}`, 200, "mira|assistant:a|user:Hi"},
		"the last of each repeated field":        {"?bot=mira", `{"messages":[` + user + `],"user_id":"u1","messages":[{"parts":[{"type":"text","text":"x"},{"type":"file"}],"role":"user","parts":[{"type":"text","text":"a","text":"b"}]}],"user_id":7}`, 200, "mira|user:b|by 7"},
		"a text of a data part":                  {"?bot=mira", `{"messages":[{"role":"assistant","parts":[{"type":"data-x","text":{}},{"type":"text","text":"a"}]},` + user + `]}`, 200, "mira|assistant:a|user:Hi"},
		"a part without a text, of an assistant": {"?bot=mira", `{"messages":[{"role":"assistant","parts":[{"type":"text","text":1}]}]}`, 400, "messages[0].parts[0] must have a text"},
		"parts that are null":                    {"?bot=mira", `{"messages":[{"role":"user","parts":null}]}`, 400, "messages[0] must have a role and parts"},
		"no role":                                {"?bot=mira", `{"messages":[{"parts":[]}]}`, 400, "messages[0] must have a role and parts"},
		"parts of a text":                        {"?bot=mira", `{"messages":[{"role":"user","parts":"Hi"}]}`, 400, "messages[0].parts must be a list"},
		"a fraction as user_id":                  {"?bot=mira", `{"messages":[` + user + `],"user_id":1.5}`, 400, "user_id must be a string"},
		"a list as user_id":                      {"?bot=mira", `{"messages":[` + user + `],"user_id":[]}`, 400, "user_id must be a string"},
		"a number as id":                         {"?bot=mira", `{"id":1,"messages":[` + user + `]}`, 400, "id must be a string"},
		"what is wrong first":                    {"?bot=mira", `{"messages":[1,`, 400, "messages[0] must be an object"},
		"more than JSON":                         {"?bot=mira", `{"messages":[` + user + `]} 1`, 400, "Extra data"},
		"only an empty assistant":                {"?bot=mira", `{"messages":[{"role":"assistant","parts":[]}]}`, 400, "messages must have a message"},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			response, text, err := call(t, "POST", url+"/api/chat"+c.query, c.body)
			is.NoErr(err)
			is.Equal(response.StatusCode, c.status)
			if c.status == 200 {
				a := readAnswer(t, text)
				is.Equal(a.text, c.want)
				is.Equal(a.finish, "stop")
				is.True(a.messageID != "" && a.done)
				return
			}
			if c.want == "Extra data" {
				text = text[:min(len(text), len(c.want))] // without the position
			}
			is.Equal(text, c.want)
			is.Equal(response.Header.Get("Content-Type"), "text/plain; charset=utf-8")
			if c.status == 400 {
				is.True(log.contains(c.want)) // the reason
			}
		})
	}
}

// A page that asks for more of the assistant's last message keeps the message's id.
func TestLastMessageIsContinued(t *testing.T) {
	is := is.New(t)
	url := serve(t, newHandler(t, says(nil, "upon a time"), aisdk.Options{}))
	_, text, err := call(t, "POST", url+"/api/chat?bot=mira", `{"messages":[{"id":"m2","role":"assistant","parts":[{"type":"text","text":"Once"}]}]}`)
	is.NoErr(err)
	is.True(strings.HasPrefix(text, "data: {\"type\":\"start\"}\n\n"))
	is.Equal(readAnswer(t, text).text, "upon a time")
}

// Whatever rejects a chat, the page shows plain text.
func TestErrorsAreText(t *testing.T) {
	failing := func(err error) botapi.ChatEngine { return says(err) }
	overloaded := &botapi.StatusError{Status: 503, Detail: "The model is overloaded", RetryAfter: 7 * time.Second}
	tooLong := &botapi.HTTPValidationError{Detail: []botapi.ValidationError{
		{Loc: []any{"body", "messages", 3}, Msg: "too long", Type: "value_error"}, {Loc: []any{}, Msg: "too old", Type: "value_error"}}}
	for name, c := range map[string]struct {
		engine     botapi.ChatEngine
		key        string
		status     int
		retryAfter string
		want       string
	}{
		"no key":           {failing(nil), "", 401, "", "Not authenticated"},
		"a wrong key":      {failing(nil), "nonsense", 401, "", "Invalid API key"},
		"the engine's own": {failing(overloaded), "key", 503, "7", "The model is overloaded"},
		"a list":           {failing(tooLong), "key", 422, "", "messages.3: too long\ntoo old"},
		"a secret":         {failing(errors.New("a secret")), "key", 500, "", "Internal Server Error"},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			h := newHandler(t, c.engine, aisdk.Options{})
			authorization := "Bearer " + c.key
			response, text, err := call(t, "POST", serve(t, h)+"/api/chat?bot=mira", ask, "Authorization", authorization)
			is.NoErr(err)
			is.Equal(response.StatusCode, c.status)
			is.Equal(text, c.want)
			is.Equal(response.Header.Get("Content-Type"), "text/plain; charset=utf-8")
			is.Equal(response.Header.Get("Retry-After"), c.retryAfter)
			is.Equal(response.Header.Get("WWW-Authenticate") != "", c.status == 401)
			is.True(response.Header.Get("X-Request-Id") != "")
			is.Equal(response.Header.Get("X-Vercel-Ai-Ui-Message-Stream"), "")
		})
	}
}

// An answer that has begun says what a response would have said.
func TestLateProblems(t *testing.T) {
	is := is.New(t)
	failed := botapi.HTTPValidationError{Detail: []botapi.ValidationError{
		{Loc: []any{"body", "messages", 3}, Msg: "too long"}, {Loc: []any{"body", "__root__"}, Msg: "too old"}}}
	_, text, err := call(t, "POST", serve(t, newHandler(t, says(failed, "Good "), aisdk.Options{}))+"/api/chat?bot=mira", ask)
	is.True(err != nil) // the connection was aborted
	a := readAnswer(t, text)
	is.Equal([]string{a.text, a.failure}, []string{"Good ", "messages.3: too long\ntoo old"})
}

// Long metadata is written in chunks, of which each has its own time.
func TestLongMetadata(t *testing.T) {
	is := is.New(t)
	long := strings.Repeat("a", 300<<10)
	h := newHandler(t, says(nil, "Hi"), aisdk.Options{Metadata: func(context.Context) any { return long }})
	w := &eachWrite{ResponseRecorder: httptest.NewRecorder()}
	h.ServeHTTP(w, request(t, "POST", "/api/chat?bot=mira", ask))
	is.True(w.writes >= 5)
	is.True(strings.Contains(w.Body.String(), `"messageMetadata":"`+long+`"`))
}

// The limits are those of the API, and so are their responses.
func TestLimits(t *testing.T) {
	is := is.New(t)
	teller := newStoryteller()
	url := serve(t, newHandler(t, teller, aisdk.Options{}, func(o *botapi.Options) { o.MaxChatsPerAccount = 1 }))
	stream, err := http.DefaultClient.Do(request(t, "POST", url+"/api/chat?bot=mira", ask))
	is.NoErr(err)
	defer stream.Body.Close()
	response, text, err := call(t, "POST", url+"/api/chat?bot=mira", ask)
	is.NoErr(err)
	is.Equal(response.StatusCode, 429)
	is.Equal(response.Header.Get("Retry-After"), "1")
	is.Equal(text, "Too many chats in progress for this key")
	close(teller.goOn)
}

// A page that disconnects cancels its engine, before the first fragment and after it.
func TestDisconnectCancels(t *testing.T) {
	for _, begun := range []bool{false, true} {
		is := is.New(t)
		teller := newStoryteller()
		if !begun {
			teller.beginning = ""
		}
		url := serve(t, newHandler(t, teller, aisdk.Options{}))
		ctx, disconnect := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if response, err := http.DefaultClient.Do(request(t, "POST", url+"/api/chat?bot=mira", ask).WithContext(ctx)); err == nil {
				<-ctx.Done()
				response.Body.Close()
			}
		}()
		<-teller.begun
		disconnect()
		<-ended
		is.True(errors.Is(<-teller.ended, botapi.ErrClientLeft))
	}
}

func TestRoutesWithoutAnswers(t *testing.T) {
	url := serve(t, newHandler(t, says(nil), aisdk.Options{}))
	for name, c := range map[string]struct {
		method, path string
		status       int
		allow        string
	}{
		"nothing to resume":  {"GET", "/api/chat/c/stream", 204, ""},
		"nothing to stop":    {"DELETE", "/api/chat/c/stream", 404, ""},
		"not a chat":         {"GET", "/api/chat", 405, "POST"},
		"no id":              {"GET", "/api/chat//stream", 404, ""},
		"another path":       {"GET", "/stream", 404, ""},
		"not a method of it": {"PUT", "/api/chat/c/stream", 405, "DELETE, GET, HEAD"},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			response, _, err := call(t, c.method, url+c.path, "")
			is.NoErr(err)
			is.Equal(response.StatusCode, c.status)
			is.Equal(response.Header.Get("Allow"), c.allow)
		})
	}
}

// The application may name the bot in the path.
func TestBotOfThePath(t *testing.T) {
	is := is.New(t)
	url := serve(t, newHandler(t, says(nil, "Hi"), aisdk.Options{Prefix: "/chats/{bot}", Bot: func(r *http.Request) string { return r.PathValue("bot") }}))
	_, text, err := call(t, "POST", url+"/chats/juniper", ask)
	is.NoErr(err)
	is.Equal(readAnswer(t, text).text, "Hi")
	response, _, err := call(t, "POST", url+"/chats/parrot", ask)
	is.NoErr(err)
	is.Equal(response.StatusCode, 404)
}

func TestFinishReasons(t *testing.T) {
	for said, want := range map[string]string{"": "stop", "stop": "stop", "length": "length", "content_filter": "content-filter", "content-filter": "content-filter", "eos": "stop"} {
		is := is.New(t)
		url := serve(t, newHandler(t, says(nil, "Hi"), aisdk.Options{FinishReason: func(context.Context) string { return said }}))
		_, text, err := call(t, "POST", url+"/api/chat?bot=mira", ask)
		is.NoErr(err)
		is.Equal(readAnswer(t, text).finish, want)
	}
}

// Metadata without a JSON form is a mistake of the application, which botapi logs.
func TestMetadataWithoutJSON(t *testing.T) {
	is := is.New(t)
	log := new(log)
	url := serve(t, newHandler(t, says(nil, "Hi"), aisdk.Options{Metadata: func(context.Context) any { return make(chan int) }},
		func(o *botapi.Options) { o.Logger = log.logger() }))
	_, text, err := call(t, "POST", url+"/api/chat?bot=mira", ask)
	is.True(err != nil) // the connection was aborted
	is.True(!strings.Contains(text, "[DONE]"))
	is.True(log.contains("Options.Metadata"))
}
