package resume_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/production/internal/redisclient"
	"example.com/botapi/examples/production/internal/redistest"
	"example.com/botapi/examples/production/internal/resume"
	"github.com/matryer/is"
)

// gated is an engine whose answers have 40 fragments, and stop in the middle
// until somebody opens the gate of their prompt.
type gated struct {
	gates map[string]chan struct{}
	asked map[string]*atomic.Int64
}

const gatedFragments = 40

func gatedText(prompt string) (text string) {
	for i := range gatedFragments {
		text += fmt.Sprintf("%s/%d ", prompt, i)
	}
	return text
}

func (g *gated) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		prompt := req.Messages[0].Content
		g.asked[prompt].Add(1)
		for i := range gatedFragments {
			if i == gatedFragments/2 {
				select {
				case <-g.gates[prompt]:
				case <-ctx.Done():
					return
				}
			}
			if !yield(fmt.Sprintf("%s/%d ", prompt, i), nil) {
				return
			}
		}
	}
}

// TestClientsDropAndReturn has 200 clients read some of their answers, leave,
// and come back to any replica, several times and up to the end.
func TestClientsDropAndReturn(t *testing.T) {
	const clients = 200
	model := &gated{gates: make(map[string]chan struct{}), asked: make(map[string]*atomic.Int64)}
	for i := range clients {
		prompt := fmt.Sprint("p", i)
		model.gates[prompt], model.asked[prompt] = make(chan struct{}), new(atomic.Int64)
	}
	replicas := three(t, redistest.NewServer(t), resume.Options{Engine: model})
	var all sync.WaitGroup
	for i := range clients {
		prompt := fmt.Sprint("p", i)
		all.Go(func() {
			if err := dropAndReturn(t.Context(), replicas, prompt, model.gates[prompt]); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for prompt, asked := range model.asked {
		if asked.Load() != 1 {
			t.Errorf("the model was asked %d times for %s", asked.Load(), prompt)
		}
	}
}

func dropAndReturn(ctx context.Context, replicas [3]replica, prompt string, gate chan struct{}) error {
	drops := 1 + rand.IntN(3)
	opens := rand.IntN(drops + 1) // on which connection the gate opens
	for drop := range drops + 1 {
		ctx, leave := context.WithTimeout(ctx, patience)
		response, err := replicas[rand.IntN(3)].send(ctx, chat{keys: []string{"key-" + prompt}, prompt: prompt})
		if err != nil {
			leave()
			return err
		}
		c := newClient(response, leave)
		limit := gatedFragments / 2 // as much as there is
		if drop == opens {
			close(gate)
		}
		if drop >= opens {
			limit = gatedFragments
		}
		if drop < drops {
			var texts []string
			for range rand.IntN(limit) {
				text, _ := c.next()
				texts = append(texts, text)
			}
			leave()
			response.Body.Close()
			if text := strings.Join(texts, ""); !strings.HasPrefix(gatedText(prompt), text) {
				return fmt.Errorf("the answer began as %q", text)
			}
			continue
		}
		texts, end := c.rest()
		leave()
		if text := strings.Join(texts, ""); text != gatedText(prompt) || end != "[DONE]" {
			return fmt.Errorf("the answer is not whole: %q, then %s", text, end)
		}
	}
	return nil
}

// TestJoin follows one answer on two replicas while it is under way, and again
// when it is whole.
func TestJoin(t *testing.T) {
	is := is.New(t)
	model := newModel()
	replicas := three(t, redistest.NewServer(t), resume.Options{Engine: model})
	c := chat{keys: []string{"k1"}, prompt: "Hi"}
	var followers []*client
	said := model.begins("one")
	for _, r := range []replica{replicas[0], replicas[0], replicas[1]} {
		followers = append(followers, r.connect(t, c))
	}
	turn := receive(t, said)
	turn.say(t, "", "two", "caf\xc3", "\xa9")
	close(turn.words)
	for _, r := range append([]replica{}, replicas[:]...) {
		followers = append(followers, r.connect(t, c))
	}
	for _, follower := range followers {
		texts, end := follower.rest()
		is.Equal(strings.Join(texts, ""), "onetwocafé")
		is.Equal(end, "[DONE]")
	}
	is.Equal(model.asked(), 1)
}

func TestOneBody(t *testing.T) {
	is := is.New(t)
	model := newModel()
	replicas := three(t, redistest.NewServer(t), resume.Options{Engine: model})
	c := chat{keys: []string{"k1"}, prompt: "Hi", oneBody: true}
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

// TestScope takes the same key for other bodies and for another account.
func TestScope(t *testing.T) {
	is := is.New(t)
	model := newModel()
	replicas := three(t, redistest.NewServer(t), resume.Options{Engine: model})
	c := chat{keys: []string{"k1"}, prompt: "SECRET", oneBody: true}
	first := replicas[0].inBackground(t, c)
	turn := model.next(t)

	conflict := reply{http.StatusConflict, `{"detail":"Another chat has this Idempotency-Key"}`, ""}
	is.Equal(replicas[1].reply(t.Context(), chat{keys: c.keys, prompt: "Hello"}), conflict)
	turn.say(t, "SECRET answer")
	close(turn.words)
	is.Equal(receive(t, first).status, http.StatusOK)
	is.Equal(replicas[1].reply(t.Context(), chat{keys: c.keys, prompt: "Hello"}), conflict)  // also when it is over
	is.Equal(replicas[1].reply(t.Context(), chat{keys: c.keys, prompt: "SECRET"}), conflict) // a stream is another body

	c.account = "emca"
	other := replicas[1].inBackground(t, c)
	turn = model.next(t)
	turn.say(t, "their own")
	close(turn.words)
	is.Equal(receive(t, other), reply{http.StatusOK, `{"content":"their own"}`, ""})
	is.Equal(model.asked(), 2)
}

func TestBadKeys(t *testing.T) {
	is := is.New(t)
	model := newModel()
	r := serve(t, redistest.NewServer(t).Client(t), resume.Options{Engine: model})
	for _, keys := range [][]string{{""}, {"two words"}, {"caf\xc3\xa9"}, {strings.Repeat("k", 256)}, {"k1", "k2"}} {
		got := r.reply(t.Context(), chat{keys: keys, prompt: "Hi"})
		is.Equal(got, reply{http.StatusBadRequest, `{"detail":"An Idempotency-Key has 1 to 255 visible ASCII characters, and there is one at most"}`, ""})
	}
	is.Equal(r.call(t, "DELETE", "/answers/", "acme").status, http.StatusBadRequest)
	is.Equal(r.call(t, "DELETE", "/answers/"+strings.Repeat("k", 256), "acme").status, http.StatusBadRequest)
	is.Equal(model.asked(), 0)
}

// TestWithoutKey is how it was before: who leaves stops the model.
func TestWithoutKey(t *testing.T) {
	is := is.New(t)
	model := newModel()
	r := serve(t, redistest.NewServer(t).Client(t), resume.Options{Engine: model})
	ctx, leave := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		if response, err := r.send(ctx, chat{prompt: "Hi"}); err == nil {
			response.Body.Close()
		}
	}()
	turn := model.next(t)
	leave()
	turn.isOver(t)
	is.True(errors.Is(turn.cause, context.Canceled))
	<-gone
}

// TestNobodyComesBack leaves an answer alone for longer than it may go on.
func TestNobodyComesBack(t *testing.T) {
	for name, elsewhere := range map[string]bool{"here": false, "elsewhere": true} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			model := newModel()
			replicas := three(t, redistest.NewServer(t), resume.Options{Engine: model, Within: time.Second, Lease: 600 * time.Millisecond})
			c := chat{keys: []string{"k1"}, prompt: "Hi"}
			said := model.begins("one")
			last := replicas[0].connect(t, c)
			turn := receive(t, said)
			if elsewhere {
				last.leave()
				last = replicas[1].connect(t, c)
				time.Sleep(1500 * time.Millisecond) // longer than it goes on alone
				turn.say(t, "two")
			}
			is.Equal(first(last.next()), "one")
			last.leave()
			left := time.Now()
			turn.isOver(t)
			is.True(time.Since(left) > 400*time.Millisecond) // a second after whoever was last seen, within a look
			is.True(errors.Is(turn.cause, botapi.ErrClientLeft))

			go func() {
				anew := <-model.begun
				close(anew.words)
			}()
			eventually(t, "the next chat starts anew", func() bool { // who comes too early gets the end of the first
				return replicas[2].reply(t.Context(), c).body == "data: [DONE]\n\n"
			})
			is.Equal(model.asked(), 2)
		})
	}
}

