// Package resumetest checks that a store of answers keeps the contract of package
// resume, over HTTP and call by call.
package resumetest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/resume"
	"github.com/matryer/is"
)

// A Backend is where stores keep their answers. It is empty when it is made. Each
// call of open returns a store for another process; those of a Backend for one
// process are the same.
type Backend func(t *testing.T, s resume.Settings) (open func() resume.Store)

// Run checks the contract, in tests that are parallel to each other.
func Run(t *testing.T, backend Backend) {
	for name, test := range map[string]func(*testing.T, Backend){
		"Rules":           testRules,
		"Join":            testJoin,
		"JoinByKey":       testJoinByKey,
		"JSONResponse":    testJSONResponse,
		"Scope":           testScope,
		"Owner":           testOwner,
		"BadKeys":         testBadKeys,
		"WithoutKey":      testWithoutKey,
		"ClientsReturn":   testClientsReturn,
		"NobodyComesBack": testNobodyComesBack,
		"Stop":            testStop,
		"StopBeforeEnd":   testStopBeforeEnd,
		"Aborted":         testAborted,
		"Failures":        testFailures,
		"BadEngines":      testBadEngines,
		"Timeouts":        testTimeouts,
		"RunningLimit":    testRunningLimit,
		"AfterTheEnd":     testAfterTheEnd,
		"EngineThatStays": testEngineThatStays,
		"NoRoom":          testNoRoom,
		"FrozenProcess":   testFrozenProcess,
		"Outgrown":        testOutgrown,
		"OutgrownIsRead":  testOutgrownIsRead,
		"StopOutgrown":    testStopOutgrown,
		"OutgrownEnds":    testOutgrownEnds,
		"StalledReader":   testStalledReader,
		"Readers":         testReaders,
		"JoinedTooOften":  testJoinedTooOften,
		"SlowReader":      testSlowReader,
		"SharedSlot":      testSharedSlot,
		"Admit":           testAdmit,
		"OnAnswer":        testOnAnswer,
		"Close":           testClose,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they mostly wait
			test(t, backend)
		})
	}
}

// patient waits for the store however busy the machine is.
func patient(s resume.Settings) resume.Settings {
	s.Wait = patience
	return s
}

// three are three replicas of one backend.
func three(t *testing.T, backend Backend, s resume.Settings, o resume.Options) (all [3]replica) {
	t.Helper()
	open := backend(t, patient(s))
	for i := range all {
		o.Store = open()
		all[i] = serve(t, o)
	}
	return all
}

func one(t *testing.T, backend Backend, s resume.Settings, o resume.Options, change ...func(*botapi.Options)) replica {
	t.Helper()
	o.Store = backend(t, patient(s))()
	return serve(t, o, change...)
}

// testJoin follows one answer on two replicas while it runs, and again when it is
// complete.
func testJoin(t *testing.T, backend Backend) {
	is := is.New(t)
	model := newModel()
	replicas := three(t, backend, resume.Settings{}, resume.Options{Engine: model})
	var readers []*client
	said := model.begins("one")
	for i, outcome := range []string{"kept", "joined", "joined"} {
		c := replicas[i/2].connect(t, hi("k1"))
		is.Equal(c.outcome(), outcome)
		readers = append(readers, c)
	}
	turn := receive(t, said)
	turn.say(t, "", "two", "caf\xc3", "\xa9")
	close(turn.words)
	for _, r := range replicas {
		readers = append(readers, r.connect(t, hi("k1")))
	}
	for _, reader := range readers {
		text, end := reader.rest()
		is.Equal(text, "onetwocafé")
		is.Equal(end, "[DONE]")
	}
	is.Equal(model.asked(), 1)
}

// testJoinByKey joins without a body.
func testJoinByKey(t *testing.T, backend Backend) {
	is := is.New(t)
	model := newModel()
	open := backend(t, patient(resume.Settings{}))
	var owner atomic.Value
	owner.Store("ann")
	o := resume.Options{Engine: model, Owner: func(context.Context) string { return owner.Load().(string) }}
	o.Store = open()
	r := serve(t, o)
	o.Store = open()
	elsewhere := resume.New(o)
	join := func(key string) (text string, status int) {
		for fragment, err := range elsewhere.Join(t.Context(), long(key)) {
			if err != nil {
				return text, statusOf(err)
			}
			text += fragment
		}
		return text, http.StatusOK
	}
	said := model.begins("one")
	c := r.connect(t, hi("k1"))
	turn := receive(t, said)
	go func() { turn.words <- "two"; close(turn.words) }()
	for range 2 { // running, and complete
		text, status := join("k1")
		is.Equal(text, "onetwo")
		is.Equal(status, http.StatusOK)
	}
	c.rest()
	_, status := join("k2")
	is.Equal(status, http.StatusNotFound)
	_, status = join("too short"[:3] + " ")
	is.Equal(status, http.StatusNotFound)
	owner.Store("bob")
	_, status = join("k1")
	is.Equal(status, http.StatusNotFound)
	is.Equal(model.asked(), 1)
	is.NoErr(elsewhere.Close(t.Context()))
}

