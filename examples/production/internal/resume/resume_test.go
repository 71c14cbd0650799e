package resume_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
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

// gated is an engine whose answers have 40 fragments, and pause in the middle
// until the test opens the gate of their prompt.
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

// TestClientsDropAndReturn has 200 clients read some of their answers,
// disconnect, and return to any replica, several times and up to the end.
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
	opens := rand.IntN(drops + 1) // the connection on which the gate opens
	for drop := range drops + 1 {
		ctx, disconnect := context.WithTimeout(ctx, patience)
		response, err := replicas[rand.IntN(3)].send(ctx, chat{keys: []string{"key-" + prompt}, prompt: prompt})
		if err != nil {
			disconnect()
			return err
		}
		c := newClient(response, disconnect)
		limit := gatedFragments / 2 // all there is before the gate
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
			disconnect()
			response.Body.Close()
			if text := strings.Join(texts, ""); !strings.HasPrefix(gatedText(prompt), text) {
				return fmt.Errorf("the answer began as %q", text)
			}
			continue
		}
		texts, end := c.rest()
		disconnect()
		if text := strings.Join(texts, ""); text != gatedText(prompt) || end != "[DONE]" {
			return fmt.Errorf("the answer is incomplete: %q, then %s", text, end)
		}
	}
	return nil
}

// TestJoin follows one answer on two replicas while it is in progress, and again
// when it is complete.
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

func TestJSONResponse(t *testing.T) {
	is := is.New(t)
	model := newModel()
	replicas := three(t, redistest.NewServer(t), resume.Options{Engine: model})
	c := chat{keys: []string{"k1"}, prompt: "Hi", unstreamed: true}
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

// TestScope uses the same key for other bodies and for another account.
func TestScope(t *testing.T) {
	is := is.New(t)
	model := newModel()
	replicas := three(t, redistest.NewServer(t), resume.Options{Engine: model})
	c := chat{keys: []string{"k1"}, prompt: "SECRET", unstreamed: true}
	first := replicas[0].inBackground(t, c)
	turn := model.next(t)

	conflict := reply{http.StatusConflict, `{"detail":"Another chat has this Idempotency-Key"}`, ""}
	is.Equal(replicas[1].reply(t.Context(), chat{keys: c.keys, prompt: "Hello"}), conflict)
	turn.say(t, "SECRET answer")
	close(turn.words)
	is.Equal(receive(t, first).status, http.StatusOK)
	is.Equal(replicas[1].reply(t.Context(), chat{keys: c.keys, prompt: "Hello"}), conflict)  // also when it is complete
	is.Equal(replicas[1].reply(t.Context(), chat{keys: c.keys, prompt: "SECRET"}), conflict) // a stream is a different body

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
	for id, own := range map[string]bool{"id-1": true, "": false, "two words": false} {
		request := httptest.NewRequestWithContext(t.Context(), "DELETE", "/answers/k1", nil)
		request.Header.Set("X-Request-Id", id)
		answer := httptest.NewRecorder()
		r.Answers(botapi.StaticKeys(map[string]string{"key": "acme"})).ServeHTTP(answer, request)
		is.Equal(answer.Header().Get("X-Request-Id") == id, own)
		is.True(answer.Header().Get("X-Request-Id") != "")
	}
	is.Equal(r.call(t, "DELETE", "/answers/"+strings.Repeat("k", 256), "acme").status, http.StatusBadRequest)
	is.Equal(model.asked(), 0)
}

// TestWithoutKey checks that without a key the model stops when the client
// disconnects.
func TestWithoutKey(t *testing.T) {
	is := is.New(t)
	model := newModel()
	r := serve(t, redistest.NewServer(t).Client(t), resume.Options{Engine: model})
	ctx, disconnect := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if response, err := r.send(ctx, chat{prompt: "Hi"}); err == nil {
			response.Body.Close()
		}
	}()
	turn := model.next(t)
	disconnect()
	turn.isOver(t)
	is.True(errors.Is(turn.cause, context.Canceled))
	<-done
}

