package botapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"
)

var (
	errOverloaded = StatusError{Status: 529, Detail: "Overloaded"}
	errBroken     = errors.New("the model is broken")
)

// A slowError takes an hour to say what it is.
type slowError struct{}

func (slowError) Error() string {
	time.Sleep(time.Hour)
	return "slow"
}

const tooLong = "The answer took too long"

// Every ending of a chat: what its client gets, and what is reported of it. Each
// engine yields "", "héllo" and " you", one a second, before it ends; and each has
// its ending once more before the first fragment.
var endings = []struct {
	name    string
	timeout time.Duration // ChatTimeout; 0: the default
	stall   time.Duration // StallTimeout
	leaves  time.Duration // when the client does; 0: never
	end     engineEnd

	status int // of an answer that has not begun; 0: the connection is cut
	detail string
	err    error         // the report's
	at     time.Duration // the end of the answer, if that is later than
	after  time.Duration // so long behind the engine's last fragment
	logs   string
}{
	{name: "whole", end: sleepsFor(0), status: 200},
	{name: "no ChatTimeout", timeout: -1, end: sleepsFor(24 * time.Hour), status: 200, after: 24 * time.Hour},
	{name: "a StatusError", end: failsWith(errOverloaded), status: 529, detail: "Overloaded", err: errOverloaded},
	{name: "an error beside text", end: func(_ context.Context, yield func(string, error) bool) { yield("lost", errOverloaded) }, status: 529, detail: "Overloaded", err: errOverloaded},
	{name: "an error, and more after it", end: func(_ context.Context, yield func(string, error) bool) {
		if yield("", errOverloaded) || yield("more", nil) || yield("", io.EOF) {
			panic("more is wanted after an error")
		}
	}, status: 529, detail: "Overloaded", err: errOverloaded},
	{name: "an error, and a long way home", end: func(_ context.Context, yield func(string, error) bool) {
		yield("", errOverloaded)
		time.Sleep(time.Hour)
	}, status: 529, detail: "Overloaded", err: errOverloaded},
	{name: "an error, then a panic", end: func(_ context.Context, yield func(string, error) bool) {
		yield("", errOverloaded)
		panic("and now?")
	}, status: 529, detail: "Overloaded", err: errOverloaded, logs: "and now?"},
	{name: "a plain error", end: failsWith(io.ErrUnexpectedEOF), status: 500, detail: "Internal Server Error", err: io.ErrUnexpectedEOF, logs: "unexpected EOF"},
	{name: "a panic", end: panicsWith(fmt.Errorf("%w", errBroken)), status: 500, detail: "Internal Server Error", err: new(panicError), logs: "stack="},
	{name: "runtime.Goexit", end: func(context.Context, func(string, error) bool) { runtime.Goexit() }, status: 500, detail: "Internal Server Error", err: errEngineExited},
	{name: "too late", timeout: 5 * time.Second, end: untilDone, status: 504, detail: tooLong, err: ErrChatTimeout, at: 5 * time.Second},
	{name: "too late by default", end: untilDone, status: 504, detail: tooLong, err: ErrChatTimeout, at: DefaultChatTimeout},
	{name: "too late, with its context's error", timeout: 5 * time.Second, end: func(ctx context.Context, yield func(string, error) bool) {
		<-ctx.Done()
		yield("", ctx.Err())
	}, status: 504, detail: tooLong, err: ErrChatTimeout, at: 5 * time.Second},
	{name: "too late, and goes on", timeout: 5 * time.Second, end: func(ctx context.Context, yield func(string, error) bool) {
		<-ctx.Done()
		synctest.Wait()
		if yield("a", nil) || yield("b", nil) || yield("", io.EOF) {
			panic("more is wanted after the end")
		}
	}, status: 504, detail: tooLong, err: ErrChatTimeout, at: 5 * time.Second},
	{name: "too late, and does not stop", timeout: 5 * time.Second, end: sleepsFor(time.Hour), status: 504, detail: tooLong, err: ErrChatTimeout, at: 5 * time.Second},
	{name: "too late with the text of a panic", timeout: 5 * time.Second, end: panicsWith(slowError{}), status: 504, detail: tooLong, err: ErrChatTimeout, at: 5 * time.Second},
	{name: "silent for too long", stall: 1500 * time.Millisecond, end: untilDone, status: 504, detail: tooLong, err: ErrEngineStalled, after: 1500 * time.Millisecond},
	{name: "the client leaves", leaves: 4 * time.Second, end: untilDone, err: ErrClientLeft, at: 4 * time.Second},
	{name: "the client leaves after an hour of silence", timeout: -1, leaves: time.Hour, end: untilDone, err: ErrClientLeft, at: time.Hour},
	{name: "the client leaves, and the engine does not stop", leaves: 4 * time.Second, end: sleepsFor(time.Hour), err: ErrClientLeft, at: 4 * time.Second},
}

