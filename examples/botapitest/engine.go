package botapitest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"runtime"
	"runtime/metrics"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"example.com/botapi"
)

// Engine is a [botapi.ChatEngine] for [TestEngine], and what it should do. Only Engine is
// required.
type Engine struct {
	// Engine is the engine.
	Engine botapi.ChatEngine

	// Request is a request that it answers with text, of several fragments if possible. Without
	// messages, it has the prompt "Hello"; without a bot, that of DefaultBot.
	Request botapi.ChatRequest

	// Answer is the text of the answer, if it is always the same; "" if it is not. Without it, a
	// U+FFFD in the answer counts as a character that the engine has split.
	Answer string

	// OneAtATime says that the model takes one chat at a time, so that each waits until the
	// client of the one before has read its answer. Otherwise, no chat may wait for another one.
	OneAtATime bool

	// Context, if not nil, is what the application's middleware does with the context of each
	// request, such as openai.CountTokens.
	Context func(context.Context) context.Context

	// Tokens, if not nil, returns the token counts of a chat as the application's OnChat reads
	// them from its context.
	Tokens func(context.Context) (prompt, completion int64, reported bool)

	// Failing is the engine with a model that fails, before its first fragment or later.
	Failing botapi.ChatEngine

	// Hanging is the engine with a model that does not respond, until it notices that its own
	// client has disconnected.
	Hanging botapi.ChatEngine

	// Endless is the engine with a model that generates text without an end, as fast as it can, in
	// chunks of any size. It must not stop or pause by itself: the test lets yield block until the
	// process allocates nothing any more, or for a few seconds, in which its memory must not go on
	// growing. So a buffer with a bound must be full before that, and below 64 MiB.
	Endless botapi.ChatEngine
}

// TestEngine tests that an engine keeps the contract of [botapi.ChatEngine], behind a real
// handler and with real clients: complete answers, characters that are split, yield and what
// it returns, clients that are slow, disconnect or do not read, requests of every form,
// concurrent chats, errors and token counts. Each subtest that fails says which sentence of the
// contract was broken, what was called, what came back, and what the client got. Run it with
// -race.
//
// It sends some 60 chats, of which many are cancelled. Those that Hanging and Endless get are
// extra. Tests that run in parallel may disturb these two, which count goroutines and measure
// memory.
func TestEngine(t *testing.T, e Engine) {
	t.Helper()
	if e.Engine == nil {
		t.Fatal("botapitest: Engine.Engine is nil")
	}
	runChecks(t, engineChecks(t, e, patience))
}

const (
	ruleAnswer   rule = "Chat returns the answer to req as an iterator over its fragments."
	ruleComplete rule = "The answer is complete when the iterator returns; without fragments it is the empty text."
	ruleSplit    rule = "Fragments may have any size, may be empty, and may end anywhere, even inside a UTF-8 character."
	ruleEndsCtx  rule = "ctx is cancelled when the chat ends, for whatever reason."
	ruleEnds     rule = "A non-nil error ends the answer: the text beside it is not sent, and what is yielded after it is ignored."
	ruleQuotes   rule = "Logger gets what the client must not see, with the request id: the errors of the application, too, as they are, so these must not quote keys or texts."
	ruleErrors   rule = "ErrBotNotFound a 404, ErrInvalidKey a 401"
	rulePanics   rule = "A nil iterator, a panic and runtime.Goexit count as errors."
	ruleYield    rule = "yield must not be called by several goroutines at the same time"
	ruleHolds    rule = "Meanwhile, hold nothing that another chat waits for, such as a lock or the only connection, unless the model takes no more chats."
	ruleFalse    rule = "yield returns false once the chat has ended; return then."
	ruleBlocks   rule = "yield blocks while the client does not read, so a slow client slows its engine down."
	ruleWaits    rule = "After everything else is done, the handler waits for the engine for at most half a second."
	ruleRoles    rule = "The roles may come in any order."
	ruleExtra    rule = "Extra holds the fields of the body that the API does not define, by name, with their values as they are in the body"
	ruleContent  rule = "valid UTF-8; may be empty"
	ruleValues   rule = "ctx carries the values of the request's context"
)

// An engineTest is a service whose engine is watched.
type engineTest struct {
	Engine
	limit  time.Duration // for an engine that does not return
	client *Client
	prompt Chat
	lost   *lostCall

	// Two undisturbed answers, as a stream and as a JSON response.
	streamed, collected func() *watch

	mu      sync.Mutex
	watches map[string]*watch // by request id
}

