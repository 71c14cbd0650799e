package botapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"

	"example.com/botapi/internal/connection"
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
					route := chatRoute(func(r *http.Request, c *Chat) {
						parent := r.Context()
						if own {
							parent = context.Background()
						}
						c.Context, c.Stream = chatContext(parent), &seeingFormat{see: see}
						c.JSON = func(ctx context.Context) ([]byte, []byte, error) { see("JSON", ctx); return nil, nil, nil }
					})
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
	o.Routes = []Route{chatRoute(func(_ *http.Request, c *Chat) { c.Context = chatContext(ctx) })}
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

// RequestReport has the bot of a chat, the bytes of responses that are no answers, and the
// time until all was sent, however long OnChat takes.
func TestRequestReportFigures(t *testing.T) {
	for name, c := range map[string]struct {
		method, path, body string
		duration           time.Duration
	}{
		"a JSON response":  {"POST", "/v1/chat", chatBodyJSON("hi", false), time.Second},
		"a stream":         {"POST", "/v1/chat", chatBodyJSON("hi", true), time.Second},
		"an engine's 500":  {"POST", "/v1/chat", chatBodyJSON("fail", true), time.Second},
		"an invalid body":  {"POST", "/v1/chat", "{}", 0},
		"an unknown path":  {"GET", "/", "", 0},
		"a list":           {"GET", "/v1/bots", "", 0},
		"a list for HEAD":  {"HEAD", "/v1/bots", "", 0},
		"a reply":          {"GET", "/reply", "", 0},
		"a reply for HEAD": {"HEAD", "/reply", "", 0},
	} {
		for _, http2 := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", HTTP/2 ", http2), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					is := is.New(t)
					reports := make(chan RequestReport, 2)
					o := testOptions(t, io.Discard)
					o.Engine = engineOf(func(_ context.Context, req *ChatRequest, yield func(string, error) bool) {
						time.Sleep(time.Second)
						yield("ok", map[string]error{"fail": errBroken}[lastContent(req)])
					})
					o.Routes = []Route{{Patterns: []string{"GET /reply"}, Serve: func(*http.Request) (Response, error) {
						return Reply{Body: make([]byte, 3*connection.MaxChunk)}, nil
					}}}
					o.OnChat = func(context.Context, ChatReport) { time.Sleep(time.Minute) }
					o.OnRequest = func(_ context.Context, r RequestReport) { reports <- r }
					got := doAt(t, way{http2: http2}.serve(t, New(o)).client(), "http://memory", c.method, c.path, c.body)
					report := <-reports
					is.Equal(report.Status, got.status)
					is.Equal(report.Method, c.method)
					is.Equal(report.RequestID, got.header.Get("X-Request-Id"))
					bot := Bot{}
					if c.duration > 0 {
						bot = echoBot
					}
					is.Equal(report.Bot, bot)
					if name == "a JSON response" || name == "a stream" {
						got.body = "" // ChatReport.Bytes counts it
					}
					is.Equal(report.Bytes, int64(len(got.body)))
					is.Equal(report.Duration, c.duration)
					is.Equal(report.Chat != nil, c.duration > 0)
					is.Equal(len(reports), 0)
				})
			})
		}
	}
}
