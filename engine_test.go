package botapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/matryer/is"

	"example.com/botapi/internal/panics"
)

var (
	errOverloaded = StatusError{Status: 529, Detail: "Overloaded"}
	errBroken     = errors.New("the model is broken")
)

const (
	tooLong       = "The answer took too long"
	internalError = "Internal Server Error"
)

// Every ending of a chat: what its client gets, and what is reported. Each ending is
// played twice: after the engine has yielded "", "héllo" and " you", one each second,
// and before the first fragment.
//
// All times count from the start of the chat, a second after the start of its request.
var endings = []struct {
	name        string
	timeout     time.Duration // ChatTimeout; 0: the default
	stall       time.Duration // StallTimeout
	disconnects time.Duration // when the client does; 0: never
	cancels     error         // the cause with which the application cancels the request after four seconds; nil: it does not
	end         engineEnd     // nil: the engine waits until its context is done
	engine      ChatEngine    // instead of end: one that never yields

	status int // if nothing has been sent; 0: the connection is aborted
	detail string
	retry  int64         // Retry-After, or what an error event says; 0: neither is there
	err    error         // the report's, and the cause of the engine's context
	at     time.Duration // when the answer ends, if that is later than after
	after  time.Duration // from the engine's last fragment to the end of the answer
	hangs  bool          // the engine; the handler waits for it for half a second
	logs   string
}{
	{name: "complete", end: sleepsFor(0), status: 200},
	{name: "no ChatTimeout", timeout: -1, end: sleepsFor(24 * time.Hour), status: 200, after: 24 * time.Hour},
	{name: "the longest times there are", timeout: math.MaxInt64, stall: math.MaxInt64, end: sleepsFor(24 * time.Hour), status: 200, after: 24 * time.Hour},
	{name: "not silent for too long", stall: time.Second + 1, end: sleepsFor(time.Second), status: 200, after: time.Second},

	{name: "a StatusError", end: failsWith(errOverloaded), status: 529, detail: "Overloaded", err: errOverloaded},
	{name: "a StatusError with a RetryAfter", end: failsWith(StatusError{503, "Busy", 2 * time.Second, errBroken}), status: 503, detail: "Busy", retry: 2, err: errBroken},
	{name: "a StatusError with a RetryAfter of a nanosecond", end: failsWith(StatusError{429, "Busy", 1, errBroken}), status: 429, detail: "Busy", retry: 1, err: errBroken},
	{name: "a StatusError with the longest RetryAfter", end: failsWith(StatusError{429, "Busy", math.MaxInt64, errBroken}), status: 429, detail: "Busy", retry: 9223372037, err: errBroken},
	{name: "a StatusError with a negative RetryAfter", end: failsWith(StatusError{503, "Busy", -time.Minute, errBroken}), status: 503, detail: "Busy", err: errBroken},
	{name: "ErrBotNotFound", end: failsWith(ErrBotNotFound), status: 404, detail: "Bot not found", err: ErrBotNotFound},
	{name: "a StatusError that looks like a terminator", end: failsWith(fmt.Errorf("wrapped: %w", &StatusError{429, "Say [DONE]\n\u2028", 0, errBroken})), status: 429, detail: `Say \u005bDONE]\n\u2028`, err: errBroken},
	{name: "a StatusError longer than an event", end: failsWith(StatusError{502, strings.Repeat("0123456789", 500), 0, errBroken}), status: 502, detail: strings.Repeat("0123456789", 500), err: errBroken},
	{name: "an error beside text", end: func(_ context.Context, yield func(string, error) bool) { yield("lost", errOverloaded) }, status: 529, detail: "Overloaded", err: errOverloaded},
	{name: "an error, and more after it", end: func(_ context.Context, yield func(string, error) bool) {
		if yield("", errOverloaded) || yield("more", nil) || yield("", io.EOF) {
			panic("yield returned true after an error")
		}
	}, status: 529, detail: "Overloaded", err: errOverloaded},
	{name: "an error, and returns an hour later", end: func(_ context.Context, yield func(string, error) bool) {
		yield("", errOverloaded)
		time.Sleep(time.Hour)
	}, status: 529, detail: "Overloaded", err: errOverloaded, hangs: true},
	{name: "an error, then a panic", end: func(_ context.Context, yield func(string, error) bool) {
		yield("", errOverloaded)
		panic("and now?")
	}, status: 529, detail: "Overloaded", err: errOverloaded, logs: "and now?"},
	{name: "an error, then runtime.Goexit", end: func(_ context.Context, yield func(string, error) bool) {
		yield("", errOverloaded)
		runtime.Goexit()
	}, status: 529, detail: "Overloaded", err: errOverloaded},
	{name: "a plain error", end: failsWith(io.ErrUnexpectedEOF), status: 500, detail: internalError, err: io.ErrUnexpectedEOF, logs: "unexpected EOF"},
	{name: "a panic", end: panicsWith(fmt.Errorf("%w", errBroken)), status: 500, detail: internalError, err: new(panics.Error), logs: "stack="},
	{name: "runtime.Goexit", end: exits, status: 500, detail: internalError, err: errEngineExited},
	{name: "a nil iterator", engine: nilIterator, status: 500, detail: internalError, err: errNilIterator, logs: "nil iterator"},

	// http.ErrAbortHandler aborts the connection: no response, no event, no log line.
	{name: "http.ErrAbortHandler", end: failsWith(http.ErrAbortHandler), err: http.ErrAbortHandler},
	{name: "http.ErrAbortHandler, wrapped", end: failsWith(fmt.Errorf("proxy: %w", http.ErrAbortHandler)), err: http.ErrAbortHandler},
	{name: "http.ErrAbortHandler, as a panic", end: panicsWith(http.ErrAbortHandler), err: http.ErrAbortHandler},

	// Only the handler knows why this chat has ended. An error that wraps another chat's reason keeps its text only.
	{name: "another chat's reasons", end: failsWith(reasonsOfAnotherChat), status: 500, detail: internalError, err: onlyText(reasonsOfAnotherChat.Error())},
	{name: "another chat's reasons in a StatusError", end: failsWith(StatusError{503, "Upstream is slow", 0, reasonsOfAnotherChat}), status: 503, detail: "Upstream is slow",
		err: onlyText("503 Upstream is slow: " + reasonsOfAnotherChat.Error())},

	{name: "timed out", timeout: 5 * time.Second, status: 504, detail: tooLong, err: ErrChatTimeout, at: 5 * time.Second, logs: ErrChatTimeout.Error()},
	{name: "timed out by default", status: 504, detail: tooLong, err: ErrChatTimeout, at: DefaultChatTimeout},
	{name: "timed out, with its context's error", timeout: 5 * time.Second, end: func(ctx context.Context, yield func(string, error) bool) {
		<-ctx.Done()
		yield("", ctx.Err())
	}, status: 504, detail: tooLong, err: ErrChatTimeout, at: 5 * time.Second},
	{name: "timed out, and goes on", timeout: 5 * time.Second, end: func(ctx context.Context, yield func(string, error) bool) {
		<-ctx.Done()
		synctest.Wait()
		if yield("a", nil) || yield("b", nil) || yield("", io.EOF) {
			panic("yield returned true after the end")
		}
	}, status: 504, detail: tooLong, err: ErrChatTimeout, at: 5 * time.Second},
	{name: "timed out, and does not stop", timeout: 5 * time.Second, end: sleepsFor(time.Hour), status: 504, detail: tooLong, err: ErrChatTimeout, at: 5 * time.Second, hangs: true},
	{name: "timed out while a panic's text is made", timeout: 5 * time.Second, end: panicsWith(slowError{}), status: 504, detail: tooLong, err: ErrChatTimeout, at: 5 * time.Second, hangs: true},

	// An engine that watches its context's deadline itself, as a connection with a deadline does, fails when the
	// handler's timer fires. Whichever comes first, the chat has timed out.
	{name: "an error at its deadline", timeout: 5 * time.Second, end: atDeadline(0, failsWith(os.ErrDeadlineExceeded)), status: 504, detail: tooLong, err: ErrChatTimeout, at: 5 * time.Second},
	{name: "a StatusError at its deadline", timeout: 5 * time.Second, end: atDeadline(0, failsWith(errOverloaded)), status: 504, detail: tooLong, err: ErrChatTimeout, at: 5 * time.Second},
	{name: "a panic at its deadline", timeout: 5 * time.Second, end: atDeadline(0, panicsWith("late")), status: 504, detail: tooLong, err: ErrChatTimeout, at: 5 * time.Second, logs: "stack="},
	{name: "runtime.Goexit at its deadline", timeout: 5 * time.Second, end: atDeadline(0, exits), status: 504, detail: tooLong, err: ErrChatTimeout, at: 5 * time.Second},
	{name: "an error just before its deadline", timeout: 5 * time.Second, end: atDeadline(1, failsWith(os.ErrDeadlineExceeded)), status: 500, detail: internalError, err: os.ErrDeadlineExceeded, at: 5*time.Second - 1},
	{name: "a panic just before its deadline", timeout: 5 * time.Second, end: atDeadline(1, panicsWith("early")), status: 500, detail: internalError, err: new(panics.Error), at: 5*time.Second - 1},

	{name: "silent for too long", stall: 1500 * time.Millisecond, status: 504, detail: tooLong, err: ErrEngineStalled, after: 1500 * time.Millisecond, logs: ErrEngineStalled.Error()},
	{name: "silent for too long before Chat returns", stall: time.Second, engine: slowToBegin, status: 504, detail: tooLong, err: ErrEngineStalled, after: time.Second},

	{name: "the client disconnects", disconnects: 4 * time.Second, err: ErrClientLeft, at: 4 * time.Second},
	{name: "the client disconnects after an hour of silence", timeout: -1, disconnects: time.Hour, err: ErrClientLeft, at: time.Hour},
	{name: "the client disconnects, and the engine does not stop", disconnects: 4 * time.Second, end: sleepsFor(time.Hour), err: ErrClientLeft, at: 4 * time.Second, hangs: true},

	// An application that cancels a request chooses the response by the cause. Without a cause, it looks as if the client has disconnected.
	{name: "the application cancels with a StatusError", cancels: errOverloaded, status: 529, detail: "Overloaded", err: errOverloaded, at: 4 * time.Second},
	{name: "the application cancels with a RetryAfter", cancels: StatusError{503, "Busy", 300 * time.Millisecond, errBroken}, status: 503, detail: "Busy", retry: 1, err: errBroken, at: 4 * time.Second},
	{name: "the application cancels with a StatusError for a deadline", cancels: StatusError{402, "Pay first", 0, context.DeadlineExceeded}, status: 402, detail: "Pay first", err: context.DeadlineExceeded, at: 4 * time.Second},
	{name: "the application cancels with a StatusError for an abort", cancels: StatusError{402, "Pay first", 0, http.ErrAbortHandler}, status: 402, detail: "Pay first", err: http.ErrAbortHandler, at: 4 * time.Second},
	{name: "the application cancels with another chat's reasons", cancels: reasonsOfAnotherChat, status: 504, detail: tooLong, err: onlyText("504 " + tooLong + ": " + reasonsOfAnotherChat.Error()), at: 4 * time.Second},
	{name: "the application cancels with ErrClientStalled", cancels: ErrClientStalled, status: 503, detail: "Service Unavailable", err: onlyText("503 Service Unavailable: " + ErrClientStalled.Error()), at: 4 * time.Second},
	{name: "the application cancels with another cause", cancels: errBroken, status: 503, detail: "Service Unavailable", err: errBroken, at: 4 * time.Second},
	{name: "the application cancels with a deadline", cancels: context.DeadlineExceeded, status: 504, detail: tooLong, err: context.DeadlineExceeded, at: 4 * time.Second},
	{name: "the application cancels without a cause", cancels: context.Canceled, err: ErrClientLeft, at: 4 * time.Second},
	{name: "the application cancels and says why the client has disconnected", cancels: fmt.Errorf("connection reset: %w", context.Canceled), err: ErrClientLeft, at: 4 * time.Second},
}

