package ollama_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"example.com/botapi"
	"example.com/botapi/examples/ollama"
	"example.com/botapi/examples/openai"
	"github.com/matryer/is"
)

const message = `{"role":"user","content":"Hi"}`

// A field that asks for what bots do not do is rejected by its name, and logged with it. No
// engine is called, and no text of the client is logged.
func TestRejects(t *testing.T) {
	var log bytes.Buffer
	o := options(t, func(context.Context, *botapi.ChatRequest, func(string, error) bool) { t.Error("the engine was called") })
	o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	h := botapi.New(o)
	for body, want := range map[string]string{
		``:                        "Expecting value: line 1 column 1 (char 0)",
		`{"model":"helper",`:      "Expecting property name enclosed in double quotes: line 1 column 19 (char 18)",
		`{"model":`:               "Expecting value: line 1 column 10 (char 9)",
		`{"stream":tru`:           "Expecting value: line 1 column 14 (char 13)",
		`{"model":"helper"} {}`:   "Extra data: line 1 column 20 (char 19)",
		`["secret"]`:              "the body must be an object",
		`null`:                    "the body must be an object",
		`{}`:                      "model is required",
		`{"model":null}`:          "model is required",
		`{"model":7}`:             "model must be a string",
		`{"stream":"secret"}`:     "stream must be true or false",
		`{"options":["secret"]}`:  "options must be an object",
		`{"messages":"secret"}`:   "messages must be a list",
		`{"messages":["secret"]}`: "messages[0] must be an object",
		`{"messages":[null]}`:     "messages[0] must have a role and content",
		`{"messages":[{}]}`:       "messages[0] must have a role and content",
		`{"messages":[` + message + `,{"role":"user"}]}`:                           "messages[1] must have a role and content",
		`{"messages":[{"role":"user","content":null}]}`:                            "messages[0] must have a role and content",
		`{"messages":[{"role":"user","content":[{"text":"secret"}]}]}`:             "messages[0].content must be a string",
		`{"messages":[{"role":"secret","content":"secret"}]}`:                      "messages[0].role must be system, user or assistant",
		`{"messages":[{"role":"tool","content":"secret"}]}`:                        "messages[0].role must be system, user or assistant",
		`{"messages":[{"role":"user","content":"secret","images":["secret"]}]}`:    "messages[0].images is not supported: bots read text only",
		`{"messages":[{"role":"assistant","content":"","tool_calls":["secret"]}]}`: "messages[0].tool_calls is not supported: bots have no tools",
		`{"tools":[{"type":"function"}]}`:                                          "tools is not supported: bots have no tools",
		`{"format":"json"}`:                                                        "format is not supported: bots write text only",
		`{"format":{"type":"object"}}`:                                             "format is not supported: bots write text only",
		`{"think":true}`:                                                           "think is not supported: bots do not show what they think",
		`{"think":"high"}`:                                                         "think is not supported: bots do not show what they think",
		`{"logprobs":true}`:                                                        "logprobs is not supported",
		`{"top_logprobs":2}`:                                                       "top_logprobs is not supported",
		`{"_debug_render_only":true}`:                                              "_debug_render_only is not supported",
	} {
		t.Run(body, func(t *testing.T) {
			is := is.New(t)
			log.Reset()
			w := call(h, "POST", "/api/chat", body)
			is.Equal(w.Code, 400)
			is.Equal(errorOf(t, w), want)
			is.True(strings.Contains(log.String(), "level=INFO")) // a line that is not an error
			is.True(strings.Contains(log.String(), want))         // with the reason
			is.True(!strings.Contains(log.String(), "secret"))    // and without what the client sent
		})
	}
}

// What asks for nothing that bots do not do is accepted: clients write such fields out.
func TestAcceptsFieldsThatAskForNothing(t *testing.T) {
	is := is.New(t)
	h := botapi.New(options(t, say("Hello")))
	w := call(h, "POST", "/api/chat", `{"model":"helper","messages":[{"role":"User","content":"Hi","images":[],"tool_calls":null,"thinking":"","tool_name":""}],
		"tools":[ ],"format":"","think":false,"logprobs":false,"top_logprobs":0,"_debug_render_only":false,"options":null,"keep_alive":"5m","stream":false}`)
	is.Equal(w.Code, 200)
	is.True(strings.Contains(w.Body.String(), `"content":"Hello"`))
}

