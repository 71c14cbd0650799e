package answers_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/botapitest"
	"example.com/botapi/examples/production/internal/answers"
	"example.com/botapi/examples/production/internal/limits"
	"example.com/botapi/examples/production/internal/redisclient"
	"example.com/botapi/examples/production/internal/redistest"
	"example.com/botapi/examples/resume"
	"github.com/matryer/is"
	"go.opentelemetry.io/otel/metric/noop"
)

// A model answers as the test says, word by word. Each answer has its own
// channel of words, which the test closes.
type model chan chan string

func (m model) Chat(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		words := make(chan string)
		m <- words
		for {
			select {
			case word, more := <-words:
				if !more || !yield(word, nil) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

// A replica is a service with answers in Redis, behind limits of its accounts,
// whose names are its API keys.
type replica string

func serve(t *testing.T, client *redisclient.Client, engine botapi.ChatEngine, s resume.Settings, l limits.Limits) replica {
	t.Helper()
	logger := slog.New(slog.NewTextHandler(t.Output(), nil))
	s.Wait = cmp.Or(s.Wait, 20*time.Second) // however busy the machine is
	store, err := answers.New(client, s, noop.Meter{})
	if err != nil {
		t.Fatal(err)
	}
	limited := limits.New(limits.Options{Engine: engine, Redis: client, Logger: logger,
		Limits: func(context.Context, string) (limits.Limits, error) { return l, nil }})
	resuming := resume.New(resume.Options{Engine: limited, Store: store, Logger: logger, ValidKey: answers.ValidKey,
		Admit: func(ctx context.Context, _ *botapi.ChatRequest) error {
			return limited.Rejected(botapi.AccountFrom(ctx))
		}})
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := resuming.Close(ctx); err != nil {
			t.Error(err)
		}
		limited.Close()
		store.Close()
	})
	accounts := botapi.KeyVerifierFunc(func(_ context.Context, key string) (string, error) { return key, nil })
	return replica(botapitest.NewServer(t, botapi.Options{Keys: accounts, Engine: resuming, Routes: resuming.Routes(), OnLimit: resuming.OnLimit}).URL)
}

// A client reads a stream event by event.
type client struct {
	*http.Response
	lines      *bufio.Scanner
	disconnect context.CancelFunc
}

// connect sends a chat, and returns when its answer begins.
func (r replica) connect(t *testing.T, key string) client {
	t.Helper()
	return r.connectAs(t, "acme", key)
}

func (r replica) connectAs(t *testing.T, account, key string) client {
	t.Helper()
	ctx, disconnect := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(disconnect)
	response, err := r.send(ctx, account, key)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	return client{response, bufio.NewScanner(response.Body), disconnect}
}

func (r replica) send(ctx context.Context, account, key string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, "POST", string(r)+"/v1/chat", strings.NewReader(`{"bot_slug":"bot","prompt":"Hi","stream":true}`))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+account)
	request.Header.Set(resume.Header, key)
	return http.DefaultClient.Do(request)
}

func (c client) outcome() string { return c.Header.Get(resume.OutcomeHeader) }

// next returns the text of the next event, or how the stream ends.
func (c client) next() string {
	for c.lines.Scan() {
		data, isData := strings.CutPrefix(c.lines.Text(), "data: ")
		if !isData {
			continue
		}
		var event struct{ Content, Detail string }
		if json.Unmarshal([]byte(data), &event) != nil {
			return data // [DONE]
		}
		return event.Content + event.Detail
	}
	return "aborted"
}

func (c client) rest() (texts []string) {
	for {
		text := c.next()
		texts = append(texts, text)
		if text == "[DONE]" || text == "aborted" {
			return texts
		}
	}
}

// says has the next answer of a model begin with a word.
func (m model) says(word string) <-chan chan string {
	said := make(chan chan string, 1)
	go func() {
		words := <-m
		words <- word
		said <- words
	}()
	return said
}