func exits(context.Context, func(string, error) bool) { runtime.Goexit() }

// atDeadline makes an engine end so long before its context's deadline.
func atDeadline(before time.Duration, end engineEnd) engineEnd {
	return func(ctx context.Context, yield func(string, error) bool) {
		deadline, _ := ctx.Deadline()
		time.Sleep(time.Until(deadline) - before)
		end(ctx, yield)
	}
}

var slowToBegin = ChatEngineFunc(func(ctx context.Context, req *ChatRequest) iter.Seq2[string, error] {
	<-ctx.Done()
	return fragmentsOf("late").Chat(ctx, req)
})

// A slowError takes an hour to return its text.
type slowError struct{}

func (slowError) Error() string {
	time.Sleep(time.Hour)
	return "slow"
}

var reasonsOfAnotherChat = errors.Join(ErrClientLeft, ErrClientStalled, ErrChatTimeout, ErrEngineStalled)

// onlyText is an expected error of which only the text is compared.
type onlyText string

func (t onlyText) Error() string { return string(t) }

func TestEndings(t *testing.T) {
	for _, c := range endings {
		for _, early := range []bool{false, true} {
			if c.engine != nil && !early {
				continue
			}
			inEachWay(t, fmt.Sprint(c.name, ", early ", early), func(t *testing.T, w way) {
				is := is.New(t)
				const keyCheck, onChat = time.Second, time.Minute // onChat is longer than WriteTimeout: what net/http writes after the handler has its own
				fragments := []string{"", "héllo", " you"}
				if early {
					fragments = nil
				}
				if c.disconnects > 0 {
					w.disconnects = keyCheck + c.disconnects
				}
				if c.cancels != nil {
					w.middleware = cancelledAfter(keyCheck+4*time.Second, c.cancels)
				}
				contexts := make(chan context.Context, 1) // the engine's
				engine := ChatEngineFunc(func(ctx context.Context, req *ChatRequest) iter.Seq2[string, error] {
					contexts <- ctx
					if c.engine != nil {
						return c.engine.Chat(ctx, req)
					}
					return func(yield func(string, error) bool) {
						for _, fragment := range fragments {
							time.Sleep(time.Second)
							if !yield(fragment, nil) {
								return
							}
						}
						if c.end == nil {
							<-ctx.Done()
							return
						}
						c.end(ctx, yield)
					}
				})
				var endOfOnChat, endOfOnRequest error
				var requests []RequestReport
				began := time.Now()
				got := playChat(t, w, engine, func(o *Options) {
					o.KeepAlive, o.ChatTimeout, o.StallTimeout = math.MaxInt64, c.timeout, c.stall
					o.Keys = KeyVerifierFunc(func(context.Context, string) (string, error) {
						time.Sleep(keyCheck)
						return testAccount, nil
					})
					o.OnChat = func(ctx context.Context, _ ChatReport) {
						time.Sleep(onChat)
						endOfOnChat = ctx.Err()
					}
					o.OnRequest = func(ctx context.Context, r RequestReport) { endOfOnRequest, requests = ctx.Err(), append(requests, r) }
				})
				took := time.Since(began)

				text, events, committed := strings.Join(fragments, ""), "", w.stream && !early
				for _, fragment := range fragments {
					events += data(fragment)
				}
				fails, responds := c.status != 200, c.status != 0
				switch {
				case c.disconnects > 0:
					is.True(got.err != nil) // its own cancellation or, on HTTP/2, the server's reply to it
				case !fails && w.stream:
					is.Equal(got.body, events+terminator)
					is.NoErr(got.err)
				case !fails:
					is.Equal(got.body, `{"content":"`+text+`"}`)
					is.NoErr(got.err)
				case committed:
					if responds {
						events += errorEvent(c.status, c.detail)
					}
					if c.retry > 0 {
						events = strings.TrimSuffix(events, "}\n\n") + fmt.Sprintf(",\"retry_after\":%d}\n\n", c.retry)
					}
					is.True(got.err != nil) // aborted
					if w.hides {
						is.True(strings.HasPrefix(events, got.body)) // net/http still had the rest in a buffer
						break
					}
					is.Equal(got.status, 200)
					is.Equal(got.body, events)
				case !responds:
					is.Equal(got.status, 0) // aborted before anything was sent
				default:
					is.Equal(got.status, c.status)
					is.Equal(got.header.Get("Content-Type"), "application/json")
					is.Equal(got.header.Get("WWW-Authenticate"), "")
					is.Equal(got.header.Get("Retry-After"), strings.TrimPrefix(fmt.Sprint(c.retry), "0"))
					is.Equal(got.body, `{"detail":"`+c.detail+`"}`)
					is.NoErr(got.err)
				}

				report := got.report(t)
				want := ChatReport{RequestID: report.RequestID, Account: testAccount, Bot: echoBot, Stream: w.stream, Status: c.status, Err: report.Err}
				want.Duration = keyCheck + max(c.at, time.Duration(len(fragments))*time.Second+c.after)
				if !early {
					want.FirstFragment = keyCheck + 2*time.Second
				}
				if committed {
					want.Status = 200
				}
				if want.Status == 200 {
					want.Fragments, want.Bytes = len(fragments), int64(len(text))
				}
				is.Equal(report, want)
				is.True(report.RequestID != "")
				errorBytes := int64(0) // an answer's are those of its text
				if report.Status >= 400 {
					errorBytes = int64(len(got.body))
				}
				is.Equal(requests, []RequestReport{{
					RequestID: report.RequestID, Account: testAccount, Method: "POST", Route: "POST " + w.path(), Bot: echoBot,
					Status: report.Status, Bytes: errorBytes, Duration: report.Duration, Chat: &report, Err: report.Err,
				}})
				is.True(sameEnd(report.Err, c.err))
				is.Equal(reasonsIn(report.Err), reasonsIn(c.err))
				ctx := <-contexts
				is.Equal(ctx.Err(), context.Canceled)
				is.Equal(context.Cause(ctx), cmp.Or(report.Err, context.Canceled))
				is.NoErr(errors.Join(endOfOnChat, endOfOnRequest))

				returned := want.Duration + onChat
				if committed && fails && responds {
					returned += readPause
				}
				if c.hangs {
					returned += engineGrace
				}
				is.Equal(took, returned)
				is.Equal(strings.Contains(got.log, "the engine has not returned"), c.hangs)
				is.Equal(strings.Contains(got.log, "answer aborted"), committed && fails && responds)
				is.Equal(strings.Contains(got.log, "level=ERROR"), c.status >= 500)
				is.True(strings.Contains(got.log, c.logs))
				is.True(c.logs != "" || !strings.Contains(got.log, "the engine panicked"))
				is.True(!strings.Contains(got.log, "yield returned true"))
			})
		}
	}
}

