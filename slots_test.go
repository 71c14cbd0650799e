package botapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/matryer/is"
)

// Whatever the application does after its chat has a slot and before its engine runs, the
// slot is released.
func TestSlotIsReleasedIfExtraFails(t *testing.T) {
	for name, fault := range formatFaults {
		for _, stream := range []bool{false, true} {
			if name == "fails" {
				continue // it returns no error
			}
			t.Run(fmt.Sprint(name, ", stream ", stream), func(t *testing.T) {
				is := is.New(t)
				r := newRequest("POST", routePath, strings.NewReader(chatBodyJSON("hi", stream)))
				got := playRequestOn(t, httptest.NewRecorder(), r, fragmentsOf("a"), func(o *Options) {
					o.Routes = []Route{chatRoute(func(_ *http.Request, c *Chat) {
						c.Extra = func() map[string]json.RawMessage { _ = fault(); return nil }
					})}
				})
				is.Equal(got.err, map[string]error{"aborts": http.ErrAbortHandler, "exits": errExited}[name])
				is.Equal(len(got.reports), 0)
				if name == "panics" {
					is.Equal(got.status, 500)
					is.True(strings.Contains(got.log, "reading the extra fields"))
				}
			})
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
