package probe

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"iter"
	"net/http"
	"slices"
	"sync"
	"time"

	"example.com/botapi"
)

// Bounds of what orders can ask for.
const (
	maxChats     = 64               // remembered
	maxRuns      = 8                // remembered of each
	maxFragments = 256              // whose times are remembered, of each run
	maxRunning   = 16               // running answers
	maxSteps     = 64               // of one answer
	maxText      = 64 << 20         // bytes of one answer
	maxWait      = 10 * time.Minute // of one answer
	keepChat     = 10 * time.Minute // what was seen is forgotten after this time
	quiet        = time.Second
)

// NewEngine returns an engine that obeys orders with the secret, and passes all other chats on
// to next.
func NewEngine(next botapi.ChatEngine, secret string) botapi.ChatEngine {
	return &engine{
		next:    next,
		secret:  sha256.Sum256([]byte(secret)),
		process: rand.Text(),
		chats:   make(map[string]*chat),
		begun:   make(chan struct{}),
	}
}

type engine struct {
	next    botapi.ChatEngine
	secret  [sha256.Size]byte // of the secret
	process string

	mu      sync.Mutex
	chats   map[string]*chat
	running int
	begun   chan struct{} // closed when another chat has begun
}

// A chat is what is known of one probe chat. Its fields are guarded by the engine's lock.
type chat struct {
	lastUsed time.Time
	gos      int // steps that may go on
	gone     int // of them, those that did
	runs     []*run
	changed  chan struct{} // closed when anything has changed
}

type run struct {
	Run
	began    time.Time
	lastBack time.Time // of a yield, or of the call
}

func (e *engine) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	order, isOrder := orderOf(req, e.secret)
	if !isOrder {
		return e.next.Chat(ctx, req)
	}
	if order.Do == Play {
		return func(yield func(string, error) bool) { e.play(ctx, req, order, yield) }
	}
	return func(yield func(string, error) bool) {
		e.stay(ctx, order)
		if order.Do == Go {
			e.goOn(order.Chat, order.Count)
		}
		seen, _ := json.Marshal(e.see(ctx, order)) // the type has only fields that can be encoded
		yield(string(seen), nil)
	}
}

// IsOrder reports whether a request has an order with the secret.
func IsOrder(req *botapi.ChatRequest, secret string) bool {
	_, isOrder := orderOf(req, sha256.Sum256([]byte(secret)))
	return isOrder
}

// orderOf returns the order in a request, if it has one with the secret of this sum.
func orderOf(req *botapi.ChatRequest, secret [sha256.Size]byte) (order Order, isOrder bool) {
	field, has := req.Extra[Field]
	if !has || json.Unmarshal(field, &order) != nil {
		return Order{}, false
	}
	sum := sha256.Sum256([]byte(order.Secret))
	order.Secret = ""
	return order, subtle.ConstantTimeCompare(sum[:], secret[:]) == 1
}

// play answers with the steps of an order.
func (e *engine) play(ctx context.Context, req *botapi.ChatRequest, order Order, yield func(string, error) bool) {
	if !order.isBounded() {
		yield("", botapi.StatusError{Status: http.StatusBadRequest, Detail: "The probe asks for too much"})
		return
	}
	r := e.begin(ctx, req, order.Chat)
	if r == nil {
		yield("", botapi.StatusError{Status: http.StatusTooManyRequests, Detail: "Too many probes", RetryAfter: time.Second})
		return
	}
	ending := Cancelled // also after a panic
	defer func() { e.end(ctx, order.Chat, r, ending) }()
	for _, step := range order.Steps {
		switch {
		case step.Fail != nil:
			ending = Failed
			yield("", step.Fail.err())
			return
		case step.Await != "":
			switch e.await(ctx, order.Chat, step) {
			case Cancelled:
				return
			case InVain:
				ending = InVain
				return
			}
		default:
			for range max(step.Times, 1) {
				if !e.yield(order.Chat, r, step.Text, yield) {
					return
				}
			}
		}
	}
	ending = Complete
}

func (o Order) isBounded() bool {
	var text, wait int64
	for _, step := range o.Steps {
		if step.Times < 0 || step.Times > maxText || step.Millis < 0 || step.Millis > In(maxWait) {
			return false
		}
		text += int64(len(step.Text)) * int64(max(step.Times, 1))
		wait += int64(step.Millis)
	}
	return o.Chat != "" && len(o.Chat) <= 64 && len(o.Steps) <= maxSteps && text <= maxText && wait <= int64(In(maxWait))
}

func (f *Failure) err() error {
	if f.Status == 0 {
		return http.ErrAbortHandler
	}
	return botapi.StatusError{Status: f.Status, Detail: f.Detail, RetryAfter: time.Duration(f.RetryAfter) * time.Second}
}

