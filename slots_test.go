package botapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"
)

// Whatever a function of a route does instead of its work, it affects its own request only: a
// panic is a 500 that is logged, or an abort, and the slot is released. If the function ends
// its goroutine, as a test double does, the engine is cancelled, too.
func TestSlotIsReleasedWhateverARouteDoes(t *testing.T) {
	changesChat := func(change func(c *Chat, fault func() error)) func(*Route, func() error) {
		return func(r *Route, fault func() error) {
			*r = chatRoute(func(_ *http.Request, c *Chat) { change(c, fault) })
		}
	}
	for name, install := range map[string]func(r *Route, fault func() error){
		"Key": func(r *Route, fault func() error) { r.Key = func(http.Header) string { _ = fault(); return "" } },
		"Serve": func(r *Route, fault func() error) {
			r.Serve = func(*http.Request) (Response, error) { return nil, fault() }
		},
		"Extra": changesChat(func(c *Chat, fault func() error) {
			c.Extra = func() map[string]json.RawMessage { _ = fault(); return nil }
		}),
		"Answer": changesChat(func(c *Chat, fault func() error) {
			c.Answer = func(context.Context) iter.Seq2[string, error] { _ = fault(); return nil }
		}),
		"JSON": changesChat(func(c *Chat, fault func() error) {
			c.JSON = func(context.Context) ([]byte, []byte, error) { return nil, nil, fault() }
		}),
		"Errors": func(r *Route, fault func() error) {
			r.Errors = func(context.Context, Failure) Reply { _ = fault(); return Reply{} }
		},
	} {
		for _, stream := range []bool{false, true} {
			for fault, does := range formatFaults {
				if fault == "fails" || stream && name == "JSON" {
					continue // not every function returns an error; TestErrorResponse has those that do
				}
				t.Run(fmt.Sprint(name, " ", fault, ", stream ", stream), func(t *testing.T) {
					is := is.New(t)
					r := newRequest("POST", routePath, strings.NewReader(chatBodyJSON("hi", stream)))
					var engine context.Context
					got := playRequestOn(t, httptest.NewRecorder(), r, engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
						engine = ctx
						yield("a", map[string]error{"Errors": errBroken}[name])
					}), func(o *Options) {
						route := chatRoute(nil)
						install(&route, does)
						o.Routes = []Route{route}
					})
					want := map[string]error{"aborts": http.ErrAbortHandler, "exits": errExited}[fault]
					if name == "Answer" && fault == "exits" || name == "Errors" && fault != "exits" {
						want = nil // it is the engine's goroutine, or a callback
					}
					is.Equal(got.err, want)
					if want == nil {
						is.Equal(fmt.Sprint(got.status, " ", got.body), `500 {"detail":"Internal Server Error"}`)
					}
					isLogged := fault == "panics" || fault == "aborts" && name == "Errors"
					is.Equal(strings.Count(got.log, "stack=") == 1, isLogged)
					is.Equal(strings.Contains(got.log, "reading the extra fields"), isLogged && name == "Extra")
					is.Equal(engine != nil, name == "Errors" || name == "JSON")
					is.True(engine == nil || engine.Err() != nil)
				})
			}
		}
	}
}

// A waiting is a handler that has room for a chat or two, and chats that wait for it. It is
// used within a synctest bubble.
type waiting struct {
	t       *testing.T
	is      *is.I
	log     testLog
	options Options
	handler http.Handler
	begun   chan string // the prompt of each chat, when its engine begins
	ended   chan string // the prompt of each request and its response, when it has ended
	reports map[string]RequestReport
	finish  map[string]chan struct{} // closed to let an engine finish
}