func testJSONResponse(t *testing.T, backend Backend) {
	is := is.New(t)
	model := newModel()
	replicas := three(t, backend, resume.Settings{}, resume.Options{Engine: model})
	c := hi("k1").asJSON()
	first := replicas[0].inBackground(t, c)
	turn := model.next(t)
	second := replicas[1].inBackground(t, c)
	turn.say(t, "one", "two")
	close(turn.words)
	want := reply{http.StatusOK, `{"content":"onetwo"}`, ""}
	is.Equal(receive(t, first), want)
	is.Equal(receive(t, second), want)
	is.Equal(replicas[2].reply(t.Context(), c), want)
	is.Equal(model.asked(), 1)
}

// testScope uses the same key for other bodies and for another account.
func testScope(t *testing.T, backend Backend) {
	is := is.New(t)
	model := newModel()
	replicas := three(t, backend, resume.Settings{}, resume.Options{Engine: model})
	c := hi("k1").asJSON()
	first := replicas[0].inBackground(t, c)
	turn := model.next(t)

	conflict := rejectedWith(http.StatusConflict, "Another chat has this Idempotency-Key")
	other := c
	other.prompt = "Hello"
	is.Equal(replicas[1].reply(t.Context(), other), conflict)
	turn.say(t, "SECRET answer")
	close(turn.words)
	is.Equal(receive(t, first).status, http.StatusOK)
	is.Equal(replicas[1].reply(t.Context(), other), conflict)    // also when it is complete
	is.Equal(replicas[1].reply(t.Context(), hi("k1")), conflict) // a stream is a different body

	theirs := replicas[1].inBackground(t, c.as("emca"))
	turn = model.next(t)
	turn.say(t, "their own")
	close(turn.words)
	is.Equal(receive(t, theirs), reply{http.StatusOK, `{"content":"their own"}`, ""})
	is.Equal(model.asked(), 2)
}

// testOwner has two people with one API key, whom the application tells apart.
func testOwner(t *testing.T, backend Backend) {
	is := is.New(t)
	model := newModel()
	var person atomic.Value
	r := one(t, backend, resume.Settings{}, resume.Options{Engine: model, Owner: func(context.Context) string { return person.Load().(string) }})
	for _, name := range []string{"ann", "bob"} {
		person.Store(name)
		said := model.begins(name)
		c := r.connect(t, hi("k1"))
		is.Equal(c.outcome(), "kept")
		close(receive(t, said).words)
		text, _ := c.rest()
		is.Equal(text, name)
	}
	person.Store("eve")
	is.Equal(r.call(t, "DELETE", "acme", long("k1")).status, http.StatusNotFound)
}

func testBadKeys(t *testing.T, backend Backend) {
	is := is.New(t)
	model := newModel()
	r := one(t, backend, resume.Settings{}, resume.Options{Engine: model})
	want := rejectedWith(http.StatusBadRequest, "There must be one Idempotency-Key, of 16 to 255 letters, digits, - and _")
	for _, keys := range [][]string{{""}, {"short"}, {"two words and more"}, {"caf\xc3\xa9-caf\xc3\xa9-caf\xc3\xa9"}, {strings.Repeat("k", 256)}, {long("k1"), long("k2")}} {
		is.Equal(r.reply(t.Context(), chat{keys: keys, prompt: "Hi"}), want)
		is.Equal(r.call(t, "DELETE", "acme", keys...), want)
	}
	is.Equal(r.call(t, "DELETE", "acme"), want)
	is.Equal(model.asked(), 0)
}

// testWithoutKey checks that without a key the model stops when the client
// disconnects.
func testWithoutKey(t *testing.T, backend Backend) {
	is := is.New(t)
	model := newModel()
	reports := make(chan resume.Report, 1)
	r := one(t, backend, resume.Settings{}, resume.Options{Engine: model, OnAnswer: func(_ context.Context, r resume.Report) { reports <- r }})
	said := model.begins("one")
	c := r.connect(t, chat{prompt: "Hi"})
	is.Equal(c.outcome(), "")
	turn := receive(t, said)
	c.disconnect()
	turn.isOver(t)
	is.True(errors.Is(turn.cause, botapi.ErrClientLeft))
	report := receive(t, reports)
	is.Equal(report.Outcome, resume.Outcome(""))
	is.True(errors.Is(report.Err, botapi.ErrClientLeft))
	is.Equal(report.Fragments, 1)
}