func engineChecks(t testing.TB, e Engine, limit time.Duration) []partCheck {
	et := &engineTest{Engine: e, limit: limit, lost: &lostCall{rule: ruleComplete, client: "waits for the rest of its answer"}, watches: map[string]*watch{}}
	et.serve(t)
	et.streamed = sync.OnceValue(func() *watch { return et.ask(et.Engine.Engine, true) })
	et.collected = sync.OnceValue(func() *watch { return et.ask(et.Engine.Engine, false) })
	return inOnePart(et.lost, []partCheck{
		{name: "Cancellation", run: et.cancellation}, // first, since an engine may keep what its first call has found
		{name: "NilErrors", run: et.nilErrors},
		{name: "Answer", run: et.answers},
		{name: "Characters", run: et.characters},
		{name: "Yield", run: et.yields},
		{name: "YieldFalse", run: et.yieldFalse},
		{name: "SlowClient", run: et.slowClient},
		{name: "Requests", run: et.requests},
		{name: "Concurrency", run: et.concurrency},
		optional("Failing", e.Failing != nil, "Engine.Failing is nil", et.failing),
		optional("Hanging", e.Hanging != nil, "Engine.Hanging is nil", et.hanging),
		optional("Endless", e.Endless != nil, "Engine.Endless is nil", et.endless),
		optional("Tokens", e.Tokens != nil, "Engine.Tokens is nil", et.tokens),
	})
}

func (et *engineTest) serve(t testing.TB) {
	bot := et.Request.Bot
	if bot == (botapi.Bot{}) {
		bot = DefaultBot()
	}
	et.prompt = Chat{BotUID: bot.UID, Messages: et.Request.Messages, UserID: et.Request.UserID, Extra: map[string]any{}}
	if len(et.prompt.Messages) == 0 {
		et.prompt.Messages = []botapi.ChatMessage{{Role: botapi.RoleUser, Content: "Hello"}}
	}
	for name, value := range et.Request.Extra {
		et.prompt.Extra[name] = value
	}
	api := botapi.New(botapi.Options{
		Bots:   storeOf(t, bot),
		Keys:   botapi.StaticKeys(map[string]string{DefaultKey: "account"}),
		Engine: botapi.ChatEngineFunc(et.chat),
		OnChat: et.onChat,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	et.client = start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if et.Context != nil {
			r = r.WithContext(et.Context(r.Context()))
		}
		api.ServeHTTP(w, r)
	})).Client
}

// chat is the engine of the service: the one that is tested, watched.
func (et *engineTest) chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	return et.watchOf(ctx).chat(ctx, req)
}

func (et *engineTest) onChat(ctx context.Context, _ botapi.ChatReport) {
	if et.Tokens != nil {
		w := et.watchOf(ctx)
		w.prompt, w.completion, w.counted = et.Tokens(ctx)
		close(w.reported)
	}
}

func (et *engineTest) watchOf(ctx context.Context) *watch {
	et.mu.Lock()
	defer et.mu.Unlock()
	return et.watches[botapi.RequestIDFrom(ctx)]
}

// A watch is one chat, as the engine, the handler and the client see it.
type watch struct {
	// Set before the chat.
	engine    botapi.ChatEngine
	stream    bool
	change    func(*Chat)             // what is sent
	cancelled bool                    // before the call
	onYield   func(n int) (more bool) // called in yield, with the number of the fragment
	onBegin   func()                  // called in the engine's goroutine
	label     string                  // of the goroutines that the engine starts; may be empty
	passNil   bool                    // whether typed nil errors reach the handler

	client             context.Context
	disconnect         context.CancelFunc // of the client
	cancel             context.CancelFunc // of the engine
	returned, reported chan struct{}
	yielding           chan struct{} // has room for one

	mu                      sync.Mutex
	fragments               []string
	isOver                  bool // yield has returned false
	finished, hasReturned   bool // without and with a panic or runtime.Goexit
	again, late, afterError int  // calls of yield that should not be
	overlapped              bool
	nilError, failure       error
	beside                  string // the text beside the failure
	panicked                any
	nilIterator, exited     bool // exited with runtime.Goexit
	cancelledAt, returnedAt time.Time

	// What the client got, once the chat is over.
	text string
	err  error

	// Set when reported is closed.
	prompt, completion int64
	counted            bool
}

func (et *engineTest) watch(engine botapi.ChatEngine, stream bool) *watch {
	w := &watch{engine: engine, stream: stream, returned: make(chan struct{}), reported: make(chan struct{}), yielding: make(chan struct{}, 1)}
	w.client, w.disconnect = context.WithTimeout(context.Background(), 6*et.limit)
	return w
}

// ask sends a chat and returns when its answer has ended.
func (et *engineTest) ask(engine botapi.ChatEngine, stream bool) *watch {
	w := et.watch(engine, stream)
	et.send(w)
	return w
}

// send sends a chat and returns when its answer has ended.
func (et *engineTest) send(w *watch) {
	defer w.disconnect()
	if _, isLost := et.lost.get(); isLost {
		w.err = errors.New("the chat was not sent")
		close(w.returned)
		return
	}
	id := fmt.Sprintf("botapitest-%p", w)
	et.mu.Lock()
	et.watches[id] = w
	et.mu.Unlock()
	chat := et.prompt
	chat.Header = http.Header{"X-Request-Id": {id}}
	if w.change != nil {
		w.change(&chat)
	}
	w.text, w.err = et.receive(w, chat)
	if errors.Is(w.client.Err(), context.DeadlineExceeded) { // nobody has disconnected
		et.lost.set(w.called())
	}
}