// TestReplicaThatDies disconnects a replica from Redis: for the others it is
// dead.
func TestReplicaThatDies(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	models, settings := make(model), resume.Settings{Lease: 300 * time.Millisecond}
	connection := server.Client(t)
	dying := serve(t, connection, models, settings, limits.Limits{})
	living := serve(t, server.Client(t), models, settings, limits.Limits{})
	said := models.says("one")
	here, elsewhere := dying.connect(t, "k1"), living.connect(t, "k1")
	words := <-said
	is.Equal(elsewhere.next(), "one")
	connection.Close()
	is.Equal(elsewhere.next(), "The answer is incomplete")

	said = models.says("two")
	again := living.connect(t, "k1")
	close(<-said)
	is.Equal(again.outcome(), "kept")
	is.Equal(again.rest(), []string{"two", "[DONE]"})

	words <- "three" // its own client still has the answer
	is.Equal(here.next(), "one")
	is.Equal(here.next(), "three")
	here.disconnect()
	ended := func() bool {
		select {
		case words <- "":
			return false
		default:
			return true
		}
	}
	eventually(t, "the model stops as without a key", func() bool {
		time.Sleep(50 * time.Millisecond)
		return ended()
	})
}

// TestDeathBeforeTheFirstFragment has a client join an answer whose process dies
// before it says anything. The client gets another.
func TestDeathBeforeTheFirstFragment(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	models, settings := make(model), resume.Settings{Lease: time.Second}
	connection, operator := server.Client(t), server.Client(t)
	dying := serve(t, connection, models, settings, limits.Limits{})
	living := serve(t, server.Client(t), models, settings, limits.Limits{})
	responses := make(chan *http.Response, 2)
	send := func(r replica) {
		if response, err := r.send(t.Context(), "acme", "k1"); err == nil {
			responses <- response
		}
	}
	go send(dying)
	silent := <-models
	go send(living)
	eventually(t, "it has joined", func() bool { return len(operator.Keys(t.Context(), "botapi:answers:readers:*").Val()) == 1 })
	connection.Close()
	said := models.says("two")
	response := <-responses
	defer response.Body.Close()
	close(<-said)
	c := client{response, bufio.NewScanner(response.Body), nil}
	is.Equal(c.outcome(), "kept")
	is.Equal(c.rest(), []string{"two", "[DONE]"})
	close(silent)
}

// TestRedisStopsAndRestarts stops Redis and starts it again, empty.
func TestRedisStopsAndRestarts(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	models := make(model)
	r := serve(t, server.Client(t), models, resume.Settings{Lease: 300 * time.Millisecond}, limits.Limits{})
	said := models.says("one")
	begun, joined := r.connect(t, "k1"), r.connect(t, "k1")
	words := <-said
	is.Equal(joined.outcome(), "joined")
	is.Equal(joined.next(), "one")
	server.Stop(t)
	words <- "two"
	close(words)
	is.Equal(begun.rest(), []string{"one", "two", "[DONE]"})
	is.Equal(joined.rest(), []string{"two", "[DONE]"})

	said = models.says("three")
	unkept := r.connect(t, "k1")
	close(<-said)
	is.Equal(unkept.outcome(), "not-kept")
	is.Equal(unkept.rest(), []string{"three", "[DONE]"})

	server.Start(t)
	eventually(t, "answers are kept again", func() bool {
		said := models.says("four")
		c := r.connect(t, "k2")
		if c.outcome() != "joined" {
			close(<-said)
		}
		c.rest()
		return c.outcome() != "not-kept"
	})
}

// TestRejectedChatsCostLittle has an account with a limit of one concurrent chat
// send 500 more, each with a new key, and meanwhile another account one chat. That
// costs as many commands as it does alone, and those of the others that it may wait
// for are at most three for each.
func TestRejectedChatsCostLittle(t *testing.T) {
	const chats = 500
	is := is.New(t)
	server := redistest.NewServer(t)
	models, operator := make(model), server.Client(t)
	r := serve(t, server.Client(t), models, resume.Settings{Lease: time.Hour}, limits.Limits{ConcurrentChats: 1})
	said := models.says("one")
	first := r.connect(t, "k1")
	words := <-said
	is.Equal(first.next(), "one")
	rejected := func(key string) {
		response, err := r.send(t.Context(), "acme", key)
		if err != nil {
			t.Error(err)
			return
		}
		defer response.Body.Close()
		_, _ = io.Copy(io.Discard, response.Body)
		if response.StatusCode != http.StatusTooManyRequests || response.Header.Get("Retry-After") != "1" {
			t.Errorf("status %d", response.StatusCode)
		}
	}
	cost := func(of func()) (calls int, seconds int) {
		before, began := commands(t, operator), time.Now()
		of()
		return commands(t, operator) - before, int(time.Since(began) / time.Second)
	}
	tenant := func(key string) {
		said := models.says("hello")
		c := r.connectAs(t, "other", key)
		close(<-said)
		is.Equal(c.rest(), []string{"hello", "[DONE]"})
	}
	alone, _ := cost(func() { tenant("k1") })
	one, _ := cost(func() { rejected("k2") }) // claims its key: now the replica knows
	together, seconds := cost(func() {
		var all sync.WaitGroup
		defer all.Wait()
		for i := range chats {
			all.Go(func() { rejected(fmt.Sprint("new-", i)) })
		}
		tenant("k2")
	})
	t.Logf("%d commands; of the other account alone %d, of a chat that claims its key %d", together, alone, one)
	is.True(together < 3*chats+3*(alone+one)*(1+seconds)) // some commands follow a response; after a second, chats ask anew
	joined := r.connect(t, "k1")
	is.Equal(joined.outcome(), "joined") // which is still allowed

	close(words)
	is.Equal(joined.rest(), []string{"one", "[DONE]"})
	said = models.says("two") // as soon as there is room
	is.Equal(r.connect(t, "k3").outcome(), "kept")
	close(<-said)
}