// testClientsReturn has clients read some of their answers, disconnect, and
// return to any replica, several times and up to the end.
func testClientsReturn(t *testing.T, backend Backend) {
	const clients, fragments = 60, 40
	textOf := func(prompt string) (text string) {
		for i := range fragments {
			text += fmt.Sprintf("%s/%d ", prompt, i)
		}
		return text
	}
	gates := make(map[string]chan struct{}) // an answer pauses in its middle until its gate is opened
	for i := range clients {
		gates[fmt.Sprint("p", i)] = make(chan struct{})
	}
	var asked atomic.Int64
	engine := botapi.ChatEngineFunc(func(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			asked.Add(1)
			prompt := req.Messages[0].Content
			for i := range fragments {
				if i == fragments/2 {
					select {
					case <-gates[prompt]:
					case <-ctx.Done():
						return
					}
				}
				if !yield(fmt.Sprintf("%s/%d ", prompt, i), nil) {
					return
				}
			}
		}
	})
	replicas := three(t, backend, resume.Settings{}, resume.Options{Engine: engine})
	var all sync.WaitGroup
	for i := range clients {
		prompt := fmt.Sprint("p", i)
		all.Go(func() {
			c := chat{keys: []string{long("key-" + prompt)}, prompt: prompt}
			for drop := range 3 {
				ctx, disconnect := context.WithTimeout(t.Context(), patience)
				defer disconnect()
				response, err := replicas[(i+drop)%3].send(ctx, c)
				if err != nil {
					t.Error(err)
					return
				}
				reader := newClient(response, disconnect)
				if drop == 2 {
					close(gates[prompt])
					if text, end := reader.rest(); text != textOf(prompt) || end != "[DONE]" {
						t.Errorf("the answer is incomplete: %q, then %s", text, end)
					}
					return
				}
				var text string
				for range i % (fragments / 2) {
					next, _ := reader.next()
					text += next
				}
				disconnect()
				response.Body.Close()
				if !strings.HasPrefix(textOf(prompt), text) {
					t.Errorf("the answer began as %q", text)
				}
			}
		})
	}
	all.Wait()
	if asked.Load() != clients {
		t.Errorf("the model was asked %d times for %d answers", asked.Load(), clients)
	}
}

// testNobodyComesBack abandons an answer for longer than it may continue.
func testNobodyComesBack(t *testing.T, backend Backend) {
	is := is.New(t)
	model := newModel()
	reports := make(chan resume.Report, 2)
	replicas := three(t, backend, resume.Settings{Abandon: time.Second, Lease: 600 * time.Millisecond},
		resume.Options{Engine: model, OnAnswer: func(_ context.Context, r resume.Report) { reports <- r }})
	said := model.begins("one")
	last := replicas[0].connect(t, hi("k1"))
	turn := receive(t, said)
	last.disconnect()
	last = replicas[1].connect(t, hi("k1"))
	time.Sleep(1500 * time.Millisecond) // longer than it continues alone
	turn.say(t, "two")
	is.Equal(first(last.next()), "one")
	last.disconnect()
	turn.isOver(t)
	is.True(errors.Is(turn.cause, resume.ErrAbandoned))
	is.True(errors.Is(receive(t, reports).Err, resume.ErrAbandoned))
	go func() {
		anew := <-model.begun
		close(anew.words)
	}()
	eventually(t, "the next chat starts anew", func() bool { // too early a chat gets the end of the first answer
		return replicas[2].reply(t.Context(), hi("k1")).body == "data: [DONE]"
	})
	is.Equal(model.asked(), 2)
}

func first(text string, _ bool) string { return text }

func statusOf(err error) int {
	response, ok := errors.AsType[*botapi.StatusError](err)
	if !ok {
		return 0
	}
	return response.Status
}

// testStop stops an answer whose model is silent, from another replica. With such
// a long lease, its own replica learns of it only by the news.
func testStop(t *testing.T, backend Backend) {
	is := is.New(t)
	model := newModel()
	replicas := three(t, backend, resume.Settings{Lease: time.Hour}, resume.Options{Engine: model})
	key := long("k1")
	is.Equal(replicas[0].call(t, "DELETE", "acme", key), rejectedWith(http.StatusNotFound, "Answer not found"))

	said := model.begins("one")
	here, elsewhere := replicas[0].connect(t, hi("k1")), replicas[1].connect(t, hi("k1"))
	is.Equal(first(here.next()), "one")
	is.Equal(first(elsewhere.next()), "one")
	turn := receive(t, said)

	is.Equal(replicas[2].call(t, "PUT", "acme", key), rejectedWith(http.StatusMethodNotAllowed, "Method Not Allowed"))
	is.Equal(replicas[2].call(t, "DELETE", "", key), rejectedWith(http.StatusUnauthorized, "Not authenticated"))
	is.Equal(replicas[2].call(t, "DELETE", "wrong", key), rejectedWith(http.StatusUnauthorized, "Invalid API key"))
	is.Equal(replicas[2].call(t, "DELETE", "other", key).status, http.StatusNotFound)
	is.Equal(replicas[2].call(t, "DELETE", "acme", key), reply{http.StatusNoContent, "", ""})
	turn.isOver(t)
	is.Equal(statusOf(turn.cause), http.StatusGone)
	for _, reader := range []*client{here, elsewhere} {
		_, end := reader.rest()
		is.Equal(end, "The answer was stopped")
	}
	is.Equal(replicas[2].call(t, "DELETE", "acme", key).status, http.StatusNoContent) // again
	for _, r := range replicas {
		is.Equal(r.reply(t.Context(), hi("k1")), rejectedWith(http.StatusGone, "The answer was stopped"))
	}
	is.Equal(model.asked(), 1)

	said = model.begins("complete")
	c := replicas[0].connect(t, hi("k2"))
	close(receive(t, said).words)
	c.rest()
	eventually(t, "it is complete", func() bool { all, _ := replicas[0].InProgress(); return all == 0 })
	is.Equal(replicas[2].call(t, "DELETE", "acme", long("k2")).status, http.StatusNoContent)
	text, _ := replicas[1].connect(t, hi("k2")).rest()
	is.Equal(text, "complete") // which an end does not change
}