// TestNobodyComesBack abandons an answer for longer than it may continue.
func TestNobodyComesBack(t *testing.T) {
	for name, elsewhere := range map[string]bool{"here": false, "elsewhere": true} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			model := newModel()
			replicas := three(t, redistest.NewServer(t), resume.Options{Engine: model, Settings: resume.Settings{Alone: time.Second, Lease: 600 * time.Millisecond}})
			c := chat{keys: []string{"k1"}, prompt: "Hi"}
			said := model.begins("one")
			last := replicas[0].connect(t, c)
			turn := receive(t, said)
			if elsewhere {
				last.disconnect()
				last = replicas[1].connect(t, c)
				time.Sleep(1500 * time.Millisecond) // longer than it continues alone
				turn.say(t, "two")
			}
			is.Equal(first(last.next()), "one")
			last.disconnect()
			disconnected := time.Now()
			turn.isOver(t)
			is.True(time.Since(disconnected) > 400*time.Millisecond) // a second after the last client was seen, within one check
			is.True(errors.Is(turn.cause, botapi.ErrClientLeft))

			go func() {
				anew := <-model.begun
				close(anew.words)
			}()
			eventually(t, "the next chat starts anew", func() bool { // too early a chat gets the end of the first answer
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

// TestStop stops an answer whose model is silent, from another replica. With
// such a long lease, its own replica learns of it only by the message.
func TestStop(t *testing.T) {
	is := is.New(t)
	model := newModel()
	replicas := three(t, redistest.NewServer(t), resume.Options{Engine: model, Settings: resume.Settings{Lease: time.Hour}})
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

// TestFailures fails before the first fragment: the request that asked and the
// one that joined get the same response, and the next chat under the key asks
// the model again.
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
				eventually(t, "it has joined", func() bool { return keys(t, server.Client(t), "botapi:answers:followers:*") == 1 })
				turn.fails <- c.err
				is.Equal(receive(t, here), c.want)
				is.Equal(receive(t, elsewhere), c.want)
			}
			is.Equal(model.asked(), 2)

			outcome := make(chan string, 1)
			go func() {
				response, err := replicas[0].send(t.Context(), key)
				if err != nil {
					outcome <- err.Error()
					return
				}
				defer response.Body.Close()
				outcome <- response.Header.Get(resume.OutcomeHeader)
			}()
			model.next(t).fails <- c.err
			is.Equal(receive(t, outcome), "") // neither kept nor joined
		})
	}
}

// TestReplicaThatDies disconnects a replica from Redis: for the others it is
// dead.
func TestReplicaThatDies(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	model := newModel()
	o := resume.Options{Engine: model, Settings: resume.Settings{Lease: 300 * time.Millisecond}}
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

	turn.say(t, "three") // its own client still has the answer
	is.Equal(first(here.next()), "one")
	is.Equal(first(here.next()), "three")
	here.disconnect() // and when it disconnects, the model stops as without a key
	turn.isOver(t)
}

