package aisdk

import (
	"cmp"
	"context"
	"iter"
	"net/http"

	"example.com/botapi"
	"example.com/botapi/examples/resume"
)

// Options configures [Routes]. Every field is optional.
type Options struct {
	// Prefix is the path of the chats; "" means "/api/chat". It may have wildcards, such as
	// "/chats/{bot}", for Bot.
	Prefix string

	// Bot returns the slug of the bot that the URL of a chat names, or "" if the body
	// names it, in the field "bot". nil means the query parameter "bot".
	Bot func(*http.Request) string

	// FinishReason returns why a complete answer has ended, by the request's context: "length",
	// "content_filter", or anything else for "stop". nil means "stop".
	FinishReason func(context.Context) string

	// Metadata returns the metadata of a complete answer's message, such as its token counts, by
	// the request's context: a value with a JSON form, or nil for none. It may be nil.
	Metadata func(context.Context) any

	// Answers, which is the Engine of the botapi.Options, lets answers outlive their
	// connections. nil means that there is nothing to come back for or to stop.
	Answers *Answers
}

// Routes returns the routes of the AI SDK's DefaultChatTransport, for botapi.Options:
//
//	POST   /api/chat              sends a chat; the response is a UI message stream
//	GET    /api/chat/{id}/stream  comes back for the latest answer of a chat; 204 if there is none
//	DELETE /api/chat/{id}/stream  stops it
//
// Errors are plain text, since useChat shows them as they are. Fragments that are ready
// together become one part of the stream. Fields of the body that the AI SDK does not define
// reach the engine in ChatRequest.Extra, except "user_id", which is botapi's own.
func Routes(o Options) []botapi.Route {
	if o.Bot == nil {
		o.Bot = func(r *http.Request) string { return r.URL.Query().Get("bot") }
	}
	d, path := &door{o}, cmp.Or(o.Prefix, "/api/chat")
	stream := path + "/{id}/stream"
	return []botapi.Route{
		{Patterns: []string{"POST " + path}, Serve: d.send, Errors: errorReply},
		{Patterns: []string{"GET " + stream}, Serve: d.resume, Errors: errorOrNothing},
		{Patterns: []string{"DELETE " + stream}, Serve: d.stop, Errors: errorReply},
	}
}

type door struct{ Options }

func (d *door) send(r *http.Request) (botapi.Response, error) {
	b, err := d.read(r)
	if err != nil {
		return nil, err
	}
	ctx, messageID := d.Answers.begin(r.Context(), b.id)
	if b.request.Messages[len(b.request.Messages)-1].Role == botapi.RoleAssistant {
		messageID = "" // the page continues this message
	}
	return d.streamed(&botapi.Chat{Context: ctx, BotSlug: b.bot, Request: b.request, Extra: b.extra}, messageID), nil
}

func (d *door) resume(r *http.Request) (botapi.Response, error) {
	key, err := d.Answers.find(r)
	if key == "" {
		return botapi.Reply{Status: http.StatusNoContent}, err
	}
	join := func(ctx context.Context) iter.Seq2[string, error] { return d.Answers.Join(ctx, key) }
	return d.streamed(&botapi.Chat{Context: resume.WithKey(r.Context(), key), Answer: join}, messageID(key)), nil
}

func (d *door) stop(r *http.Request) (botapi.Response, error) {
	key, err := d.Answers.find(r)
	if id := r.URL.Query().Get("messageId"); err == nil && (key == "" || id != "" && id != messageID(key)) {
		err = botapi.StatusError{Status: http.StatusNotFound, Detail: "Answer not found"}
	}
	if err == nil {
		err = d.Answers.Stop(r.Context(), key)
	}
	return botapi.Reply{Status: http.StatusNoContent}, err
}
