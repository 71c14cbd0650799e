package usage

import (
	"context"
	"net/http"
	"sync/atomic"
)

// Tokens is what a model runtime counted for one chat.
type Tokens struct{ Prompt, Completion int64 }

// counted is where the tokens of one request are noted.
type counted struct{ tokens atomic.Pointer[Tokens] }

type countedKey struct{}

// WithTokens returns the context of a request whose chat can be counted: Count
// notes in it, and Writer.OnChat reads from it.
func WithTokens(ctx context.Context) context.Context {
	return context.WithValue(ctx, countedKey{}, new(counted))
}

// Counted gives each request a context from WithTokens.
func Counted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(WithTokens(r.Context())))
	})
}

// Count notes the tokens of the chat that a context belongs to. The last count
// is the one that stands in its record; one that comes after the report of the
// chat, from an engine that was told to stop, is lost. It does nothing in a
// context that is not from WithTokens.
func Count(ctx context.Context, tokens Tokens) {
	if c, ok := ctx.Value(countedKey{}).(*counted); ok {
		c.tokens.Store(&tokens)
	}
}

// TokensOf returns the tokens of the chat that a context belongs to; nil if nobody
// counted them, or not yet.
func TokensOf(ctx context.Context) *Tokens {
	c, ok := ctx.Value(countedKey{}).(*counted)
	if !ok {
		return nil
	}
	return c.tokens.Load()
}