func TestEndings(t *testing.T) {
	for _, c := range endings {
		for _, early := range []bool{false, true} {
			inEachWay(t, fmt.Sprint(c.name, ", early ", early), func(t *testing.T, w way) {
				is := is.New(t)
				fragments := []string{"", "héllo", " you"}
				if early {
					fragments = nil
				}
				w.leaves = c.leaves
				engine := engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
					for _, fragment := range fragments {
						time.Sleep(time.Second)
						if !yield(fragment, nil) {
							return
						}
					}
					c.end(ctx, yield)
				})
				var endOfOnChat error
				got := playChat(t, w, engine, func(o *Options) {
					o.KeepAlive, o.ChatTimeout, o.StallTimeout = -1, c.timeout, c.stall
					o.OnChat = func(ctx context.Context, _ ChatReport) {
						time.Sleep(time.Hour) // longer than WriteTimeout: what net/http still writes has its own
						endOfOnChat = ctx.Err()
					}
				})

				text, events, committed := strings.Join(fragments, ""), "", w.stream && !early
				for _, fragment := range fragments {
					events += data(fragment)
				}
				switch {
				case c.leaves > 0:
					is.True(got.err != nil) // its own cancellation or, on HTTP/2, how the server answers that
				case c.status == 200 && w.stream:
					is.Equal(got.body, events+terminator)
					is.NoErr(got.err)
				case c.status == 200:
					is.Equal(got.body, `{"content":"`+text+`"}`)
					is.NoErr(got.err)
				case committed && w.hides:
					is.Equal(got.status, 0) // cut before anything left
				case committed:
					is.Equal(got.status, 200)
					is.Equal(got.body, events+broken(c.detail))
					is.True(got.err != nil) // cut
				default:
					is.Equal(got.status, c.status)
					is.Equal(got.header.Get("Content-Type"), "application/json")
					is.Equal(got.body, `{"detail":"`+c.detail+`"}`)
					is.NoErr(got.err)
				}

				report := got.report(t)
				want := ChatReport{RequestID: report.RequestID, Account: testAccount, Bot: echoBot, Stream: w.stream, Status: c.status, Err: report.Err}
				want.Duration = max(c.at, time.Duration(len(fragments))*time.Second+c.after)
				if !early {
					want.FirstFragment = 2 * time.Second
				}
				if committed {
					want.Status = 200
				}
				if want.Status == 200 {
					want.Fragments, want.Bytes = len(fragments), int64(len(text))
				}
				is.Equal(report, want)
				is.True(report.RequestID != "")
				is.True(sameEnd(report.Err, c.err))
				is.Equal(endsOf(report.Err), endsOf(c.err))
				is.NoErr(endOfOnChat)
				is.True(strings.Contains(got.log, c.logs))
				is.True(!strings.Contains(got.log, "more is wanted"))
				is.True(c.leaves == 0 || !strings.Contains(got.log, "ERROR")) // it is nobody's fault
			})
		}
	}
}

// sameEnd compares errors by errors.Is, and panics by their kind.
func sameEnd(err, want error) bool {
	if _, panicked := want.(*panicError); panicked {
		return errors.As(err, new(*panicError))
	}
	return errors.Is(err, want)
}

// The longest times there are end nothing, whenever a chat begins.
func TestChatTimeoutLongest(t *testing.T) {
	inEachWay(t, "", func(t *testing.T, w way) {
		is := is.New(t)
		got := playChat(t, w, sleepsFor(24*time.Hour).engine(), func(o *Options) {
			o.ChatTimeout, o.StallTimeout, o.KeepAlive, o.WriteTimeout = math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64
			o.Keys = KeyVerifierFunc(func(context.Context, string) (string, error) {
				time.Sleep(time.Second) // the chat begins later than its request
				return testAccount, nil
			})
		})
		is.Equal(got.status, 200)
		is.NoErr(got.report(t).Err)
	})
}

