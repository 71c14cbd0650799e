package openai

import (
	"cmp"
	"net/http"
	"strings"
)

// HandlerOptions are optional, all of them.
type HandlerOptions struct {
	// MaxBodyBytes bounds the body of a chat as its client sends it; 0 means
	// 1 MiB. The bound of the API behind it, botapi.Options.MaxBodyBytes, holds for
	// the body that is made of it, which is about as long.
	MaxBodyBytes int64
}

const defaultMaxBodyBytes = 1 << 20

// NewHandler returns a handler for clients that speak OpenAI's protocol:
//
//	GET  /v1/models                 the bots, by slug
//	GET  /v1/models/SLUG            one of them
//	POST /v1/chat/completions       a chat with the bot that "model" names, streamed or not
//
// each also without /v1. Every other request goes to api as it is, so that one
// mount serves both protocols:
//
//	mux.Handle("/v1/", openai.NewHandler(botapi.New(options), openai.HandlerOptions{}))
//
// api is the handler of botapi.New, with whatever the host has around it. It
// answers each of these requests, too, in process: keys, bots, limits, metering,
// deadlines and what becomes of a broken stream are its own. Only the form of the
// request and of the answer changes. OpenAI's wishes for the model (temperature,
// max_tokens, stop and whatever else there is) reach the engine in
// ChatRequest.Extra. What cannot be honoured is refused.
//
// Fragments that leave together become one chunk, so that a fast stream still
// leaves in large writes. A chat's tokens are told to clients where the engine
// counts: see [CountTokens].
func NewHandler(api http.Handler, o HandlerOptions) http.Handler {
	if api == nil {
		panic("openai: NewHandler needs the handler that answers")
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
	if r.Body != nil && r.Header.Get("Authorization") != "" { // without one, nothing of the body will be wanted
		r.Body = &chatBody{client: r.Body, limit: h.maxBodyBytes, completion: c}
	}
	answer := &responder{ResponseWriter: w, completion: c, translate: func() translator { return newWholeAnswer(c) }}
	h.api.ServeHTTP(answer, r)
	answer.end()
}

// model looks for one bot in the list of all.
func (h *handler) model(w http.ResponseWriter, r *http.Request, slug string) {
	r = to(r, "/v1/bots")
	r.Header = r.Header.Clone()
	r.Header.Del("If-None-Match") // it is of this model, and the list has another
	if r.Method == http.MethodHead {
		r.Method = http.MethodGet // the body is dropped behind this handler
	}
	answer := &responder{ResponseWriter: w, translate: func() translator { return &oneModel{slug: slug} }}
	h.api.ServeHTTP(answer, r)
	answer.end()
}

// to is the request for another path.
func to(r *http.Request, path string) *http.Request {
	moved := r.WithContext(r.Context()) // a shallow copy
	address := *r.URL
	address.Path, address.RawPath = path, ""
	moved.URL = &address
	return moved
}
