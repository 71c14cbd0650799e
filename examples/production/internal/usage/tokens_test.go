package usage_test

import (
	"context"
	"errors"
	"iter"
	"math"
	"strings"
	"testing"

	"example.com/botapi"
	"example.com/botapi/examples/openai"
	"example.com/botapi/examples/production/internal/usage"
	"github.com/matryer/is"
)

// TestTokensOfAChat covers every way in which a chat can end.
func TestTokensOfAChat(t *testing.T) {
	asked := usage.Asking{Runtime: "local", Instructions: "Be kind."} // 8 bytes
	request := &botapi.ChatRequest{Messages: []botapi.ChatMessage{{Role: botapi.RoleUser, Content: "Hello you"}}}
	const prompt = 5 + 2*4 // 17 bytes, two messages
	type reports = []openai.Tokens
	for name, c := range map[string]struct {
		before  bool // it ends before a model is asked
		texts   []string
		reports reports // one with each text, or at the end
		finish  string
		err     error
		cause   error // of the context, with the error
		want    *usage.Tokens
		why     string
	}{
		"reported at the end":                 {texts: []string{"a", "b"}, reports: reports{{Prompt: 9, Completion: 7}}, finish: "stop", want: &usage.Tokens{Prompt: 9, Completion: 7}, why: usage.Reported},
		"never reported":                      {texts: []string{"one ", "two ", "three"}, finish: "stop", want: &usage.Tokens{Prompt: prompt, Completion: 4, Estimated: true}, why: usage.Unreported},
		"incomplete, a token each":            {texts: strings.Split(strings.Repeat("a ", 300), " "), want: &usage.Tokens{Prompt: prompt, Completion: 300, Estimated: true}, why: usage.Incomplete},
		"incomplete, many tokens each":        {texts: []string{strings.Repeat("word", 100)}, want: &usage.Tokens{Prompt: prompt, Completion: 100, Estimated: true}, why: usage.Incomplete},
		"incomplete, reported continuously":   {texts: []string{"a", "b", "c"}, reports: reports{{Prompt: 9, Completion: 1}, {Prompt: 9, Completion: 2}, {Prompt: 9, Completion: 3}}, want: &usage.Tokens{Prompt: 9, Completion: 3}, why: usage.Reported},
		"incomplete, reported at the start":   {texts: []string{"a", "b", "c"}, reports: reports{{Prompt: 9, Completion: 0}}, want: &usage.Tokens{Prompt: 9, Completion: 3, Estimated: true}, why: usage.Incomplete},
		"a negative report":                   {texts: []string{"a"}, reports: reports{{Prompt: 9, Completion: -7}}, finish: "stop", want: &usage.Tokens{Prompt: prompt, Completion: 1, Estimated: true}, why: usage.Absurd},
		"a negative prompt":                   {texts: []string{"a"}, reports: reports{{Prompt: -9, Completion: 7}}, finish: "stop", want: &usage.Tokens{Prompt: prompt, Completion: 1, Estimated: true}, why: usage.Absurd},
		"an impossible completion":            {texts: []string{"a"}, reports: reports{{Prompt: 9, Completion: math.MaxInt64}}, finish: "stop", want: &usage.Tokens{Prompt: prompt, Completion: 1, Estimated: true}, why: usage.Absurd},
		"an impossible prompt":                {texts: []string{"a"}, reports: reports{{Prompt: math.MaxInt64, Completion: 1}}, finish: "stop", want: &usage.Tokens{Prompt: prompt, Completion: 1, Estimated: true}, why: usage.Absurd},
		"the model failed immediately":        {err: errors.New("refused")},
		"it stalled immediately":              {err: botapi.ErrEngineStalled, cause: botapi.ErrEngineStalled, want: &usage.Tokens{Prompt: prompt, Completion: 0, Estimated: true}, why: usage.Incomplete},
		"it timed out immediately":            {err: botapi.ErrChatTimeout, cause: botapi.ErrChatTimeout, want: &usage.Tokens{Prompt: prompt, Completion: 0, Estimated: true}, why: usage.Incomplete},
		"no endpoint began to answer":         {err: &botapi.StatusError{Status: 504}, want: &usage.Tokens{Prompt: prompt, Completion: 0, Estimated: true}, why: usage.Incomplete},
		"its proxy lost patience":             {err: (&openai.Failure{Status: 504, Err: errors.New("status 504")}).Answer(), want: &usage.Tokens{Prompt: prompt, Completion: 0, Estimated: true}, why: usage.Incomplete},
		"its proxy did not reach it":          {err: (&openai.Failure{Status: 503, Err: errors.New("status 503")}).Answer()},
		"no token for a text":                 {texts: []string{"one two three four five"}, reports: reports{{Prompt: 9, Completion: 0}}, finish: "stop", want: &usage.Tokens{Prompt: prompt, Completion: 6, Estimated: true}, why: usage.Absurd},
		"one token for two messages":          {texts: []string{"one"}, reports: reports{{Prompt: 1, Completion: 1}}, finish: "stop", want: &usage.Tokens{Prompt: prompt, Completion: 1, Estimated: true}, why: usage.Absurd},
		"fewer tokens than fragments":         {texts: strings.Split("a b c d e f g h i j k l", " "), reports: reports{{Prompt: 9, Completion: 2}}, finish: "stop", want: &usage.Tokens{Prompt: prompt, Completion: 12, Estimated: true}, why: usage.Absurd},
		"few tokens for a long text":          {texts: []string{strings.Repeat(" ", 1000)}, reports: reports{{Prompt: 9, Completion: 7}}, finish: "stop", want: &usage.Tokens{Prompt: prompt, Completion: 250, Estimated: true}, why: usage.Absurd},
		"enough tokens for a long text":       {texts: []string{strings.Repeat(" ", 1000)}, reports: reports{{Prompt: 9, Completion: 8}}, finish: "stop", want: &usage.Tokens{Prompt: 9, Completion: 8}, why: usage.Reported},
		"the client disconnected immediately": {err: botapi.ErrClientLeft, cause: botapi.ErrClientLeft, want: &usage.Tokens{Prompt: prompt, Completion: 0, Estimated: true}, why: usage.Incomplete},
		"the model failed later":              {texts: []string{"a"}, err: errors.New("broken"), want: &usage.Tokens{Prompt: prompt, Completion: 1, Estimated: true}, why: usage.Incomplete},
		"no model was asked":                  {before: true, err: errors.New("no such runtime")},
		"counted, and then it failed":         {reports: reports{{Prompt: 9, Completion: 0}}, err: errors.New("refused"), want: &usage.Tokens{Prompt: 9}, why: usage.Reported},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			ctx, cancel := context.WithCancelCause(usage.With(t.Context(), new(usage.Meter)))
			defer cancel(nil)
			engine := botapi.ChatEngineFunc(func(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
				return func(yield func(string, error) bool) {
					if !c.before {
						usage.Asks(ctx, asked)
					}
					reported := openai.UsageFrom(ctx)
					for i := range max(len(c.texts), len(c.reports)) {
						if i < len(c.reports) {
							reported.Report(c.reports[i])
						}
						if i < len(c.texts) {
							yield(c.texts[i], nil)
						}
					}
					reported.Finish(c.finish)
					if c.err != nil {
						cancel(c.cause)
						if c.cause == nil {
							ctx = context.WithoutCancel(ctx)
						}
						yield("", c.err)
					}
				}
			})
			var got *usage.Tokens
			var why, runtime string
			metered := usage.Metered(engine, func(_ context.Context, of string, t usage.Tokens, because string) {
				got, runtime, why = &t, of, because
			})
			chat := ctx
			if c.cause == nil {
				chat = context.WithoutCancel(ctx)
			}
			for range metered.Chat(chat, request) {
			}
			is.Equal(got, c.want)
			is.Equal(why, c.why)
			is.Equal(usage.TokensOf(ctx), c.want)
			if c.want != nil {
				is.Equal(runtime, "local")
				is.Equal(usage.UsedOf(ctx), c.want.Total())
			}
		})
	}
}

