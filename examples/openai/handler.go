package openai

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/jsonbody"
)

// Options configures [Routes].
type Options struct {
	// Bots is that of botapi.Options: its bots are the models. It is required.
	Bots botapi.BotStore

	// Honours names the fields of which the application says that its engine honours them
	// in ChatRequest.Extra: "response_format", "moderation", "web_search_options" and
	// "prompt_cache_options.prewarm". Each of them changes what an answer is, so a request
	// with one that is not named is rejected: its client would take the answer for JSON, for
	// moderated, or for the result of a search. An [Engine] passes on what its Config.Extra
	// names.
	Honours []string
}

// Routes returns the routes of OpenAI's clients, for botapi.Options.Routes:
//
//	GET  /v1/models                 the bots, by slug
//	GET  /v1/models/{model}         one of them
//	POST /v1/chat/completions       a chat with the bot that "model" names, streamed or not
//	POST /v1/responses              the same in the Responses API, which OpenAI's own clients use by default
//
// each also without /v1. Keys, bots, limits, engine, metering, deadlines and failed streams
// are those of the handler that serves the routes; errors have OpenAI's format.
//
//	routes := openai.Routes(openai.Options{Bots: bots})
//	h := botapi.New(botapi.Options{Bots: bots, Keys: keys, Engine: engine, Routes: routes, NotFound: openai.NotFound(routes)})
//
// OpenAI's other parameters (temperature, max_tokens, stop and so on) reach the engine in
// ChatRequest.Extra, those of the Responses API under their names in chat completions:
// max_output_tokens is max_completion_tokens. A request that bots cannot fulfil is rejected,
// for instance one with tools, or one that refers to a stored response.
//
// Fragments that are ready together become one chunk. Clients get a chat's token counts if
// the engine reports them: see [CountTokens]. Routes panics if Bots is nil, or if Honours
// names another field.
func Routes(o Options) []botapi.Route {
	if o.Bots == nil {
		panic("openai: Routes: Options.Bots is nil")
	}
	d := &door{bots: o.Bots, honours: setOf(o.Honours)}
	for _, name := range o.Honours {
		if !responses.limits[name].canBeHonoured {
			panic("openai: Routes: Options.Honours: an engine cannot honour the field " + name)
		}
	}
	return []botapi.Route{
		{Patterns: []string{"GET /v1/models", "GET /models"}, Serve: d.list, Errors: models.reply},
		{Patterns: []string{"GET /v1/models/{model...}", "GET /models/{model...}"}, Serve: d.model, Errors: models.reply},
		{Patterns: []string{"POST /v1/chat/completions", "POST /chat/completions"}, Serve: d.chat(completions), Errors: completions.reply},
		{Patterns: []string{"POST /v1/responses", "POST /responses"}, Serve: d.chat(responses), Errors: responses.reply},
	}
}

// NotFound returns a function for botapi.Options.NotFound, whose 404 has OpenAI's format and
// names what is served: the routes, and those of botapi's own protocol.
func NotFound(routes []botapi.Route) func(context.Context, botapi.Failure) botapi.Reply {
	var patterns []string
	for _, route := range routes {
		patterns = append(patterns, route.Patterns...)
	}
	patterns = append(patterns, "GET /v1/bots", "POST /v1/chat")
	var served []string
	for _, pattern := range patterns {
		withVersion := strings.Replace(pattern, " /", " /v1/", 1)
		if !slices.Contains(patterns, withVersion) { // otherwise it is the same route
			served = append(served, strings.ReplaceAll(pattern, "...}", "}"))
		}
	}
	last := len(served) - 1
	code := "unknown_url"
	reply := (&apiError{status: http.StatusNotFound, Type: typeInvalidRequest, Code: &code, Message: "this path is not served: there are " +
		strings.Join(served[:last], ", ") + " and " + served[last] + "; the base URL of a client of OpenAI ends in /v1, once; responses are not stored"}).reply()
	return func(context.Context, botapi.Failure) botapi.Reply { return reply }
}

