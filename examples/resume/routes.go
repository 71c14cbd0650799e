package resume

import (
	"context"
	"net/http"

	"example.com/botapi"
)

// Header is the request header that names an answer.
const Header = "Idempotency-Key"

// OutcomeHeader is the response header that says what happened to the answer.
const OutcomeHeader = "X-Botapi-Answer"

// An Outcome is the value of OutcomeHeader.
type Outcome string

// Outcomes.
const (
	Kept    Outcome = "kept"     // this request started the answer, and others can join it
	Joined  Outcome = "joined"   // another request has started it
	NotKept Outcome = "not-kept" // answered as without a key
)

type outcomeKey struct{}

// OutcomeFrom returns what happened to the key of a request, for OnChat and OnRequest: code
// that bills there must not bill a Joined answer again. It is empty without a key, and for a
// request that was rejected.
func OutcomeFrom(ctx context.Context) Outcome {
	o, _ := botapi.RequestFrom(ctx).Value(outcomeKey{}).(Outcome)
	return o
}

// noteOutcome notes what happened to the key of a request, and tells the client with the
// head of its response.
func noteOutcome(ctx context.Context, o Outcome) {
	r := botapi.RequestFrom(ctx)
	r.SetValue(outcomeKey{}, o)
	r.SetHeader(OutcomeHeader, string(o))
}

type chosenKey struct{}

// WithKey returns a context in which a chat has this key, whatever its Idempotency-Key says.
// It is for the Chat.Context of a route that chooses the key of an answer itself, or finds it
// for [Engine.Join]. With an empty key, the chat is one without.
func WithKey(ctx context.Context, key string) context.Context {
	if key == "" {
		return context.WithValue(ctx, chosenKey{}, []string(nil))
	}
	return context.WithValue(ctx, chosenKey{}, []string{key})
}

// keyOf returns the key of a chat, or "" if it has none.
func (e *Engine) keyOf(ctx context.Context) (string, error) {
	keys, isChosen := ctx.Value(chosenKey{}).([]string)
	if !isChosen {
		keys = botapi.RequestFrom(ctx).Header()[Header]
	}
	switch {
	case len(keys) == 0:
		return "", nil
	case len(keys) > 1 || !e.options.ValidKey(keys[0]):
		return "", e.badKey
	}
	return keys[0], nil
}

// Routes returns what clients stop answers with: DELETE /v1/answers, and /answers, for the
// Routes of [botapi.Options].
func (e *Engine) Routes() []botapi.Route {
	return []botapi.Route{{Patterns: []string{"DELETE /v1/answers", "DELETE /answers"}, Serve: e.serveStop}}
}

func (e *Engine) serveStop(r *http.Request) (botapi.Response, error) {
	key, err := e.keyOf(r.Context())
	if err == nil {
		err = e.Stop(r.Context(), key) // rejects an empty one
	}
	return botapi.Reply{Status: http.StatusNoContent}, err
}