func (et *engineTest) receive(w *watch, chat Chat) (_ string, err error) {
	if !w.stream {
		return et.client.Ask(w.client, chat)
	}
	var text strings.Builder
	for fragment, failed := range et.client.Stream(w.client, chat) {
		text.WriteString(fragment)
		err = failed
	}
	return text.String(), err
}

// begin sends a chat in the background. Its end is not waited for.
func (et *engineTest) begin(w *watch) (ended <-chan struct{}) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		et.send(w)
	}()
	return done
}

func (w *watch) chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	ctx, w.cancel = context.WithCancel(ctx)
	if w.cancelled {
		w.cancel()
		w.cancelledAt = time.Now()
	} else {
		context.AfterFunc(ctx, func() { w.noteTime(&w.cancelledAt) })
	}
	if w.onBegin != nil {
		w.onBegin()
	}
	return func(yield func(string, error) bool) {
		defer w.end()
		if w.label != "" {
			pprof.SetGoroutineLabels(pprof.WithLabels(ctx, pprof.Labels(leakLabel, w.label)))
		}
		answer := w.engine.Chat(ctx, req)
		if answer == nil {
			w.note(&w.nilIterator)
			yield("", errors.New("the engine returned a nil iterator"))
		} else {
			answer(func(text string, err error) bool { return w.yield(ctx, yield, text, err) })
		}
		w.note(&w.finished)
	}
}

func (w *watch) note(happened *bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	*happened = true
}

func (w *watch) noteTime(at *time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	*at = time.Now()
}

func (w *watch) end() {
	v := recover()
	w.mu.Lock()
	w.panicked, w.exited, w.hasReturned, w.returnedAt = v, v == nil && !w.finished, true, time.Now()
	w.mu.Unlock()
	w.cancel()
	close(w.returned)
	if v != nil {
		panic(v)
	}
}

func (w *watch) yield(ctx context.Context, yield func(string, error) bool, text string, err error) bool {
	select {
	case w.yielding <- struct{}{}:
		defer func() { <-w.yielding }()
	default:
		w.note(&w.overlapped)
	}
	n, err, wanted := w.noteYield(text, err)
	switch {
	case !wanted:
		return false
	case err != nil:
		return yield("", err)
	}
	more := w.onYield == nil || w.onYield(n)
	more = more && yield(text, nil) && ctx.Err() == nil
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isOver = w.isOver || !more
	return more
}

// noteYield counts a call of yield. It returns the number of the fragment, and whether the call
// should have been made.
func (w *watch) noteYield(text string, err error) (n int, _ error, wanted bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.hasReturned:
		w.late++
		return 0, nil, false
	case w.isOver:
		w.again++
		w.cancel() // so that the chat ends
		return 0, nil, false
	case w.failure != nil:
		w.afterError++
		return 0, nil, false
	}
	if isNilError(err) {
		w.nilError = err
		if !w.passNil {
			err = nil
		}
	}
	if err != nil {
		w.failure, w.beside = err, text
		return 0, err, true
	}
	w.fragments = append(w.fragments, text)
	return len(w.fragments), nil, true
}

// took returns how long the engine has gone on after its context was cancelled.
func (w *watch) took() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cancelledAt.IsZero() {
		return 0
	}
	return w.returnedAt.Sub(w.cancelledAt)
}

// isComplete reports whether the client has a complete answer.
func (w *watch) isComplete() bool { return w.err == nil }

// called describes the call.
func (w *watch) called() string {
	return fmt.Sprintf("Chat(ctx, req), with req.Stream %t", w.stream)
}

// cameBack describes what the engine has yielded.
func (w *watch) cameBack() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := fmt.Sprintf("%d fragments", len(w.fragments))
	switch {
	case w.nilIterator:
		return "a nil iterator"
	case w.panicked != nil:
		return fmt.Sprintf("%s, and a panic: %v", text, w.panicked)
	case w.failure != nil:
		return text + ", and the error " + describeError(w.failure)
	case w.exited:
		return text + ", and the goroutine was ended with runtime.Goexit, as t.FailNow does"
	case !w.hasReturned:
		return text + ", and the iterator has not returned"
	}
	return text + ", and the iterator has returned"
}

// yielded returns the text and the error that the engine has yielded. It may not have returned yet.
func (w *watch) yielded() (text string, failure error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.fragments, ""), w.failure
}

// hasDied reports whether the engine has ended without a return of its iterator.
func (w *watch) hasDied() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.nilIterator || w.exited || w.panicked != nil
}