func first(text string, _ bool) string { return text }

func statusOf(err error) int {
	answer, ok := errors.AsType[*botapi.StatusError](err)
	if !ok {
		return 0
	}
	return answer.Status
}

// TestStop stops an answer whose model is silent, from another replica. With so
// long a lease, its own replica learns of it only by the message.
func TestStop(t *testing.T) {
	is := is.New(t)
	model := newModel()
	replicas := three(t, redistest.NewServer(t), resume.Options{Engine: model, Lease: time.Hour})
	c := chat{keys: []string{"a/b?c%d"}, prompt: "Hi"}
	path := "/answers/" + url.PathEscape(c.keys[0])
	is.Equal(replicas[0].call(t, "DELETE", path, "acme"), reply{http.StatusNotFound, `{"detail":"Answer not found"}`, ""})

	said := model.begins("one")
	here, elsewhere := replicas[0].connect(t, c), replicas[1].connect(t, c)
	is.Equal(first(here.next()), "one")
	is.Equal(first(elsewhere.next()), "one")
	turn := receive(t, said)

	is.Equal(replicas[2].call(t, "GET", path, "acme"), reply{http.StatusMethodNotAllowed, `{"detail":"Method Not Allowed"}`, ""})
	is.Equal(replicas[2].call(t, "DELETE", path, ""), reply{http.StatusUnauthorized, `{"detail":"Not authenticated"}`, ""})
	is.Equal(replicas[2].call(t, "DELETE", path, "wrong"), reply{http.StatusUnauthorized, `{"detail":"Invalid API key"}`, ""})
	is.Equal(replicas[2].call(t, "DELETE", path, "other").status, http.StatusNotFound)
	is.Equal(replicas[2].call(t, "DELETE", path, "acme"), reply{http.StatusNoContent, "", ""})
	turn.isOver(t)
	is.Equal(statusOf(turn.cause), http.StatusGone)
	for _, follower := range []*client{here, elsewhere} {
		_, end := follower.rest()
		is.Equal(end, "The answer was stopped")
	}
	is.Equal(replicas[2].call(t, "DELETE", path, "acme").status, http.StatusNoContent) // again
	for _, r := range replicas {
		is.Equal(r.reply(t.Context(), c), reply{http.StatusGone, `{"detail":"The answer was stopped"}`, ""})
	}
	is.Equal(model.asked(), 1)
}