// testFailures fails before the first fragment: the request that asked and the
// one that joined get the same response, and the next chat under the key asks the
// model again.
func testFailures(t *testing.T, backend Backend) {
	for name, c := range map[string]struct {
		err  error
		want reply
	}{
		"a status":   {&botapi.StatusError{Status: 429, Detail: "Later", RetryAfter: 90 * time.Second}, reply{429, `{"detail":"Later"}`, "90"}},
		"validation": {&botapi.HTTPValidationError{Detail: []botapi.ValidationError{{Loc: []any{"body", "messages", 3}, Msg: "no", Type: "t"}}}, reply{422, `{"detail":[{"loc":["body","messages",3],"msg":"no","type":"t"}]}`, ""}},
		"any other":  {errors.New("SECRET"), rejectedWith(500, "Internal Server Error")},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			model := newModel()
			replicas := three(t, backend, resume.Settings{Lease: 3 * time.Second}, resume.Options{Engine: model})
			said := model.begins("") // an empty fragment makes a stream begin
			here := replicas[0].connect(t, hi("k1"))
			turn := receive(t, said)
			elsewhere := replicas[1].connect(t, hi("k1"))
			turn.fails <- c.err
			_, end := here.rest()
			_, other := elsewhere.rest()
			is.Equal(end, other)

			again := replicas[1].inBackground(t, hi("k1"))
			model.next(t).fails <- c.err
			is.Equal(receive(t, again), c.want)
			is.Equal(model.asked(), 2)
		})
	}
}

// testBadEngines checks that such engines do not crash the process.
func testBadEngines(t *testing.T, backend Backend) {
	for name, engine := range map[string]botapi.ChatEngineFunc{
		"panic": func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] { panic("SECRET") },
		"panic later": func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
			return func(func(string, error) bool) { panic("SECRET") }
		},
		"no iterator": func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] { return nil },
		"a fragment after an error": func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				if yield("", errors.New("a")) {
					yield("b", nil)
				}
			}
		},
		"more after an error, whatever yield says": func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				yield("", errors.New("a"))
				yield("", &botapi.StatusError{Status: 418, Detail: "Tea"})
				yield("b", nil)
				panic("SECRET")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			r := one(t, backend, resume.Settings{}, resume.Options{Engine: engine})
			is.Equal(r.reply(t.Context(), hi("k1").asJSON()), rejectedWith(500, "Internal Server Error"))
		})
	}
}

// testAborted has an engine abort the connection: that of each client, on each replica.
func testAborted(t *testing.T, backend Backend) {
	for name, abort := range map[string]func(yield func(string, error) bool){
		"yielded": func(yield func(string, error) bool) { yield("", http.ErrAbortHandler) },
		"panic":   func(func(string, error) bool) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			goOn := make(chan struct{})
			reports := make(chan resume.Report, 1)
			replicas := three(t, backend, resume.Settings{}, resume.Options{
				OnAnswer: func(_ context.Context, r resume.Report) { reports <- r },
				Engine: botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
					return func(yield func(string, error) bool) {
						yield("one", nil)
						<-goOn
						abort(yield)
					}
				}),
			})
			var readers []*client
			for _, r := range replicas {
				readers = append(readers, r.connect(t, hi("k1")))
			}
			close(goOn)
			for _, reader := range readers {
				text, end := reader.rest()
				is.Equal(text, "one")
				is.Equal(end, "aborted") // without an error event
			}
			is.Equal(receive(t, reports).Err, http.ErrAbortHandler)
		})
	}
}

// A stoppingStore stops each complete answer between its last fragment and its end.
type stoppingStore struct{ resume.Store }

func (s stoppingStore) End(ctx context.Context, r resume.Ref, fragments int, e resume.Ending) (resume.State, error) {
	if e.Status == 0 {
		if _, err := s.Stop(ctx, r.Owner, r.Key); err != nil {
			return "", err
		}
	}
	return s.Store.End(ctx, r, fragments, e)
}

// testStopBeforeEnd stops an answer when its model has returned, and the store does not know
// it yet: all learn the same.
func testStopBeforeEnd(t *testing.T, backend Backend) {
	is := is.New(t)
	model := newModel()
	reports := make(chan resume.Report, 1)
	r := serve(t, resume.Options{
		Engine:   model,
		Store:    stoppingStore{backend(t, patient(resume.Settings{}))()},
		OnAnswer: func(_ context.Context, r resume.Report) { reports <- r },
	})
	said := model.begins("one")
	c := r.connect(t, hi("k1"))
	close(receive(t, said).words)
	_, end := c.rest()
	is.Equal(end, "The answer was stopped")
	is.True(errors.Is(receive(t, reports).Err, resume.ErrStopped))
	is.Equal(r.reply(t.Context(), hi("k1")), rejectedWith(http.StatusGone, "The answer was stopped"))
	is.Equal(model.asked(), 1)
}