// TestRedisStopsAndRestarts stops Redis and starts it again, empty.
func TestRedisStopsAndRestarts(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	model := newModel()
	r := serve(t, server.Client(t), resume.Options{Engine: model, Settings: resume.Settings{Lease: 300 * time.Millisecond}})
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

// TestLongAnswer has an answer outgrow its room. It continues for clients that
// follow it, on any replica, as without a key.
func TestLongAnswer(t *testing.T) {
	is := is.New(t)
	model := newModel()
	replicas := three(t, redistest.NewServer(t), resume.Options{Engine: model, Settings: resume.Settings{AnswerBytes: 20_000}})
	c := chat{keys: []string{"k1"}, prompt: "Hi"}
	said := model.begins("one")
	here := replicas[0].connect(t, c)
	is.Equal(here.outcome(), "kept")
	elsewhere := replicas[1].connect(t, c)
	is.Equal(elsewhere.outcome(), "joined")
	turn := receive(t, said)
	is.Equal(first(here.next()), "one")
	is.Equal(first(elsewhere.next()), "one")
	for range 200 { // 200 KB
		turn.say(t, strings.Repeat("a", 1000))
		is.Equal(len(first(here.next())), 1000)
		is.Equal(len(first(elsewhere.next())), 1000)
	}
	begun := model.begins("two")
	another := replicas[2].connect(t, c)
	is.Equal(another.outcome(), "not-kept") // its beginning is no longer there to join
	is.Equal(first(another.next()), "two")
	another.disconnect()
	receive(t, begun).isOver(t)

	close(turn.words)
	for _, follower := range []*client{here, elsewhere} {
		texts, end := follower.rest()
		is.Equal(texts, nil)
		is.Equal(end, "[DONE]")
	}
	model.begins("three")
	is.Equal(replicas[2].connect(t, c).outcome(), "kept") // anew
}

// TestLongAnswerIsAbandoned ends such an answer as without a key.
func TestLongAnswerIsAbandoned(t *testing.T) {
	is := is.New(t)
	model := newModel()
	r := serve(t, redistest.NewServer(t).Client(t), resume.Options{Engine: model, Settings: resume.Settings{AnswerBytes: 20_000}})
	said := model.begins("one")
	client := r.connect(t, chat{keys: []string{"k1"}, prompt: "Hi"})
	turn := receive(t, said)
	turn.say(t, strings.Repeat("a", 30_000))
	for range 2 {
		client.next()
	}
	client.disconnect()
	turn.isOver(t)
	is.True(errors.Is(turn.cause, botapi.ErrClientLeft))
}

// TestLongAnswerWaitsForItsClient checks the bound on the memory of an answer
// that is not kept: the model is no faster than the client.
func TestLongAnswerWaitsForItsClient(t *testing.T) {
	is := is.New(t)
	const fragment, fragments = 64 << 10, 1000
	var yielded atomic.Int64
	engine := botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			for range fragments {
				if !yield(strings.Repeat("x", fragment), nil) {
					return
				}
				yielded.Add(1)
			}
		}
	})
	r := serve(t, redistest.NewServer(t).Client(t), resume.Options{Engine: engine, Settings: resume.Settings{AnswerBytes: 20_000}})
	client := r.connect(t, chat{keys: []string{"k1"}, prompt: "Hi"})
	for before := int64(-1); before != yielded.Load(); time.Sleep(200 * time.Millisecond) {
		before = yielded.Load()
	}
	is.True(yielded.Load() < fragments/2) // 64 MB are more than all buffers hold
	texts, end := client.rest()
	is.Equal(len(strings.Join(texts, "")), fragment*fragments)
	is.Equal(end, "[DONE]")
}

// TestManyTokens has an answer of 10,000 tokens, as small as possible. Its
// counted size is close to its memory in Redis.
func TestManyTokens(t *testing.T) {
	is := is.New(t)
	const tokens = 10_000
	model := newModel()
	server := redistest.NewServer(t)
	r := serve(t, server.Client(t), resume.Options{Engine: model})
	redis := server.Client(t)
	answer := r.inBackground(t, chat{keys: []string{"k1"}, prompt: "Hi", unstreamed: true})
	turn := model.next(t)
	for range tokens {
		turn.say(t, "word ")
	}
	close(turn.words)
	is.Equal(len(receive(t, answer).body), len(`{"content":""}`)+5*tokens)
	eventually(t, "it is complete", func() bool { return keys(t, redis, "botapi:answers:alone:*") == 0 })
	near(t, counted(t, redis), used(t, redis))
}

// TestManySmallAnswers has 3,000 answers of a word, complete and failed, and
// compares their counted size with their memory in Redis.
func TestManySmallAnswers(t *testing.T) {
	for name, failure := range map[string]error{"complete": nil, "failed": errors.New("SECRET")} {
		t.Run(name, func(t *testing.T) {
			const answers = 3000
			engine := botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
				return func(yield func(string, error) bool) {
					if yield("word", nil) && failure != nil {
						yield("", failure)
					}
				}
			})
			server := redistest.NewServer(t)
			r := serve(t, server.Client(t), resume.Options{Engine: engine, Settings: resume.Settings{Lease: time.Minute}})
			redis := server.Client(t)
			var all sync.WaitGroup
			for first := range 8 {
				all.Go(func() {
					for i := first; i < answers; i += 8 {
						r.reply(t.Context(), chat{keys: []string{fmt.Sprint(i)}, prompt: "Hi", unstreamed: true})
					}
				})
			}
			all.Wait()
			eventually(t, "all are over", func() bool { return counted(t, redis) < answers*3000 })
			near(t, counted(t, redis), used(t, redis))
		})
	}
}

