package openai

import (
	"cmp"
	"context"
	"sync"
)

// Tokens is the length of a chat in tokens, as its runtime counts them.
type Tokens struct {
	Prompt     int64 // the conversation, including the runtime's chat template
	Completion int64 // the answer, including the model's reasoning
}

// credible reports whether a chat can have these counts: not negative, and not so
// large that sums overflow.
func (t Tokens) credible() bool {
	return 0 <= min(t.Prompt, t.Completion) && max(t.Prompt, t.Completion) <= 1<<40
}

// Usage is what a runtime has reported of one chat besides the text. It is safe for
// concurrent use, so it can be read while the answer is streamed. A nil *Usage records
// nothing: without [CountTokens], nothing is reported.
type Usage struct {
	mu       sync.Mutex
	tokens   Tokens
	reported bool
	absurd   bool
	finish   string
}

type usageKey struct{}

// CountTokens returns a context with a [Usage], in which an [Engine] records the token
// counts of its runtime. If ctx already has a Usage, both are returned unchanged. Call
// it in middleware; botapi.Options.OnChat then gets the Usage with [UsageFrom]:
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

// UsageFrom returns the Usage of a context; nil if the context is not from
// [CountTokens].
func UsageFrom(ctx context.Context) *Usage {
	u, _ := ctx.Value(usageKey{}).(*Usage)
	return u
}

// Tokens returns the last count. reported is false until the runtime has reported one:
// see [Count] for when it does.
func (u *Usage) Tokens() (t Tokens, reported bool) {
	if u == nil {
		return Tokens{}, false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.reported {
		return Tokens{}, false
	}
	return u.tokens, true
}

// Absurd reports whether the last reported count was impossible. Tokens does not return
// such a count.
func (u *Usage) Absurd() bool {
	if u == nil {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.absurd
}

// FinishReason returns why the model ended its answer, in the runtime's words, such as
// "stop", or "length" if it reached a limit. It is empty while the answer is being
// streamed, and if the answer is incomplete.
func (u *Usage) FinishReason() string {
	if u == nil {
		return ""
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.finish
}

// Report replaces the count. It ignores an impossible count: below zero, or above
// 1<<40. It is for engines of other protocols.
func (u *Usage) Report(t Tokens) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.absurd = !t.credible(); u.absurd {
		return
	}
	u.tokens, u.reported = t, true
}

// Update is Report for a runtime that counts while it answers: its counts are those of the
// chat so far, and are not added up. A zero says nothing, and leaves the count before it.
// Nothing is reported before the runtime has counted the prompt, which no chat lacks.
func (u *Usage) Update(t Tokens) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.absurd = !t.credible(); u.absurd {
		return
	}
	u.tokens = Tokens{Prompt: cmp.Or(t.Prompt, u.tokens.Prompt), Completion: cmp.Or(t.Completion, u.tokens.Completion)}
	u.reported = u.reported || u.tokens.Prompt > 0
}

// Finish records why the model ended its answer, such as "stop" or "length". It is for
// engines of other protocols.
func (u *Usage) Finish(reason string) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.finish = reason
}

// Reset forgets the count and the reason. It is for an engine that calls another
// engine after one has failed.
func (u *Usage) Reset() {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.tokens, u.reported, u.absurd, u.finish = Tokens{}, false, false, ""
}

// note records the count of a chunk, and puts the count so far in its place.
func (u *Usage) note(c *Chunk) {
	if !c.Counted && !c.Absurd {
		return
	}
	u.Update(c.Tokens)
	if c.Counted {
		c.Tokens, c.Counted = u.Tokens()
	}
}