func testTimeouts(t *testing.T, backend Backend) {
	for name, c := range map[string]struct {
		options resume.Options
		cause   error
	}{
		"of the answer": {resume.Options{ChatTimeout: 300 * time.Millisecond}, botapi.ErrChatTimeout},
		"of silence":    {resume.Options{StallTimeout: 100 * time.Millisecond, ChatTimeout: time.Minute}, botapi.ErrEngineStalled},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			model := newModel()
			c.options.Engine = model
			r := one(t, backend, resume.Settings{}, c.options)
			answer := r.inBackground(t, hi("k1").asJSON())
			turn := model.next(t)
			turn.say(t, "one")
			is.Equal(receive(t, answer), rejectedWith(http.StatusGatewayTimeout, "The answer took too long"))
			turn.isOver(t)
			is.True(errors.Is(turn.cause, c.cause)) // as from botapi itself
		})
	}
}

// testRunningLimit has more answers begun, abandoned and repeated than may run.
func testRunningLimit(t *testing.T, backend Backend) {
	is := is.New(t)
	model := newModel()
	replicas := three(t, backend, resume.Settings{RunningPerOwner: 2, Running: 3}, resume.Options{Engine: model})
	busy := rejectedWith(http.StatusTooManyRequests, "Too many answers in progress for this key")
	begin := func(account, key string) *turn {
		said := model.begins("one")
		replicas[0].connect(t, hi(key).as(account)).disconnect()
		return receive(t, said)
	}
	one := begin("acme", "k1")
	begin("acme", "k2")
	for i := range 3 {
		is.Equal(replicas[i].reply(t.Context(), hi("k3")), busy)
		is.Equal(replicas[i].connect(t, hi("k2")).outcome(), "joined")
	}
	begin("other", "k1")
	is.Equal(replicas[1].reply(t.Context(), hi("k2").as("other")), busy) // of all owners
	close(one.words)
	one.isOver(t)
	eventually(t, "the slot is free", func() bool {
		replies := replicas[2].inBackground(t, hi("k3").asJSON())
		select {
		case turn := <-model.begun:
			close(turn.words)
			return receive(t, replies).status == http.StatusOK
		case got := <-replies:
			is.Equal(got, busy)
			return false
		}
	})
	is.Equal(model.asked(), 4)
}

// testAfterTheEnd has a client that may have one model running send its next request as
// soon as it has an answer: the answer stays complete, and its model does not count.
func testAfterTheEnd(t *testing.T, backend Backend) {
	is := is.New(t)
	engine := botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) { yield("one", nil) }
	})
	replica := one(t, backend, resume.Settings{RunningPerOwner: 1}, resume.Options{Engine: engine})
	for i := range 50 {
		c := hi(fmt.Sprint("k", i))
		for _, outcome := range []string{"kept", "joined"} {
			reader := replica.connect(t, c)
			is.Equal(reader.outcome(), outcome)
			text, end := reader.rest()
			is.Equal(text+end, "one[DONE]")
			is.Equal(replica.call(t, "DELETE", "acme", c.keys...).status, http.StatusNoContent)
		}
	}
}

// testEngineThatStays has an engine that ignores its cancellation. It counts
// until it returns.
func testEngineThatStays(t *testing.T, backend Backend) {
	is := is.New(t)
	stay, begun := make(chan struct{}), make(chan struct{}, 2)
	engine := botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			begun <- struct{}{}
			yield("one", nil)
			<-stay
		}
	})
	var returned atomic.Int64
	r := one(t, backend, resume.Settings{RunningPerOwner: 1, Lease: 300 * time.Millisecond, Keep: 100 * time.Millisecond},
		resume.Options{Engine: engine, OnAnswer: func(context.Context, resume.Report) { returned.Add(1) }})
	c := r.connect(t, hi("k1"))
	receive(t, begun)
	is.Equal(r.call(t, "DELETE", "acme", long("k1")).status, http.StatusNoContent)
	_, end := c.rest()
	is.Equal(end, "The answer was stopped")
	time.Sleep(time.Second) // the answer is forgotten
	is.Equal(r.reply(t.Context(), hi("k1")).status, http.StatusTooManyRequests)
	is.Equal(returned.Load(), int64(0))
	close(stay)
	eventually(t, "the slot is free", func() bool { return r.reply(t.Context(), hi("k2")).status == http.StatusOK })
}