// TestFailures fails before the first fragment: who asked and who joined get the
// same answer, and the next chat under the key asks the model again.
func TestFailures(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want reply
	}{
		"a status":   {&botapi.StatusError{Status: 429, Detail: "Later", RetryAfter: 90 * time.Second}, reply{429, `{"detail":"Later"}`, "90"}},
		"validation": {&botapi.HTTPValidationError{Detail: []botapi.ValidationError{{Loc: []any{"body", "messages", 3}, Msg: "no", Type: "t"}}}, reply{422, `{"detail":[{"loc":["body","messages",3],"msg":"no","type":"t"}]}`, ""}},
		"any other":  {errors.New("SECRET"), reply{500, `{"detail":"Internal Server Error"}`, ""}},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			model := newModel()
			server := redistest.NewServer(t)
			replicas := three(t, server, resume.Options{Engine: model})
			key := chat{keys: []string{"k1"}, prompt: "Hi"}
			for range 2 {
				here := replicas[0].inBackground(t, key)
				turn := model.next(t)
				elsewhere := replicas[1].inBackground(t, key)
				eventually(t, "it waits for fragments", func() bool {
					return strings.Contains(server.Client(t).Info(t.Context(), "clients").Val(), "blocked_clients:1")
				})
				turn.fails <- c.err
				is.Equal(receive(t, here), c.want)
				is.Equal(receive(t, elsewhere), c.want)
			}
			is.Equal(model.asked(), 2)
		})
	}
}

// TestReplicaThatDies takes its Redis from a replica: to the others it is dead.
func TestReplicaThatDies(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	model := newModel()
	o := resume.Options{Engine: model, Lease: 300 * time.Millisecond}
	connection := server.Client(t)
	dying, living := serve(t, connection, o), serve(t, server.Client(t), o)
	c := chat{keys: []string{"k1"}, prompt: "Hi"}
	said := model.begins("one")
	here, elsewhere := dying.connect(t, c), living.connect(t, c)
	turn := receive(t, said)
	is.Equal(first(elsewhere.next()), "one")
	connection.Close()
	_, end := elsewhere.rest()
	is.Equal(end, "The answer broke off")

	again := living.inBackground(t, chat{keys: c.keys, prompt: "Hi"})
	anew := model.next(t)
	anew.say(t, "two")
	close(anew.words)
	is.Equal(receive(t, again).body, "data: {\"content\":\"two\"}\n\ndata: [DONE]\n\n")

	turn.say(t, "three") // whoever is there still has the answer
	is.Equal(first(here.next()), "one")
	is.Equal(first(here.next()), "three")
	here.leave() // and leaves it as one without a key
	turn.isOver(t)
}

