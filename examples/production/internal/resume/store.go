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

// store keeps answers in Redis, by the clock of Redis. A name, which is an
// account's key, has a hash that says which answer it has and how that is. An
// answer has, by its id, a list of its fragments, a set of those who follow it,
// and when it failed a hash that tells them how. An account has a set of its
// answers that nobody follows, and one of those who follow any. What all that
// takes is counted in three keys more. (The keys of one script lie anywhere:
// this is not for a Redis cluster.)
type store struct {
	Settings
	redis *redisclient.Client
}

const (
	prefix = "answers:"

	// fragmentBytes is what a fragment takes besides its text.
	fragmentBytes = 4
	// readAtOnce and addedAtOnce bound the fragments of one step: Redis does
	// nothing else meanwhile.
	readAtOnce, addedAtOnce = 128, 1000
	// joinBurst is how often an answer may be joined at once; then it may be once
	// a second.
	joinBurst = 20

	stopsChannel = "stops" // ids
	newsChannel  = "news"  // ids of answers that somebody follows
)

// A title is what an answer is known by in Redis.
type title struct{ name, account, id string }

// titleOf names the answer of an account under a key in a form that no other
// account's can have.
func titleOf(account, key, id string) title {
	name := sha256.Sum256([]byte(strconv.Itoa(len(account)) + ":" + account + key))
	digest := sha256.Sum256([]byte(account))
	return title{hex.EncodeToString(name[:]), hex.EncodeToString(digest[:16]), id}
}

// key returns the name of a key or channel of answers in Redis.
func (s store) key(name string) string { return s.redis.Key(prefix + name) }

// keys are those of every script, in the order of keys.lua.
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
	foundAnswer  = "answer"  // under way or whole
	foundStopped = "stopped"
	foundOther   = "other"   // another body
	foundFull    = "full"    // nothing, and no room
	foundShare   = "share"   // nothing, and no room for this account
	foundLarge   = "large"   // one that is under way and not kept
	foundOften   = "often"   // one that was joined too often
	foundCrowded = "crowded" // one that too many follow
	foundPlaces  = "places"  // one, and its account follows as many as it may
)

// How an answer is, to its replica and to those who follow it.
const (
	stateRunning   = "running"
	stateLarge     = "large" // under way, and not kept any more
	stateWhole     = "whole"
	stateStopped   = "stopped"
	stateOver      = "over"      // with an ending for those who follow it
	stateLost      = "lost"      // forgotten, another's, or of a replica that died
	stateAbandoned = "abandoned" // nobody came back
	stateDisplaced = "displaced" // nobody came back, and its account had too many of these
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
	bytes int64  // of all answers, where the claim has counted them; else 0
}

// claim makes the answer of a title that of its name if the name has none, or
// lets a follower follow the one that it has. atOnce is how many answers an
// account may follow; 0 means no limit.
func (s store) claim(ctx context.Context, t title, follower string, body []byte, atOnce int64) (claimed, error) {
	all := s.AllBytes
	if s.redis.Full() {
		all = 0 // what is there can be joined
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

// An added is how an answer is after add.
type added struct {
	state string
	have  int           // fragments
	alone time.Duration // how long nobody has followed it
}

// add adds texts to an answer that has so many of them already, and lets its
// lease last longer. It may be called again when it failed: what it did then is
// not done twice. unattended says that nobody follows the answer at its replica.
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

// end says how an answer ended.
func (s store) end(t title, told ending) error {
	text, _ := json.Marshal(told) // cannot fail: Loc holds strings and ints
	err := endScript.Run(context.Background(), s.redis, s.keys(t),
		t.id, t.account, s.key(newsChannel), s.Lease.Milliseconds(), s.Keep.Milliseconds(), told.Status == 0, text).Err()
	if err != nil {
		return fmt.Errorf("ending an answer: %w", err)
	}
	return nil
}

// stop ends the answer of a title's name on whichever replica, and returns its
// id, or redis.Nil if the name has none. One that is over stays as it is.
func (s store) stop(ctx context.Context, t title) (id string, err error) {
	return stopScript.Run(ctx, s.redis, s.keys(t),
		s.key(""), s.Lease.Milliseconds(), s.Keep.Milliseconds(), s.key(stopsChannel), s.key(newsChannel)).Text()
}

// read returns fragments from next on, without waiting for any, and keeps the
// follower's place. over says that nothing comes after them; the ending is how
// it ended then. An answer that does not live any more is errDied.
func (s store) read(ctx context.Context, t title, follower string, next int) (texts []string, over bool, told ending, err error) {
	found, err := readScript.Run(ctx, s.redis, s.keys(t), t.id, follower, s.Lease.Milliseconds(), next, readAtOnce).StringSlice()
	if err != nil {
		return nil, false, ending{}, fmt.Errorf("reading an answer: %w", err)
	}
	state, text, texts := found[0], found[1], found[2:]
	switch state {
	case stateLost:
		return nil, false, ending{}, errDied
	case stateOver:
		if err := json.Unmarshal([]byte(text), &told); err != nil {
			return nil, false, ending{}, fmt.Errorf("reading how an answer ended: %w", err)
		}
	case stateStopped:
		told = endingOf(errStopped)
	}
	return texts, state != stateRunning && state != stateLarge && len(texts) < readAtOnce, told, nil
}

// leave gives up the place of a follower.
func (s store) leave(t title, follower string) {
	keys := s.keys(t)
	_, _ = s.redis.Pipelined(context.Background(), func(p redis.Pipeliner) error {
		p.ZRem(context.Background(), keys[3], follower)
		p.ZRem(context.Background(), keys[5], follower)
		return nil
	}) // else the place is free when its lease has run out
}

var errDied = errors.New("the replica that gave the answer does not any more")

// An ending is how an answer ended, as a client of any replica may know it: the
// causes of errors stay in the logs of their own replica.
type ending struct {
	Status     int                      `json:"status,omitempty"` // 0 for an answer that is whole
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

// err is what those who follow the answer are told; nil if it is whole.
func (e ending) err() error {
	switch {
	case e.Status == 0:
		return nil
	case e.Invalid != nil:
		return &botapi.HTTPValidationError{Detail: e.Invalid}
	}
	return &botapi.StatusError{Status: e.Status, Detail: e.Detail, RetryAfter: e.RetryAfter}
}
