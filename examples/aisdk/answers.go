package aisdk

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/resume"
)

// Answers is a resume.Engine whose answers a page finds again by the id of its chat. It is
// the Engine of the botapi.Options, and Answers of the [Options].
type Answers struct {
	*resume.Engine

	// Latest remembers the latest answer of each chat: by default in memory, of the last 50,000
	// chats. Replicas that share a resume.Store share one, too. Set it before the first chat.
	Latest Latest

	options resume.Options
}

// Latest remembers the latest answer of each chat. Both are short texts without meaning to
// the store. An answer is needed as long as it may run, and Keep of the resume.Settings
// after that: in Redis, it is SET chat answer EX 3600, and GET. The methods may be called
// concurrently, with a context that ends after 1 second.
type Latest interface {
	Set(ctx context.Context, chat, answer string) error
	Get(ctx context.Context, chat string) (answer string, err error) // "" if there is none
}

// NewAnswers returns Answers of a resume.Engine with these options. It panics if o.Engine
// is nil, as resume.New does. A ValidKey must accept what rand.Text returns.
func NewAnswers(o resume.Options) *Answers {
	if o.Owner == nil {
		o.Owner = botapi.AccountFrom
	}
	o.Logger = cmp.Or(o.Logger, slog.Default())
	a := &Answers{Latest: new(memory), options: o}
	if o.Engine != nil {
		o.Engine = botapi.ChatEngineFunc(a.ask)
	}
	a.Engine = resume.New(o)
	return a
}

// A begun answer is one to a chat that was sent and may still be rejected. chat is a digest of
// its owner and its id. The zero value is the key of the context.
type begun struct{ chat, key string }

// begin chooses the key of an answer, and the id of its message.
func (a *Answers) begin(ctx context.Context, chat string) (_ context.Context, message string) {
	key := rand.Text()
	if a == nil {
		return ctx, key
	}
	return context.WithValue(resume.WithKey(ctx, key), begun{}, begun{digest(a.options.Owner(ctx), chat), key}), messageID(key)
}

// messageID returns the id of the message of an answer. It does not reveal the key.
func messageID(key string) string { return digest("message", key)[:24] }

func digest(texts ...string) string {
	return fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "%q", texts)))
}

// ask asks the model. It is called once for each answer that begins, and not for requests
// that are rejected or that join: what it notes is the latest answer.
func (a *Answers) ask(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	if b, isOfPage := ctx.Value(begun{}).(begun); isOfPage {
		limited, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if err := a.Latest.Set(limited, b.chat, b.key); err != nil {
			a.options.Logger.WarnContext(ctx, "an answer cannot be found by its chat", "request_id", botapi.RequestIDFrom(ctx), "error", err)
		}
	}
	return a.options.Engine.Chat(ctx, req)
}

// find returns the key of the latest answer of the chat that a path names, or "".
func (a *Answers) find(r *http.Request) (key string, err error) {
	if a == nil {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), time.Second)
	defer cancel()
	if key, err = a.Latest.Get(ctx, digest(a.options.Owner(ctx), r.PathValue("id"))); err != nil {
		return "", botapi.StatusError{Status: http.StatusServiceUnavailable, Detail: "The service is unavailable for the moment",
			RetryAfter: time.Second, Err: fmt.Errorf("finding the latest answer of a chat: %w", err)}
	}
	return key, nil
}

// A memory is a Latest in memory, of the last chats: between one and two times remembered.
type memory struct {
	mu         sync.Mutex
	young, old map[string]string
}

const remembered = 50_000

func (m *memory) Set(_ context.Context, chat, answer string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.young) >= remembered || m.young == nil {
		m.young, m.old = make(map[string]string), m.young
	}
	m.young[chat] = answer
	return nil
}

func (m *memory) Get(_ context.Context, chat string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return cmp.Or(m.young[chat], m.old[chat]), nil
}
