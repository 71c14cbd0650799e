package resume

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/production/internal/redisclient"
	"github.com/redis/go-redis/v9"
)

// store keeps answers in Redis, by the clock of Redis. A name, which stands for
// an account's key, has a hash with the id and the state of its answer. An
// answer has, by its id, a list of its fragments, a set of its followers, and if
// it failed a hash that tells them how. An account has a set of its answers
// without followers, and a set of its followers. Three more keys account for the
// memory of all that. (The keys of one script are on any node: this does not
// work with a Redis cluster.)
type store struct {
	Settings
	redis *redisclient.Client
}

const (
	prefix = "answers:"

	// fragmentBytes is the memory of a fragment besides its text.
	fragmentBytes = 4
	// readAtOnce and addedAtOnce bound the fragments of one step, since Redis
	// does nothing else meanwhile.
	readAtOnce, addedAtOnce = 128, 1000
	// joinBurst is how often an answer may be joined at first; after that, once
	// a second.
	joinBurst = 20

	stopsChannel = "stops" // ids
	newsChannel  = "news"  // ids of answers that have followers
)

// A title identifies an answer in Redis.
type title struct{ name, account, id string }

// titleOf names the answer of an account under a key. No other account can have
// the same name.
func titleOf(account, key, id string) title {
	name := sha256.Sum256([]byte(strconv.Itoa(len(account)) + ":" + account + key))
	digest := sha256.Sum256([]byte(account))
	return title{hex.EncodeToString(name[:]), hex.EncodeToString(digest[:16]), id}
}

// key returns the full name of a key or channel in Redis.
func (s store) key(name string) string { return s.redis.Key(prefix + name) }

// keys are the keys of every script, in the order of keys.lua.
func (s store) keys(t title) []string {
	return []string{
		s.key("name:" + t.name),
		s.key("fragments:" + t.id),
		s.key("ending:" + t.id),
		s.key("followers:" + t.id),
		s.key("alone:" + t.account),
		s.key("joined:" + t.account),
		s.key("kept"),  // ids, by when they are forgotten
		s.key("sizes"), // bytes and account, by id
		s.key("bytes"), // of each account, and of all
	}
}

// What claim finds under a name.
const (
	foundNothing = "nothing" // the id is the name's answer now
	foundAnswer  = "answer"  // in progress or complete
	foundStopped = "stopped"
	foundOther   = "other"   // another body
	foundFull    = "full"    // nothing, and no room
	foundShare   = "share"   // nothing, and no room for this account
	foundLarge   = "large"   // one in progress that is not kept
	foundOften   = "often"   // one that was joined too often
	foundCrowded = "crowded" // one that has too many followers
	foundPlaces  = "places"  // one, but its account follows as many as it may
)

// The state of an answer, for its replica and its followers.
const (
	stateRunning   = "running"
	stateLarge     = "large" // in progress, and no longer kept
	stateWhole     = "whole"
	stateStopped   = "stopped"
	stateOver      = "over"      // with an ending for its followers
	stateLost      = "lost"      // forgotten, of another account, or of a replica that died
	stateAbandoned = "abandoned" // no client returned
	stateDisplaced = "displaced" // no client returned, and its account had too many of these
)

var (
	//go:embed keys.lua
	keysSource string
	//go:embed claim.lua
	claimSource string
	//go:embed add.lua
	addSource string
	//go:embed end.lua
	endSource string
	//go:embed read.lua
	readSource string
	//go:embed stop.lua
	stopSource string

	claimScript = redis.NewScript(keysSource + claimSource)
	addScript   = redis.NewScript(keysSource + addSource)
	endScript   = redis.NewScript(keysSource + endSource)
	readScript  = redis.NewScript(keysSource + readSource)
	stopScript  = redis.NewScript(keysSource + stopSource)
)

// A claimed is what claim found.
type claimed struct {
	found string
	id    string // of the answer to start or to follow
	bytes int64  // of all answers, if the claim has counted them; otherwise 0
}

// claim makes the answer of a title the answer of its name if the name has none.
// Otherwise it lets a follower follow the one that it has. atOnce is how many
// answers an account may follow; 0 means no limit.
func (s store) claim(ctx context.Context, t title, follower string, body []byte, atOnce int64) (claimed, error) {
	all := s.AllBytes
	if s.redis.Full() {
		all = 0 // existing answers can be joined
	}
	found, err := claimScript.Run(ctx, s.redis, s.keys(t),
		t.id, body, follower, t.account, s.key(""),
		s.Lease.Milliseconds(), s.ClientsPerAnswer, atOnce, joinBurst, s.AccountBytes, all).Slice()
	if err != nil {
		return claimed{}, fmt.Errorf("claiming a key: %w", err)
	}
	c := claimed{}
	c.found, _ = found[0].(string)
	c.id, _ = found[1].(string)
	c.bytes, _ = found[2].(int64)
	return c, nil
}

