package resume

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"example.com/botapi"
)

// Settings are the rules of a store. A zero value means the default.
type Settings struct {
	Abandon time.Duration // after how long without a reader a running answer is abandoned; 1 minute
	Keep    time.Duration // how long a complete or stopped answer is remembered; 2 minutes; not shorter than Lease, in which slow readers renew it

	// Running and RunningPerOwner are how many models may run concurrently, also those whose
	// answers have ended: 1,000 and 100.
	Running, RunningPerOwner int64

	// Readers and ReadersPerOwner are how many requests may concurrently follow one answer,
	// and all answers of an owner, besides those that started them: 8 and 100.
	Readers, ReadersPerOwner int64

	// AnswerBytes, OwnerBytes and AllBytes are the memory for one answer, those of
	// an owner and all of them: 1 MiB, 32 MiB, 256 MiB. Each answer counts as 1,000
	// bytes besides its text, a running one as at least 16 KiB.
	AnswerBytes, OwnerBytes, AllBytes int64

	// FragmentBytes is how many bytes a fragment counts besides its text: 24, as in memory.
	FragmentBytes int64

	// Lease is how long a running answer, or a slot, counts after it was last renewed;
	// 9 seconds.
	Lease time.Duration

	// Wait is how long a chat waits for the store. If Claim takes longer, it is answered as
	// without a key; if End does, its readers get the end in spite of that. 1 second.
	Wait time.Duration
}

// Completed returns the settings with defaults in place of zeros.
func (s Settings) Completed() Settings {
	return Settings{
		Abandon:         cmp.Or(s.Abandon, time.Minute),
		Keep:            cmp.Or(s.Keep, 2*time.Minute),
		Running:         cmp.Or(s.Running, 1000),
		RunningPerOwner: cmp.Or(s.RunningPerOwner, 100),
		Readers:         cmp.Or(s.Readers, 8),
		ReadersPerOwner: cmp.Or(s.ReadersPerOwner, 100),
		AnswerBytes:     cmp.Or(s.AnswerBytes, 1<<20),
		OwnerBytes:      cmp.Or(s.OwnerBytes, 32<<20),
		AllBytes:        cmp.Or(s.AllBytes, 256<<20),
		FragmentBytes:   cmp.Or(s.FragmentBytes, inMemory),
		Lease:           cmp.Or(s.Lease, 9*time.Second),
		Wait:            cmp.Or(s.Wait, time.Second),
	}
}