// An engine's silence ends with each of its fragments, and begins before Chat has
// returned.
func TestStallTimeout(t *testing.T) {
	spoken := 0
	lively := engineEnd(func(_ context.Context, yield func(string, error) bool) {
		for spoken = 0; spoken < 5; spoken++ {
			time.Sleep(900 * time.Millisecond)
			yield([]string{"", "a"}[spoken%2], nil)
		}
		time.Sleep(900 * time.Millisecond)
	})
	silentInChat := ChatEngineFunc(func(ctx context.Context, _ *ChatRequest) iter.Seq2[string, error] {
		<-ctx.Done()
		return fragmentsOf("late").Chat(ctx, nil)
	})
	withTimeout := func(o *Options) { o.StallTimeout = time.Second }
	inEachWay(t, "", func(t *testing.T, w way) {
		is := is.New(t)
		got := playChat(t, w, lively.engine(), withTimeout)
		is.NoErr(got.report(t).Err)
		is.Equal(spoken, 5)
		got = playChat(t, w, silentInChat, withTimeout)
		is.Equal(got.status, 504)
		is.Equal(got.report(t).Duration, time.Second)
		is.True(errors.Is(got.report(t).Err, ErrEngineStalled))
	})
}

// The handler waits for an engine, but not for long.
func TestEngineHangs(t *testing.T) {
	inEachWay(t, "", func(t *testing.T, w way) {
		is := is.New(t)
		start := time.Now()
		got := playChat(t, w, sleepsFor(time.Hour).engine(), func(o *Options) { o.KeepAlive, o.ChatTimeout = -1, time.Minute })
		is.Equal(time.Since(start), time.Minute+500*time.Millisecond)
		is.Equal(got.status, 504)
		is.Equal(strings.Count(got.log, "the engine has not returned"), 1)
	})
}

func TestEngineNilIterator(t *testing.T) {
	inEachWay(t, "", func(t *testing.T, w way) {
		is := is.New(t)
		got := playChat(t, w, nilIterator)
		is.Equal(got.status, 500)
		is.Equal(got.body, `{"detail":"Internal Server Error"}`)
		is.Equal(got.report(t).Err, errNilIterator)
		is.True(strings.Contains(got.log, "nil iterator"))
		is.True(strings.Contains(got.log, "request_id="+got.report(t).RequestID))
	})
}

// What the host's other parts take does not count for ChatTimeout.
func TestEngineContext(t *testing.T) {
	inEachWay(t, "", func(t *testing.T, w way) {
		is := is.New(t)
		w.behind = withHostsValue
		var contexts []context.Context
		var begun error
		var left time.Duration
		engine := engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
			derived, cancel := context.WithTimeout(ctx, time.Hour)
			context.AfterFunc(derived, cancel) // it ends with the context that it is made of
			contexts = []context.Context{ctx, derived}
			deadline, _ := ctx.Deadline()
			begun, left = ctx.Err(), time.Until(deadline)
			time.Sleep(time.Minute - 1)
			yield("ok", nil)
		})
		got := playChat(t, w, engine, func(o *Options) {
			o.KeepAlive, o.ChatTimeout = -1, time.Minute
			o.Bots = &fakeStore{bySlug: func(context.Context, string) (Bot, error) {
				time.Sleep(time.Hour)
				return echoBot, nil
			}}
		})
		is.Equal(got.status, 200)
		is.NoErr(begun)
		is.Equal(left, time.Minute)
		for _, ctx := range contexts {
			is.Equal(AccountFrom(ctx), testAccount)
			is.Equal(RequestIDFrom(ctx), got.report(t).RequestID)
			is.Equal(ctx.Value(hostKey{}), "the host's")
			is.Equal(ctx.Err(), context.Canceled) // the answer is over
		}
	})
}

func TestEngineContextWithoutADeadline(t *testing.T) {
	is := is.New(t)
	hasDeadline := true
	got := playChat(t, way{}, engineOf(func(ctx context.Context, _ *ChatRequest, _ func(string, error) bool) {
		_, hasDeadline = ctx.Deadline()
	}), func(o *Options) { o.ChatTimeout = -1 })
	is.Equal(got.status, 200)
	is.True(!hasDeadline)
}

// A context says whose it is as long as somebody keeps it.
func TestContextsOutliveTheirRequests(t *testing.T) {
	is := is.New(t)
	kept := make(map[string]context.Context)
	o := testOptions(t, t.Output())
	o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
		kept[RequestIDFrom(ctx)] = ctx
		yield("ok", nil)
	})
	h := New(o)
	for range 20 { // a pool does not return each thing to the next who asks
		is.Equal(postChat(h, chatBodyJSON("hi", len(kept)%2 == 0)).Code, 200)
	}
	is.Equal(len(kept), 20)
	for id, ctx := range kept {
		is.Equal(RequestIDFrom(ctx), id)
		is.Equal(AccountFrom(ctx), testAccount)
	}
}