// clientGot describes what the client has received.
func (w *watch) clientGot() string {
	status, isStatus := errors.AsType[*botapi.StatusError](w.err)
	invalid, isInvalid := errors.AsType[botapi.HTTPValidationError](w.err)
	switch {
	case w.err == nil:
		return fmt.Sprintf("got a complete answer of %d bytes: %.100q", len(w.text), w.text)
	case isStatus && w.text == "":
		return fmt.Sprintf("got the status %d and %q", status.Status, status.Detail)
	case isInvalid && w.text == "":
		return "got the status 422: " + invalid.Error()
	}
	return fmt.Sprintf("got %d bytes of text and then: %v", len(w.text), w.err)
}

func (w *watch) problem(rule rule, hint string) problem {
	return problem{rule, w.called(), w.cameBack(), w.clientGot(), hint}
}

// problemThat is a problem of a chat that the client has ended itself.
func (w *watch) problemThat(rule rule, situation, cameBack, client, hint string) problem {
	return problem{rule, w.called() + ", " + situation, cameBack, client, hint}
}

// known returns the text of each answer, if it is always the same.
func (et *engineTest) known() (text string, ok bool) {
	a, b := et.streamed(), et.collected()
	return a.text, a.isComplete() && b.isComplete() && a.text == b.text && a.text != ""
}

func (et *engineTest) answers() (found []problem) {
	for _, w := range []*watch{et.collected(), et.streamed()} {
		_, failure := w.yielded()
		switch {
		case !w.isComplete() && w.hasDied():
			found = append(found, w.problem(rulePanics, ""))
		case !w.isComplete() && failure != nil:
			found = append(found, w.problem(ruleEnds, "this request should be answered: see Engine.Request"))
		case !w.isComplete():
			found = append(found, w.problem(ruleComplete, "the iterator has not returned, or the answer took too long"))
		case w.text == "":
			found = append(found, w.problem(ruleComplete, "fragments that are yielded later, or a request that has an answer without text: see Engine.Request"))
		case et.Answer != "" && w.text != et.Answer:
			found = append(found, w.problem(ruleAnswer, fmt.Sprintf("fragments are lost, repeated or in another order: Engine.Answer is %.100q", et.Answer)))
		}
	}
	return found
}

// nilErrors sends a chat again if its errors are typed nils, to see what its client gets.
func (et *engineTest) nilErrors() []problem {
	if et.streamed().nilError == nil {
		return nil
	}
	w := et.watch(et.Engine.Engine, true)
	w.passNil = true
	et.send(w)
	return []problem{w.problem(ruleEnds, nilErrorHint)}
}

func (et *engineTest) characters() []problem {
	w := et.streamed()
	text, _ := w.yielded()
	const replaced = "\ufffd"
	if utf8.ValidString(text) && (!strings.Contains(text, replaced) || strings.Contains(et.Answer, replaced)) {
		return nil
	}
	hint := "each fragment is converted to valid UTF-8 by itself, or bytes are cut off: pass them on as they are, and the handler joins characters"
	if et.Answer == "" && utf8.ValidString(text) {
		hint += "; the answer has a U+FFFD: if it is a part of the answer, set Engine.Answer"
	}
	return []problem{w.problem(ruleSplit, hint)}
}

func (et *engineTest) yields() (found []problem) {
	w := et.watch(et.Engine.Engine, true)
	w.onYield = func(n int) bool {
		if n <= 10 {
			time.Sleep(2 * time.Millisecond) // so that another goroutine would call it, too
		}
		return true
	}
	et.send(w)
	time.Sleep(100 * time.Millisecond) // so that late calls come
	w.mu.Lock()
	overlapped, late := w.overlapped, w.late
	w.mu.Unlock()
	if overlapped {
		found = append(found, w.problemThat(ruleYield, "with a yield that takes 2 ms", "a call of yield during another one", w.clientGot(), "botapi.CallbackEngine has an emit that is safe for concurrent use"))
	}
	if late > 0 {
		found = append(found, w.problemThat(ruleComplete, "", fmt.Sprintf("%d calls of yield after the iterator had returned", late), w.clientGot(), "a goroutine yields, and the iterator does not wait for it"))
	}
	return found
}