// newWaiting returns a handler whose keys are also the accounts.
func newWaiting(t *testing.T, change func(*Options)) *waiting {
	w := &waiting{
		t: t, is: is.New(t), begun: make(chan string, 100), ended: make(chan string, 100),
		reports: make(map[string]RequestReport), finish: make(map[string]chan struct{}),
	}
	w.options = testOptions(t, &w.log)
	w.options.Keys = KeyVerifierFunc(func(_ context.Context, key string) (string, error) { return key, nil })
	w.options.Engine = engineOf(func(ctx context.Context, req *ChatRequest, yield func(string, error) bool) {
		w.begun <- lastContent(req)
		select {
		case <-w.finish[lastContent(req)]:
			yield("ok", nil)
		case <-ctx.Done():
		}
	})
	var mu sync.Mutex
	w.options.OnRequest = func(ctx context.Context, r RequestReport) {
		mu.Lock()
		defer mu.Unlock()
		w.reports[r.RequestID] = r
	}
	change(&w.options)
	w.handler = New(w.options)
	return w
}

// chat sends a chat of an account, and returns when it waits, has begun or has ended. Its
// prompt is also its request id.
func (w *waiting) chat(account, prompt string) (cancel context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(w.t.Context())
	w.finish[prompt] = make(chan struct{})
	r := newRequest("POST", "/v1/chat", strings.NewReader(chatBodyJSON(prompt, false)), "Authorization", "Bearer "+account, "X-Request-Id", prompt)
	go func() {
		recorder := httptest.NewRecorder()
		if serveRequest(recorder, w.handler, r.WithContext(ctx)) {
			w.ended <- prompt + ": aborted"
			return
		}
		w.ended <- fmt.Sprint(prompt, ": ", recorder.Code)
	}()
	synctest.Wait()
	return cancel
}

// end lets an engine finish.
func (w *waiting) end(prompt string) {
	close(w.finish[prompt])
	synctest.Wait()
}

// has checks what has begun, and what has ended, since the last call.
func (w *waiting) has(begun, ended string) {
	w.t.Helper()
	w.is.Helper()
	w.is.Equal(drained(w.begun), begun)
	w.is.Equal(drained(w.ended), ended)
}

func drained(from chan string) string {
	var all []string
	for len(from) > 0 {
		all = append(all, <-from)
	}
	return strings.Join(all, ", ")
}

// A waiting chat whose client disconnects ends as any request of such a client: it is not
// logged. If the application cancels the request, its cause decides.
func TestWaitingChatIsCancelled(t *testing.T) {
	for cause, want := range map[error]string{
		context.Canceled:         "b: aborted",
		errOverloaded:            "b: 529",
		errBroken:                "b: 503",
		context.DeadlineExceeded: "b: 504",
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWaiting(t, func(o *Options) { o.MaxConcurrentChats, o.MaxWaiting = 1, 5 })
			w.chat("acme", "a")
			cancel := w.chat("acme", "b")
			w.chat("acme", "c")
			w.has("a", "")
			cancel(cause)
			synctest.Wait()
			w.has("", want)
			w.is.Equal(errors.Is(w.reports["b"].Err, ErrClientLeft), cause == context.Canceled)
			w.is.True(errors.Is(w.reports["b"].Err, cause))
			w.is.Equal(w.reports["b"].Bot, echoBot) // although it had no slot yet
			w.is.Equal(w.log.String() == "", cause == context.Canceled)
			w.end("a")
			w.has("c", "a: 200")
			w.end("c")
			w.has("", "c: 200")
		})
	}
}

// A share of a slot that is free already is none: the chat waits as any other.
func TestSharedSlotIsFreeAlready(t *testing.T) {
	for _, waiting := range []int64{0, 5} {
		synctest.Test(t, func(t *testing.T) {
			var old *Slot
			w := newWaiting(t, func(o *Options) {
				o.MaxChatsPerAccount, o.MaxWaiting = 1, waiting
				o.OnLimit = func(context.Context, Limit) (*Slot, error) { return old, nil }
				o.OnChat = func(ctx context.Context, _ ChatReport) { old = cmp.Or(old, RequestFrom(ctx).Slot()) }
			})
			w.chat("acme", "a")
			w.end("a")
			w.has("a", "a: 200")
			w.is.True(old != nil)
			w.chat("acme", "b")
			w.chat("acme", "c")
			if waiting == 0 {
				w.has("b", "c: 429")
				w.end("b")
				return
			}
			w.has("b", "")
			w.end("b")
			w.has("c", "b: 200")
			w.end("c")
			w.has("", "c: 200")
		})
	}
}