// A Store keeps answers for all processes that share it. The Engine calls it; NewMemory has
// the rules in Go, and resumetest checks that another store has the same. Methods may be
// called concurrently. They return when their context ends, and their errors mean that it is
// not known whether they had an effect; all but Claim may be repeated.
//
// The store decides in which state an answer is, for all processes. Claim makes it Running;
// Add makes it Outgrown, or Lost if nobody has followed it for Abandon; Stop makes it Stopped,
// and End Complete or Failed, or forgets it: then it is Lost. Nothing changes one that is Complete, Failed or Stopped. A store
// may lose an answer at any time, but never a part of one: it is Lost then. Only the process
// that runs an answer calls Add and End for it, one call at a time.
//
// A Running answer is Lost a Lease after its last Add; an Outgrown one, a Lease after the last
// Add, Read or End of it. Models and readers have slots in the store. The limits of the Settings
// count them, over all processes. Each slot has a lease of its own: it is free a Lease after the
// Claim that took it, or after it was last renewed. To renew a slot is to set that time anew, also
// if it has passed; no limit rejects that, but Read of an unknown answer renews none. (The slots of botapi's limits
// are others: each process has its own.)
//
// The contexts of Claim, Add, End and Leave end after Wait, that of Read after a Lease (Wait, if
// it only renews), that of Stop after five Waits. A store must neither change texts nor keep the slice.
type Store interface {
	// Settings returns the rules, complete.
	Settings() Settings

	// Claim starts the answer of a key that has none, or joins the one that it has. The first
	// of these that is true is its result: OtherBody, Stopped, TooManyJoins, TooManyReaders or
	// Found if there is an answer to join, Nothing if c.Join, TooManyRunning, NoRoom, Started.
	// An Outgrown answer cannot be joined: with its body, another is started, which takes its key.
	Claim(ctx context.Context, c Claim) (Claimed, error)

	// Add renews the slot of the model, also that of an answer which is over or unknown: it is
	// called until the engine has returned. To a Running answer it adds the fragments from a
	// number on, but those that it has already. If it lacks some before that number, it adds none
	// of them, as Have says. If they do not all fit, it adds none, and the answer is Outgrown. Of
	// a Running or an Outgrown one it renews the lease; if nobody has followed it for Abandon, it
	// forgets it: Lost. attended says that somebody follows the answer in the
	// process that runs it. It is called ten times a second while a model writes, immediately
	// when much text waits, and three times a Lease while the model is silent.
	Add(ctx context.Context, a Ref, from int, texts []string, attended bool) (Added, error)

	// End ends an answer, and returns its state for those who come later. A Running one that
	// ends complete, but of which the store has another number of fragments than this, is
	// forgotten: Lost. One that has Failed or is Outgrown loses its key. A Failed one stays with
	// its text for its readers, for a Lease. For an Outgrown one, End returns Lost, which is final
	// for the caller; Add and Read still find it Outgrown, until a Lease after the last of them. With -1 fragments, which no answer has, the
	// store forgets one that is not final.
	End(ctx context.Context, a Ref, fragments int, e Ending) (State, error)

	// Stop makes the Running or Outgrown answer of a key Stopped, and drops its text. It does
	// not change a final one. It reports whether the key has an answer.
	Stop(ctx context.Context, owner, key string) (found bool, err error)

	// Read returns fragments from a number on, without waiting for any, and renews the slot of
	// a reader, by the ID of its Claim; an empty one has none. A request that has one follows the
	// answer: it is not abandoned. An answer that is not Running stays for another Lease at least. Read
	// is called ten times a second for a reader of another process, by a reader of the process
	// that runs the answer if it is behind, and, with a number beyond all fragments, to renew.
	Read(ctx context.Context, a Ref, reader string, from int) (Part, error)

	// Leave releases the slot that a Claim took, by the ID of the Claim: that of a
	// reader or, if it started the answer, of the model.
	Leave(ctx context.Context, a Ref, claim string) error

	// Watch has f called with the ID of each answer that is stopped from now on, by
	// any process. f returns immediately. A call may be missing: Add says it later.
	Watch(f func(id string))
}

// A Ref is one answer: whose it is, under which key, and an ID that no other answer has, since
// a key may have several answers one after the other. (In a Claim, the ID is that of the claim,
// and so of the slot that it takes: an answer that it starts has the same.)
type Ref struct{ Owner, Key, ID string }

// A name is what all answers of a key have in common.
type name struct{ owner, key string }

func (r Ref) name() name { return name{r.Owner, r.Key} }

// forgotten is the number of fragments with which End forgets an answer.
const forgotten = -1

// A Claim asks for the answer of a key.
type Claim struct {
	Ref           // with a new ID
	Body   string // distinguishes what was asked, in any bytes; empty for whatever was asked
	Join   bool   // only join
	Limits Limits // of the owner
}

// Limits are those of one owner. A zero value means that of the Settings.
type Limits struct{ Running, Readers int64 }

// Claimed is what a Claim found.
type Claimed struct {
	State State
	ID    string // of the answer that was started or joined
}

// A State is that of an answer, or why a Claim gets none.
type State string

// States of answers. A key leads to an answer that is Running, Complete or Stopped. Those that
// are Failed or Lost are for their present readers only, and so is the text of one that is
// Outgrown: its key can stop it until its end, or until the key has another answer.
const (
	Running  State = "running"
	Outgrown State = "outgrown" // has more text than there is room for: what did fit stays for its readers
	Complete State = "complete"
	Stopped  State = "stopped"
	Failed   State = "failed"
	Lost     State = "lost" // forgotten, abandoned, or its process has died
)