func (et *engineTest) yieldFalse() (found []problem) {
	const hint = "the result of yield is not checked; after false, nothing may be yielded, an error neither"
	for stopAt := 1; stopAt <= 2 && stopAt <= len(et.streamed().fragments); stopAt++ {
		situation := fmt.Sprintf("with a yield that returns false for fragment %d", stopAt)
		var w *watch
		prompt := false
		for attempt := 0; attempt < attempts && !prompt; attempt++ {
			w = et.watch(et.Engine.Engine, true)
			var at time.Time
			w.onYield = func(n int) bool {
				w.noteTime(&at)
				return n < stopAt
			}
			ended := et.begin(w)
			if !w.waitFor(w.returned, et.limit) {
				found = append(found, w.problemThat(ruleFalse, situation, "nothing: the iterator has not returned", "has disconnected, while the model goes on", "the engine waits for its model without watching what yield has returned"))
				w.disconnect()
				<-ended
				return found
			}
			<-ended
			w.mu.Lock()
			wentOn := w.again > 0 && !w.overlapped // calls at the same time break another rule
			prompt = w.returnedAt.Sub(at) < promptly
			w.mu.Unlock()
			if wentOn {
				return append(found, w.problemThat(ruleFalse, situation, "another call of yield", "has disconnected, while the model goes on", hint))
			}
		}
		if !prompt {
			found = append(found, w.problemThat(ruleFalse, situation, fmt.Sprintf("an iterator that returned later than %v, %d times", promptly, attempts), "has disconnected, while the model goes on", "the model is asked to the end of its answer"))
		}
	}
	if found != nil || len(et.streamed().fragments) == 0 {
		return found
	}
	return et.leaks(et.Engine.Engine, ruleFalse, "with a yield that returns false", func(w *watch) { w.onYield = func(int) bool { return false } })
}

// leakLabel names the label by which leaks knows the goroutines of its chats.
const leakLabel = "botapitest"

// leaks sends chats that end early. Each may leave nothing behind: a goroutine inherits the label of
// the one that starts it, so those of other tests do not count. Connections that are used again do, but
// are fewer than the chats.
func (et *engineTest) leaks(engine botapi.ChatEngine, rule rule, situation string, set func(*watch)) []problem {
	const chats = 10
	label := fmt.Sprintf("%p %s", et, situation)
	for i := range chats {
		w := et.watch(engine, i%2 == 0)
		w.label = label
		set(w)
		et.send(w)
		if !w.waitFor(w.returned, et.limit) {
			return nil // this subtest has seen others return
		}
	}
	left := labelled(label)
	for deadline := time.Now().Add(et.limit); left >= chats && time.Now().Before(deadline); left = labelled(label) {
		time.Sleep(10 * time.Millisecond)
	}
	if left < chats {
		return nil
	}
	return []problem{{rule, fmt.Sprintf("Chat(ctx, req), %s, %d times", situation, chats), fmt.Sprintf("iterators that have returned, but left %d goroutines", left), "has no more text, while the service keeps memory and perhaps a connection of each such chat",
		"a goroutine sends to a channel that nobody reads any more: have it watch ctx, or give the channel room for what is sent last"}}
}

// labelled returns how many goroutines have a label of leaks.
func labelled(label string) (n int) {
	var profile strings.Builder
	_ = pprof.Lookup("goroutine").WriteTo(&profile, 1)  // a Builder takes everything
	_, stacks, _ := strings.Cut(profile.String(), "\n") // behind a line with the total
	for stack := range strings.SplitSeq(stacks, "\n\n") {
		count := 0
		if strings.Contains(stack, fmt.Sprintf("%q:%q", leakLabel, label)) {
			_, _ = fmt.Sscanf(stack, "%d @", &count) // the form of the profile: count @ addresses
		}
		n += count
	}
	return n
}

func (w *watch) waitFor(c <-chan struct{}, limit time.Duration) bool {
	select {
	case <-c:
		return true
	case <-time.After(limit):
		return false
	}
}

// cancellation ends chats at three moments. The engine is not in yield then, which would
// return false.
func (et *engineTest) cancellation() []problem {
	for _, situation := range []struct {
		name string
		set  func(*watch)
	}{
		{"with a context cancelled before the call", func(w *watch) { w.cancelled = true }},
		{"whose client disconnects before the first fragment", func(w *watch) {
			w.onBegin = func() { time.AfterFunc(10*time.Millisecond, w.disconnect) } // the engine has asked its model by then
		}},
		{"whose client disconnects after the first fragment", func(w *watch) {
			w.onYield = func(n int) bool {
				if n == 1 {
					time.AfterFunc(5*time.Millisecond, w.disconnect)
				}
				return true
			}
		}},
	} {
		for _, stream := range []bool{true, false} {
			if found := et.mustEnd(et.Engine.Engine, stream, situation.name, situation.set); found != nil {
				return found
			}
		}
	}
	return nil
}

// mustEnd sends a chat that is cancelled: its engine must return promptly.
func (et *engineTest) mustEnd(engine botapi.ChatEngine, stream bool, situation string, set func(*watch)) []problem {
	const hint = "ctx is not passed on to the model, or a wait does not watch it"
	const client = "has disconnected, while the model goes on and its chat keeps a slot"
	for range attempts {
		w := et.watch(engine, stream)
		set(w)
		ended := et.begin(w)
		if !w.waitFor(w.returned, 2*et.limit) {
			w.disconnect()
			<-ended
			return []problem{w.problemThat(ruleWaits, situation, "nothing: the iterator has not returned", client, hint)}
		}
		<-ended
		if w.took() < promptly {
			return nil
		}
	}
	w := et.watch(engine, stream)
	return []problem{w.problemThat(ruleWaits, situation, fmt.Sprintf("an iterator that returned later than %v after the cancellation, %d times", promptly, attempts), client, hint)}
}

