package openai

import (
	"cmp"
	"log/slog"
	"net/http"
	"strings"
)

// HandlerOptions configures [NewHandler]. Every field is optional.
type HandlerOptions struct {
	// MaxBodyBytes bounds the body of a chat as the client sends it; 0 means
	// 1 MiB. botapi.Options.MaxBodyBytes bounds the translated body, which is about
	// as long.
	MaxBodyBytes int64
	// ResponseFormat says that the engine honours response_format in
	// ChatRequest.Extra, as one does whose Config.Extra names it. Otherwise a request
	// for anything but text is rejected, since the client would take the answer for
	// JSON.
	ResponseFormat bool
	// Logger gets the reason of each request that this handler rejects, without
	// anything that the client sent; botapi.Options.Logger gets those of the API. Nil
	// means slog.Default() at the time of NewHandler.
	Logger *slog.Logger
}

const defaultMaxBodyBytes = 1 << 20

// NewHandler returns a handler for OpenAI clients:
//
//	GET  /v1/models                 the bots, by slug
//	GET  /v1/models/SLUG            one of them
//	POST /v1/chat/completions       a chat with the bot that "model" names, streamed or not
//	POST /v1/responses              the same in the Responses API, which OpenAI's own clients use by default
//
// each also without /v1. Every other request goes to api, so that one mount serves
// OpenAI clients and those of botapi's own protocol. If api has no such path below
// /v1 either, the 404 is in OpenAI's format and names the paths above.
//
//	mux.Handle("/v1/", openai.NewHandler(botapi.New(options), openai.HandlerOptions{}))
//
// api is the handler of botapi.New, with any middleware of the application. It
// serves the translated requests, too, in process: it decides on keys, bots, limits,
// metering, deadlines and failed streams. Only the format of the request and of the
// response changes. OpenAI's other parameters (temperature, max_tokens, stop and so
// on) reach the engine in ChatRequest.Extra, those of the Responses API under their
// names in chat completions: max_output_tokens is max_completion_tokens. A request
// that bots cannot fulfil is rejected, for instance one with tools, or one that refers
// to a stored response.
//
// Fragments that are written together become one chunk, so a fast stream still uses
// large writes. Clients get a chat's token counts if the engine reports them: see
// [CountTokens].
func NewHandler(api http.Handler, o HandlerOptions) http.Handler {
	if api == nil {
		panic("openai: NewHandler: api is nil")
	}
	return &handler{
		api:          api,
		maxBodyBytes: cmp.Or(o.MaxBodyBytes, defaultMaxBodyBytes),
		formats:      o.ResponseFormat,
		logger:       cmp.Or(o.Logger, slog.Default()),
	}
}

type handler struct {
	api          http.Handler
	maxBodyBytes int64
	formats      bool // the engine honours response_format
	logger       *slog.Logger
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, "/v1")
	slug, oneModel := strings.CutPrefix(path, "/models/")
	switch {
	case path == "/chat/completions":
		h.chat(w, r, &completions)
	case path == "/responses":
		h.chat(w, r, &responses)
	case path == "/models":
		answer := &responder{ResponseWriter: w, translate: func() translator { return new(modelList) }}
		h.api.ServeHTTP(answer, to(r, "/v1/bots"))
		answer.end()
	case oneModel && slug != "":
		h.model(w, r, slug)
	case isOfBotapi[path] || !strings.HasPrefix(r.URL.Path, "/v1/"):
		h.api.ServeHTTP(w, r)
	default:
		answer := &responder{ResponseWriter: w, unknown: true}
		h.api.ServeHTTP(answer, r)
		answer.end()
	}
}

// isOfBotapi has the paths of botapi's own protocol, the last of which is that of
// examples/resume.
var isOfBotapi = map[string]bool{"/bots": true, "/chat": true, "/answers": true}

func (h *handler) chat(w http.ResponseWriter, r *http.Request, p *protocol) {
	ctx, usage := CountTokens(r.Context())
	c := newCompletion(p, usage, h.formats)
	r = to(r.WithContext(ctx), "/v1/chat")
	if r.Body != nil && r.Header.Get("Authorization") != "" { // without a key, the API does not read the body
		r.Body = &chatBody{client: r.Body, limit: h.maxBodyBytes, completion: c, rejected: func(e *apiError) {
			// The API has set the header before it reads the body.
			h.logger.LogAttrs(ctx, slog.LevelInfo, "request rejected",
				slog.String("request_id", w.Header().Get("X-Request-Id")), slog.String("error", e.Error()))
		}}
	}
	answer := &responder{ResponseWriter: w, completion: c, translate: func() translator { return newJSONAnswer(c) }}
	h.api.ServeHTTP(answer, r)
	answer.end()
}

// model serves one bot of the list.
func (h *handler) model(w http.ResponseWriter, r *http.Request, slug string) {
	r = to(r, "/v1/bots")
	r.Header.Del("If-None-Match") // the list has another ETag than this model
	if r.Method == http.MethodHead {
		r.Method = http.MethodGet // the list is needed; net/http drops the body
	}
	answer := &responder{ResponseWriter: w, translate: func() translator { return &oneModel{slug: slug} }}
	h.api.ServeHTTP(answer, r)
	answer.end()
}

// to returns a copy of the request with another path.
func to(r *http.Request, path string) *http.Request {
	moved := r.WithContext(r.Context()) // a shallow copy
	address := *r.URL
	address.Path, address.RawPath = path, ""
	moved.URL, moved.Header = &address, r.Header.Clone()
	moved.Header.Del("Accept-Encoding") // what middleware of api compresses cannot be translated
	return moved
}