type door struct {
	bots    botapi.BotStore
	honours map[string]bool
}

// A completion is one chat, as its response needs it. It does not retain the body.
type completion struct {
	protocol     *protocol
	id           string // without the protocol's prefix
	created      int64
	usage        *Usage
	model        string
	includeUsage bool
	preceding    int               // messages before those of the client's list
	repeated     map[string]string // of a response: fields of the request, as they are in the body
}

type completionKey struct{}

func (d *door) chat(p *protocol) func(*http.Request) (botapi.Response, error) {
	return func(r *http.Request) (botapi.Response, error) {
		body, err := botapi.ReadBody(r)
		if err != nil {
			return nil, err
		}
		q := &request{protocol: p, honours: d.honours, body: body, fields: make(map[string]string)}
		if err := q.read(); err != nil {
			return nil, err
		}
		ctx, usage := CountTokens(r.Context())
		c := q.completion(usage)
		chat := &botapi.Chat{
			Context:        context.WithValue(ctx, completionKey{}, c),
			BotSlug:        q.model,
			Request:        botapi.ChatRequest{Messages: q.messages, UserID: q.user, Stream: q.stream},
			JoinsFragments: true,
			JSON: func(context.Context) (before, after []byte, err error) {
				before, after = p.around(c)
				return before, after, nil
			},
		}
		if q.stream {
			chat.Stream = p.stream(c)
		}
		if q.hasExtra {
			chat.Extra = q.extra
		}
		return chat, nil
	}
}

func (q *request) completion(usage *Usage) *completion {
	c := &completion{
		protocol: q.protocol, id: rand.Text(), created: time.Now().Unix(), usage: usage, model: strings.Clone(q.model), includeUsage: q.includeUsage,
	}
	if q.instructions != "" {
		c.preceding = 1
	}
	for _, name := range q.protocol.repeats {
		if value := q.fields[name]; value != "" {
			if c.repeated == nil {
				c.repeated = make(map[string]string)
			}
			c.repeated[name] = strings.Clone(value)
		}
	}
	return c
}

// finishReason returns the engine's reason if it is one of OpenAI's that a bot can
// have, otherwise "stop".
func (c *completion) finishReason() string {
	switch reason := c.usage.FinishReason(); reason {
	case "length", "content_filter":
		return reason
	}
	return "stop"
}

// models is the protocol of the requests that are no chat.
var models protocol

// A model is a bot in the list of models.
type model struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	Created     int    `json:"created"`
	OwnedBy     string `json:"owned_by"`
	Name        string `json:"name"`
	Description string `json:"description"`
}

func modelOf(bot botapi.Bot) model {
	return model{ID: bot.Slug, Object: "model", OwnedBy: "botapi", Name: bot.Name, Description: bot.Description}
}

func (d *door) list(r *http.Request) (botapi.Response, error) {
	bots, err := d.bots.Bots(r.Context())
	if err != nil {
		return nil, err
	}
	data := make([]model, len(bots))
	for i, bot := range bots {
		data[i] = modelOf(bot)
	}
	body, err := json.Marshal(struct {
		Object string  `json:"object"`
		Data   []model `json:"data"`
	}{"list", data})
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(body)
	etag := `"` + base64.RawURLEncoding.EncodeToString(sum[:16]) + `"`
	header := http.Header{"Etag": {etag}, "Cache-Control": {"private, no-cache"}}
	if known := strings.Join(r.Header["If-None-Match"], ","); known == "*" || strings.Contains(known, etag) {
		return botapi.Reply{Status: http.StatusNotModified, Header: header}, nil
	}
	return botapi.Reply{Header: header, Body: body}, nil
}

func (d *door) model(r *http.Request) (botapi.Response, error) {
	bot, err := botapi.FindBot(r.Context(), d.bots, "", r.PathValue("model"))
	if err != nil {
		return nil, err
	}
	return jsonbody.Reply(modelOf(bot))
}