// TestRedisGoesAndComesBack stops Redis and starts it again, empty.
func TestRedisGoesAndComesBack(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	model := newModel()
	r := serve(t, server.Client(t), resume.Options{Engine: model, Lease: 300 * time.Millisecond})
	c := chat{keys: []string{"k1"}, prompt: "Hi"}
	begun := r.inBackground(t, c)
	turn := model.next(t)
	turn.say(t, "one")
	joined := r.connect(t, c)
	server.Stop(t)
	turn.say(t, "two")
	close(turn.words)
	is.Equal(receive(t, begun).body, "data: {\"content\":\"one\"}\n\ndata: {\"content\":\"two\"}\n\ndata: [DONE]\n\n")
	texts, end := joined.rest()
	is.Equal(texts, []string{"one", "two"})
	is.Equal(end, "[DONE]")

	unkept := r.inBackground(t, c) // as without a key
	turn = model.next(t)
	turn.say(t, "three")
	close(turn.words)
	is.Equal(receive(t, unkept).body, "data: {\"content\":\"three\"}\n\ndata: [DONE]\n\n")
	is.Equal(r.call(t, "DELETE", "/answers/k1", "acme"), reply{503, `{"detail":"The service is unavailable for the moment"}`, "1"})

	server.Start(t)
	go func() {
		for turn := range model.begun {
			turn.words <- "four"
			close(turn.words)
		}
	}()
	defer close(model.begun)
	eventually(t, "answers are kept again", func() bool {
		before := model.asked()
		r.reply(t.Context(), chat{keys: []string{"k2"}, prompt: "Hi"})
		return model.asked() == before
	})
}

func TestLongAnswer(t *testing.T) {
	is := is.New(t)
	model := newModel()
	r := serve(t, redistest.NewServer(t).Client(t), resume.Options{Engine: model, AnswerBytes: 1000})
	answer := r.inBackground(t, chat{keys: []string{"k1"}, prompt: "Hi", oneBody: true})
	turn := model.next(t)
	turn.say(t, strings.Repeat("a", 436), strings.Repeat("b", 436), "") // 1,000 bytes and 64
	is.Equal(receive(t, answer), reply{500, `{"detail":"The answer is too long to be kept under an Idempotency-Key"}`, ""})
	turn.isOver(t)
}

// TestManyAnswers has room for two that are under way.
func TestManyAnswers(t *testing.T) {
	is := is.New(t)
	model := newModel()
	r := serve(t, redistest.NewServer(t).Client(t), resume.Options{Engine: model, AnswerBytes: 1000, AllBytes: 2000, Within: time.Second})
	one, two := r.inBackground(t, chat{keys: []string{"1"}, prompt: "Hi"}), r.inBackground(t, chat{keys: []string{"2"}, prompt: "Hi"})
	first, second := model.next(t), model.next(t)
	is.True(!kept(t, r, model, "3")) // one more is answered as if it had no key
	for _, turn := range []*turn{first, second} {
		turn.say(t, strings.Repeat("a", 936))
		close(turn.words)
	}
	receive(t, one)
	receive(t, two)
	is.True(!kept(t, r, model, "4")) // they are as long as they may be
	eventually(t, "they are forgotten", func() bool { return kept(t, r, model, fmt.Sprint("5-", model.asked())) })
}

// kept asks twice under a key, and reports whether the model was asked once.
func kept(t *testing.T, r replica, model *model, key string) bool {
	t.Helper()
	before := model.asked()
	for range 2 {
		answer := r.inBackground(t, chat{keys: []string{key}, prompt: "Hi", oneBody: true})
		select {
		case turn := <-model.begun:
			close(turn.words)
			receive(t, answer)
		case <-answer:
		case <-time.After(patience):
			t.Fatal("no answer")
		}
	}
	return model.asked() == before+1
}

// TestSlowReader has a client that does not read its answer, which is longer
// than any buffer between. It holds nobody back.
func TestSlowReader(t *testing.T) {
	is := is.New(t)
	const fragment, fragments = 64 << 10, 200
	model := newModel()
	replicas := three(t, redistest.NewServer(t), resume.Options{Engine: model, AnswerBytes: 20 << 20})
	c := chat{keys: []string{"k1"}, prompt: "Hi"}
	said := model.begins("one")
	replicas[0].connect(t, c)
	replicas[1].connect(t, c)
	turn := receive(t, said)
	for range fragments {
		turn.say(t, strings.Repeat("x", fragment))
	}
	close(turn.words)
	turn.isOver(t)
	texts, end := replicas[2].connect(t, c).rest()
	is.Equal(end, "[DONE]")
	is.Equal(len(strings.Join(texts, "")), len("one")+fragment*fragments)
}