// A host may end the contexts of its requests, and may give a cause. One of the
// handler's own reasons comes from another chat then: it decides nothing here but
// what the host makes of it.
func TestHostEndsARequest(t *testing.T) {
	draining := StatusError{Status: 503, Detail: "Shutting down", RetryAfter: 5 * time.Second}
	for _, c := range []struct {
		name   string
		cause  error // nil: a deadline without one
		status int   // 0: the connection is cut
		detail string
		err    error
	}{
		{"with a StatusError", draining, 503, "Shutting down", draining},
		{"with a StatusError for a deadline", StatusError{402, "Your minute is over", 0, context.DeadlineExceeded}, 402, "Your minute is over", context.DeadlineExceeded},
		{"with a StatusError because a client left", StatusError{402, "Pay first", 0, ErrClientLeft}, 402, "Pay first", nil},
		{"with a StatusError because of an abort", StatusError{402, "Pay first", 0, http.ErrAbortHandler}, 402, "Pay first", nil},
		{"with another cause", errBroken, 503, "Service Unavailable", errBroken},
		{"with a client that stalled", ErrClientStalled, 503, "Service Unavailable", nil},
		{"with two time-outs", errors.Join(ErrChatTimeout, ErrEngineStalled), 504, tooLong, nil},
		{"with a deadline", nil, 504, tooLong, context.DeadlineExceeded},
		{"without a cause", context.Canceled, 0, "", ErrClientLeft},
		{"with a reason why the client has left", fmt.Errorf("connection reset: %w", context.Canceled), 0, "", ErrClientLeft},
	} {
		inEachWay(t, c.name, func(t *testing.T, w way) {
			is := is.New(t)
			w.behind = func(h http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					ctx, end := context.WithCancelCause(r.Context())
					defer end(nil)
					if c.cause != nil {
						time.AfterFunc(time.Second, func() { end(c.cause) })
					}
					ctx, cancel := context.WithTimeout(ctx, time.Second+1)
					defer cancel()
					h.ServeHTTP(w, r.WithContext(ctx))
				})
			}
			var cause error
			got := playChat(t, w, engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
				<-ctx.Done()
				cause = context.Cause(ctx)
				yield("", ctx.Err())
			}))
			is.Equal(got.err != nil, c.status == 0)
			is.Equal(got.status, c.status)
			if c.status != 0 {
				is.Equal(got.body, `{"detail":"`+c.detail+`"}`)
			}
			report := got.report(t)
			is.Equal(report.Status, c.status)
			is.Equal(cause, report.Err)
			is.True(c.err == nil || errors.Is(report.Err, c.err))
			is.Equal(endsOf(report.Err), endsOf(c.err))
			is.True(c.status != 0 || !strings.Contains(got.log, "ERROR")) // it is nobody's fault
		})
	}
}

// A host that ends the request while the last bytes are sent has ended the
// answer, if they are not taken: the client has not left.
func TestHostEndsARequestDuringTheLastWrite(t *testing.T) {
	for _, stream := range []bool{false, true} {
		for _, stalls := range []time.Duration{0, DefaultWriteTimeout} {
			t.Run(fmt.Sprint("stream ", stream, ", stalls ", stalls), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					is := is.New(t)
					ctx, end := context.WithCancelCause(t.Context())
					defer end(nil)
					w := &faultyWriter{ResponseRecorder: httptest.NewRecorder(), method: "Write", fault: func() error {
						end(errOverloaded)
						time.Sleep(stalls)
						return io.ErrClosedPipe
					}}
					got := playRequestOn(t, w, chatRequest(t, "", "hi", stream).WithContext(ctx), fragmentsOf())
					is.Equal(got.err, http.ErrAbortHandler) // cut
					is.True(errors.Is(got.report(t).Err, errOverloaded))
					is.Equal(endsOf(got.report(t).Err), nil)
				})
			})
		}
	}
}

// An engine that keeps its context's deadline by itself, as a connection with a
// deadline does, fails at the same moment as the handler's own timer. Whichever
// comes first, ChatTimeout has passed; before it, the failure is the engine's. An
// engine that is first has its failure logged as the cause, a panic with its stack.
func TestEngineKeepsItsDeadline(t *testing.T) {
	for _, c := range []struct {
		name string
		fail engineEnd
		logs string
	}{
		{"an error", failsWith(os.ErrDeadlineExceeded), ""},
		{"a StatusError", failsWith(errOverloaded), ""},
		{"a panic", panicsWith("the model took too long"), "stack="},
		{"an exit", func(context.Context, func(string, error) bool) { runtime.Goexit() }, ""},
	} {
		for _, before := range []time.Duration{1, 0} {
			inEachWay(t, fmt.Sprint(c.name, ", ", before, " before"), func(t *testing.T, w way) {
				is := is.New(t)
				got := playChat(t, w, engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
					deadline, _ := ctx.Deadline()
					own := time.NewTimer(time.Until(deadline) - before)
					yield("text", nil)
					<-own.C
					c.fail(ctx, yield)
				}), func(o *Options) { o.KeepAlive, o.ChatTimeout = -1, time.Minute })
				report := got.report(t)
				is.Equal(errors.Is(report.Err, ErrChatTimeout), before == 0)
				is.Equal(errors.Is(report.Err, errOverloaded), before > 0 && c.name == "a StatusError")
				is.Equal(strings.Contains(got.log, ErrChatTimeout.Error()), before == 0)
				is.True(strings.Contains(got.log, c.logs))
				if !w.stream {
					is.Equal(got.status == 504, before == 0)
				}
			})
		}
	}
}