func near(t *testing.T, counted, used int64) {
	t.Helper()
	t.Logf("counted %d, used %d", counted, used)
	if counted < used*8/10 || counted > used*2 {
		t.Errorf("counted %d, used %d", counted, used)
	}
}

// counted is the counted size of all answers.
func counted(t *testing.T, client *redisclient.Client) int64 {
	t.Helper()
	bytes, err := client.HGet(t.Context(), "botapi:answers:bytes", "all").Int64()
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}

// used is the memory of all keys of answers, as Redis reports it.
func used(t *testing.T, client *redisclient.Client) (bytes int64) {
	t.Helper()
	found, err := client.Keys(t.Context(), "botapi:answers:*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range found {
		bytes += client.MemoryUsage(t.Context(), key, 0).Val() // 0 if it has just expired
	}
	return bytes
}

// TestManyAnswers has room for two answers in progress.
func TestManyAnswers(t *testing.T) {
	for name, settings := range map[string]resume.Settings{
		"of all":        {AllBytes: 2 * resume.LeastAnswerBytes, Keep: 2 * time.Second},
		"of an account": {AccountBytes: 2 * resume.LeastAnswerBytes, Keep: 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			model := newModel()
			r := serve(t, redistest.NewServer(t).Client(t), resume.Options{Engine: model, Settings: settings})
			one, two := r.inBackground(t, chat{keys: []string{"1"}, prompt: "Hi"}), r.inBackground(t, chat{keys: []string{"2"}, prompt: "Hi"})
			first, second := model.next(t), model.next(t)
			is.True(!kept(t, r, model, "", "3")) // one more is answered as if it had no key
			is.Equal(kept(t, r, model, "other", "3"), settings.AccountBytes > 0)
			for _, turn := range []*turn{first, second} {
				turn.say(t, strings.Repeat("a", 10_000))
				close(turn.words)
			}
			is.Equal(len(receive(t, one).body) > 10_000, true)
			is.Equal(len(receive(t, two).body) > 10_000, true)
			is.True(!kept(t, r, model, "", "4")) // there is room for half an answer
			eventually(t, "they are forgotten", func() bool { return kept(t, r, model, "", fmt.Sprint("5-", model.asked())) })
		})
	}
}