// An added is the state of an answer after add.
type added struct {
	state string
	have  int           // fragments
	alone time.Duration // how long nobody has followed it
}

// add adds texts to an answer that has written fragments so far, and renews its
// lease. It may be called again after a failure: nothing is added twice.
// unattended means that nobody follows the answer at its replica.
func (s store) add(t title, written int, texts []string, unattended bool) (added, error) {
	arguments := []any{
		t.id, t.account, s.key(newsChannel), s.Lease.Milliseconds(), written, unattended,
		s.Alone.Milliseconds(), s.AlonePerAccount, fragmentBytes, s.AnswerBytes, s.AccountBytes, s.AllBytes,
	}
	for _, text := range texts {
		arguments = append(arguments, text)
	}
	found, err := addScript.Run(context.Background(), s.redis, s.keys(t), arguments...).Slice()
	if err != nil {
		return added{}, fmt.Errorf("adding to an answer: %w", err)
	}
	state, _ := found[0].(string)
	have, _ := found[1].(int64)
	milliseconds, _ := found[2].(int64)
	return added{state, int(have), time.Duration(milliseconds) * time.Millisecond}, nil
}

// end stores how an answer ended.
func (s store) end(t title, ended ending) error {
	text, _ := json.Marshal(ended) // cannot fail: Loc holds strings and ints
	err := endScript.Run(context.Background(), s.redis, s.keys(t),
		t.id, t.account, s.key(newsChannel), s.Lease.Milliseconds(), s.Keep.Milliseconds(), ended.Status == 0, text).Err()
	if err != nil {
		return fmt.Errorf("ending an answer: %w", err)
	}
	return nil
}

// stop stops the answer of a title's name on any replica, and returns its id, or
// redis.Nil if the name has none. It does not change one that is over.
func (s store) stop(ctx context.Context, t title) (id string, err error) {
	return stopScript.Run(ctx, s.redis, s.keys(t),
		s.key(""), s.Lease.Milliseconds(), s.Keep.Milliseconds(), s.key(stopsChannel), s.key(newsChannel)).Text()
}

// read returns the fragments from next on, without waiting for any, and renews
// the follower's slot. over means that no more will follow; ended then says how
// the answer ended. The error for a lost answer is errDied.
func (s store) read(ctx context.Context, t title, follower string, next int) (texts []string, over bool, ended ending, err error) {
	found, err := readScript.Run(ctx, s.redis, s.keys(t), t.id, follower, s.Lease.Milliseconds(), next, readAtOnce).StringSlice()
	if err != nil {
		return nil, false, ending{}, fmt.Errorf("reading an answer: %w", err)
	}
	state, text, texts := found[0], found[1], found[2:]
	switch state {
	case stateLost:
		return nil, false, ending{}, errDied
	case stateOver:
		if err := json.Unmarshal([]byte(text), &ended); err != nil {
			return nil, false, ending{}, fmt.Errorf("reading how an answer ended: %w", err)
		}
	case stateStopped:
		ended = endingOf(errStopped)
	}
	return texts, state != stateRunning && state != stateLarge && len(texts) < readAtOnce, ended, nil
}

// leave releases the slot of a follower.
func (s store) leave(t title, follower string) {
	keys := s.keys(t)
	_, _ = s.redis.Pipelined(context.Background(), func(p redis.Pipeliner) error {
		p.ZRem(context.Background(), keys[3], follower)
		p.ZRem(context.Background(), keys[5], follower)
		return nil
	}) // otherwise the slot is free when its lease expires
}

var errDied = errors.New("the replica that gave the answer has died")

// An ending is how an answer ended, in the form for clients of any replica: the
// causes of errors are only in the log of the answer's replica.
type ending struct {
	Status     int                      `json:"status,omitempty"` // 0 for a complete answer
	Detail     string                   `json:"detail,omitempty"`
	RetryAfter time.Duration            `json:"retry_after,omitempty"`
	Invalid    []botapi.ValidationError `json:"invalid,omitempty"`
	Unasked    bool                     `json:"unasked,omitempty"` // no model was asked
}

func endingOf(err error) (e ending) {
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
	return e
}

// err is the error for the followers of the answer; nil if it is complete.
func (e ending) err() error {
	switch {
	case e.Status == 0:
		return nil
	case e.Invalid != nil:
		return &botapi.HTTPValidationError{Detail: e.Invalid}
	}
	return &botapi.StatusError{Status: e.Status, Detail: e.Detail, RetryAfter: e.RetryAfter}
}