// hanging ends chats whose model does not respond. What an engine leaves behind when it returns
// would wait for its model for ever.
func (et *engineTest) hanging() []problem {
	const chats, noise = 10, 5
	const situation = "of Engine.Hanging, whose client disconnects"
	end := func(stream bool) []problem {
		return et.mustEnd(et.Hanging, stream, situation, func(w *watch) {
			w.onBegin = func() { time.AfterFunc(50*time.Millisecond, w.disconnect) }
		})
	}
	for _, stream := range []bool{true, false} {
		if found := end(stream); found != nil {
			return found
		}
	}
	et.client.HTTP.CloseIdleConnections() // whose goroutines would count, and end later
	before := fewestGoroutines(200*time.Millisecond, 0)
	for i := range chats {
		if found := end(i%2 == 0); found != nil {
			return found
		}
	}
	left := fewestGoroutines(et.limit, before+noise) - before
	if left <= noise {
		return nil
	}
	return []problem{et.watch(et.Hanging, true).problemThat(ruleEndsCtx, situation,
		fmt.Sprintf("an iterator that has returned, but %d chats have left %d goroutines", chats, left), "has disconnected, while the model goes on",
		"the engine leaves a goroutine that waits for its model without watching ctx, or a model in this process does not notice the end of its request")}
}

// fewestGoroutines returns how many there were at least within a time, which it cuts short
// when there are few enough.
func fewestGoroutines(within time.Duration, enough int) int {
	fewest := runtime.NumGoroutine()
	for deadline := time.Now().Add(within); fewest > enough && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
		fewest = min(fewest, runtime.NumGoroutine())
	}
	return fewest
}

func (et *engineTest) slowClient() []problem {
	for _, stream := range []bool{true, false} {
		if et.OneAtATime {
			break
		}
		if found := et.besideBlocked(stream); found != nil {
			return found
		}
	}
	return et.pausing()
}

// besideBlocked sends a chat while another one is in yield: it must not wait for that one's client.
func (et *engineTest) besideBlocked(stream bool) []problem {
	blocked, goOn, answers := make(chan struct{}), make(chan struct{}), make(chan struct{})
	w, beside := et.watch(et.Engine.Engine, stream), et.watch(et.Engine.Engine, stream)
	w.onYield = func(n int) bool {
		if n == 1 {
			close(blocked)
			<-goOn
		}
		return true
	}
	beside.onYield = func(n int) bool {
		if n == 1 {
			close(answers)
		}
		return true
	}
	defer beside.disconnect()
	ended := et.begin(w)
	isAnswered := true
	if w.waitFor(blocked, et.limit) { // otherwise, the subtest Answer says why
		besideEnded := et.begin(beside)
		select {
		case <-answers:
		case <-besideEnded: // without a fragment, which the subtest Answer reports
		case <-time.After(2 * et.limit):
			isAnswered = false
		}
		beside.disconnect()
		<-besideEnded
	}
	close(goOn)
	<-ended
	if isAnswered {
		return nil
	}
	return []problem{beside.problemThat(ruleHolds, "while a chat of another client is in yield", fmt.Sprintf("no fragment within %v", 2*et.limit), "waits until another client has read its answer",
		"a lock is held while yield is called, or all chats share one connection, such as with MaxConnsPerHost; if the model takes one chat at a time, set Engine.OneAtATime")}
}

// pausing sends a chat whose client reads slowly.
func (et *engineTest) pausing() []problem {
	text, isKnown := et.known()
	w := et.watch(et.Engine.Engine, true)
	w.onYield = func(n int) bool {
		if n == 1 {
			time.Sleep(300 * time.Millisecond)
		}
		return true
	}
	et.send(w)
	lost := isKnown && w.text != text
	if et.streamed().isComplete() && (!w.isComplete() || lost) {
		return []problem{w.problemThat(ruleBlocks, "with a client that reads nothing for 0.3 s", w.cameBack(), w.clientGot(),
			fmt.Sprintf("text is dropped, or a timeout counts the time in yield; a fast client gets %d bytes", len(et.streamed().text)))}
	}
	return nil
}

