package aisdk

import (
	"cmp"
	"context"
	"crypto/rand"
	"io"
	"net/http"
	"net/url"
	"strings"

	"example.com/botapi"
	"example.com/botapi/examples/resume"
)

// Options configures [NewHandler]. Every field is optional.
type Options struct {
	// Bot returns the slug of the bot that the URL of a chat names, or "" if the body
	// names it, in the field "bot". nil means the query parameter "bot".
	Bot func(*http.Request) string

	// MaxBodyBytes bounds the body of a chat as the page sends it; 0 means 1 MiB.
	// botapi.Options.MaxBodyBytes bounds the translated body, which is shorter.
	MaxBodyBytes int64

	// FinishReason returns why the model ended a complete answer: "stop", "length" or
	// "content_filter". Everything else, and nil, means "stop". Its context, and that of
	// Metadata, is the request's.
	FinishReason func(context.Context) string

	// Metadata returns the metadata of a complete answer's message, such as its token
	// counts: a value with a JSON form, or nil for none. It may be nil.
	Metadata func(context.Context) any

	// Answers lets answers outlive their connections; nil means that a client that
	// disconnects cancels its engine. It is the Engine of api, and api is not wrapped in
	// its Handler: NewHandler does that.
	Answers *Answers

	// API is what api was made of. With Answers, it is required: the Keys, timeouts,
	// Logger and so on apply to pages that come back, too. They are counted separately
	// from the chats of api, so a page that is reloaded is not rejected because of the
	// connection that it has just lost. OnChat is called for them, too, and
	// resume.OutcomeFrom is resume.Joined there. They do not pass the middleware of api:
	// what applies to them, such as the login that Owner reads, wraps the handler that
	// NewHandler returns.
	API botapi.Options
}

const defaultMaxBodyBytes = 1 << 20

// NewHandler returns a handler for DefaultChatTransport of the AI SDK:
//
//	POST   /api/chat              sends a chat; the response is a UI message stream
//	GET    /api/chat/ID/stream    comes back for the latest answer of a chat; 204 if there is none
//	DELETE /api/chat/ID/stream    stops it
//
// at any path at which the application mounts it. Without Options.Answers, there is
// nothing to come back for or to stop.
//
// api is the handler of botapi.New, with any middleware of the application. It serves the
// translated requests in process: it decides on keys, bots, limits, metering, timeouts and
// failed streams. Only the format of the request and of the response changes. Errors are
// plain text, since useChat shows them as they are.
//
// Fields of the body that the AI SDK does not define reach the engine in
// ChatRequest.Extra, except "user_id", which is botapi's own.
func NewHandler(api http.Handler, o Options) http.Handler {
	if api == nil {
		panic("aisdk: NewHandler: api is nil")
	}
	if o.Bot == nil {
		o.Bot = func(r *http.Request) string { return r.URL.Query().Get("bot") }
	}
	o.MaxBodyBytes = cmp.Or(o.MaxBodyBytes, defaultMaxBodyBytes)
	h := &handler{options: o, api: api}
	if o.Answers != nil {
		h.latest = o.Answers.reader(o.API)
		h.api = o.Answers.Handler(api, o.API.Keys)
	}
	return h
}

type handler struct {
	options Options
	api     http.Handler
	latest  http.Handler // serves the latest answers of chats; nil without Answers
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id, isStream := chatOf(r.URL)
	switch {
	case r.Method == http.MethodPost:
		h.send(w, r)
	case !isStream:
		notAllowed(w, "POST")
	case r.Method != http.MethodGet && r.Method != http.MethodDelete:
		notAllowed(w, "DELETE, GET")
	case h.latest == nil && r.Method == http.MethodGet:
		w.WriteHeader(http.StatusNoContent)
	case h.latest == nil:
		sendText(w, http.StatusNotFound, errNoAnswer.Detail)
	case r.Method == http.MethodGet:
		h.resume(w, r, id)
	default:
		h.stop(w, r, id)
	}
}