// sameEnd compares errors by errors.Is, panics by their type, and an onlyText by its text.
func sameEnd(err, want error) bool {
	switch want.(type) {
	case *panics.Error:
		return errors.As(err, new(*panics.Error))
	case onlyText:
		return err.Error() == want.Error()
	}
	return errors.Is(err, want)
}

// Each of the handler's reasons also matches an error of the standard library.
func TestEndingsAreErrorsOfGo(t *testing.T) {
	for reason, of := range map[error]error{
		ErrClientLeft:    context.Canceled,
		ErrClientStalled: os.ErrDeadlineExceeded,
		ErrChatTimeout:   context.DeadlineExceeded,
		ErrEngineStalled: context.DeadlineExceeded,
	} {
		if !errors.Is(reason, of) {
			t.Errorf("%q is not %q", reason, of)
		}
	}
}

// The context of an engine has the values of the request's context and ChatTimeout's
// deadline, and is cancelled when the answer ends. It keeps its account and its
// request id after that.
func TestEngineContext(t *testing.T) {
	for _, timeout := range []time.Duration{time.Minute, -1} {
		synctest.Test(t, func(t *testing.T) {
			is := is.New(t)
			kept := make(map[string]context.Context) // by request id
			o := testOptions(t, t.Output())
			o.ChatTimeout = timeout
			o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
				deadline, timed := ctx.Deadline()
				derived, cancel := context.WithTimeout(ctx, time.Hour)
				context.AfterFunc(derived, cancel) // it is cancelled with its parent
				kept[RequestIDFrom(ctx)] = derived
				if timed && time.Until(deadline) == timeout || timeout < 0 && !timed {
					yield(fmt.Sprint("ended: ", ctx.Err()), nil)
				}
			})
			h := withApplicationValue(New(o))
			for i := range 20 { // a pool does not always return what was put into it last
				is.Equal(strings.Count(postChat(h, chatBodyJSON("hi", i%2 == 0)).Body.String(), `{"content":"ended: <nil>"}`), 1)
			}
			synctest.Wait()
			is.Equal(len(kept), 20)
			for id, ctx := range kept {
				is.Equal(AccountFrom(ctx), testAccount)
				is.Equal(RequestIDFrom(ctx), id)
				is.Equal(ctx.Value(applicationKey{}), "the application's")
				is.Equal(ctx.Err(), context.Canceled)
			}
		})
	}
}