// The engine gets the conversation, and the options by the names that engines know.
func TestEngineGets(t *testing.T) {
	is := is.New(t)
	var got *botapi.ChatRequest
	h := botapi.New(options(t, func(_ context.Context, req *botapi.ChatRequest, _ func(string, error) bool) { got = req }))
	extraOf := func(fields string) map[string]string {
		w := call(h, "POST", "/api/chat", `{"model":"helper","messages":[`+message+`]`+fields+`}`)
		is.Equal(w.Code, 200)
		extra := make(map[string]string)
		for name, value := range got.Extra {
			extra[name] = string(value)
		}
		return extra
	}
	is.Equal(extraOf(``), map[string]string{})
	is.Equal(got.Messages, []botapi.ChatMessage{{Role: "user", Content: "Hi"}})
	is.Equal(got.Bot.UID, "u1")
	is.True(got.Stream)
	is.Equal(extraOf(`,"options":{}`), map[string]string{})
	is.Equal(extraOf(`,"options":{"temperature":0.5,"top_p":0.9,"presence_penalty":1,"frequency_penalty":-1,"stop":["\n"],"top_k":40,"num_ctx":8192.0},"keep_alive":"5m","truncate":false`),
		map[string]string{"temperature": "0.5", "top_p": "0.9", "presence_penalty": "1", "frequency_penalty": "-1", "stop": `["\n"]`,
			"top_k": "40", "num_ctx": "8192.0", "keep_alive": `"5m"`, "truncate": "false"})
	is.Equal(extraOf(`,"options":{"num_predict":100,"seed":7}`), map[string]string{"max_completion_tokens": "100", "seed": "7"})
	is.Equal(extraOf(`,"options":{"num_predict":128.0,"seed":0}`), map[string]string{"max_completion_tokens": "128", "seed": "0"}) // as some clients write it
	is.Equal(extraOf(`,"options":{"num_predict":-1,"seed":-1}`), map[string]string{})                                              // no limit, any seed
	is.Equal(extraOf(`,"options":{"num_predict":0}`), map[string]string{})
	is.Equal(extraOf(`,"options":{"num_predict":"many"}`), map[string]string{"max_completion_tokens": `"many"`}) // for the engine to reject
	is.Equal(extraOf(`,"options":{"seed":1},"options":{"top_k":2}`), map[string]string{"top_k": "2"})
}

// An option that the engine rejects is called what the client calls it.
func TestEngineRejectsOption(t *testing.T) {
	h := botapi.New(options(t, func(_ context.Context, req *botapi.ChatRequest, yield func(string, error) bool) {
		_, err := openai.ReadExtra(req.Extra)
		yield("", err)
	}))
	for option, want := range map[string]string{
		`"temperature":3`:       "temperature: ensure this value is less than or equal to 2",
		`"num_predict":"many"`:  "num_predict: value is not a valid integer",
		`"num_predict":1e300`:   "num_predict: value is not a valid integer",
		`"seed":1.5`:            "seed: value is not a valid integer",
		`"stop":[1]`:            "stop: str or list of str expected",
		`"frequency_penalty":9`: "frequency_penalty: ensure this value is less than or equal to 2",
	} {
		t.Run(option, func(t *testing.T) {
			is := is.New(t)
			w := call(h, "POST", "/api/chat", `{"model":"helper","messages":[`+message+`],"options":{`+option+`}}`)
			is.Equal(w.Code, 400)
			is.Equal(errorOf(t, w), want)
		})
	}
}