// A chat is one request to send, resume or stop a chat.
type chat struct {
	options   *Options
	ctx       context.Context // of the request
	id        string          // needed with Answers only
	messageID string          // of the answer; empty to continue the message that the page has

	key string // of the answer, with Answers
	bot string // UID of the bot of the answer, of a request to resume

	rejection error // set if this handler, not the API, rejects the body
}

type chatKey struct{}

// chatFrom returns the chat of an engine's or a store's context; nil if there is none.
func chatFrom(ctx context.Context) *chat {
	c, _ := ctx.Value(chatKey{}).(*chat)
	return c
}

// serve has api serve a request for a chat, and translates the response.
func (c *chat) serve(api http.Handler, w *responder, r *http.Request) {
	w.stream.chat = c
	api.ServeHTTP(w, r.WithContext(context.WithValue(c.ctx, chatKey{}, c)))
	_ = w.finish() // the API has returned: there is nobody to report an error to
}

func (h *handler) send(w http.ResponseWriter, r *http.Request) {
	c := &chat{options: &h.options, ctx: r.Context(), messageID: rand.Text()}
	translated := to(r, http.MethodPost, "/v1/chat")
	if h.latest != nil {
		c.key = rand.Text()
		c.messageID = messageID(c.key)
		translated.Header.Set(resume.Header, c.key)
	}
	if r.Body != nil {
		translated.Body = &chatBody{client: r.Body, chat: c, bot: h.options.Bot(r)}
	}
	c.serve(h.api, &responder{ResponseWriter: w}, translated)
}

// resume sends the latest answer of a chat. To the API it is a chat like others, with the
// bot that [reader.BotBySlug] finds.
func (h *handler) resume(w http.ResponseWriter, r *http.Request, id string) {
	const body = `{"bot_slug":"latest","messages":[{"role":"user","content":""}],"stream":true}`
	c := &chat{options: &h.options, ctx: r.Context(), id: id}
	r = to(r, http.MethodPost, "/v1/chat")
	r.Header.Set(resume.Header, digest("chat", id)) // for the outcome of the request
	r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
	none := func(status int) bool { return status == http.StatusNotFound || status == http.StatusGone }
	c.serve(h.latest, &responder{ResponseWriter: w, none: none}, r)
}

// stop stops the latest answer of a chat. To the API it is a list of bots, for which
// [reader.Bots] stops the answer.
func (h *handler) stop(w http.ResponseWriter, r *http.Request, id string) {
	c := &chat{options: &h.options, ctx: r.Context(), id: id, messageID: r.URL.Query().Get("messageId")}
	r = to(r, http.MethodGet, "/v1/bots")
	r.Header.Del("If-None-Match")
	none := func(status int) bool { return status == http.StatusOK }
	c.serve(h.latest, &responder{ResponseWriter: w, none: none}, r)
}

// chatOf returns the id of the chat in an address that ends with /ID/stream.
func chatOf(address *url.URL) (id string, ok bool) {
	path, ok := strings.CutSuffix(address.EscapedPath(), "/stream")
	if !ok {
		return "", false
	}
	id, err := url.PathUnescape(path[strings.LastIndexByte(path, '/')+1:])
	return id, err == nil && id != ""
}

// to returns a copy of the request with another method and path.
func to(r *http.Request, method, path string) *http.Request {
	moved := r.WithContext(r.Context()) // a shallow copy
	address := *r.URL
	address.Path, address.RawPath = path, ""
	moved.Method, moved.URL, moved.Header = method, &address, r.Header.Clone()
	moved.Header.Del("Accept-Encoding") // what middleware of api compresses cannot be translated
	return moved
}

func notAllowed(w http.ResponseWriter, methods string) {
	w.Header().Set("Allow", methods)
	sendText(w, http.StatusMethodNotAllowed, "Method Not Allowed")
}