// kept asks twice under a key, and reports whether the model was asked once.
func kept(t *testing.T, r replica, model *model, account, key string) bool {
	t.Helper()
	before := model.asked()
	for range 2 {
		answer := r.inBackground(t, chat{account: account, keys: []string{key}, prompt: "Hi", unstreamed: true})
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

// TestRedisIsFull has no room for new answers; existing ones can be joined.
func TestRedisIsFull(t *testing.T) {
	is := is.New(t)
	model := newModel()
	server := redistest.NewServer(t)
	client, operator := server.Client(t), server.Client(t)
	ctx, stop := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() { client.Watch(ctx) })
	defer watching.Wait()
	defer stop()
	r := serve(t, client, resume.Options{Engine: model})
	ask := func(key string) string {
		said := model.begins("one")
		c := r.connect(t, chat{keys: []string{key}, prompt: "Hi"})
		defer c.disconnect()
		close(receive(t, said).words)
		_, end := c.rest()
		return c.outcome() + end
	}
	join := func(key string) string {
		c := r.connect(t, chat{keys: []string{key}, prompt: "Hi"})
		defer c.disconnect()
		texts, end := c.rest()
		return c.outcome() + strings.Join(texts, "") + end
	}
	is.Equal(ask("k1"), "kept[DONE]")
	eventually(t, "it is in Redis", func() bool {
		names := client.Keys(t.Context(), "botapi:answers:name:*").Val()
		return len(names) == 1 && client.HGet(t.Context(), names[0], "state").Val() == "whole"
	})
	is.NoErr(operator.ConfigSet(t.Context(), "maxmemory", "1").Err())
	eventually(t, "it is full", client.Full)
	is.Equal(ask("k2"), "not-kept[DONE]")
	is.Equal(join("k1"), "joinedone[DONE]")
	is.NoErr(operator.ConfigSet(t.Context(), "maxmemory", "0").Err())
	eventually(t, "it has room", func() bool { return !client.Full() })
	is.Equal(join("k1"), "joinedone[DONE]")
}

// TestManyClients has an account follow one answer as often as it may, and then
// many.
func TestManyClients(t *testing.T) {
	is := is.New(t)
	model := newModel()
	atOnce := func(_ context.Context, account string) (int64, error) {
		return map[string]int64{"acme": 3}[account], nil
	}
	replicas := three(t, redistest.NewServer(t), resume.Options{
		Engine: model, ChatsAtOnce: atOnce, Settings: resume.Settings{ClientsPerAnswer: 2, Lease: 600 * time.Millisecond},
	})
	join := func(account, key string) *client {
		return replicas[rand.IntN(3)].connect(t, chat{account: account, keys: []string{key}, prompt: "Hi"})
	}
	rejected := func(account, key string) reply {
		return replicas[rand.IntN(3)].reply(t.Context(), chat{account: account, keys: []string{key}, prompt: "Hi"})
	}
	begin := func(account, key string) *turn {
		said := model.begins("one")
		is.Equal(join(account, key).outcome(), "kept")
		return receive(t, said)
	}
	begin("acme", "k1")
	begin("acme", "k2")
	crowded := reply{http.StatusTooManyRequests, `{"detail":"Too many clients follow this answer"}`, "1"}
	atLimit := reply{http.StatusTooManyRequests, `{"detail":"Too many chats in progress for this account"}`, "1"}
	first := join("acme", "k1")
	is.Equal(first.outcome(), "joined")
	join("acme", "k1")
	is.Equal(rejected("acme", "k1"), crowded)
	join("acme", "k2")
	is.Equal(rejected("acme", "k2"), atLimit)
	time.Sleep(time.Second) // longer than the lease of an unused slot
	is.Equal(rejected("acme", "k1"), crowded)
	is.Equal(rejected("acme", "k2"), atLimit)

	begin("other", "k1")
	join("other", "k1")
	join("other", "k1")
	is.Equal(rejected("other", "k1"), crowded)

	first.disconnect()
	eventually(t, "a client that disconnects releases its slot", func() bool { return join("acme", "k2").outcome() == "joined" })
	is.Equal(model.asked(), 3)
}

// TestJoinedTooOften has one client return again and again.
func TestJoinedTooOften(t *testing.T) {
	is := is.New(t)
	model := newModel()
	r := serve(t, redistest.NewServer(t).Client(t), resume.Options{Engine: model})
	c := chat{keys: []string{"k1"}, prompt: "Hi", unstreamed: true}
	whole := r.inBackground(t, c)
	close(model.next(t).words)
	receive(t, whole)
	joined := 0
	for r.reply(t.Context(), c).status == http.StatusOK {
		joined++
	}
	is.True(joined >= 20 && joined < 40)
	is.Equal(r.reply(t.Context(), c), reply{http.StatusTooManyRequests, `{"detail":"Too many requests for this answer"}`, "1"})
	eventually(t, "it may again", func() bool { return r.reply(t.Context(), c).status == http.StatusOK })
	is.Equal(model.asked(), 1)
}

// TestManyAreAbandoned has an account abandon more answers than may continue
// without a client. The latest ones continue, and so do those of others.
func TestManyAreAbandoned(t *testing.T) {
	is := is.New(t)
	const abandoned, most = 12, 5
	model := newModel()
	replicas := three(t, redistest.NewServer(t), resume.Options{Engine: model, Settings: resume.Settings{AlonePerAccount: most, Lease: 600 * time.Millisecond}})
	abandon := func(account, key string) *turn {
		said := model.begins("one")
		client := replicas[rand.IntN(3)].connect(t, chat{account: account, keys: []string{key}, prompt: "Hi"})
		turn := receive(t, said)
		client.disconnect()
		time.Sleep(20 * time.Millisecond) // they are abandoned one after another
		return turn
	}
	other := abandon("other", "k")
	var turns []*turn
	for i := range abandoned {
		turns = append(turns, abandon("acme", fmt.Sprint(i)))
	}
	for _, turn := range turns[:abandoned-most] {
		turn.isOver(t)
		is.True(errors.Is(turn.cause, botapi.ErrClientLeft))
	}
	time.Sleep(time.Second)
	back := replicas[0].connect(t, chat{keys: []string{fmt.Sprint(abandoned - 1)}, prompt: "Hi"})
	is.Equal(back.outcome(), "joined")
	for _, turn := range append(turns[abandoned-most:], other) {
		turn.say(t, "two")
	}
	is.Equal(first(back.next()), "one")
	is.Equal(first(back.next()), "two")
}

// TestSlowReader has a client that does not read its answer, which is longer
// than all buffers hold. It does not slow down others.
func TestSlowReader(t *testing.T) {
	is := is.New(t)
	const fragment, fragments = 64 << 10, 200
	model := newModel()
	replicas := three(t, redistest.NewServer(t), resume.Options{Engine: model, Settings: resume.Settings{AnswerBytes: 20 << 20, AccountBytes: 20 << 20}})
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
			answer := r.inBackground(t, chat{keys: []string{"k1"}, prompt: "Hi", unstreamed: true})
			turn := model.next(t)
			turn.say(t, "one")
			is.Equal(receive(t, answer), reply{http.StatusGatewayTimeout, `{"detail":"The answer took too long"}`, ""})
			turn.isOver(t)
			is.True(errors.Is(turn.cause, c.cause)) // as from botapi itself
		})
	}
}

