package openai

import (
	"cmp"
	"net/http"
	"strings"
)

// HandlerOptions configures [NewHandler]. Every field is optional.
type HandlerOptions struct {
	// MaxBodyBytes bounds the body of a chat as the client sends it; 0 means
	// 1 MiB. botapi.Options.MaxBodyBytes bounds the translated body, which is about
	// as long.
	MaxBodyBytes int64
}

const defaultMaxBodyBytes = 1 << 20

// NewHandler returns a handler for OpenAI clients:
//
//	GET  /v1/models                 the bots, by slug
//	GET  /v1/models/SLUG            one of them
//	POST /v1/chat/completions       a chat with the bot that "model" names, streamed or not
//
// each also without /v1. Every other request goes to api unchanged, so that one
// mount serves both protocols:
//
//	mux.Handle("/v1/", openai.NewHandler(botapi.New(options), openai.HandlerOptions{}))
//
// api is the handler of botapi.New, with any middleware of the application. It
// serves the translated requests, too, in process: it decides on keys, bots, limits,
// metering, deadlines and failed streams. Only the format of the request and of the
// response changes. OpenAI's other parameters (temperature, max_tokens, stop and so
// on) reach the engine in ChatRequest.Extra. A request that bots cannot fulfil is
// rejected.
//
// Fragments that are written together become one chunk, so a fast stream still uses
// large writes. Clients get a chat's token counts if the engine reports them: see
// [CountTokens].
func NewHandler(api http.Handler, o HandlerOptions) http.Handler {
	if api == nil {
		panic("openai: NewHandler: api is nil")
	}
	return &handler{api: api, maxBodyBytes: cmp.Or(o.MaxBodyBytes, defaultMaxBodyBytes)}
}

type handler struct {
	api          http.Handler
	maxBodyBytes int64
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, "/v1")
	slug, oneModel := strings.CutPrefix(path, "/models/")
	switch {
	case path == "/chat/completions":
		h.chat(w, r)
	case path == "/models":
		answer := &responder{ResponseWriter: w, translate: func() translator { return new(modelList) }}
		h.api.ServeHTTP(answer, to(r, "/v1/bots"))
		answer.end()
	case oneModel && slug != "":
		h.model(w, r, slug)
	default:
		h.api.ServeHTTP(w, r)
	}
}

func (h *handler) chat(w http.ResponseWriter, r *http.Request) {
	ctx, usage := CountTokens(r.Context())
	c := newCompletion(usage)
	r = to(r.WithContext(ctx), "/v1/chat")
	if r.Body != nil && r.Header.Get("Authorization") != "" { // without a key, the API does not read the body
		r.Body = &chatBody{client: r.Body, limit: h.maxBodyBytes, completion: c}
	}
	answer := &responder{ResponseWriter: w, completion: c, translate: func() translator { return newJSONAnswer(c) }}
	h.api.ServeHTTP(answer, r)
	answer.end()
}

// model serves one bot of the list.
func (h *handler) model(w http.ResponseWriter, r *http.Request, slug string) {
	r = to(r, "/v1/bots")
	r.Header = r.Header.Clone()
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
	moved.URL = &address
	return moved
}