// A bot has the name in the list, and that without "latest". What the list says can be
// chatted with and shown.
func TestNames(t *testing.T) {
	is := is.New(t)
	store, err := botapi.NewMemoryStore(
		botapi.Bot{UID: "1", Slug: "helper", Name: "N", Model: "m"}, botapi.Bot{UID: "2", Slug: "pirate:7b", Name: "N", Model: "m"},
		botapi.Bot{UID: "3", Slug: "new:latest", Name: "N", Model: "m"}, botapi.Bot{UID: "4", Slug: ":latest", Name: "N", Model: "m"},
		botapi.Bot{UID: "5", Slug: `a/"b"`, Name: "N", Model: "m"},
	)
	is.NoErr(err)
	o := options(t, func(_ context.Context, req *botapi.ChatRequest, yield func(string, error) bool) {
		yield(req.Bot.UID, nil)
	})
	o.Bots, o.Routes = store, ollama.Routes(ollama.Options{Bots: store})
	h := botapi.New(o)
	ask := func(name string) (text, model string, status int) {
		encoded, _ := json.Marshal(name)
		shown := call(h, "POST", "/api/show", `{"model":`+string(encoded)+`}`)
		w := call(h, "POST", "/api/chat", `{"model":`+string(encoded)+`,"messages":[`+message+`],"stream":false}`)
		is.Equal(shown.Code, w.Code)
		var said struct {
			Model   string
			Message struct{ Content string }
		}
		is.NoErr(json.Unmarshal(w.Body.Bytes(), &said))
		return said.Message.Content, said.Model, w.Code
	}
	var list struct {
		Models []struct{ Name, Model, Digest string }
	}
	is.NoErr(json.Unmarshal(call(h, "GET", "/api/tags", "").Body.Bytes(), &list))
	names := make(map[string]string)
	digests := make(map[string]bool)
	for i, m := range list.Models {
		is.Equal(m.Name, m.Model)
		is.Equal(len(m.Digest), 64)
		names[m.Name], digests[m.Digest] = string(rune('1'+i)), true
	}
	is.Equal(names, map[string]string{"helper:latest": "1", "pirate:7b": "2", "new:latest:latest": "3", ":latest:latest": "4", `a/"b":latest`: "5"})
	is.Equal(len(digests), 5)
	names["helper"] = "1"
	for name, uid := range names {
		text, model, status := ask(name)
		is.Equal(status, 200)
		is.Equal(text, uid)
		is.Equal(model, name)
	}
	for _, name := range []string{"nobody", "Helper", "pirate", ":latest", "a b", "a\u0000b"} {
		_, _, status := ask(name)
		is.Equal(status, 404)
	}
}

// The store is not asked for names that no bot can have.
func TestShow(t *testing.T) {
	h := botapi.New(options(t, say("")))
	for _, c := range []struct {
		body   string
		status int
		want   string
	}{
		{`{"name":"helper"}`, 200, ""}, // the older name of the field
		{`{"model":"helper","name":""}`, 200, ""},
		{`{"name":"helper","model":""}`, 200, ""},
		{`{"model":"nobody"}`, 404, "model 'nobody' not found"},
		{`{"model":"a b"}`, 404, "model 'a b' not found"},
		{`{"model":":latest"}`, 404, "model ':latest' not found"},
		{`{}`, 404, "model '' not found"},
		{`{"model":1}`, 400, "model must be a string"},
		{`{`, 400, "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"},
	} {
		t.Run(c.body, func(t *testing.T) {
			is := is.New(t)
			w := call(h, "POST", "/api/show", c.body)
			is.Equal(w.Code, c.status)
			if c.status != 200 {
				is.Equal(errorOf(t, w), c.want)
			}
		})
	}
}

// Every rejection is in Ollama's form.
func TestErrors(t *testing.T) {
	o := options(t, say("Hello"))
	o.MaxBodyBytes = 200
	o.Bots = failingStore{bots(t)}
	o.Routes = ollama.Routes(ollama.Options{Bots: o.Bots})
	h := botapi.New(o)
	for _, c := range []struct {
		method, path, body, key string
		status                  int
		want                    string
	}{
		{"POST", "/api/chat", `{}`, "another", 401, "Invalid API key"},
		{"GET", "/api/tags", ``, "another", 401, "Invalid API key"},
		{"GET", "/api/version", ``, "another", 401, "Invalid API key"},
		{"GET", "/api/chat", ``, key, 405, "Method Not Allowed"},
		{"PUT", "/api/show", ``, key, 405, "Method Not Allowed"},
		{"POST", "/api/chat", strings.Repeat(" ", 201), key, 413, "Request body too large"},
		{"POST", "/api/show", strings.Repeat(" ", 201), key, 413, "Request body too large"},
		{"GET", "/api/tags", ``, key, 503, "The database is down"},
		{"POST", "/api/show", `{"model":"helper"}`, key, 503, "The database is down"},
		{"POST", "/api/chat", `{"model":"helper"}`, key, 503, "The database is down"},
		{"POST", "/api/chat", `{"model":"helper","messages":[` + message + `]}`, key, 503, "The database is down"},
	} {
		t.Run(c.method+" "+c.path, func(t *testing.T) {
			is := is.New(t)
			w := call(h, c.method, c.path, c.body, "Authorization", "Bearer "+c.key)
			is.Equal(w.Code, c.status)
			is.Equal(errorOf(t, w), c.want)
		})
	}
}

// A failingStore is one whose database is down.
type failingStore struct{ botapi.BotStore }