// What an engine says of another chat is not believed: why this one has ended,
// only the handler knows.
func TestReasonsOfAnotherChat(t *testing.T) {
	for _, reason := range []error{ErrClientLeft, ErrClientStalled, ErrChatTimeout, ErrEngineStalled} {
		is := is.New(t)
		is.Equal(endsOf(reason), []error{reason})

		got := playChat(t, way{}, failsWith(fmt.Errorf("another chat: %w", reason)).engine())
		is.Equal(got.status, 500)
		is.Equal(endsOf(got.report(t).Err), nil)
		is.Equal(got.report(t).Err.Error(), "another chat: "+reason.Error())

		got = playChat(t, way{}, failsWith(StatusError{Status: 503, Detail: "Upstream is slow", Err: reason}).engine())
		is.Equal(got.body, `{"detail":"Upstream is slow"}`)
		is.Equal(endsOf(got.report(t).Err), nil)
	}
	is := is.New(t)
	is.True(errors.Is(ErrClientLeft, context.Canceled))
	is.True(errors.Is(ErrClientStalled, os.ErrDeadlineExceeded))
	is.True(errors.Is(ErrChatTimeout, context.DeadlineExceeded))
	is.True(errors.Is(ErrEngineStalled, context.DeadlineExceeded))
}

// A report is of the request as it came. An engine may change its own, and
// changes nothing for anyone else by that.
func TestReport(t *testing.T) {
	inEachWay(t, "", func(t *testing.T, w way) {
		is := is.New(t)
		w.behind = withHostsValue
		var log testLog
		var reports []ChatReport
		var given context.Context
		asked, run := 0, 0
		o := testOptions(t, &log)
		o.Engine = ChatEngineFunc(func(_ context.Context, req *ChatRequest) iter.Seq2[string, error] {
			asked++
			return func(yield func(string, error) bool) {
				run++
				*req = ChatRequest{UserID: "nobody", Stream: !req.Stream}
				time.Sleep(time.Second)
				_ = yield("a\xff", nil) && yield("", nil) && yield("b\xe2\x82", nil)
			}
		})
		o.OnChat = func(ctx context.Context, r ChatReport) { given, reports = ctx, append(reports, r) }
		body := fmt.Sprintf(`{"bot_slug":"Other","prompt":"p","stream":%t,"user_id":7}`, w.stream)
		got := doAt(t, w.serve(t, New(o)).client(), "http://memory", "POST", "/v1/chat", body, "X-Request-Id", "r-1")
		synctest.Wait()
		is.Equal(got.status, 200)
		is.Equal(reports, []ChatReport{{
			RequestID: "r-1", Account: testAccount, UserID: "7", Bot: otherBot, Stream: w.stream, Status: 200,
			Fragments: 3, Bytes: int64(len("a\uFFFDb\uFFFD\uFFFD")), // as the client decodes it
			FirstFragment: time.Second, Duration: time.Second,
		}})
		is.Equal(RequestIDFrom(given), "r-1")
		is.Equal(AccountFrom(given), testAccount)
		is.Equal(given.Value(hostKey{}), "the host's")
		is.Equal([]int{asked, run}, []int{1, 1})
		is.Equal(strings.Contains(log.String(), "cannot flush"), w.stream && w.hides)
	})
}

func TestReportOnlyOfChats(t *testing.T) {
	is := is.New(t)
	o := testOptions(t, t.Output())
	o.OnChat = func(context.Context, ChatReport) { t.Error("reported") }
	o.MaxConcurrentChats = 1
	h := New(o)
	h.(*handler).slots.total.TryAcquire(1) // another chat
	for status, body := range map[int]string{422: `{}`, 404: `{"bot_slug":"nobody","prompt":"p","stream":true}`, 503: chatBodyJSON("hi", true)} {
		is.Equal(do(t, h, "POST", "/v1/chat", body).status, status)
	}
	is.Equal(do(t, h, "GET", "/v1/bots", "").status, 200)
	is.Equal(do(t, h, "POST", "/v1/chat", chatBodyJSON("hi", true), "Authorization", "-").status, 401)
}