// TestSlowRedis has a Redis that needs longer for each command than a chat waits
// for a claim, and is not down. Chats are answered as without a key, within the time
// that their account's limits need. Once that is known, no chat claims its key.
func TestSlowRedis(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	way, operator := server.Slowly(t), server.Client(t)
	client := server.ClientWith(t, redisclient.Options{URL: way.URL, Timeout: 8 * time.Second})
	const claims = 500 * time.Millisecond
	models := make(model)
	r := serve(t, client, models, resume.Settings{Wait: claims}, limits.Limits{ConcurrentChats: 2})
	chat := func(key string) (outcome string) {
		said := models.says("one")
		c := r.connect(t, key)
		is.Equal(c.StatusCode, http.StatusOK)
		close(<-said)
		is.Equal(c.rest(), []string{"one", "[DONE]"})
		return c.outcome()
	}
	redistest.Watch(t, client)
	is.Equal(chat("k1"), "kept")
	way.Delay(2 * claims)
	is.Equal(chat("k2"), "not-kept")
	eventually(t, "that is known", func() bool { return client.Slow(claims) })
	before := redistest.Calls(t, operator)["hset"] // by which a claim begins an answer
	for range 2 {
		is.Equal(chat("k3"), "not-kept")
	}
	is.Equal(redistest.Calls(t, operator)["hset"], before)
	said := models.says("one")
	r.connect(t, "k4")
	words := <-said
	said = models.says("one")
	r.connect(t, "k5")
	is.Equal(r.connect(t, "k6").StatusCode, http.StatusTooManyRequests) // limits are enforced
	close(words)
	close(<-said)
	way.Delay(0)
	eventually(t, "it is fast again", func() bool { return !client.Slow(claims) })
	is.Equal(chat("k7"), "kept")
}

// TestOneWait has a Redis that hangs. What a chat waits for its claim is taken from
// the time that it may wait in all.
func TestOneWait(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	const timeout, claims = 20 * time.Second, 100 * time.Millisecond
	client := server.ClientWith(t, redisclient.Options{Timeout: timeout})
	store, err := answers.New(client, resume.Settings{Wait: claims}, noop.Meter{})
	is.NoErr(err)
	defer store.Close()
	server.Hang(t)
	defer server.GoOn(t)
	var claimed error
	var until time.Time
	engine := botapi.CallbackEngine(func(ctx context.Context, _ *botapi.ChatRequest, _ func(string) error) error {
		claiming, cancel := context.WithTimeout(ctx, claims)
		defer cancel()
		_, claimed = store.Claim(claiming, resume.Claim{Ref: refOf("k1"), Body: "body"})
		waiting, done := client.Waiting(ctx)
		defer done()
		until, _ = waiting.Deadline()
		return nil
	})
	_, err = botapitest.NewServer(t, botapi.Options{Engine: engine}).Client.Ask(t.Context(), botapitest.Chat{Bot: botapitest.DefaultBot().Slug, Prompt: "Hi"})
	is.NoErr(err)
	is.True(errors.Is(claimed, context.DeadlineExceeded))
	is.True(time.Until(until) <= timeout-claims)
}

// commands is how many commands Redis has executed, in scripts, too.
func commands(t *testing.T, operator *redisclient.Client) (calls int) {
	t.Helper()
	for command, n := range redistest.Calls(t, operator) {
		if command != "info" {
			calls += n
		}
	}
	return calls
}