// endless lets the engine wait in yield, and watches the memory of the process.
func (et *engineTest) endless() []problem {
	w := et.watch(et.Endless, true)
	blocked := make(chan struct{})
	goOn := make(chan struct{})
	w.onYield = func(n int) bool {
		if n == 1 {
			close(blocked)
			<-goOn
		}
		return true
	}
	ended := et.begin(w)
	isBlocked := w.waitFor(blocked, et.limit)
	grown, isGrowing := int64(0), false
	if isBlocked {
		grown, isGrowing = growth()
	}
	w.disconnect()
	close(goOn)
	<-ended
	hasReturned := w.waitFor(w.returned, et.limit)
	const situation = "of Engine.Endless, with a client that does not read"
	switch {
	case !isBlocked:
		return []problem{w.problemThat(ruleAnswer, situation, fmt.Sprintf("no fragment within %v", et.limit), w.clientGot(), "the engine collects the answer before it yields, so no client sees it grow")}
	case isGrowing:
		return []problem{w.problemThat(ruleBlocks, situation, fmt.Sprintf("%d KiB of memory while yield was blocked, and growing", grown>>10), "has not read any of it",
			"a goroutine collects what the model generates, without a bound")}
	case !hasReturned:
		return []problem{w.problemThat(ruleWaits, situation+" and disconnects", "nothing: the iterator has not returned", "has disconnected, while the model goes on", "")}
	}
	return nil
}

// growth returns how much more memory the process uses while yield is blocked, and whether that goes
// on. A bounded engine soon allocates nothing any more, since its buffers and those of its connection
// are full. If something is allocated all the time, the memory in use tells: the least of several
// samples, since each contains some garbage, and early ones against late ones, since a slice that is
// appended to grows in steps. On a busy machine, the samples take longer.
func growth() (grown int64, goesOn bool) {
	const tooMuch, noise, silence = 64 << 20, 128 << 10, 4 << 10
	const silent, enough = 5, 20 // samples
	start, allocated := heapBytes()
	var samples []int64
	for quiet := 0; len(samples) < enough; {
		time.Sleep(100 * time.Millisecond)
		before := allocated
		grown, allocated = heapBytes()
		grown -= start
		samples = append(samples, grown)
		if quiet++; allocated-before > silence {
			quiet = 0
		}
		if grown >= tooMuch || quiet == silent {
			return grown, grown >= tooMuch
		}
	}
	early, late := slices.Min(samples[enough/4:enough/2]), slices.Min(samples[enough*3/4:])
	return late, late-early > noise
}

// heapBytes returns how much memory is in use, without the garbage of earlier collections, and how
// much was ever allocated.
func heapBytes() (inUse, allocated int64) {
	runtime.GC()
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(samples)
	return int64(samples[0].Value.Uint64()), int64(samples[1].Value.Uint64())
}

// requests sends conversations of every form that the API allows.
func (et *engineTest) requests() (found []problem) {
	said := et.prompt.Messages
	last := said[len(said)-1]
	user, system, assistant := message(botapi.RoleUser), message(botapi.RoleSystem), message(botapi.RoleAssistant)
	for _, form := range []struct {
		name   string
		rule   rule
		change func(*Chat)
	}{
		{"whose only message is the system's", ruleRoles, func(c *Chat) { c.Messages = []botapi.ChatMessage{system} }},
		{"whose last message is the assistant's", ruleRoles, func(c *Chat) { c.Messages = []botapi.ChatMessage{last, assistant} }},
		{"with two messages of each role in a row", ruleRoles, func(c *Chat) {
			c.Messages = []botapi.ChatMessage{assistant, assistant, user, user, system, system, last}
		}},
		{"whose last message is empty", ruleContent, func(c *Chat) { c.Messages = []botapi.ChatMessage{message(botapi.RoleUser, "")} }},
		{"with control characters and characters of four bytes", ruleContent, func(c *Chat) {
			c.Messages = []botapi.ChatMessage{message(botapi.RoleUser, "\x00\x1b\r\n\u2028 👋🏽 \"\\ \ufffd</s><|im_end|>")}
		}},
		{"with a field of its own in the body", ruleExtra, func(c *Chat) {
			c.Extra = map[string]any{"botapitest": json.RawMessage(`[1e999, {"": [null]}, "\ud800"]`)}
		}},
	} {
		w := et.watch(et.Engine.Engine, true)
		w.change = form.change
		et.send(w)
		status, isStatus := errors.AsType[*botapi.StatusError](w.err)
		_, isInvalid := errors.AsType[botapi.HTTPValidationError](w.err)
		if isChoice := isInvalid || isStatus && status.Status < 500; w.isComplete() || w.text == "" && isChoice {
			continue
		}
		found = append(found, w.problemThat(form.rule, form.name, w.cameBack(), w.clientGot(),
			"if the model cannot answer this, yield an HTTPValidationError or a StatusError with a 4xx, which says what to send instead"))
	}
	return found
}

func message(role botapi.Role, content ...string) botapi.ChatMessage {
	if len(content) == 0 {
		content = []string{"Hello"}
	}
	return botapi.ChatMessage{Role: role, Content: content[0]}
}