// Chats that wait get room in the order in which they came, but for those of accounts that
// have none.
func TestWaitingChatsAreServedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaiting(t, func(o *Options) { o.MaxConcurrentChats, o.MaxChatsPerAccount, o.MaxWaiting = 2, 1, 10 })
		w.chat("acme", "a")
		w.chat("other", "b")
		w.has("a, b", "")
		w.chat("acme", "a2")
		w.chat("other", "b2")
		w.chat("third", "c")
		w.chat("fourth", "d")
		w.has("", "")
		w.end("b")
		w.has("b2", "b: 200") // acme has no room
		w.end("b2")
		w.has("c", "b2: 200")
		w.chat("fifth", "e") // must not pass d
		w.end("c")
		w.has("d", "c: 200")
		w.end("a")
		w.has("a2", "a: 200")
		w.end("a2")
		w.has("e", "a2: 200")
		w.end("d")
		w.end("e")
		w.has("", "d: 200, e: 200")
		w.is.Equal(w.log.String(), "")
	})
}

// At most MaxWaiting chats wait, and of one account as many as it may have in progress.
func TestWaitingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaiting(t, func(o *Options) { o.MaxConcurrentChats, o.MaxChatsPerAccount, o.MaxWaiting = 2, 2, 3 })
		w.chat("acme", "a")
		w.chat("acme", "b")
		w.has("a, b", "")
		w.chat("acme", "c")
		w.chat("acme", "d")
		w.has("", "")
		w.chat("acme", "e")
		w.has("", "e: 503") // which both limits reject; the first is MaxConcurrentChats
		w.chat("other", "f")
		w.has("", "")
		w.chat("third", "g")
		w.has("", "g: 503")
		w.end("a")
		w.has("c", "a: 200")
		w.chat("third", "h") // there is room to wait again
		w.has("", "")
		for _, next := range []struct{ ends, begins string }{{"b", "d"}, {"c", "f"}, {"d", "h"}, {"f", ""}, {"h", ""}} {
			w.end(next.ends)
			w.has(next.begins, next.ends+": 200")
		}
	})
	synctest.Test(t, func(t *testing.T) { // without a limit of its own, one account may be all that wait
		w := newWaiting(t, func(o *Options) { o.MaxConcurrentChats, o.MaxWaiting = 1, 2 })
		for _, prompt := range []string{"a", "b", "c", "d"} {
			w.chat("acme", prompt)
		}
		w.has("a", "d: 503")
		for _, prompt := range []string{"a", "b", "c"} {
			w.end(prompt)
		}
		w.has("b, c", "a: 200, b: 200, c: 200")
	})
	for _, none := range []int64{0, -1} {
		synctest.Test(t, func(t *testing.T) {
			w := newWaiting(t, func(o *Options) { o.MaxChatsPerAccount, o.MaxWaiting = 1, none })
			w.chat("acme", "a")
			w.chat("acme", "b")
			w.has("a", "b: 429")
			w.end("a")
		})
	}
}

