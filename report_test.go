package botapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"
)

// A report describes the request as it arrived, even if the engine changes its ChatRequest.
func TestReport(t *testing.T) {
	inEachWay(t, "", func(t *testing.T, w way) {
		is := is.New(t)
		w.middleware = withApplicationValue
		var log testLog
		var reports []ChatReport
		var onChatContext context.Context
		called, run := 0, 0
		o := testOptions(t, &log)
		o.Engine = ChatEngineFunc(func(_ context.Context, req *ChatRequest) iter.Seq2[string, error] {
			called++
			return func(yield func(string, error) bool) {
				run++
				*req = ChatRequest{UserID: "nobody", Stream: !req.Stream}
				time.Sleep(time.Second)
				_ = yield("a\xff", nil) && yield("", nil) && yield("b\xe2\x82", nil)
			}
		})
		o.OnChat = func(ctx context.Context, r ChatReport) { onChatContext, reports = ctx, append(reports, r) }
		o.Routes = w.routes()
		body := fmt.Sprintf(`{"bot_slug":"Other","prompt":"p","stream":%t,"user_id":7}`, w.stream)
		got := doAt(t, w.serve(t, New(o)).client(), "http://memory", "POST", w.path(), body, "X-Request-Id", "r-1")
		synctest.Wait()
		is.Equal(got.status, 200)
		is.Equal(reports, []ChatReport{{
			RequestID: "r-1", Account: testAccount, UserID: "7", Bot: otherBot, Stream: w.stream, Status: 200,
			Fragments: 3, Bytes: int64(len("a\uFFFDb\uFFFD\uFFFD")), // as the client decodes it
			FirstFragment: time.Second, Duration: time.Second,
		}})
		is.Equal(RequestIDFrom(onChatContext), "r-1")
		is.Equal(AccountFrom(onChatContext), testAccount)
		is.Equal(onChatContext.Value(applicationKey{}), "the application's")
		is.Equal([]int{called, run}, []int{1, 1})
		is.Equal(strings.Contains(log.String(), "cannot flush"), w.stream && w.hides)
	})
}

// If a write fails after the engine has finished, the answer is aborted and must not look
// complete. Fragments that were still queued are not counted.
func TestReportOfAWriteThatFails(t *testing.T) {
	for after := range 6 { // the first few writes are the engine's goroutine's, the others the handler's
		t.Run(fmt.Sprint("after ", after), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				failed := false
				got := playOn(t, faulty("Write", after, func() error {
					if failed {
						return nil // a later write would succeed
					}
					failed = true
					time.Sleep(time.Second)
					return io.ErrClosedPipe
				}), true, engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
					for range after + 2 {
						yield("x", nil)
						synctest.Wait() // it is being written
					}
				}))
				is.Equal(got.err, http.ErrAbortHandler)
				is.Equal(got.body, strings.Repeat(data("x"), after))
				is.True(errors.Is(got.report(t).Err, io.ErrClosedPipe))
				is.Equal(got.report(t).Fragments, after+1)
				is.Equal(got.report(t).Bytes, int64(after+1))
			})
		})
	}
}

// After an incomplete answer, all that is still to be written has one WriteTimeout together,
// even on a writer that keeps no deadlines. Fragments whose write could not begin in that time
// are not counted.
func TestReportOfUnsentFragments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		const before = 5 // then fragments are written in another goroutine, and more can be queued
		w := faulty("Write", before, takes(DefaultWriteTimeout+time.Second/2))
		got := playOn(t, w, true, engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
			for range before + 1 {
				yield("x", nil)
				synctest.Wait() // it is being written
			}
			yield("queued", nil)
			yield("", errBroken)
		}))
		is.Equal(got.err, http.ErrAbortHandler)
		is.Equal(got.body, strings.Repeat(data("x"), before+1))
		is.Equal(got.report(t).Err, errBroken)
		is.Equal(got.report(t).Fragments, before+1)
		is.Equal(got.report(t).Bytes, int64(before+1))
	})
}