var errDown = &botapi.StatusError{Status: 503, Detail: "The database is down", Err: errors.New("down")}

func (failingStore) Bots(context.Context) ([]botapi.Bot, error) { return nil, errDown }

func (failingStore) BotBySlug(context.Context, string) (botapi.Bot, error) {
	return botapi.Bot{}, errDown
}

func TestLimits(t *testing.T) {
	is := is.New(t)
	var inner string
	var h http.Handler
	o := options(t, func(context.Context, *botapi.ChatRequest, func(string, error) bool) {
		w := call(h, "POST", "/api/chat", `{"model":"helper","messages":[`+message+`]}`)
		is.Equal(w.Code, 429)
		is.Equal(w.Header().Get("Retry-After"), "1")
		inner = w.Body.String()
	})
	o.MaxChatsPerAccount = 1
	h = botapi.New(o)
	is.Equal(call(h, "POST", "/api/chat", `{"model":"helper","messages":[`+message+`]}`).Code, 200)
	is.Equal(inner, `{"error":"Too many chats in progress for this key"}`)
}

// With a prefix, Ollama's base address is that of the prefix, with a slash at its end or
// without.
func TestPrefix(t *testing.T) {
	is := is.New(t)
	o := options(t, say("Hello"))
	o.Routes = append(o.Routes, ollama.Routes(ollama.Options{Bots: o.Bots, Prefix: "/ollama"})...)
	h := botapi.New(o)
	for _, path := range []string{"", "/", "/api/tags", "/api/version", "/api/ps"} {
		is.Equal(call(h, "GET", "/ollama"+path, "").Code, 200)
		is.Equal(call(h, "HEAD", "/ollama"+path, "").Code, 200)
	}
	is.Equal(call(h, "POST", "/ollama/api/chat", `{"model":"helper","messages":[`+message+`]}`).Code, 200)
	is.Equal(call(h, "POST", "/api/chat", `{"model":"helper","messages":[`+message+`]}`).Code, 200)
}

// OnChat and middleware see the token counts that clients see.
func TestTokensReachOnChat(t *testing.T) {
	is := is.New(t)
	o := options(t, played{`"Hello"`, "count 3 4"}.chat)
	var tokens openai.Tokens
	o.OnChat = func(ctx context.Context, _ botapi.ChatReport) { tokens, _ = openai.UsageFrom(ctx).Tokens() }
	h := botapi.New(o)
	is.Equal(call(h, "POST", "/api/chat", `{"model":"helper","messages":[`+message+`]}`).Code, 200)
	is.Equal(tokens, openai.Tokens{Prompt: 3, Completion: 4})
}

// A body of small values takes no multiple of its memory before its chat has a slot, and one
// that is rejected early takes nothing more. (Much of what is counted is garbage already.)
func TestMemoryOfBody(t *testing.T) {
	const size = 1 << 20
	fill := func(before, element, after string) string {
		return before + strings.Repeat(element+",", (size-len(before)-len(after))/(len(element)+1)-1) + element + after
	}
	for name, c := range map[string]struct {
		body string
		most float64
	}{
		"numbers":         {fill(`{"messages":[`, `1`, `]}`), 3},
		"small objects":   {fill(`{"messages":[`, `{}`, `]}`), 3},
		"tools":           {fill(`{"tools":[`, `{}`, `]}`), 3},
		"fields":          {fill(`{"model":"nobody","messages":[`+message+`],`, `"":1`, `}`), 3},
		"options":         {fill(`{"model":"nobody","messages":[`+message+`],"options":{`, `"":1`, `}}`), 3},
		"escaped content": {fill(`{"model":"nobody","messages":[{"role":"user","content":"`, `\n\n`, `"}]}`), 6},
		"messages":        {fill(`{"model":"nobody","messages":[`, `{"role":"user","content":""}`, `]}`), 9},
	} {
		t.Run(name, func(t *testing.T) {
			h := botapi.New(options(t, say("")))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			w := call(h, "POST", "/api/chat", c.body)
			runtime.ReadMemStats(&after)
			is.New(t).True(w.Code == 400 || w.Code == 404)
			if took := float64(after.TotalAlloc-before.TotalAlloc) / size; took > c.most {
				t.Errorf("a body took %.1f times its size", took)
			}
		})
	}
}

func TestNeedsBots(t *testing.T) {
	defer func() { is.New(t).Equal(recover(), "ollama: Options.Bots is nil") }()
	ollama.Routes(ollama.Options{})
}