// testNoRoom has room for two running answers.
func testNoRoom(t *testing.T, backend Backend) {
	for name, settings := range map[string]resume.Settings{
		"of all":      {AllBytes: 2 * resume.LeastRunning, Keep: time.Second},
		"of an owner": {OwnerBytes: 2 * resume.LeastRunning, Keep: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			model := newModel()
			r := one(t, backend, settings, resume.Options{Engine: model})
			begin := func(c chat) (outcome string, said *turn, reader *client) {
				begun := model.begins("one")
				reader = r.connect(t, c)
				return reader.outcome(), receive(t, begun), reader
			}
			outcome, one, first := begin(hi("k1"))
			is.Equal(outcome, "kept")
			outcome, two, second := begin(hi("k2"))
			is.Equal(outcome, "kept")
			outcome, _, _ = begin(hi("k3"))
			is.Equal(outcome, "not-kept")
			outcome, _, _ = begin(hi("k3").as("other"))
			is.Equal(outcome == "kept", settings.OwnerBytes > 0)
			close(one.words)
			close(two.words)
			for _, reader := range []*client{first, second} {
				_, end := reader.rest()
				is.Equal(end, "[DONE]")
			}
			eventually(t, "they are forgotten", func() bool {
				outcome, said, _ := begin(hi(fmt.Sprint("k-", model.asked())))
				close(said.words)
				return outcome == "kept"
			})
		})
	}
}

// testOutgrown has an answer outgrow its room. Who follows it goes on, at the
// pace of the slowest; who comes later starts anew.
func testOutgrown(t *testing.T, backend Backend) {
	is := is.New(t)
	model := newModel()
	r := one(t, backend, resume.Settings{AnswerBytes: 20_000}, resume.Options{Engine: model})
	said := model.begins("one")
	c := r.connect(t, hi("k1"))
	turn := receive(t, said)
	long := strings.Repeat("x", 3000)
	for range 10 {
		turn.say(t, long)
	}
	eventually(t, "it is not kept", func() bool {
		asked := model.asked()
		go func() { // answers only if it is asked
			select {
			case anew := <-model.begun:
				close(anew.words)
			case <-time.After(100 * time.Millisecond):
			}
		}()
		ctx, leave := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer leave()
		r.reply(ctx, hi("k1"))
		return model.asked() > asked
	})
	for range 10 {
		turn.say(t, long)
	}
	close(turn.words)
	text, end := c.rest()
	is.Equal(len(text), len("one")+20*len(long))
	is.Equal(end, "[DONE]")
}

// testStopOutgrown stops an answer that has outgrown its room.
func testStopOutgrown(t *testing.T, backend Backend) {
	is := is.New(t)
	model := newModel()
	r := one(t, backend, resume.Settings{AnswerBytes: 20_000}, resume.Options{Engine: model})
	said := model.begins("one")
	c := r.connect(t, hi("k1"))
	turn := receive(t, said)
	for range 10 {
		turn.say(t, strings.Repeat("x", 3000))
	}
	time.Sleep(100 * time.Millisecond) // it has outgrown its room, or will soon
	is.Equal(r.call(t, "DELETE", "acme", long("k1")).status, http.StatusNoContent)
	turn.isOver(t)
	_, end := c.rest()
	is.Equal(end, "The answer was stopped")

	said = model.begins("one")
	c = r.connect(t, hi("k2"))
	turn = receive(t, said)
	for range 10 {
		turn.say(t, strings.Repeat("x", 3000))
	}
	close(turn.words)
	_, end = c.rest()
	is.Equal(end, "[DONE]")
	is.Equal(r.call(t, "DELETE", "acme", long("k2")).status, http.StatusNotFound) // it is complete, and is not kept
}

// testOutgrownEnds ends an answer that has outgrown its room. Those who have its beginning
// can still read it; its key leads to nothing that could be stopped.
func testOutgrownEnds(t *testing.T, backend Backend) {
	is := is.New(t)
	store := backend(t, resume.Settings{AnswerBytes: 20_000})()
	outgrow := func(id string) resume.Ref {
		r := resume.Ref{Owner: "acme", Key: "k1", ID: id}
		found, err := store.Claim(t.Context(), resume.Claim{Ref: r, Body: "body"})
		is.NoErr(err)
		is.Equal(found.State, resume.Started)
		for i, text := range []string{"one", strings.Repeat("x", 20_000)} {
			_, err := store.Add(t.Context(), r, i, []string{text}, true)
			is.NoErr(err)
		}
		return r
	}
	end := func(r resume.Ref, e resume.Ending) resume.State {
		ended, err := store.End(t.Context(), r, 1, e)
		is.NoErr(err)
		return ended
	}
	for id, e := range map[string]resume.Ending{"complete": {}, "failed": {Status: 503, Detail: "No model"}} {
		r := outgrow(id)
		for range 2 {
			is.Equal(end(r, e), resume.Lost)
		}
		found, err := store.Stop(t.Context(), "acme", "k1")
		is.NoErr(err)
		is.True(!found)
		part, err := store.Read(t.Context(), r, "", 0)
		is.NoErr(err)
		is.Equal(part, resume.Part{Texts: []string{"one"}, State: resume.Outgrown}) // its text is cut: not the model's error
	}

	r := outgrow("stopped")
	found, err := store.Stop(t.Context(), "acme", "k1")
	is.NoErr(err)
	is.True(found)
	is.Equal(end(r, resume.Ending{}), resume.Stopped) // its readers learn of the stop
}