// isFinal reports whether nothing changes the state of an answer any more.
func (s State) isFinal() bool { return s != Running && s != Outgrown }

// Results of a Claim, besides Stopped.
const (
	Started        State = "started"          // the model has a slot, which Leave releases
	Found          State = "found"            // joined: the reader has a slot, which Leave releases
	Nothing        State = "nothing"          // to join
	OtherBody      State = "other body"       // the key has an answer to another one
	NoRoom         State = "no room"          // for the text of one more answer
	TooManyRunning State = "too many running" // no slot is left for a model
	TooManyReaders State = "too many readers" // no slot is left for a reader
	TooManyJoins   State = "too many joins"   // the answer was joined too often
)

// Added is what an answer is after Add.
type Added struct {
	State      State
	Have       int           // fragments; 0 if the state is final
	Unattended time.Duration // since an Add has found that nobody follows it
}

// A Part is some fragments of an answer, and its state; Running if PartFragments left some out.
type Part struct {
	Texts  []string
	State  State  // Running if there may be more
	Ending Ending // of a Failed answer
}

// Limits that the stores share.
const (
	// PartFragments bounds the fragments of a Part.
	PartFragments = 128

	// AnswerOverhead is what an answer counts as besides its fragments, LeastRunning
	// the least that a running one counts as.
	AnswerOverhead, LeastRunning = 1000, 16 << 10

	// JoinBurst is how often an answer may be joined in all, and once more for each second
	// that it is old.
	JoinBurst = 20
)

// An Ending is how an answer ended, as every process can tell its readers. The
// zero value is a complete answer.
type Ending struct {
	Status     int                      `json:"status,omitempty"`
	Detail     string                   `json:"detail,omitempty"`
	RetryAfter time.Duration            `json:"retry_after,omitempty"`
	Invalid    []botapi.ValidationError `json:"invalid,omitempty"`
	Aborted    bool                     `json:"aborted,omitempty"` // http.ErrAbortHandler
}

func endingOf(err error) Ending {
	response, isResponse := errors.AsType[*botapi.StatusError](err)
	invalid, isInvalid := errors.AsType[*botapi.HTTPValidationError](err)
	switch {
	case err == nil:
		return Ending{}
	case isResponse && 400 <= response.Status && response.Status <= 599:
		return Ending{Status: response.Status, Detail: response.Detail, RetryAfter: response.RetryAfter}
	case errors.Is(err, http.ErrAbortHandler) && !isResponse:
		return Ending{Status: http.StatusInternalServerError, Aborted: true}
	case isInvalid && !isResponse:
		return Ending{Status: http.StatusUnprocessableEntity, Invalid: invalid.Detail}
	case errors.Is(err, botapi.ErrBotNotFound) && !isResponse:
		return Ending{Status: http.StatusNotFound, Detail: "Bot not found"}
	case errors.Is(err, botapi.ErrInvalidKey) && !isResponse:
		return Ending{Status: http.StatusUnauthorized, Detail: "Invalid API key"}
	}
	return Ending{Status: http.StatusInternalServerError, Detail: "Internal Server Error"}
}

// Err returns the error for readers, nil for a complete answer.
func (e Ending) Err() error {
	switch {
	case e.Status == 0:
		return nil
	case e.Aborted:
		return http.ErrAbortHandler
	case e.Invalid != nil:
		return &botapi.HTTPValidationError{Detail: e.Invalid}
	}
	return &botapi.StatusError{Status: e.Status, Detail: e.Detail, RetryAfter: e.RetryAfter}
}

// Watchers implements Watch for stores. The zero value is ready for use.
type Watchers struct {
	mu  sync.Mutex
	all []func(id string)
}

// Watch is Store.Watch.
func (w *Watchers) Watch(f func(id string)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, f)
}

// Tell tells the watchers that an answer was stopped.
func (w *Watchers) Tell(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.all {
		f(id)
	}
}