// A write that fails when the engine has finished already is no less a failure:
// the answer must not end as if it were whole. What waited behind it was handed
// to nobody.
func TestReportOfAWriteThatFailsBehindTheEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		failed := false
		w := &faultyWriter{ResponseRecorder: httptest.NewRecorder(), method: "Write", after: burstAfter, fault: func() error {
			if failed {
				return nil // a later one would be taken
			}
			failed = true
			time.Sleep(time.Second)
			return io.ErrClosedPipe
		}}
		got := playOn(t, w, true, engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
			for range burstAfter + 1 {
				yield("x", nil)
			}
			synctest.Wait()
			yield("behind", nil)
		}))
		is.Equal(got.err, http.ErrAbortHandler) // cut
		report := got.report(t)
		is.True(errors.Is(report.Err, io.ErrClosedPipe))
		is.Equal(report.Fragments, burstAfter+1)
		is.Equal(report.Bytes, int64(burstAfter+1))
		is.True(!strings.Contains(w.Body.String(), "[DONE]"))
	})
}

func TestOnChatPanics(t *testing.T) {
	for _, v := range []any{"the meter is broken", http.ErrAbortHandler} {
		inEachWay(t, fmt.Sprint(v), func(t *testing.T, w way) {
			is := is.New(t)
			got := playChat(t, w, fragmentsOf("ok"), func(o *Options) {
				o.OnChat = func(context.Context, ChatReport) { panic(v) }
			})
			is.Equal(got.status, 200)
			is.NoErr(got.err)
			is.True(strings.Contains(got.log, fmt.Sprint(v)))
			is.True(strings.Contains(got.log, "request_id="+got.report(t).RequestID))
			is.True(strings.Contains(got.log, "engine_test.go")) // its stack
		})
	}
}

// An engine may hold a lock while it yields, and OnChat and the Logger may want
// the same one: nothing of the host's is called on the engine's stack.
func TestOnChatWaitsForTheEngine(t *testing.T) {
	inEachWay(t, "", func(t *testing.T, w way) {
		is := is.New(t)
		var mu sync.Mutex
		reporting := make(chan struct{})
		got := playChat(t, w, engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
			mu.Lock()
			defer mu.Unlock()
			yield("", errOverloaded)
			<-reporting
		}), func(o *Options) {
			o.OnChat = func(context.Context, ChatReport) {
				close(reporting)
				mu.Lock()
				defer mu.Unlock()
			}
		})
		is.Equal(got.status, 529)
	})
}

// A lockedLog is a log handler that shares a lock with an engine.
type lockedLog struct {
	slog.Handler
	logging, locked chan struct{}
	mu              sync.Mutex
}

func (l *lockedLog) Handle(context.Context, slog.Record) error {
	close(l.logging)
	<-l.locked
	l.mu.Lock()
	defer l.mu.Unlock()
	return nil
}

func TestLoggerWaitsForTheEngine(t *testing.T) {
	inEachWay(t, "", func(t *testing.T, w way) {
		is := is.New(t)
		log := &lockedLog{Handler: slog.NewTextHandler(io.Discard, nil), logging: make(chan struct{}), locked: make(chan struct{})}
		wanted := true
		playChat(t, w, engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
			yield("a", nil)
			<-log.logging
			log.mu.Lock()
			defer log.mu.Unlock()
			close(log.locked)
			wanted = yield("b", nil)
		}), func(o *Options) { o.Logger, o.ChatTimeout = slog.New(log), time.Second })
		is.True(!wanted)
	})
}

// Limits count chats that are in progress, of an account with the empty name as of
// any other. A refused chat takes no place.
func TestLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		engine := newHeldEngine(t)
		o := testOptions(t, t.Output())
		o.Engine, o.MaxConcurrentChats, o.MaxChatsPerAccount = engine, 4, 2
		o.Keys = KeyVerifierFunc(func(_ context.Context, key string) (string, error) {
			return strings.TrimPrefix(key, "nobody"), nil
		})
		h := New(o).(*handler)
		server := serveInMemory(t, h)
		statuses := make(chan int, 9)
		begins := func(key string, ended ...int) {
			t.Helper()
			go func() {
				got, _ := askAs(t.Context(), key, server, true)
				statuses <- got.status
			}()
			synctest.Wait()
			is.Equal(len(statuses), len(ended))
			for _, status := range ended {
				is.Equal(<-statuses, status)
			}
		}
		begins("acme")
		begins("acme")
		for range 5 {
			begins("acme", 429)
		}
		engine.release <- struct{}{}
		synctest.Wait()
		is.Equal(<-statuses, 200)
		begins("acme")
		begins("acme", 429)
		begins("nobody")
		begins("nobody")
		for _, key := range []string{"acme", "nobody", "other"} { // where both limits are reached, all chats count first
			begins(key, 503)
		}
		is.Equal(doAt(t, server.client(), "http://memory", "GET", "/v1/bots", "").status, 200) // bots are no chats

		engine.releaseAll()
		for range 4 {
			is.Equal(<-statuses, 200)
		}
		begins("other", 200)
		is.Equal(len(h.slots.inUse), 0) // an account whose chats have all ended is forgotten
	})
}