// TestUsedWhileAChatGoesOn checks that UsedOf never exceeds the final total.
func TestUsedWhileAChatGoesOn(t *testing.T) {
	is := is.New(t)
	ctx := usage.With(t.Context(), new(usage.Meter))
	is.Equal(usage.UsedOf(ctx), int64(0))
	engine := botapi.ChatEngineFunc(func(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			usage.Asks(ctx, usage.Asking{})
			is.Equal(usage.UsedOf(ctx), int64(0)) // it may fail
			yield("one", nil)
			is.Equal(usage.UsedOf(ctx), int64(1))
			openai.UsageFrom(ctx).Report(openai.Tokens{Prompt: 10, Completion: 3})
			is.Equal(usage.UsedOf(ctx), int64(1)) // the runtime may correct it
			is.Equal(usage.TokensOf(ctx), nil)
		}
	})
	request := &botapi.ChatRequest{Messages: []botapi.ChatMessage{{Content: "Hello you"}}}
	for range usage.Metered(engine, func(context.Context, string, usage.Tokens, string) {}).Chat(ctx, request) {
	}
	openai.UsageFrom(ctx).Report(openai.Tokens{Prompt: 10, Completion: 9}) // too late
	is.Equal(usage.UsedOf(ctx), int64(13))
	is.Equal(usage.TokensOf(ctx), &usage.Tokens{Prompt: 10, Completion: 3})
	is.Equal(usage.AtMost(request, "Be kind.", 100), int64(9+8+2*4+100))
	is.Equal(usage.TokensOf(t.Context()), nil)
}

// TestNothingIsUsedWithoutAModel answers a chat without a model, as a probe does: the tokens of
// an account that were used so far may not shrink at its end.
func TestNothingIsUsedWithoutAModel(t *testing.T) {
	is := is.New(t)
	ctx := usage.With(t.Context(), new(usage.Meter))
	engine := botapi.ChatEngineFunc(func(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			yield("one", nil)
			is.Equal(usage.UsedOf(ctx), int64(0))
		}
	})
	for range usage.Metered(engine, func(context.Context, string, usage.Tokens, string) { t.Error("it counts") }).Chat(ctx, new(botapi.ChatRequest)) {
	}
	is.Equal(usage.UsedOf(ctx), int64(0))
}
