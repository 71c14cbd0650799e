// Package answers keeps the answers of package resume in Redis, for all replicas.
package answers

import (
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"example.com/botapi/examples/production/internal/redisclient"
	"example.com/botapi/examples/resume"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/metric"
)

// Store is a resume.Store. A key of an owner, by a digest of both, has a hash
// with its answer. By its id an answer has a list of its fragments, a set of its
// readers, and a hash of its own once its key leads to it no longer. An owner has
// sets of its readers and of its models that run. (The keys of one script are on
// any node: this does not work with a Redis cluster.)
type Store struct {
	resume.Watchers
	redis    *redisclient.Client
	settings resume.Settings
	rules    []byte // the settings, for the script
	measured *measured

	news    *redis.PubSub
	running sync.WaitGroup // calls of the script, and listen
}

var _ resume.Store = (*Store)(nil)

//go:embed answers.lua
var source string

var script = redis.NewScript(source)

// fragmentBytes is the memory of a fragment in a list of Redis besides its text.
const fragmentBytes = 4

// claimsPart is which part of the time that a chat waits for Redis it may wait for
// a claim: the rest is for its limits.
const claimsPart = 4

// New returns a store, which works until it is closed. The caller closes the
// client, after the store. By default a chat waits a quarter of the client's
// Timeout for its claim.
func New(client *redisclient.Client, settings resume.Settings, meter metric.Meter) (*Store, error) {
	settings.FragmentBytes = cmp.Or(settings.FragmentBytes, fragmentBytes)
	settings.Wait = cmp.Or(settings.Wait, client.Timeout()/claimsPart)
	settings = settings.Completed()
	rules, err := json.Marshal(map[string]int64{
		"alone": settings.Alone.Milliseconds(), "keep": settings.Keep.Milliseconds(), "lease": settings.Lease.Milliseconds(),
		"running": settings.Running, "readers": settings.Readers,
		"answer_bytes": settings.AnswerBytes, "owner_bytes": settings.OwnerBytes, "all_bytes": settings.AllBytes, "fragment_bytes": settings.FragmentBytes,
	})
	if err != nil {
		return nil, fmt.Errorf("preparing the rules of answers: %w", err)
	}
	s := &Store{redis: client, settings: settings, rules: rules}
	if s.measured, err = measure(meter, settings.AllBytes); err != nil {
		return nil, fmt.Errorf("preparing the metrics of answers: %w", err)
	}
	s.news = client.Subscribe(context.Background(), s.prefix()+"news")
	s.running.Go(s.listen)
	return s, nil
}

// Close ends the store, after the engine that uses it.
func (s *Store) Close() {
	_ = s.news.Close() // the connection may be broken already
	s.running.Wait()
}

// listen wakes those who watch an answer, as the script publishes.
func (s *Store) listen() {
	for message := range s.news.Channel() {
		what, id, _ := strings.Cut(message.Payload, " ")
		s.Tell(id, what == string(resume.Stopped))
	}
}

func (s *Store) prefix() string { return s.redis.Key("answers:") }

// ValidKey reports whether an Idempotency-Key has 1 to 255 visible ASCII
// characters.
func ValidKey(key string) bool {
	isInvisible := func(c rune) bool { return c < '!' || c > '~' }
	return key != "" && len(key) <= 255 && !strings.ContainsFunc(key, isInvisible)
}

// Settings implements resume.Store.
func (s *Store) Settings() resume.Settings { return s.settings }

// A reply is what the script has returned.
type reply struct {
	values []any
	err    error
}

func (r reply) text(i int) string {
	if i >= len(r.values) {
		return ""
	}
	text, _ := r.values[i].(string)
	return text
}

func (r reply) number(i int) int64 {
	if i >= len(r.values) {
		return 0
	}
	number, _ := r.values[i].(int64)
	return number
}

// send runs a method of the script. Its only limit of time is the client's own:
// that a caller waits for less says nothing about Redis. The channel is closed after
// the reply.
func (s *Store) send(ctx context.Context, method string, r resume.Ref, arguments ...any) <-chan reply {
	// No other owner can have the same name.
	name := sha256.Sum256([]byte(strconv.Itoa(len(r.Owner)) + ":" + r.Owner + r.Key))
	keys := []string{s.prefix() + "name:" + hex.EncodeToString(name[:])}
	arguments = append([]any{method, s.prefix(), ownerName(r.Owner), r.ID, s.rules}, arguments...)
	replies := make(chan reply, 1)
	s.running.Go(func() {
		defer close(replies)
		values, err := script.Run(context.WithoutCancel(ctx), s.redis, keys, arguments...).Slice()
		replies <- reply{values, err}
	})
	return replies
}

