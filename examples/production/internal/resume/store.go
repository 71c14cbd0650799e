package resume

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/production/internal/redisclient"
	"github.com/redis/go-redis/v9"
)

// store keeps answers in Redis, by the clock of Redis. A name, which is an
// account's key, has a hash that says which answer it has and how that is; an
// answer has a stream of its fragments, by its id. The last entry of a stream is
// the ending. What is kept of all answers is counted in three keys more. (The
// keys of one script lie anywhere: this is not for a Redis cluster.)
type store struct {
	redis    *redisclient.Client
	blocking *redis.Client // for those who wait for fragments

	lease, within time.Duration
	reserved, all int64 // bytes, of an answer under way and of all answers
}

const (
	// followersElsewhere bounds the connections of those who follow answers of
	// other replicas while these are under way; each has one.
	followersElsewhere = 1000
	// followWait is how long such a follower waits before it looks whether the
	// answer still lives. It also stays that long when its client has left.
	followWait = 500 * time.Millisecond
	// readAtOnce is how many fragments it reads in one step.
	readAtOnce = 128

	stopsChannel = "botapi:answers:stops"
	keptKey      = "botapi:answers:kept"  // ids, by when they are forgotten
	sizesKey     = "botapi:answers:sizes" // bytes, by id
	bytesKey     = "botapi:answers:bytes" // of all together
)

func answerKey(name string) string  { return "botapi:answer:" + name }
func fragmentsKey(id string) string { return "botapi:fragments:" + id }

// What claim finds under a name.
const (
	foundNothing = "nothing" // the id is the name's answer now
	foundAnswer  = "answer"  // under way or whole
	foundStopped = "stopped"
	foundOther   = "other" // another body
	foundFull    = "full"  // nothing, and no room
)

// How an answer is, to its replica and to those who follow it elsewhere.
const (
	stateRunning = "running"
	stateWhole   = "whole"
	stateFailed  = "failed"
	stateStopped = "stopped"
	stateLost    = "lost" // forgotten, another's, or of a replica that died
)

var (
	//go:embed claim.lua
	claimSource string
	//go:embed add.lua
	addSource string
	//go:embed end.lua
	endSource string
	//go:embed look.lua
	lookSource string
	//go:embed stop.lua
	stopSource string

	claimScript = redis.NewScript(claimSource)
	addScript   = redis.NewScript(addSource)
	endScript   = redis.NewScript(endSource)
	lookScript  = redis.NewScript(lookSource)
	stopScript  = redis.NewScript(stopSource)
)

// claim makes id the answer of a name that has none, or returns what it has.
func (s store) claim(ctx context.Context, name, id string, body []byte) (found, joined string, err error) {
	answer, err := claimScript.Run(ctx, s.redis, []string{answerKey(name), keptKey, sizesKey, bytesKey},
		id, body, s.lease.Milliseconds(), s.within.Milliseconds(), s.reserved, s.all).StringSlice()
	if err != nil {
		return "", "", fmt.Errorf("claiming a key: %w", err)
	}
	return answer[0], answer[1], nil
}

// add adds texts to an answer that has so many of them already, and lets its
// lease last longer. It may be called again when it failed: what it did then is
// not done twice. followed is how long ago somebody claimed or followed the
// answer elsewhere.
func (s store) add(name, id string, written int, texts []string) (state string, followed time.Duration, err error) {
	arguments := []any{id, s.lease.Milliseconds(), s.within.Milliseconds(), written}
	for _, text := range texts {
		arguments = append(arguments, text)
	}
	answer, err := addScript.Run(context.Background(), s.redis,
		[]string{answerKey(name), fragmentsKey(id), keptKey}, arguments...).Slice()
	if err != nil {
		return "", 0, fmt.Errorf("adding to an answer: %w", err)
	}
	state, _ = answer[0].(string)
	milliseconds, _ := answer[1].(int64)
	return state, time.Duration(milliseconds) * time.Millisecond, nil
}

// end says how the answer ended, and how much there is to keep of it.
func (s store) end(name, id string, failure error, size int64) error {
	state := stateWhole
	if failure != nil {
		state = stateFailed
	}
	err := endScript.Run(context.Background(), s.redis, []string{answerKey(name), fragmentsKey(id), keptKey, sizesKey, bytesKey},
		id, s.within.Milliseconds(), state, encode(failure), size).Err()
	if err != nil {
		return fmt.Errorf("ending an answer: %w", err)
	}
	return nil
}