// testStalledReader has a reader that does not read keep its slot for longer than
// a lease.
func testStalledReader(t *testing.T, backend Backend) {
	is := is.New(t)
	model := newModel()
	replicas := three(t, backend, resume.Settings{Readers: 1, AnswerBytes: 20 << 20, Lease: 600 * time.Millisecond}, resume.Options{Engine: model})
	said := model.begins("one")
	replicas[0].connect(t, hi("k1"))
	turn := receive(t, said)
	is.Equal(replicas[1].connect(t, hi("k1")).outcome(), "joined")
	for range 160 { // more than all buffers hold
		turn.say(t, strings.Repeat("x", 64<<10))
	}
	time.Sleep(1500 * time.Millisecond)
	is.Equal(replicas[2].reply(t.Context(), hi("k1")), rejectedWith(http.StatusTooManyRequests, "Too many clients follow this answer"))
}

// testReaders has an owner follow answers as often as it may.
func testReaders(t *testing.T, backend Backend) {
	is := is.New(t)
	model := newModel()
	replicas := three(t, backend, resume.Settings{Readers: 2, ReadersPerOwner: 3, Lease: 1500 * time.Millisecond}, resume.Options{Engine: model})
	n := 0
	anywhere := func() replica { n++; return replicas[n%3] }
	begin := func(account, key string) {
		said := model.begins("one")
		is.Equal(anywhere().connect(t, hi(key).as(account)).outcome(), "kept")
		receive(t, said)
	}
	join := func(key string) *client { return anywhere().connect(t, hi(key)) }
	crowded := rejectedWith(http.StatusTooManyRequests, "Too many clients follow this answer")
	begin("acme", "k1")
	begin("acme", "k2")
	leaves := join("k1")
	is.Equal(leaves.outcome(), "joined")
	join("k1")
	is.Equal(anywhere().reply(t.Context(), hi("k1")), crowded)
	join("k2")
	is.Equal(anywhere().reply(t.Context(), hi("k2")), crowded) // of the owner
	time.Sleep(2 * time.Second)                                // longer than the lease of an unused slot
	is.Equal(anywhere().reply(t.Context(), hi("k1")), crowded)
	begin("other", "k1")
	is.Equal(anywhere().connect(t, hi("k1").as("other")).outcome(), "joined")
	leaves.disconnect()
	eventually(t, "a client that disconnects releases its slot", func() bool { return join("k2").outcome() == "joined" })
	is.Equal(model.asked(), 3)
}

// testJoinedTooOften has one client return again and again.
func testJoinedTooOften(t *testing.T, backend Backend) {
	is := is.New(t)
	model := newModel()
	r := one(t, backend, resume.Settings{}, resume.Options{Engine: model})
	c := hi("k1").asJSON()
	complete := r.inBackground(t, c)
	close(model.next(t).words)
	receive(t, complete)
	joined, began := 0, time.Now()
	last := r.reply(t.Context(), c)
	for ; last.status == http.StatusOK; last = r.reply(t.Context(), c) {
		joined++
	}
	is.Equal(last, rejectedWith(http.StatusTooManyRequests, "Too many requests for this answer"))
	is.True(joined >= resume.JoinBurst && joined <= resume.JoinBurst+int(time.Since(began)/time.Second)+1)
	eventually(t, "it may again", func() bool { return r.reply(t.Context(), c).status == http.StatusOK })
	is.Equal(model.asked(), 1)
}

// testSlowReader has clients that do not read an answer, which is longer than all
// buffers hold. They do not slow down the model, nor others.
func testSlowReader(t *testing.T, backend Backend) {
	is := is.New(t)
	const fragment, fragments = 64 << 10, 200
	model := newModel()
	replicas := three(t, backend, resume.Settings{AnswerBytes: 20 << 20}, resume.Options{Engine: model})
	said := model.begins("one")
	replicas[0].connect(t, hi("k1"))
	replicas[1].connect(t, hi("k1"))
	turn := receive(t, said)
	for range fragments {
		turn.say(t, strings.Repeat("x", fragment))
	}
	close(turn.words)
	turn.isOver(t)
	text, end := replicas[2].connect(t, hi("k1")).rest()
	is.Equal(end, "[DONE]")
	is.Equal(len(text), len("one")+fragment*fragments)
}

