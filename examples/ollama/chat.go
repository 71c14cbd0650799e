package ollama

import (
	"cmp"
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/jsonbody"
	"example.com/botapi/examples/openai"
)

func (d *door) chat(r *http.Request) (botapi.Response, error) {
	c := chat{ChatRequest: botapi.ChatRequest{Stream: true}}
	body, err := jsonbody.ReadRequest(r, c.read)
	if err == nil && c.model == "" {
		err = jsonbody.Invalid("model", "is required")
	}
	if err != nil {
		return nil, err
	}
	ctx, usage := openai.CountTokens(r.Context())
	a, slug := newAnswer(c.model, usage), slug(ctx, c.model)
	if len(c.Messages) == 0 { // to Ollama, this loads the model
		_, err = botapi.FindBot(ctx, d.bots, "", slug)
		return botapi.Reply{Body: append(a.before, a.after("load")...)}, err
	}
	return &botapi.Chat{
		Context:        ctx,
		BotSlug:        slug,
		Request:        c.ChatRequest,
		Extra:          func() map[string]json.RawMessage { return extra(body) },
		Stream:         a,
		JoinsFragments: true,
		JSON:           func(context.Context) (before, after []byte, err error) { return a.before, a.after("stop"), nil },
	}, nil
}

// A chat is what the body of POST /api/chat says, but for Extra.
type chat struct {
	model string
	botapi.ChatRequest
}

func (c *chat) read(f jsonbody.Field) (err error) {
	switch f.Name {
	case "model":
		c.model, err = f.Text()
	case "messages":
		c.Messages = nil // of a repeated field, the last counts
		err = f.Elements(c.readMessage)
	case "stream":
		c.Stream, err = f.Boolean(true)
	case "options":
		err = f.Require(jsonbody.Object, "must be an object")
	default:
		err = rejectUnsupported(f)
	}
	return err
}

func (c *chat) readMessage(f jsonbody.Field) error {
	m, hasContent := botapi.ChatMessage{}, false
	err := f.Fields(func(f jsonbody.Field) (err error) {
		switch f.Name {
		case "role":
			m.Role, err = f.Role(true)
		case "content":
			hasContent = f.Peek() != jsonbody.Null
			m.Content, err = f.Text()
		default:
			err = rejectUnsupported(f)
		}
		return err
	})
	c.Messages = append(c.Messages, m)
	if err == nil && (m.Role == "" || !hasContent) {
		err = f.Reject("must have a role and content")
	}
	return err
}

// unsupported has the fields of a body and of a message with which a client asks for what
// bots do not do. Those that only tune an answer go to Extra.
var unsupported = map[string]string{
	"tools":              "is not supported: bots have no tools",
	"tool_calls":         "is not supported: bots have no tools",
	"images":             "is not supported: bots read text only",
	"format":             "is not supported: bots write text only",
	"think":              "is not supported: bots do not show what they think",
	"logprobs":           "is not supported",
	"top_logprobs":       "is not supported",
	"_debug_render_only": "is not supported",
}

var asksForNothing = regexp.MustCompile(`^(null|false|0|""|\[\s*\]|\{\s*\})$`)

func rejectUnsupported(f jsonbody.Field) error {
	if problem := unsupported[f.Name]; problem != "" && !asksForNothing.MatchString(f.Raw()) {
		return f.Reject(problem)
	}
	return nil
}

// Ollama's name of the limit of an answer, and that by which engines know it.
const numPredict, maxTokens = "num_predict", "max_completion_tokens"

// extra returns the options, by the names in which engines know them, and all other fields.
func extra(body string) map[string]json.RawMessage {
	fields := jsonbody.Fields(body, func(name string) bool {
		return name != "model" && name != "messages" && name != "stream" && unsupported[name] == ""
	})
	options := jsonbody.Fields(string(fields["options"]), func(string) bool { return true })
	delete(fields, "options")
	for name, value := range options {
		if n, err := strconv.ParseFloat(string(value), 64); err == nil && (name == numPredict || name == "seed") {
			if n < 0 || n == 0 && name == numPredict {
				continue // any seed, and no limit
			}
			value = strconv.AppendFloat(nil, n, 'f', -1, 64) // 100.0 is a number of tokens
		}
		if name == numPredict {
			name = maxTokens
		}
		fields[name] = value
	}
	return fields
}

// An answer is the format of one answer: lines of JSON, or one object.
type answer struct {
	usage        *openai.Usage
	before       []byte    // the text of each object
	start, begun time.Time // of the chat, and of the text; begun is zero before the text
}

func newAnswer(model string, usage *openai.Usage) *answer {
	start := time.Now()
	head, _ := json.Marshal(map[string]any{"model": model, "created_at": start.UTC()}) // these cannot fail
	before := append(head[:len(head)-1], `,"message":{"role":"assistant","content":"`...)
	return &answer{usage: usage, before: before[:len(before):len(before)], start: start}
}

func (*answer) ContentType() string { return "application/x-ndjson" }

func (a *answer) AppendText(dst, text []byte) ([]byte, error) {
	if a.begun.IsZero() {
		a.begun = time.Now()
	}
	return append(append(append(dst, a.before...), text...), "\"},\"done\":false}\n"...), nil
}

// AppendKeepAlive appends a space, which JSON allows before the next object. (Clients read
// lines, and Ollama's own fails at an empty one.)
func (*answer) AppendKeepAlive(dst []byte) []byte { return append(dst, ' ') }

func (a *answer) End(context.Context) iter.Seq[[]byte] {
	return slices.Values([][]byte{append(append(a.before, a.after("stop")...), '\n')})
}

func (*answer) AppendError(dst []byte, f botapi.Failure) []byte {
	return append(append(dst, errorObject(f)...), '\n')
}

// after returns what follows the text of the object with which an answer is complete, for
// this reason unless the engine has reported a limit.
func (a *answer) after(reason string) []byte {
	if a.usage.FinishReason() == "length" {
		reason = "length"
	}
	now, begun := time.Now(), cmp.Or(a.begun, a.start) // of a JSON response, nothing has begun before
	end := map[string]any{
		"done": true, "done_reason": reason, "total_duration": now.Sub(a.start), "load_duration": 0,
		"prompt_eval_duration": begun.Sub(a.start), "eval_duration": now.Sub(begun),
	}
	if tokens, reported := a.usage.Tokens(); reported {
		end["prompt_eval_count"], end["eval_count"] = tokens.Prompt, tokens.Completion
	}
	object, _ := json.Marshal(end) // these cannot fail
	return append([]byte(`"},`), object[1:]...)
}