// begin returns nil if there are too many probe chats.
func (e *engine) begin(ctx context.Context, req *botapi.ChatRequest, id string) *run {
	r := &run{Run: Run{RequestID: botapi.RequestIDFrom(ctx), Header: reported(ctx)}, began: time.Now()}
	if last := len(req.Messages) - 1; last >= 0 {
		sum := sha256.Sum256([]byte(req.Messages[last].Content))
		r.Prompt, r.PromptSum = len(req.Messages[last].Content), hex.EncodeToString(sum[:])
	}
	r.lastBack = r.began
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.chats[id]
	if c == nil {
		e.forget()
		c = &chat{changed: make(chan struct{})}
	}
	if e.running >= maxRunning || len(c.runs) >= maxRuns {
		return nil
	}
	if e.chats[id] == nil {
		e.chats[id] = c
		close(e.begun)
		e.begun = make(chan struct{})
	}
	e.running++
	c.runs = append(c.runs, r)
	c.change()
	return r
}

// forget forgets what is old and, if there is much, the oldest that does not run.
func (e *engine) forget() {
	var oldest string
	for id, c := range e.chats {
		switch {
		case c.isRunning():
		case time.Since(c.lastUsed) > keepChat:
			delete(e.chats, id)
		case oldest == "" || c.lastUsed.Before(e.chats[oldest].lastUsed):
			oldest = id
		}
	}
	if len(e.chats) >= maxChats {
		delete(e.chats, oldest)
	}
}

func (c *chat) isRunning() bool {
	return slices.ContainsFunc(c.runs, func(r *run) bool { return r.Ending == "" })
}

// change wakes everyone who waits for the chat. The lock is held.
func (c *chat) change() {
	c.lastUsed = time.Now()
	close(c.changed)
	c.changed = make(chan struct{})
}

func reported(ctx context.Context) map[string]string {
	header := make(map[string]string)
	for _, name := range ReportedHeaders {
		if value := botapi.RequestFrom(ctx).Header().Get(name); value != "" {
			header[name] = value[:min(len(value), 256)]
		}
	}
	return header
}

func (e *engine) end(ctx context.Context, id string, r *run, ending Ending) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.running--
	r.Ending, r.EndedAt = ending, time.Since(r.began).Microseconds()
	if cause := context.Cause(ctx); cause != nil && ending == Cancelled {
		r.Cause = cause.Error()
	}
	e.chats[id].change()
}

// yield yields a fragment and notes its times.
func (e *engine) yield(id string, r *run, text string, yield func(string, error) bool) bool {
	fragment := Fragment{At: time.Since(r.began).Microseconds()}
	if !yield(text, nil) {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	r.lastBack = time.Now()
	fragment.Back = r.lastBack.Sub(r.began).Microseconds()
	r.Yielded++
	r.Bytes += int64(len(text))
	if len(r.Fragments) < maxFragments {
		r.Fragments = append(r.Fragments, fragment)
	}
	e.chats[id].change()
	return true
}

// await returns Complete if the wait has ended as the step says.
func (e *engine) await(ctx context.Context, id string, step Step) Ending {
	timer := time.NewTimer(step.Millis.Duration())
	defer timer.Stop()
	for {
		e.mu.Lock()
		c := e.chats[id]
		goOn, changed := step.Await == AwaitGo && c.gos > c.gone, c.changed
		if goOn {
			c.gone++
		}
		e.mu.Unlock()
		if goOn {
			return Complete
		}
		select {
		case <-ctx.Done():
			return Cancelled
		case <-changed:
		case <-timer.C:
			if step.Await == AwaitTime {
				return Complete
			}
			return InVain
		}
	}
}

// stay waits until the process knows the chat of an order, as long as the order says.
func (e *engine) stay(ctx context.Context, order Order) {
	timer := time.NewTimer(min(order.Stay.Duration(), maxWait))
	defer timer.Stop()
	for {
		e.mu.Lock()
		isKnown, begun := e.chats[order.Chat] != nil, e.begun
		e.mu.Unlock()
		if isKnown {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case <-begun:
		}
	}
}

// goOn may get one order twice.
func (e *engine) goOn(id string, count int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.chats[id]; c != nil {
		c.gos = max(c.gos, count)
		c.change()
	}
}

// see waits for what the order says, and returns what was seen.
func (e *engine) see(ctx context.Context, order Order) Seen {
	timer := time.NewTimer(min(order.Millis.Duration(), maxWait))
	defer timer.Stop()
	for {
		e.mu.Lock()
		seen := Seen{Process: e.process}
		var changed <-chan struct{}
		var again <-chan time.Time
		done := true
		if c := e.chats[order.Chat]; c != nil {
			changed = c.changed
			for _, r := range c.runs {
				copied := r.Run
				copied.Fragments = slices.Clone(r.Fragments)
				seen.Runs = append(seen.Runs, copied)
			}
			var wait time.Duration
			done, wait = c.has(order.For, order.Count)
			if wait > 0 {
				again = time.After(wait)
			}
		}
		e.mu.Unlock()
		if done {
			return seen
		}
		select {
		case <-ctx.Done():
			return seen
		case <-timer.C:
			return seen
		case <-changed:
		case <-again:
		}
	}
}

// has reports whether an event has come, or when to look again.
func (c *chat) has(event Event, count int) (has bool, again time.Duration) {
	last := c.runs[len(c.runs)-1]
	switch cmp.Or(event, Begun) {
	case Yielded:
		return last.Yielded >= count || last.Ending != "", 0
	case Quiet:
		silent := time.Since(last.lastBack)
		return silent >= quiet || last.Ending != "", quiet - silent
	case Ended:
		return !c.isRunning(), 0
	}
	return true, 0
}