// If the application cancels the request during the last write, and the write fails,
// that is why the answer ended: the client has not disconnected.
func TestApplicationCancelsDuringTheLastWrite(t *testing.T) {
	for _, stream := range []bool{false, true} {
		for _, blocks := range []time.Duration{0, DefaultWriteTimeout} {
			t.Run(fmt.Sprint("stream ", stream, ", blocks ", blocks), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					is := is.New(t)
					ctx, cancel := context.WithCancelCause(t.Context())
					defer cancel(nil)
					w := &faultyWriter{ResponseRecorder: httptest.NewRecorder(), method: "Write", fault: func() error {
						cancel(errOverloaded)
						time.Sleep(blocks)
						return io.ErrClosedPipe
					}}
					got := playRequestOn(t, w, chatRequest(t, "", "hi", stream).WithContext(ctx), fragmentsOf())
					is.Equal(got.err, http.ErrAbortHandler)
					is.True(errors.Is(got.report(t).Err, errOverloaded))
					is.Equal(reasonsIn(got.report(t).Err), nil)
				})
			})
		}
	}
}

// A ChatRequest that an engine keeps, and a header that middleware keeps, retain neither
// the request nor its ResponseWriter.
func TestKeptRequestRetainsNoConnection(t *testing.T) {
	is := is.New(t)
	var kept *ChatRequest
	o := testOptions(t, t.Output())
	o.Engine = ChatEngineFunc(func(ctx context.Context, req *ChatRequest) iter.Seq2[string, error] {
		kept = req
		return fragmentsOf("ok").Chat(ctx, req)
	})
	h := New(o)
	play := func() (header http.Header, w weak.Pointer[httptest.ResponseRecorder], r weak.Pointer[http.Request]) {
		writer, request := httptest.NewRecorder(), newRequest("POST", "/v1/chat", strings.NewReader(chatBodyJSON("hi", false)))
		h.ServeHTTP(writer, request)
		return writer.Header(), weak.Make(writer), weak.Make(request)
	}
	header, w, r := play()
	for range 10 { // the engine's goroutine and pools may hold them for a moment
		runtime.GC()
		runtime.Gosched()
	}
	is.True(w.Value() == nil)
	is.True(r.Value() == nil)
	is.Equal(lastContent(kept), "hi")
	is.Equal(header.Get("Content-Type"), "application/json")
}