func TestTimeouts(t *testing.T) {
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
			r := serve(t, redistest.NewServer(t).Client(t), c.options)
			answer := r.inBackground(t, chat{keys: []string{"k1"}, prompt: "Hi", oneBody: true})
			turn := model.next(t)
			turn.say(t, "one")
			is.Equal(receive(t, answer), reply{http.StatusGatewayTimeout, `{"detail":"The answer took too long"}`, ""})
			turn.isOver(t)
			is.True(errors.Is(turn.cause, c.cause)) // as from botapi itself
		})
	}
}

// TestEnginesThatEndBadly must not take the process down.
func TestEnginesThatEndBadly(t *testing.T) {
	for name, engine := range map[string]botapi.ChatEngineFunc{
		"panic": func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] { panic("SECRET") },
		"panic later": func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
			return func(func(string, error) bool) { panic("SECRET") }
		},
		"no iterator": func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] { return nil },
		"a late request": func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) { yield("", errors.New("a")); yield("b", nil) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			r := serve(t, redistest.NewServer(t).Client(t), resume.Options{Engine: engine})
			got := r.reply(t.Context(), chat{keys: []string{"k1"}, prompt: "Hi", oneBody: true})
			is.Equal(got, reply{500, `{"detail":"Internal Server Error"}`, ""})
		})
	}
}

// TestWhenOver reports each request when what it has started is over.
func TestWhenOver(t *testing.T) {
	is := is.New(t)
	model := newModel()
	left, over := make(chan string, 10), make(chan string, 10)
	r := serve(t, redistest.NewServer(t).Client(t), resume.Options{Engine: model}, func(ctx context.Context, report botapi.ChatReport) {
		left <- report.Account
		resume.WhenOver(ctx, func() { over <- report.Account })
	})
	c := chat{keys: []string{"k1"}, prompt: "Hi"}
	said := model.begins("one")
	first := r.connect(t, c)
	turn := receive(t, said)
	r.connect(t, c).leave()
	receive(t, left)
	receive(t, over) // it has started nothing
	first.leave()
	receive(t, left)
	turn.say(t, "two")
	is.Equal(len(over), 0)
	close(turn.words)
	receive(t, over)

	receive(t, r.inBackground(t, c)) // joins what is over
	receive(t, left)
	receive(t, over)
}

// TestClose waits for an answer without a client, and then waits no longer.
func TestClose(t *testing.T) {
	is := is.New(t)
	model := newModel()
	client := redistest.NewServer(t).Client(t)
	for _, inTime := range []bool{true, false} {
		r := serve(t, client, resume.Options{Engine: model})
		c := chat{keys: []string{fmt.Sprint(inTime)}, prompt: "Hi"}
		ctx, leave := context.WithCancel(t.Context())
		go func() { _, _ = r.send(ctx, c) }()
		turn := model.next(t)
		leave()

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

		unkept := r.inBackground(t, chat{keys: []string{"later"}, prompt: "Hi"})
		turn = model.next(t)
		close(turn.words)
		is.Equal(receive(t, unkept).body, "data: [DONE]\n\n")
	}
}

// TestNothingStays looks into Redis when all is over.
func TestNothingStays(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	model := newModel()
	r := serve(t, server.Client(t), resume.Options{Engine: model, Within: 300 * time.Millisecond})
	for i := range 3 {
		answer := r.inBackground(t, chat{keys: []string{fmt.Sprint(i)}, prompt: "SECRET"})
		turn := model.next(t)
		turn.say(t, "one")
		close(turn.words)
		receive(t, answer)
	}
	redis := server.Client(t)
	eventually(t, "only the counts are there", func() bool { return keys(t, redis, "*") == keys(t, redis, "botapi:answers:*") })
	is.True(kept(t, r, model, "another")) // which counts again
	eventually(t, "an answer without fragments is none", func() bool {
		bytes, err := redis.Get(t.Context(), "botapi:answers:bytes").Int()
		return err == nil && bytes == 0
	})
}

func keys(t *testing.T, client *redisclient.Client, pattern string) int {
	t.Helper()
	found, err := client.Keys(t.Context(), pattern).Result()
	if err != nil {
		t.Fatal(err)
	}
	return len(found)
}