// TestEnginesThatEndBadly checks that such engines do not crash the process.
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
			got := r.reply(t.Context(), chat{keys: []string{"k1"}, prompt: "Hi", unstreamed: true})
			is.Equal(got, reply{500, `{"detail":"Internal Server Error"}`, ""})
		})
	}
}

// TestWhenOver reports each request when the answer that it has started is over.
func TestWhenOver(t *testing.T) {
	is := is.New(t)
	model := newModel()
	reported, over := make(chan string, 10), make(chan string, 10)
	r := serve(t, redistest.NewServer(t).Client(t), resume.Options{Engine: model}, func(ctx context.Context, report botapi.ChatReport) {
		reported <- report.Account
		resume.WhenOver(ctx, func() { over <- report.Account })
	})
	c := chat{keys: []string{"k1"}, prompt: "Hi"}
	said := model.begins("one")
	first := r.connect(t, c)
	turn := receive(t, said)
	r.connect(t, c).disconnect()
	receive(t, reported)
	receive(t, over) // it has started none
	first.disconnect()
	receive(t, reported)
	turn.say(t, "two")
	is.Equal(len(over), 0)
	close(turn.words)
	receive(t, over)

	receive(t, r.inBackground(t, c)) // joins an answer that is over
	receive(t, reported)
	receive(t, over)
}

// TestClose waits for an answer without a client, but no longer than its
// context.
func TestClose(t *testing.T) {
	is := is.New(t)
	model := newModel()
	client := redistest.NewServer(t).Client(t)
	for _, inTime := range []bool{true, false} {
		r := serve(t, client, resume.Options{Engine: model})
		c := chat{keys: []string{fmt.Sprint(inTime)}, prompt: "Hi"}
		ctx, disconnect := context.WithCancel(t.Context())
		go func() { _, _ = r.send(ctx, c) }()
		turn := model.next(t)
		disconnect()

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

// TestNothingStays checks Redis when everything is over.
func TestNothingStays(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	model := newModel()
	r := serve(t, server.Client(t), resume.Options{Engine: model, Settings: resume.Settings{Keep: 300 * time.Millisecond}})
	for i := range 3 {
		answer := r.inBackground(t, chat{keys: []string{fmt.Sprint(i)}, prompt: "SECRET"})
		turn := model.next(t)
		turn.say(t, "one")
		close(turn.words)
		receive(t, answer)
	}
	redis := server.Client(t)
	eventually(t, "only the counts are there", func() bool { return keys(t, redis, "*") == 3 })
	is.True(kept(t, r, model, "", "another")) // which counts again
	eventually(t, "an answer without fragments is small", func() bool {
		return counted(t, redis) < 2000
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