func TestLimitNone(t *testing.T) {
	for _, limit := range []int64{0, -1} {
		synctest.Test(t, func(t *testing.T) {
			is := is.New(t)
			o := testOptions(t, t.Output())
			o.Engine, o.MaxChatsPerAccount, o.MaxConcurrentChats = sleepsFor(time.Second).engine(), limit, limit
			h := New(o).(*handler)
			server := serveInMemory(t, h)
			statuses := make(chan int)
			for range 50 {
				go func() { statuses <- ask(t, server, false).status }()
			}
			for range 50 {
				is.Equal(<-statuses, 200)
			}
			is.Equal(len(h.slots.inUse), 0)
		})
	}
}

// A chat that its account's limit refuses takes no place from another account,
// not even for a moment.
func TestLimitPerAccountTakesNothingOfAnother(t *testing.T) {
	is := is.New(t)
	p := newSlots(2, 1)
	var full slot
	is.NoErr(full.take(p, "full"))
	var refusals atomic.Int64
	var asking sync.WaitGroup
	for range 4 {
		asking.Go(func() {
			for refusals.Add(1) < 400_000 {
				if new(slot).take(p, "full") == nil {
					t.Error("a chat more than its account may have")
				}
			}
		})
	}
	refused := 0
	for refusals.Load() < 400_000 {
		var chat slot
		if chat.take(p, "other") != nil {
			refused++
			continue
		}
		chat.release()
		chat.release()
	}
	asking.Wait()
	is.Equal(refused, 0)
}

// Where nothing bounds a write, ChatTimeout does. Else WriteTimeout does, and may
// be exceeded by an eighth.
func TestWriteTimeout(t *testing.T) {
	for _, c := range []struct{ chat, write, took time.Duration }{
		{4 * time.Second, -1, 4500 * time.Millisecond},
		{time.Minute, 4 * time.Second, 4500 * time.Millisecond},
		{time.Hour, time.Minute, 61 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			is := is.New(t)
			conn, reports := dialChat(t, true, fragmentsOf("hi"), func(o *Options) { o.ChatTimeout, o.WriteTimeout = c.chat, c.write })
			defer conn.Close() // and does not read before
			is.Equal((<-reports).Duration, c.took)
		})
	}
}

// ChatTimeout bounds the sending of an answer, too: a reader that takes a little
// each half minute must not hold its place for hours.
func TestChatTimeoutBoundsSending(t *testing.T) {
	for stream, part := range map[bool]int{true: maxWrite, false: maxPart} {
		synctest.Test(t, func(t *testing.T) {
			is := is.New(t)
			conn, reports := dialChat(t, stream, fragmentsOf(strings.Repeat("x", 1<<20)), func(o *Options) {
				o.KeepAlive, o.ChatTimeout = -1, 5*time.Minute
			})
			defer conn.Close()
			var err error
			for err == nil {
				_, err = io.ReadFull(conn, make([]byte, part))
				time.Sleep(29 * time.Second)
			}
			report := <-reports
			is.True(errors.Is(report.Err, ErrChatTimeout))
			is.Equal(report.Status, 200)
			is.True(report.Duration < 8*time.Minute)
		})
	}
}

// dialChat sends a chat on a connection that the test reads by itself.
func dialChat(t *testing.T, stream bool, engine ChatEngine, change func(*Options)) (net.Conn, <-chan ChatReport) {
	reports := make(chan ChatReport, 1)
	o := testOptions(t, io.Discard)
	o.Engine = engine
	o.OnChat = func(_ context.Context, r ChatReport) { reports <- r }
	change(&o)
	conn := serveInMemory(t, New(o)).dial()
	if err := chatRequest(t, "http://memory", "hi", stream).Write(conn); err != nil {
		t.Fatal(err)
	}
	return conn, reports
}