// An error response is no answer, even if its form has the status of one.
func TestReportOfAnErrorThatLooksLikeAnAnswer(t *testing.T) {
	for _, stream := range []bool{false, true} {
		is := is.New(t)
		o := testOptions(t, t.Output())
		route := chatRoute(func(_ *http.Request, c *Chat) {
			c.JSON = func(context.Context) (before, after []byte, err error) { return nil, nil, errBroken }
		})
		route.Errors = func(context.Context, Failure) Reply { return Reply{Status: 200, Body: []byte("sorry")} }
		o.Routes = []Route{route}
		o.Engine = fragmentsOf("a text")
		if stream {
			o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) { yield("", errBroken) })
		}
		var report ChatReport
		o.OnChat = func(_ context.Context, r ChatReport) { report = r }
		got := record(New(o), newRequest("POST", routePath, strings.NewReader(chatBodyJSON("hi", stream))))
		is.Equal(fmt.Sprint(got.Code, " ", got.Body), "200 sorry")
		is.Equal(report.Status, 200)
		is.Equal(report.Bytes, int64(0))
		is.Equal(report.Fragments, 0)
		is.True(errors.Is(report.Err, errBroken))
	}
}

func TestCallbackPanics(t *testing.T) {
	for callback, install := range map[string]func(o *Options, v any){
		"OnChat":    func(o *Options, v any) { o.OnChat = func(context.Context, ChatReport) { panic(v) } },
		"OnRequest": func(o *Options, v any) { o.OnRequest = func(context.Context, RequestReport) { panic(v) } },
	} {
		for _, v := range []any{"the meter is broken", http.ErrAbortHandler} {
			inEachWay(t, fmt.Sprint(callback, ", ", v), func(t *testing.T, w way) {
				is := is.New(t)
				got := playChat(t, w, fragmentsOf("ok"), func(o *Options) { install(o, v) })
				is.Equal(got.status, 200)
				is.NoErr(got.err)
				is.True(strings.Contains(got.log, callback+" panicked"))
				is.True(strings.Contains(got.log, fmt.Sprint(v)))
				is.True(strings.Contains(got.log, "request_id="+got.report(t).RequestID))
				is.True(strings.Contains(got.log, "report_test.go")) // its stack
			})
		}
	}
}

// An engine may hold a lock while it yields, and OnChat and the Logger may need the same
// lock: the handler calls neither on the engine's goroutine, and holds no lock that yield
// needs while it calls them.
func TestNoLockIsHeldDuringApplicationCalls(t *testing.T) {
	for name, end := range map[string]engineEnd{"timed out": untilDone, "failed": failsWith(errBroken)} {
		for _, part := range []string{"OnChat", "the Logger"} {
			inEachWay(t, name+", "+part, func(t *testing.T, w way) {
				is := is.New(t)
				var mu sync.Mutex
				called, more := make(chan struct{}), true
				lock := sync.OnceFunc(func() {
					close(called)
					mu.Lock()
					defer mu.Unlock()
				})
				got := playChat(t, w, engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
					mu.Lock()
					defer mu.Unlock()
					end(ctx, yield)
					<-called
					more = yield("more", nil)
				}), func(o *Options) {
					o.KeepAlive, o.ChatTimeout = -1, time.Second
					if part == "OnChat" {
						o.OnChat = func(context.Context, ChatReport) { lock() }
					} else {
						o.Logger = slog.New(callingHandler{o.Logger.Handler(), lock})
					}
				})
				is.True(got.status >= 500)
				is.True(!more)
			})
		}
	}
}

// A callingHandler calls a function before it logs.
type callingHandler struct {
	slog.Handler
	call func()
}

func (h callingHandler) Handle(ctx context.Context, r slog.Record) error {
	h.call()
	return h.Handler.Handle(ctx, r)
}
