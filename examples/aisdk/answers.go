package aisdk

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/resume"
)

// Answers is a resume.Engine whose answers a page finds again by the id of its chat. It
// is the Engine of the api of [NewHandler], and its [Options].Answers.
type Answers struct {
	*resume.Engine

	// Latest remembers the latest answer of each chat. NewAnswers sets one in memory,
	// for the last 50,000 chats; replicas that share a resume.Store need one that
	// they share, too. Set it before the first chat.
	Latest Latest

	options resume.Options
}

// Latest remembers the latest answer of each chat. Both are short texts without meaning to
// the store. An answer is needed as long as it may run, and Keep of the resume.Settings
// after that: in Redis, it is SET chat answer EX 3600, and GET. The methods may be called
// concurrently, with a context that ends after Wait of the resume.Settings, 1 second.
type Latest interface {
	Set(ctx context.Context, chat, answer string) error
	Get(ctx context.Context, chat string) (answer string, err error) // "" if there is none
}

// NewAnswers returns Answers of a resume.Engine with these options. It panics if o.Engine
// is nil, as resume.New does. A ValidKey must accept what rand.Text returns.
func NewAnswers(o resume.Options) *Answers {
	a := &Answers{Latest: new(memory)}
	if o.Store == nil {
		o.Store = resume.NewMemory(resume.Settings{})
	}
	if o.Owner == nil {
		o.Owner = botapi.AccountFrom
	}
	o.Logger = cmp.Or(o.Logger, slog.Default())
	a.options = o
	if o.Engine != nil {
		o.Engine = botapi.ChatEngineFunc(a.start)
	}
	a.Engine = resume.New(o)
	return a
}

// start asks the model. It is called once for each answer that begins, and not for
// requests that are rejected or that join.
func (a *Answers) start(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	if c := chatFrom(ctx); c != nil {
		if err := a.note(ctx, c, req.Bot.UID); err != nil {
			a.options.Logger.LogAttrs(ctx, slog.LevelWarn, "an answer cannot be found by its chat",
				slog.String("request_id", botapi.RequestIDFrom(ctx)), slog.Any("error", err))
		}
	}
	return a.options.Engine.Chat(ctx, req)
}

func (a *Answers) note(ctx context.Context, c *chat, bot string) error {
	name := a.nameOf(ctx, c)
	ctx, cancel := context.WithTimeout(ctx, a.options.Store.Settings().Wait)
	defer cancel()
	return a.Latest.Set(ctx, name, c.key+" "+bot)
}

// nameOf distinguishes chats by their owners and ids.
func (a *Answers) nameOf(ctx context.Context, c *chat) string {
	return digest(a.options.Owner(ctx), c.id)
}

var errNoAnswer = &botapi.StatusError{Status: http.StatusNotFound, Detail: "Answer not found"}

// find finds the latest answer of a chat.
func (a *Answers) find(ctx context.Context) (*chat, error) {
	c := chatFrom(ctx)
	name := a.nameOf(ctx, c)
	ctx, cancel := context.WithTimeout(ctx, a.options.Store.Settings().Wait)
	defer cancel()
	answer, err := a.Latest.Get(ctx, name)
	if err != nil {
		return nil, &botapi.StatusError{Status: http.StatusServiceUnavailable, Detail: "The service is unavailable for the moment",
			RetryAfter: time.Second, Err: fmt.Errorf("finding the latest answer of a chat: %w", err)}
	}
	key, bot, found := strings.Cut(answer, " ")
	if !found {
		return nil, errNoAnswer
	}
	c.key, c.bot = key, bot
	return c, nil
}

// reader returns a handler for requests that come back for the latest answer of a chat, or
// stop it. o is what the application's API was made of.
func (a *Answers) reader(o botapi.Options) http.Handler {
	if o.Bots == nil || o.Keys == nil {
		panic("aisdk: NewHandler: Options.API needs the Bots and Keys of api")
	}
	r := reader{o.Bots, a}
	o.Bots, o.Engine = r, r
	return a.Handler(botapi.New(o), o.Keys)
}

// A reader is the engine and the bots of requests for a latest answer. botapi
// authenticates them, responds to their errors and logs them.
type reader struct {
	botapi.BotStore // of the application
	answers         *Answers
}

// BotBySlug finds the latest answer of a chat, and returns its bot.
func (r reader) BotBySlug(ctx context.Context, _ string) (botapi.Bot, error) {
	c, err := r.answers.find(ctx)
	if err != nil {
		return botapi.Bot{}, err
	}
	c.messageID = messageID(c.key)
	return r.BotByUID(ctx, c.bot)
}

// Chat yields the answer that BotBySlug has found.
func (r reader) Chat(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
	return r.answers.Join(ctx, chatFrom(ctx).key)
}

// Bots stops the latest answer of a chat.
func (r reader) Bots(ctx context.Context) ([]botapi.Bot, error) {
	c, err := r.answers.find(ctx)
	if err != nil {
		return nil, err
	}
	if c.messageID != "" && c.messageID != messageID(c.key) {
		return nil, errNoAnswer
	}
	return nil, r.answers.Stop(ctx, c.key)
}

// messageID returns the id of the message of an answer. It does not reveal the key.
func messageID(key string) string { return digest("message", key)[:24] }

func digest(texts ...string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q", texts))
	return hex.EncodeToString(sum[:])
}

// A memory is a Latest in memory: the answers that were noted last, between one and two
// times remembered of them.
type memory struct {
	mu         sync.Mutex
	young, old map[string]string
}

const remembered = 50_000

func (m *memory) Set(_ context.Context, chat, answer string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.young) >= remembered {
		m.young, m.old = nil, m.young
	}
	if m.young == nil {
		m.young = make(map[string]string)
	}
	m.young[chat] = answer
	return nil
}

func (m *memory) Get(_ context.Context, chat string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return cmp.Or(m.young[chat], m.old[chat]), nil
}