// MaxWait bounds the wait of one chat. Its timeouts begin when it has room.
func TestMaxWait(t *testing.T) {
	for maxWait, waits := range map[time.Duration]time.Duration{0: DefaultMaxWait, time.Second: time.Second, -1: 0, math.MaxInt64: 0} {
		for limit, status := range map[string]int{"MaxConcurrentChats": 503, "MaxChatsPerAccount": 429} {
			t.Run(fmt.Sprint(maxWait, ", ", limit), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWaiting(t, func(o *Options) {
						o.MaxWaiting, o.MaxWait, o.ChatTimeout, o.StallTimeout = 5, maxWait, 48*time.Hour, 48*time.Hour
						if o.MaxConcurrentChats = 1; status == 429 {
							o.MaxConcurrentChats, o.MaxChatsPerAccount = 0, 1
						}
					})
					w.chat("acme", "a")
					w.chat("acme", "b")
					if waits > 0 {
						time.Sleep(waits - 1)
						synctest.Wait()
						w.has("a", "")
						time.Sleep(time.Nanosecond)
						synctest.Wait()
						w.has("", fmt.Sprint("b: ", status))
						w.is.Equal(w.reports["b"].Duration, waits)
						w.is.Equal(w.reports["b"].Bot, echoBot)
						w.is.Equal(w.reports["b"].Chat, (*ChatReport)(nil))
						_, logged, _ := strings.Cut(w.log.String(), " ") // without its time
						detail := map[int]string{503: "Too many chats in progress", 429: "Too many chats in progress for this key"}[status]
						w.is.Equal(logged, fmt.Sprintf("level=INFO msg=\"request rejected\" request_id=b error=\"%d %s\"\n", status, detail))
						w.end("a")
						return
					}
					time.Sleep(47 * time.Hour)
					synctest.Wait()
					w.has("a", "")
					w.end("a")
					w.has("b", "a: 200")
					time.Sleep(47 * time.Hour)
					w.end("b")
					w.has("", "b: 200")
				})
			})
		}
	}
}

// A slot that is granted in the instant in which a chat stops waiting is not lost: the chat
// has it, or the next one.
func TestSlotGrantedWhenTheWaitEnds(t *testing.T) {
	for name, stop := range map[string]func(context.CancelCauseFunc){
		"timeout":    func(context.CancelCauseFunc) {},
		"disconnect": func(cancel context.CancelCauseFunc) { time.AfterFunc(DefaultMaxWait, func() { cancel(nil) }) },
	} {
		outcomes := make(map[string]int)
		for range 200 {
			synctest.Test(t, func(t *testing.T) {
				w := newWaiting(t, func(o *Options) {
					o.MaxConcurrentChats, o.MaxWaiting = 1, 1
					if name != "timeout" {
						o.MaxWait = time.Hour
					}
				})
				w.chat("acme", "a")
				finish := w.finish["a"]
				time.AfterFunc(DefaultMaxWait, func() { close(finish) })
				cancel := w.chat("acme", "b")
				stop(cancel)
				time.Sleep(DefaultMaxWait)
				synctest.Wait()
				if _, ended := w.reports["b"]; !ended {
					w.end("b")
				}
				outcomes[fmt.Sprint(w.reports["b"].Status)]++
				drained(w.begun)
				drained(w.ended)
				w.chat("acme", "c")
				w.has("c", "")
				w.end("c")
				w.has("", "c: 200")
			})
		}
		t.Log(name, outcomes)
	}
}

// An onLimit notes each Limit, and does what do says.
type onLimit struct {
	limits []Limit
	do     func(context.Context, Limit) (*Slot, error)
}

func (l *onLimit) in(o *Options) {
	o.OnLimit = func(ctx context.Context, limit Limit) (*Slot, error) {
		l.limits = append(l.limits, limit)
		return l.do(ctx, limit)
	}
}

func waitForRoom(context.Context, Limit) (*Slot, error) { return nil, nil }