func TestCallbackEngine(t *testing.T) {
	for _, c := range []struct {
		name string
		f    func(ctx context.Context, req *ChatRequest, emit func(string) error) error
		body string
		err  error
	}{
		{"whole", func(_ context.Context, req *ChatRequest, emit func(string) error) error {
			return cmp.Or(emit("you said "), emit(""), emit(lastContent(req)))
		}, `{"content":"you said hi"}`, nil},
		{"silent", func(context.Context, *ChatRequest, func(string) error) error { return nil }, `{"content":""}`, nil},
		{"an error", func(_ context.Context, _ *ChatRequest, emit func(string) error) error {
			return cmp.Or(emit("a"), error(errOverloaded))
		}, `{"detail":"Overloaded"}`, errOverloaded},
		{"a cancellation of its own", func(_ context.Context, _ *ChatRequest, emit func(string) error) error {
			return cmp.Or(emit("a"), context.Canceled)
		}, `{"detail":"Internal Server Error"}`, context.Canceled},
		{"from another goroutine", func(_ context.Context, _ *ChatRequest, emit func(string) error) error {
			emitted := make(chan error)
			go func() { emitted <- emit("elsewhere") }()
			return <-emitted
		}, `{"content":"elsewhere"}`, nil},
		{"a panic", func(context.Context, *ChatRequest, func(string) error) error { panic(errBroken) }, `{"detail":"Internal Server Error"}`, new(panicError)},
	} {
		t.Run(c.name, func(t *testing.T) {
			is := is.New(t)
			got := playChat(t, way{}, CallbackEngine(c.f))
			is.Equal(got.body, c.body)
			is.True(sameEnd(got.report(t).Err, c.err))
		})
	}
}

func TestCallbackEngineNil(t *testing.T) {
	is := is.New(t)
	defer func() { is.Equal(recover(), "botapi: CallbackEngine: the function is nil") }()
	CallbackEngine(nil)
	t.Error("CallbackEngine has returned")
}

// emit says that nothing more is wanted, and why. What a function makes of that
// is no failure of its own.
func TestCallbackEngineIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var emitted []error
		got := playChat(t, way{stream: true}, CallbackEngine(func(ctx context.Context, _ *ChatRequest, emit func(string) error) error {
			emitted = append(emitted, emit("a"))
			<-ctx.Done()
			emitted = append(emitted, emit("b"))
			return fmt.Errorf("streaming: %w", emit("c"))
		}), func(o *Options) { o.ChatTimeout = time.Second })
		is.Equal(got.body, data("a")+broken(tooLong))
		is.Equal(len(emitted), 2)
		is.NoErr(emitted[0])
		is.True(errors.Is(emitted[1], ErrChatTimeout))
		is.True(errors.Is(got.report(t).Err, ErrChatTimeout))
	})
}

// An engine may be made of another one. Then a range statement takes the
// fragments, which panics if its body is called once too often. A function that
// has returned, or panicked, is over: what it still emits comes to nothing.
func TestCallbackEngineWithinAnother(t *testing.T) {
	for _, c := range []struct {
		name   string
		wanted int // fragments
		end    func() error
		yields []string
	}{
		{"to its end", 9, func() error { return nil }, []string{"a", "b"}},
		{"to its error", 9, func() error { return errBroken }, []string{"a", "b", "the model is broken"}},
		{"to its panic", 9, func() error { panic(errBroken) }, []string{"a", "b", "panic: the model is broken"}},
		{"not to its end", 1, func() error { return nil }, []string{"a"}},
		{"not to its error", 1, func() error { return errBroken }, []string{"a"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			is := is.New(t)
			var emitLater func(string) error
			engine := CallbackEngine(func(_ context.Context, _ *ChatRequest, emit func(string) error) error {
				emitLater = emit
				for _, text := range []string{"a", "b"} {
					is.Equal(emit(text) == nil, c.wanted > 1)
				}
				return c.end()
			})
			var yields []string
			func() {
				defer func() {
					if v := recover(); v != nil {
						yields = append(yields, fmt.Sprint("panic: ", v))
					}
				}()
				for text, err := range engine.Chat(t.Context(), &ChatRequest{}) {
					if err != nil {
						text += err.Error()
					}
					if yields = append(yields, text); len(yields) == c.wanted {
						break
					}
				}
			}()
			is.Equal(yields, c.yields)
			is.True(emitLater("too late") != nil)
		})
	}
}

// What still emits when the function of an engine returns is waited for: the
// engine is not over before.
func TestCallbackEngineEndsWithItsLastYield(t *testing.T) {
	is := is.New(t)
	yielding, yielded := make(chan struct{}), false
	engine := CallbackEngine(func(_ context.Context, _ *ChatRequest, emit func(string) error) error {
		go emit("a")
		<-yielding
		return nil
	})
	engine.Chat(t.Context(), &ChatRequest{})(func(string, error) bool {
		close(yielding)
		for range 1000 {
			runtime.Gosched()
		}
		yielded = true
		return true
	})
	is.True(yielded)
}