// stop ends the answer of a name on whichever replica, and returns its id, or
// redis.Nil if the name has none. One that is over stays as it is.
func (s store) stop(ctx context.Context, name string) (id string, err error) {
	id, err = s.redis.HGet(ctx, answerKey(name), "id").Result()
	if err != nil {
		return "", err
	}
	err = stopScript.Run(ctx, s.redis, []string{answerKey(name), fragmentsKey(id)},
		id, s.within.Milliseconds(), encode(errStopped), stopsChannel).Err()
	return id, err
}

// follow yields an answer of another replica, or one that is whole. It has as
// much patience with Redis as the answer's own replica, which has its lease.
func (s store) follow(ctx context.Context, name, id string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		f := follower{store: s, name: name, id: id, last: "0"}
		for healthy := time.Now(); ctx.Err() == nil; {
			over, err := f.step(ctx, yield)
			switch {
			case over:
				return
			case err == nil:
				healthy = time.Now()
			case errors.Is(err, errDied) || time.Since(healthy) > s.lease:
				yield("", errBroken(err))
				return
			default:
				pause(ctx, retryPeriod)
			}
		}
	}
}

// A follower is one of an answer that it finds in Redis.
type follower struct {
	store
	name, id string
	last     string    // entry that it has seen
	looked   time.Time // when it last looked whether the answer still lives
}

// step yields what there is, after a moment if there is nothing. It reports
// whether nothing more is wanted.
func (f *follower) step(ctx context.Context, yield func(string, error) bool) (over bool, err error) {
	entries, err := f.read(ctx, f.id, f.last)
	if err != nil {
		return false, err
	}
	for _, entry := range entries {
		if ending, ended := entry.Values["end"].(string); ended {
			if err := decode(ending); err != nil {
				yield("", err)
			}
			return true, nil
		}
		text, _ := entry.Values["text"].(string)
		if !yield(text, nil) {
			return true, nil
		}
		f.last = entry.ID
	}
	if len(entries) > 0 && time.Since(f.looked) < followWait {
		return false, nil
	}
	f.looked = time.Now()
	return false, f.look(ctx, f.name, f.id)
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// read waits a moment for entries after the last.
func (s store) read(ctx context.Context, id, last string) ([]redis.XMessage, error) {
	streams, err := s.blocking.XRead(ctx, &redis.XReadArgs{
		Streams: []string{fragmentsKey(id), last},
		Count:   readAtOnce,
		Block:   followWait,
	}).Result()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading an answer: %w", err)
	}
	return streams[0].Messages, nil
}

var errDied = errors.New("the replica that gave the answer does not any more")

// look says that somebody follows the answer, and looks whether it still lives.
func (s store) look(ctx context.Context, name, id string) error {
	state, err := lookScript.Run(ctx, s.redis, []string{answerKey(name)}, id).Text()
	if err != nil {
		return fmt.Errorf("looking after an answer: %w", err)
	}
	if state == stateLost {
		return errDied
	}
	return nil
}

// An ending is why an answer ended, as a client of any replica may know it: the
// causes of errors stay in the logs of their own replica.
type ending struct {
	Status     int                      `json:"status,omitempty"` // 0 for an answer that is whole
	Detail     string                   `json:"detail,omitempty"`
	RetryAfter time.Duration            `json:"retry_after,omitempty"`
	Invalid    []botapi.ValidationError `json:"invalid,omitempty"`
}

func encode(err error) []byte {
	var e ending
	answer, isAnswer := errors.AsType[*botapi.StatusError](err)
	invalid, isInvalid := errors.AsType[*botapi.HTTPValidationError](err)
	switch {
	case err == nil:
	case isAnswer:
		e = ending{Status: answer.Status, Detail: answer.Detail, RetryAfter: answer.RetryAfter}
	case isInvalid:
		e = ending{Status: http.StatusUnprocessableEntity, Invalid: invalid.Detail}
	default:
		e = ending{Status: http.StatusInternalServerError, Detail: "Internal Server Error"}
	}
	text, _ := json.Marshal(e) // cannot fail: Loc holds strings and ints
	return text
}

func decode(text string) error {
	var e ending
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		return fmt.Errorf("reading how an answer ended: %w", err)
	}
	switch {
	case e.Status == 0:
		return nil
	case e.Invalid != nil:
		return &botapi.HTTPValidationError{Detail: e.Invalid}
	}
	return &botapi.StatusError{Status: e.Status, Detail: e.Detail, RetryAfter: e.RetryAfter}
}