// OnLimit learns which limit was reached, by whom, and what the chat is. It is asked only
// when a chat would be rejected, without a lock.
func TestOnLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := &onLimit{}
		var first *Slot
		w := newWaiting(t, func(o *Options) {
			o.MaxConcurrentChats, o.MaxChatsPerAccount, o.MaxWaiting = 2, 1, 5
			asked.in(o)
		})
		asked.do = func(ctx context.Context, l Limit) (*Slot, error) {
			if RequestIDFrom(ctx) == "b" {
				if release, held := first.Hold(); held { // which needs the lock
					release()
				}
			}
			return nil, nil
		}
		engine := w.options.Engine
		w.options.Engine = ChatEngineFunc(func(ctx context.Context, req *ChatRequest) iter.Seq2[string, error] {
			first = cmp.Or(first, RequestFrom(ctx).Slot())
			return engine.Chat(ctx, req)
		})
		w.handler = New(w.options)
		w.chat("acme", "a")
		w.is.Equal(len(asked.limits), 0)
		w.chat("acme", "b")
		w.chat("other", "c")
		w.chat("third", "d")
		w.has("a, c", "")
		w.is.Equal(len(asked.limits), 2)
		for i, want := range []Limit{{Err: ErrTooManyAccountChats, Account: "acme"}, {Err: ErrTooManyChats, Account: "third", Waiting: 1}} {
			got := asked.limits[i]
			w.is.Equal(got.Err, want.Err)
			w.is.Equal(got.Account, want.Account)
			w.is.Equal(got.Waiting, want.Waiting)
			w.is.Equal(got.Bot, echoBot)
			w.is.Equal(lastContent(got.Request()), []string{"b", "d"}[i])
			w.is.Equal(got.Request().Bot, echoBot)
		}
		for _, prompt := range []string{"a", "b", "c", "d"} {
			w.end(prompt)
		}
		w.has("b, d", "a: 200, b: 200, c: 200, d: 200")
	})
}

// The request of a Limit has its Extra, which is read when it is asked for, and again for the
// engine.
func TestLimitRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var extras, built int
		w := newWaiting(t, func(o *Options) {
			o.MaxChatsPerAccount, o.MaxWaiting = 1, 1
			o.OnLimit = func(_ context.Context, l Limit) (*Slot, error) {
				extras += built
				_ = l.Request()
				if string(l.Request().Extra["seed"]) == "7" {
					extras += 10 * built
				}
				return nil, nil
			}
			o.Routes = []Route{chatRoute(func(_ *http.Request, c *Chat) {
				extra := c.Extra
				c.Extra = func() map[string]json.RawMessage { built++; return extra() }
			})}
		})
		w.chat("acme", "a")
		body := `{"bot_slug":"echo","prompt":"b","stream":false,"seed":7}`
		w.finish["b"] = make(chan struct{})
		close(w.finish["b"])
		response := make(chan int, 1)
		go func() {
			response <- record(w.handler, newRequest("POST", routePath, strings.NewReader(body), "Authorization", "Bearer acme")).Code
		}()
		synctest.Wait()
		w.is.Equal(extras, 20) // built twice, and not before OnLimit asks
		w.end("a")
		w.is.Equal(<-response, 200)
		w.is.Equal(built, 3)
	})
}