// run runs a method of the script, and returns when ctx ends.
func (s *Store) run(ctx context.Context, method string, r resume.Ref, arguments ...any) (reply, error) {
	return wait(ctx, method, s.send(ctx, method, r, arguments...))
}

func wait(ctx context.Context, method string, replies <-chan reply) (reply, error) {
	select {
	case got := <-replies:
		if got.err != nil {
			return reply{}, fmt.Errorf("answers in redis: %s: %w", method, got.err)
		}
		return got, nil
	case <-ctx.Done():
		return reply{}, fmt.Errorf("answers in redis: %s: %w", method, ctx.Err())
	}
}

var errSlow = errors.New("answers in redis: it is slow")

// Claim implements resume.Store. A chat that waits for it waits the less for other
// commands, and does not wait for a Redis that is known to be too slow.
func (s *Store) Claim(ctx context.Context, c resume.Claim) (resume.Claimed, error) {
	if s.redis.Slow(s.settings.Wait) {
		s.measured.claimed(ctx, "", "redis is slow", 0)
		return resume.Claimed{}, errSlow
	}
	ctx, done := s.redis.Waiting(ctx)
	defer done()
	replies := s.send(ctx, "claim", c.Ref, c.Body, c.Reader, c.Join,
		cmp.Or(c.Limits.Running, s.settings.RunningPerOwner), cmp.Or(c.Limits.Readers, s.settings.ReadersPerOwner), s.redis.Full())
	got, err := wait(ctx, "claim", replies)
	if ctx.Err() != nil {
		s.running.Go(func() { s.takeBack(c.Ref, replies) })
	}
	if err != nil {
		s.measured.claimed(ctx, "", "redis is away", 0)
		return resume.Claimed{}, err
	}
	claimed := resume.Claimed{State: resume.State(got.text(0))}
	if claimed.State == resume.NoRoom {
		s.measured.claimed(ctx, claimed.State, got.text(1), 0)
		return claimed, nil
	}
	claimed.ID = got.text(1)
	s.measured.claimed(ctx, claimed.State, "", got.number(2))
	return claimed, nil
}

// takeBack ends an answer that a claim starts after its caller has given up. The
// engine ends it, too, but that may have come first. There is no reply if Claim has
// received it.
func (s *Store) takeBack(r resume.Ref, replies <-chan reply) {
	if got := <-replies; got.text(0) == string(resume.Started) {
		_ = s.End(context.Background(), r, -1, resume.Ending{}) // otherwise its lease expires
		_ = s.Leave(context.Background(), r, r.ID)
	}
}

// Add implements resume.Store.
func (s *Store) Add(ctx context.Context, r resume.Ref, from int, texts []string, attended bool) (resume.Added, error) {
	arguments := []any{from, attended}
	for _, text := range texts {
		arguments = append(arguments, text)
	}
	got, err := s.run(ctx, "add", r, arguments...)
	if err != nil {
		return resume.Added{}, err
	}
	added := resume.Added{State: resume.State(got.text(0)), Have: int(got.number(1)), Alone: time.Duration(got.number(2)) * time.Millisecond}
	s.measured.added(ctx, added, len(texts))
	return added, nil
}

// End implements resume.Store.
func (s *Store) End(ctx context.Context, r resume.Ref, fragments int, e resume.Ending) error {
	ending, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("writing how an answer ended: %w", err)
	}
	_, err = s.run(ctx, "finish", r, fragments, e.Status != 0, ending)
	return err
}

// Stop implements resume.Store.
func (s *Store) Stop(ctx context.Context, owner, key string) (found bool, err error) {
	got, err := s.run(ctx, "stop", resume.Ref{Owner: owner, Key: key})
	return got.number(0) == 1, err
}

// Read implements resume.Store.
func (s *Store) Read(ctx context.Context, r resume.Ref, reader string, from int) (resume.Part, error) {
	got, err := s.run(ctx, "read", r, reader, from, resume.PartFragments)
	if err != nil {
		return resume.Part{}, err
	}
	part := resume.Part{State: resume.State(got.text(0))}
	for i := range got.values[2:] {
		part.Texts = append(part.Texts, got.text(2+i))
	}
	if len(part.Texts) > resume.PartFragments {
		return resume.Part{Texts: part.Texts[:resume.PartFragments], State: resume.Running}, nil
	}
	if ending := got.text(1); ending != "" {
		if err := json.Unmarshal([]byte(ending), &part.Ending); err != nil {
			return resume.Part{}, fmt.Errorf("reading how an answer ended: %w", err)
		}
	}
	return part, nil
}

// Leave implements resume.Store.
func (s *Store) Leave(ctx context.Context, r resume.Ref, name string) error {
	_, err := s.run(ctx, "leave", r, name)
	return err
}