// testSharedSlot has a client come back, and a second one come, whose answer has the only
// slot, of its account or of all. Nobody is disconnected. Then it stops the answer.
func testSharedSlot(t *testing.T, backend Backend) {
	for name, c := range map[string]struct {
		limit    func(*botapi.Options)
		rejected reply
	}{
		"of an account": {func(o *botapi.Options) { o.MaxChatsPerAccount = 1 }, rejectedWith(http.StatusTooManyRequests, "Too many chats in progress for this key")},
		"of all":        {func(o *botapi.Options) { o.MaxConcurrentChats = 1 }, rejectedWith(http.StatusServiceUnavailable, "Too many chats in progress")},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			model := newModel()
			r := one(t, backend, resume.Settings{}, resume.Options{Engine: model}, c.limit)
			said := model.begins("one")
			tab := r.connect(t, hi("k1"))
			turn := receive(t, said)
			readers := []*client{tab, r.connect(t, hi("k1")), r.connect(t, hi("k1"))}
			is.Equal(readers[2].outcome(), "joined")
			other := hi("k1")
			other.prompt = "Hello"
			is.Equal(r.reply(t.Context(), other), rejectedWith(http.StatusConflict, "Another chat has this Idempotency-Key"))
			is.Equal(r.reply(t.Context(), hi("k2")), c.rejected) // another key shares nothing
			turn.say(t, "two")
			for _, reader := range readers {
				for _, word := range []string{"one", "two"} {
					is.Equal(first(reader.next()), word)
				}
			}
			for _, reader := range readers {
				reader.disconnect()
			}
			back := r.connect(t, hi("k1"))
			is.Equal(back.outcome(), "joined")
			is.Equal(r.reply(t.Context(), hi("k2")), c.rejected) // the answer keeps its slot
			is.Equal(r.call(t, "DELETE", "acme", long("k1")).status, http.StatusNoContent)
			turn.isOver(t)
			_, end := back.rest()
			is.Equal(end, "The answer was stopped")
			model.begins("next")
			eventually(t, "the slot is free", func() bool {
				ctx, leave := context.WithTimeout(t.Context(), patience)
				defer leave()
				response, err := r.send(ctx, hi("k2"))
				is.NoErr(err)
				defer response.Body.Close()
				return response.StatusCode == http.StatusOK
			})
			is.Equal(model.asked(), 2)
		})
	}
}

// testAdmit has a chat rejected that could start an answer: it can still join
// one.
func testAdmit(t *testing.T, backend Backend) {
	is := is.New(t)
	model := newModel()
	var over atomic.Bool
	r := one(t, backend, resume.Settings{}, resume.Options{Engine: model, Admit: func(context.Context, *botapi.ChatRequest) error {
		if over.Load() {
			return &botapi.StatusError{Status: 429, Detail: "Over the quota", RetryAfter: time.Second}
		}
		return nil
	}})
	said := model.begins("one")
	r.connect(t, hi("k1"))
	receive(t, said)
	over.Store(true)
	is.Equal(r.reply(t.Context(), hi("k2")), rejectedWith(429, "Over the quota"))
	is.Equal(r.connect(t, hi("k1")).outcome(), "joined")
	is.Equal(model.asked(), 1)
}

// testOnAnswer reports each call of the model once, when it has returned, with the
// values of the request that began it.
func testOnAnswer(t *testing.T, backend Backend) {
	is := is.New(t)
	model := newModel()
	type told struct {
		account   string
		outcome   resume.Outcome
		fragments int
	}
	answers, chats := make(chan told), make(chan told, 10)
	r := one(t, backend, resume.Settings{RunningPerOwner: 1}, resume.Options{Engine: model, OnAnswer: func(ctx context.Context, r resume.Report) {
		answers <- told{botapi.AccountFrom(ctx), r.Outcome, r.Fragments}
		is.NoErr(ctx.Err())
	}}, func(o *botapi.Options) {
		o.OnChat = func(ctx context.Context, r botapi.ChatReport) {
			chats <- told{r.Account, resume.OutcomeFrom(ctx), 0}
		}
	})
	said := model.begins("one")
	c := r.connect(t, hi("k1"))
	turn := receive(t, said)
	r.connect(t, hi("k1")).disconnect()
	is.Equal(receive(t, chats), told{"acme", resume.Joined, 0})
	c.disconnect()
	is.Equal(receive(t, chats), told{"acme", resume.Kept, 0})
	turn.say(t, "two")
	select {
	case <-answers:
		t.Fatal("reported before the model has returned")
	default:
	}
	close(turn.words)
	is.Equal(receive(t, r.inBackground(t, hi("k1"))).status, http.StatusOK) // joins an answer that is over
	is.Equal(receive(t, chats), told{"acme", resume.Joined, 0})

	said = model.begins("next")
	go func() { close((<-said).words) }()
	eventually(t, "the slot is free, although OnAnswer has not returned", func() bool {
		return r.reply(t.Context(), hi("k2")).status == http.StatusOK
	})
	is.Equal(receive(t, answers).outcome, resume.Kept)
	is.Equal(receive(t, answers).outcome, resume.Kept)
}

// testClose waits for an answer without a client, but no longer than its context.
func testClose(t *testing.T, backend Backend) {
	is := is.New(t)
	model := newModel()
	for _, inTime := range []bool{true, false} {
		r := one(t, backend, resume.Settings{}, resume.Options{Engine: model})
		said := model.begins("one")
		c := r.connect(t, hi("k1"))
		turn := receive(t, said)
		c.disconnect()

		within, cancel := context.WithCancel(t.Context())
		closed := make(chan error, 1)
		go func() { closed <- r.Close(within) }()
		turn.say(t, "still")
		if inTime {
			close(turn.words)
		} else {
			cancel()
		}
		is.NoErr(receive(t, closed))
		turn.isOver(t)
		is.Equal(turn.cause == nil, inTime)
		cancel()
		said = model.begins("later")
		c = r.connect(t, hi("k2"))
		is.Equal(c.outcome(), "not-kept")
		close(receive(t, said).words)
		_, end := c.rest()
		is.Equal(end, "[DONE]")
	}
}