// An error of OnLimit decides the response, as a store's does. The usual one is Limit.Err.
func TestOnLimitRejects(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(context.Context, Limit) (*Slot, error)
		want string
		log  string
	}{
		"the limit":                    {func(_ context.Context, l Limit) (*Slot, error) { return nil, l.Err }, "b: 429", "level=INFO"},
		"the limit, wrapped":           {func(_ context.Context, l Limit) (*Slot, error) { return nil, fmt.Errorf("at noon: %w", l.Err) }, "b: 429", "level=INFO"},
		"another status":               {func(context.Context, Limit) (*Slot, error) { return nil, StatusError{Status: 425, Detail: "Later"} }, "b: 425", ""},
		"any error":                    {func(context.Context, Limit) (*Slot, error) { return nil, errBroken }, "b: 500", "level=ERROR"},
		"an error and a share":         {func(ctx context.Context, _ Limit) (*Slot, error) { return new(Slot), errBroken }, "b: 500", "level=ERROR"},
		"an abort":                     {func(context.Context, Limit) (*Slot, error) { return nil, http.ErrAbortHandler }, "b: aborted", ""},
		"a panic":                      {func(context.Context, Limit) (*Slot, error) { panic("a bug") }, "b: 500", "stack="},
		"a panic that aborts":          {func(context.Context, Limit) (*Slot, error) { panic(http.ErrAbortHandler) }, "b: aborted", ""},
		"no room, and nobody may wait": {waitForRoom, "b: 429", "level=INFO"},
		"exits, as a test double does": {func(context.Context, Limit) (*Slot, error) { runtime.Goexit(); return nil, nil }, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked := &onLimit{do: c.do}
				w := newWaiting(t, func(o *Options) {
					o.MaxChatsPerAccount = 1
					asked.in(o)
				})
				w.chat("acme", "a")
				w.chat("acme", "b")
				w.has("a", c.want)
				w.is.Equal(len(asked.limits), 1)
				w.is.True(strings.Contains(w.log.String(), c.log))
				w.is.Equal(c.log == "", w.log.String() == "")
				w.end("a")
				w.has("", "a: 200")
				w.chat("acme", "c") // nothing was lost
				w.has("c", "")
				w.end("c")
			})
		})
	}
}

// There may be room again when OnLimit has returned.
func TestOnLimitMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := &onLimit{}
		w := newWaiting(t, func(o *Options) {
			o.MaxChatsPerAccount = 1
			asked.in(o)
		})
		var cancel context.CancelCauseFunc
		asked.do = func(context.Context, Limit) (*Slot, error) {
			cancel(nil)
			time.Sleep(time.Second)
			return nil, nil
		}
		cancel = w.chat("acme", "a")
		w.chat("acme", "b")
		time.Sleep(time.Second)
		synctest.Wait()
		w.has("a, b", "a: aborted")
		w.end("b")
		w.has("", "b: 200")
	})
}

// A chat that shares a slot begins in it, whatever the limits say. The slot is free when the
// last one has ended.
func TestSharedSlot(t *testing.T) {
	for _, last := range []string{"a", "b"} {
		synctest.Test(t, func(t *testing.T) {
			asked := &onLimit{}
			var shared, own *Slot
			w := newWaiting(t, func(o *Options) {
				o.MaxConcurrentChats, o.MaxChatsPerAccount = 1, 1
				asked.in(o)
			})
			asked.do = func(_ context.Context, l Limit) (*Slot, error) {
				if lastContent(l.Request()) == "b" {
					return shared, nil
				}
				return nil, l.Err
			}
			engine := w.options.Engine
			w.options.Engine = ChatEngineFunc(func(ctx context.Context, req *ChatRequest) iter.Seq2[string, error] {
				own = RequestFrom(ctx).Slot()
				return engine.Chat(ctx, req)
			})
			w.handler = New(w.options)
			w.chat("acme", "a")
			shared = own
			w.chat("acme", "b")
			w.has("a, b", "")
			w.is.True(own == shared) // the second chat's is the same
			w.chat("acme", "c")
			w.has("", "c: 503")
			first := map[string]string{"a": "b", "b": "a"}[last]
			w.end(first)
			w.chat("acme", "d")
			w.has("", first+": 200, d: 503")
			w.end(last)
			w.chat("acme", "e")
			w.has("e", last+": 200")
			w.end("e")
		})
	}
}

