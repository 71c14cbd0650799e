package botapi

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strings"
	"testing"

	"github.com/matryer/is"
)

type routeKey struct{}

// chatContext is a Chat.Context with a value, that has been cancelled.
func chatContext(parent context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(context.WithValue(parent, routeKey{}, "the route's"))
	cancel(errors.New("the route has returned"))
	return ctx
}

// A seeingFormat notes the context of End.
type seeingFormat struct {
	restating
	see func(who string, ctx context.Context)
}

func (f *seeingFormat) End(ctx context.Context) iter.Seq[[]byte] {
	f.see("End", ctx)
	return f.restating.End(ctx)
}

// Whatever comes after the route sees the values of Chat.Context, and those of the request,
// from which it need not be derived. That it has been cancelled does not count.
func TestChatContext(t *testing.T) {
	for name, c := range map[string]struct {
		engine engineEnd
		stream []string
		json   []string
	}{
		"complete": {sleepsFor(0), []string{"store", "engine", "End", "OnChat", "OnRequest"}, []string{"store", "engine", "JSON", "OnChat", "OnRequest"}},
		"failed":   {failsWith(errBroken), []string{"store", "engine", "Errors", "OnChat", "OnRequest"}, []string{"store", "engine", "Errors", "OnChat", "OnRequest"}},
	} {
		for _, own := range []bool{false, true} {
			inEachWay(t, fmt.Sprint(name, ", own ", own), func(t *testing.T, w way) {
				if !w.route {
					return
				}
				is := is.New(t)
				var seen []string
				see := func(who string, ctx context.Context) {
					if ctx.Value(routeKey{}) != "the route's" || ctx.Value(applicationKey{}) != "the application's" {
						who += " without a value"
					}
					if AccountFrom(ctx) != testAccount || RequestIDFrom(ctx) == "" || ctx.Err() != nil {
						who += " without the request"
					}
					seen = append(seen, who)
				}
				w.middleware = withApplicationValue
				playChat(t, w, engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
					see("engine", ctx)
					c.engine(ctx, yield)
				}), func(o *Options) {
					o.Bots = &fakeStore{bySlug: func(ctx context.Context, _ string) (Bot, error) { see("store", ctx); return echoBot, nil }}
					o.OnChat = func(ctx context.Context, _ ChatReport) { see("OnChat", ctx) }
					o.OnRequest = func(ctx context.Context, _ RequestReport) { see("OnRequest", ctx) }
					route := chatRoute(nil)
					decode := route.Serve
					route.Serve = func(r *http.Request) (Response, error) {
						parent := r.Context()
						if own {
							parent = context.Background()
						}
						response, err := decode(r)
						chat := response.(*Chat)
						chat.Context, chat.Stream = chatContext(parent), &seeingFormat{see: see}
						chat.JSON = func(ctx context.Context) ([]byte, []byte, error) { see("JSON", ctx); return nil, nil, nil }
						return chat, err
					}
					route.Errors = func(ctx context.Context, _ Failure) Reply { see("Errors", ctx); return Reply{} }
					o.Routes = []Route{route}
				})
				want := c.json
				if w.stream {
					want = c.stream
				}
				is.Equal(seen, want)
			})
		}
	}
}

// If the application cancels a request, that is the cause, although the route has cancelled
// a context of its own before.
func TestChatContextHasTheCauseOfTheRequest(t *testing.T) {
	is := is.New(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	var cause error
	o := testOptions(t, t.Output())
	o.Routes = []Route{chatRoute(func(c *Chat) { c.Context = chatContext(ctx) })}
	o.Bots = &fakeStore{bySlug: func(ctx context.Context, _ string) (Bot, error) {
		cancel(errOverloaded)
		<-ctx.Done()
		cause = context.Cause(ctx)
		return Bot{}, cause
	}}
	got := record(New(o), newRequest("POST", routePath, strings.NewReader(chatBodyJSON("hi", false))).WithContext(ctx))
	is.Equal(got.Code, 529)
	is.Equal(cause, errOverloaded)
}
