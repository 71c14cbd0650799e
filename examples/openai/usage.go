package openai

import (
	"context"
	"sync"
)

// Tokens is how long a chat is, as its runtime counts it.
type Tokens struct {
	Prompt     int64 // the conversation, with the runtime's template around it
	Completion int64 // the answer, with the model's reasoning
}

// credible is false for counts that no chat has: below zero, or so large that sums of
// them overflow.
func (t Tokens) credible() bool {
	return 0 <= min(t.Prompt, t.Completion) && max(t.Prompt, t.Completion) <= 1<<40
}

// Usage is what a runtime has said of one chat besides its text. It is safe for
// concurrent use: it can be read while the answer streams.
type Usage struct {
	mu       sync.Mutex
	tokens   Tokens
	reported bool
	absurd   bool
	finish   string
}

type usageKey struct{}

// CountTokens returns a context in which an [Engine] notes what its runtime
// counts, and where it notes it: the one that ctx has already, or else a new one.
// A middleware calls it, so that botapi.Options.OnChat finds it by [UsageFrom]:
//
//	func counting(next http.Handler) http.Handler {
//		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
//			ctx, _ := openai.CountTokens(r.Context())
//			next.ServeHTTP(w, r.WithContext(ctx))
//		})
//	}
func CountTokens(ctx context.Context) (context.Context, *Usage) {
	if u := UsageFrom(ctx); u != nil {
		return ctx, u
	}
	u := new(Usage)
	return context.WithValue(ctx, usageKey{}, u), u
}

// UsageFrom returns where the tokens of a chat are noted; nil in a context that
// is not from [CountTokens].
func UsageFrom(ctx context.Context) *Usage {
	u, _ := ctx.Value(usageKey{}).(*Usage)
	return u
}

// Tokens returns the last count. It is false while the runtime has reported none:
// see [Count] for when it does.
func (u *Usage) Tokens() (t Tokens, reported bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.tokens, u.reported
}

// Absurd reports whether the last count was one that no chat has, which Tokens does
// not return.
func (u *Usage) Absurd() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.absurd
}

// FinishReason returns why the model ended its answer, in the runtime's words:
// "stop", or "length" when it was told to end; empty while the answer goes on,
// and when it broke off.
func (u *Usage) FinishReason() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.finish
}

// Report notes a count in place of the one before it, but for one that no chat has:
// below zero, or above 1<<40. It is for engines of other protocols.
func (u *Usage) Report(t Tokens) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.absurd = !t.credible(); u.absurd {
		return
	}
	u.tokens, u.reported = t, true
}

// Finish notes why the model ended its answer, as "stop" or "length". It is for
// engines of other protocols.
func (u *Usage) Finish(reason string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.finish = reason
}

// Reset forgets what has been noted. It is for engines that ask another one after
// one that failed, whose count and reason are not the answer's.
func (u *Usage) Reset() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.tokens, u.reported, u.absurd, u.finish = Tokens{}, false, false, ""
}

func (u *Usage) note(c Chunk) {
	if c.Counted || c.Absurd {
		u.Report(c.Tokens)
	}
	if len(c.Finish) > 0 {
		u.Finish(string(c.Finish))
	}
}
