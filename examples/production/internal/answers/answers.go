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

	stops   *redis.PubSub
	running sync.WaitGroup // calls of the script, and listen
}

var _ resume.Store = (*Store)(nil)

//go:embed answers.lua
var source string

var script = redis.NewScript(source)

// fragmentBytes is the memory of a fragment in a list of Redis besides its text.
const fragmentBytes = 4

// A chat waits for its claim at most 1/claimsPart of the time that it may wait for
// Redis: the rest is for its limits.
const claimsPart = 4

// New returns a store, which works until it is closed. The caller closes the
// client, after the store. By default a chat waits a quarter of the client's
// Timeout for its claim.
func New(client *redisclient.Client, settings resume.Settings, meter metric.Meter) (*Store, error) {
	settings.FragmentBytes = cmp.Or(settings.FragmentBytes, fragmentBytes)
	settings.Wait = cmp.Or(settings.Wait, client.Timeout()/claimsPart)
	settings = settings.Completed()
	rules, err := json.Marshal(map[string]int64{
		"abandon": settings.Abandon.Milliseconds(), "keep": settings.Keep.Milliseconds(), "lease": settings.Lease.Milliseconds(),
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
	s.stops = client.Subscribe(context.Background(), s.prefix()+"stopped")
	s.running.Go(s.listen)
	return s, nil
}

// Close ends the store, after the engine that uses it.
func (s *Store) Close() {
	_ = s.stops.Close() // the connection may be broken already
	s.running.Wait()
}

// listen tells of stopped answers, as the script publishes.
func (s *Store) listen() {
	for message := range s.stops.Channel() {
		s.Tell(message.Payload)
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

// at returns one value of a reply of the script.
func at[T any](reply []any, i int) (value T) {
	if i < len(reply) {
		value, _ = reply[i].(T)
	}
	return value
}

// run runs a method of the script, and returns when ctx ends. The script's own limit
// of time is that of the client: that a caller waits for less says nothing about Redis.
// An answer that a claim starts after its caller has given up is ended. (The engine
// ends it, too, but that may have come first.)
func (s *Store) run(ctx context.Context, method string, r resume.Ref, arguments ...any) ([]any, error) {
	// No other owner can have the same name.
	name := sha256.Sum256([]byte(strconv.Itoa(len(r.Owner)) + ":" + r.Owner + r.Key))
	keys := []string{s.prefix() + "name:" + hex.EncodeToString(name[:])}
	arguments = append([]any{method, s.prefix(), ownerName(r.Owner), r.ID, s.rules}, arguments...)
	type reply struct {
		values []any
		err    error
	}
	replies := make(chan reply)
	s.running.Go(func() {
		values, err := script.Run(context.WithoutCancel(ctx), s.redis.Apart, keys, arguments...).Slice()
		select {
		case replies <- reply{values, err}:
		case <-ctx.Done():
			if at[string](values, 0) == string(resume.Started) {
				_, _ = s.End(context.Background(), r, -1, resume.Ending{}) // otherwise its lease expires
				_ = s.Leave(context.Background(), r, r.ID)
			}
		}
	})
	var got reply
	select {
	case got = <-replies:
	case <-ctx.Done():
		got.err = ctx.Err()
	}
	if got.err != nil {
		return nil, fmt.Errorf("answers in redis: %s: %w", method, got.err)
	}
	return got.values, nil
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
	got, err := s.run(ctx, "claim", c.Ref, c.Body, c.Join,
		cmp.Or(c.Limits.Running, s.settings.RunningPerOwner), cmp.Or(c.Limits.Readers, s.settings.ReadersPerOwner), s.redis.Full())
	if err != nil {
		s.measured.claimed(ctx, "", "redis is away", 0)
		return resume.Claimed{}, err
	}
	claimed := resume.Claimed{State: resume.State(at[string](got, 0)), ID: at[string](got, 1)}
	s.measured.claimed(ctx, claimed.State, at[string](got, 2), at[int64](got, 3))
	return claimed, nil
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
	added := resume.Added{State: resume.State(at[string](got, 0)), Have: int(at[int64](got, 1)), Unattended: time.Duration(at[int64](got, 2)) * time.Millisecond}
	s.measured.added(ctx, added, len(texts))
	return added, nil
}

// End implements resume.Store.
func (s *Store) End(ctx context.Context, r resume.Ref, fragments int, e resume.Ending) (resume.State, error) {
	ending, err := json.Marshal(e)
	if err != nil {
		return "", fmt.Errorf("writing how an answer ended: %w", err)
	}
	got, err := s.run(ctx, "finish", r, fragments, e.Status != 0, ending)
	return resume.State(at[string](got, 0)), err
}

// Stop implements resume.Store.
func (s *Store) Stop(ctx context.Context, owner, key string) (found bool, err error) {
	got, err := s.run(ctx, "stop", resume.Ref{Owner: owner, Key: key})
	return at[int64](got, 0) == 1, err
}

// Read implements resume.Store.
func (s *Store) Read(ctx context.Context, r resume.Ref, reader string, from int) (resume.Part, error) {
	got, err := s.run(ctx, "read", r, reader, from, resume.PartFragments)
	if err != nil {
		return resume.Part{}, err
	}
	part := resume.Part{State: resume.State(at[string](got, 0))}
	for i := range got[2:] {
		part.Texts = append(part.Texts, at[string](got, 2+i))
	}
	if len(part.Texts) > resume.PartFragments {
		return resume.Part{Texts: part.Texts[:resume.PartFragments], State: resume.Running}, nil
	}
	if ending := at[string](got, 1); ending != "" {
		if err := json.Unmarshal([]byte(ending), &part.Ending); err != nil {
			return resume.Part{}, fmt.Errorf("reading how an answer ended: %w", err)
		}
	}
	return part, nil
}

// Leave implements resume.Store.
func (s *Store) Leave(ctx context.Context, r resume.Ref, claim string) error {
	_, err := s.run(ctx, "leave", r, claim)
	return err
}