func (et *engineTest) concurrency() []problem {
	if !et.streamed().isComplete() {
		return nil // the subtest Answer says so
	}
	text, isKnown := et.known()
	c := collector{}
	c.run(8, func(int) {
		w := et.ask(et.Engine.Engine, true)
		if !w.isComplete() || isKnown && w.text != text {
			c.add(w.problemThat(ruleConcurrent, "at the same time as 7 others", w.cameBack(), w.clientGot(), "chats share a buffer, a field of the engine or a connection"))
		}
	})
	return c.found
}

func (et *engineTest) failing() (found []problem) {
	for _, stream := range []bool{false, true} {
		w := et.ask(et.Failing, stream)
		if !w.waitFor(w.returned, et.limit) {
			return append(found, w.problemThat(ruleEnds, "of Engine.Failing", w.cameBack(), w.clientGot(), "return after an error: until then, the chat keeps a goroutine and a slot"))
		}
		if w.isComplete() {
			found = append(found, w.problemThat(ruleComplete, "of Engine.Failing", w.cameBack(), w.clientGot(), "the error of the model is logged or dropped: yield it, or clients take an incomplete answer for a complete one"))
			continue
		}
		if w.beside != "" {
			found = append(found, w.problemThat(ruleEnds, "of Engine.Failing", fmt.Sprintf("an error with %d bytes of text beside it", len(w.beside)), w.clientGot(), "yield the text first, and then the error"))
		}
		if w.afterError > 0 {
			found = append(found, w.problemThat(ruleEnds, "of Engine.Failing", fmt.Sprintf("%d calls of yield after an error", w.afterError), w.clientGot(), "return after an error"))
		}
		if hint := blamesClient(w.failure); hint != "" {
			found = append(found, w.problemThat(ruleErrors, "of Engine.Failing", w.cameBack(), w.clientGot(), hint))
		}
		found = append(found, badStatus(w.failure, w.called()+", of Engine.Failing", w.clientGot())...)
	}
	if found != nil {
		return found
	}
	if found := et.quotes(); found != nil {
		return found
	}
	return et.leaks(et.Failing, ruleEnds, "of Engine.Failing", func(*watch) {})
}

// quotes looks for the text of a chat in the error of a model that fails, since it is logged.
func (et *engineTest) quotes() []problem {
	const told = "botapitest-told-in-confidence"
	w := et.watch(et.Failing, true)
	w.change = func(c *Chat) {
		earlier := []botapi.ChatMessage{message(botapi.RoleUser, told), message(botapi.RoleAssistant)}
		c.Messages = append(earlier, c.Messages...)
	}
	et.send(w)
	if _, failure := w.yielded(); failure == nil || !strings.Contains(failure.Error(), told) {
		return nil
	}
	return []problem{w.problemThat(ruleQuotes, "of Engine.Failing", "an error with the text of a message", w.clientGot(),
		"the body of the request to the model is put into the error, and so into the log")}
}

// blamesClient says what a client is told of itself by the error of a model that fails; "" if nothing.
// Other 4xx may be what the model says of the request.
func blamesClient(err error) (hint string) {
	chosen, isChosen := errors.AsType[*botapi.StatusError](err)
	invalid, isInvalid := errors.AsType[botapi.HTTPValidationError](err)
	switch {
	case isChosen && chosen.Status == http.StatusUnauthorized, !isChosen && errors.Is(err, botapi.ErrInvalidKey):
		return "the model's server has rejected the application's key: clients would ask their users for another one"
	case !isChosen && errors.Is(err, botapi.ErrBotNotFound):
		return "the model's server does not know the model: clients would not ask for the bot again"
	case !isChosen && isInvalid && len(invalid.Detail) == 0:
		return failureAsBadRequest
	}
	return ""
}

// tokens compares the counts of several chats with that of one alone: they must not mix.
func (et *engineTest) tokens() []problem {
	const hint = "OnChat reads the counts of the context that Engine.Context has made; the engine must fill them before it returns"
	alone := et.ask(et.Engine.Engine, true)
	if !alone.waitFor(alone.reported, et.limit) || !alone.isComplete() {
		return nil // the subtest Answer says so
	}
	if !alone.counted || alone.prompt <= 0 || alone.completion <= 0 {
		return []problem{alone.problemThat(ruleValues, "followed by OnChat", alone.countedTokens(), alone.clientGot(), hint)}
	}
	_, isKnown := et.known()
	c := collector{}
	c.run(4, func(int) {
		w := et.ask(et.Engine.Engine, true)
		if !w.isComplete() || !w.waitFor(w.reported, et.limit) || !isKnown {
			return
		}
		if w.prompt != alone.prompt || w.completion != alone.completion {
			c.add(w.problemThat(ruleValues, "at the same time as others, followed by OnChat", w.countedTokens(), w.clientGot(), "chats share a counter; alone, the same chat had "+alone.countedTokens()))
		}
	})
	return c.found
}

func (w *watch) countedTokens() string {
	if !w.counted {
		return "no token counts"
	}
	return fmt.Sprintf("token counts of %d and %d", w.prompt, w.completion)
}