// An engine may hold its slot beyond its chat, for work that goes on.
func TestHeldSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slot *Slot
		var releases []func()
		w := newWaiting(t, func(o *Options) {
			o.MaxChatsPerAccount, o.MaxWaiting = 1, 1
			engine := o.Engine
			o.Engine = ChatEngineFunc(func(ctx context.Context, req *ChatRequest) iter.Seq2[string, error] {
				if lastContent(req) == "a" {
					slot = RequestFrom(ctx).Slot()
					for range 2 {
						release, held := slot.Hold()
						if held {
							releases = append(releases, release)
						}
					}
				}
				return engine.Chat(ctx, req)
			})
		})
		w.chat("acme", "a")
		w.end("a")
		w.has("a", "a: 200")
		w.is.Equal(len(releases), 2)
		w.chat("acme", "b") // waits
		w.has("", "")
		for range 3 { // more than once does no more
			releases[0]()
			synctest.Wait()
			w.has("", "")
		}
		releases[1]()
		synctest.Wait()
		w.has("b", "")
		again, held := slot.Hold() // it is free already
		w.is.True(!held)
		for _, release := range append(releases, again) {
			release()
		}
		w.chat("acme", "c")
		w.has("", "")
		w.end("b")
		w.has("c", "b: 200")
		w.end("c")
	})
}

// Over each protocol, a client that waits gets its answer when there is room, and one that
// disconnects leaves its place to the next.
func TestWaitingOverTheWire(t *testing.T) {
	for _, protocol := range protocols {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprint(protocol, ", stream ", stream), func(t *testing.T) {
				is := is.New(t)
				reports, finish := make(chan RequestReport, 10), make(chan struct{})
				begun, waiting := make(chan struct{}, 10), make(chan struct{}, 10)
				o := testOptions(t, t.Output())
				o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
					begun <- struct{}{}
					select {
					case <-finish:
						yield("ok", nil)
					case <-ctx.Done():
					}
				})
				o.MaxConcurrentChats, o.MaxWaiting, o.MaxWait = 1, 1, time.Hour
				o.OnLimit = func(context.Context, Limit) (*Slot, error) { waiting <- struct{}{}; return nil, nil }
				o.OnRequest = func(_ context.Context, r RequestReport) { reports <- r }
				base, client := serveOver(t, protocol, New(o))
				responses := make(chan fullResponse, 10)
				chat := func(ctx context.Context) {
					go func() {
						res, err := client.Do(chatRequest(t, base, "hi", stream).WithContext(ctx))
						if err != nil {
							return
						}
						defer res.Body.Close()
						body, err := io.ReadAll(res.Body)
						responses <- fullResponse{res.StatusCode, res.Header, string(body), err}
					}()
				}
				chat(t.Context())
				received(t, begun, "the first chat to begin")
				ctx, disconnect := context.WithCancel(t.Context())
				defer disconnect()
				chat(ctx)
				received(t, waiting, "the second chat to reach the limit")
				disconnect()
				report := received(t, reports, "the second chat to end")
				is.True(errors.Is(report.Err, ErrClientLeft))
				is.Equal(report.Status, 0)
				chat(t.Context())
				received(t, waiting, "the third chat to reach the limit")
				close(finish)
				for range 2 {
					got := received(t, responses, "an answer")
					is.NoErr(got.err)
					is.Equal(got.status, 200)
				}
			})
		}
	}
}

// OnLimit's context has the values of the chat, and ends with its request.
func TestOnLimitContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []any
		w := newWaiting(t, func(o *Options) {
			o.MaxChatsPerAccount = 1
			o.Routes = []Route{chatRoute(func(r *http.Request, c *Chat) { c.Context = chatContext(r.Context()) })}
			o.OnLimit = func(ctx context.Context, l Limit) (*Slot, error) {
				seen = append(seen, ctx.Value(routeKey{}), AccountFrom(ctx), RequestIDFrom(ctx), ctx.Err())
				<-ctx.Done()
				seen = append(seen, context.Cause(ctx))
				return nil, ctx.Err()
			}
		})
		w.chat("acme", "a")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(errOverloaded) })
		r := newRequest("POST", routePath, strings.NewReader(chatBodyJSON("b", false)), "Authorization", "Bearer acme", "X-Request-Id", "b")
		w.is.Equal(record(w.handler, r.WithContext(ctx)).Code, 529)
		w.is.Equal(seen, []any{"the route's", "acme", "b", nil, errOverloaded})
		w.end("a")
	})
}
