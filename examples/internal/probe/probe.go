// Package probe is the part of a diagnosis that runs inside the service: an engine that does
// what a check orders, and says what it saw. The orders and what was seen are JSON, in chats.
package probe

import (
	"time"
)

// Field is the field of a chat's body that holds an Order.
const Field = "botapi_probe"

// An Order is what a check asks of the engine.
type Order struct {
	Secret string `json:"secret"`
	Chat   string `json:"chat"` // the id of a probe chat, which the check has chosen
	Do     Deed   `json:"do"`

	Steps []Step `json:"steps,omitempty"` // of Play, in order

	For    Event  `json:"for,omitempty"`    // of See: what to wait for
	Count  int    `json:"count,omitempty"`  // of See, with Yielded; of Go: see there
	Millis Millis `json:"millis,omitempty"` // of See: how long to wait at most

	// Stay is how long See and Go wait for a chat that this process does not know.
	Stay Millis `json:"stay,omitempty"`
}

// A Deed is what an order is about.
type Deed string

const (
	Play Deed = "play" // answer with the steps
	Go   Deed = "go"   // end the AwaitGo of the chat up to the one of number Count; the answer is what See answers
	See  Deed = "see"  // answer with what was seen of the chat, as a Seen in JSON
)

// An Event is something that See waits for.
type Event string

const (
	Begun   Event = "begun"   // the engine was called
	Yielded Event = "yielded" // Count fragments were yielded, and the last yield has returned
	Quiet   Event = "quiet"   // no yield has returned for a second, or the answer has ended
	Ended   Event = "ended"   // every call of the engine has returned
)

// A Step is one thing that a probe chat does. Exactly one of its parts is set.
type Step struct {
	Text  string `json:"text,omitempty"`  // is yielded
	Times int    `json:"times,omitempty"` // so often; 0 means once

	Await  Awaited `json:"await,omitempty"`  // waits
	Millis Millis  `json:"millis,omitempty"` // at most so long

	Fail *Failure `json:"fail,omitempty"` // ends the answer with an error
}

// Awaited is what a step waits for.
type Awaited string

const (
	AwaitTime   Awaited = "time"
	AwaitGo     Awaited = "go"     // an order to go on
	AwaitCancel Awaited = "cancel" // nothing: only cancellation ends the wait before its time
)

// A Failure is the error of a probe chat. Status 0 aborts the connection.
type Failure struct {
	Status     int    `json:"status,omitempty"`
	Detail     string `json:"detail,omitempty"`
	RetryAfter int    `json:"retry_after,omitempty"` // seconds
}

// Millis are milliseconds.
type Millis int64

// In returns d in milliseconds.
func In(d time.Duration) Millis { return Millis(d.Milliseconds()) }

// Duration returns m as a duration.
func (m Millis) Duration() time.Duration { return time.Duration(m) * time.Millisecond }

// Seen is what one process knows of a probe chat.
type Seen struct {
	Process string `json:"process"` // another one for each replica of a service
	Runs    []Run  `json:"runs"`    // one for each time the engine was called; none: this process does not know the chat
}

// A Run is one call of the engine. Times are microseconds since the call.
type Run struct {
	Prompt    int               `json:"prompt"`     // length of the last message
	PromptSum string            `json:"prompt_sum"` // its SHA-256, in hex
	RequestID string            `json:"request_id"`
	Header    map[string]string `json:"header,omitempty"` // of the request: those of ReportedHeaders that it has

	Yielded   int        `json:"yielded"` // fragments whose yield has returned true
	Bytes     int64      `json:"bytes"`   // of them
	Fragments []Fragment `json:"fragments,omitempty"`

	Ending  Ending `json:"ending,omitempty"` // empty while the engine is running
	EndedAt int64  `json:"ended_at,omitempty"`
	Cause   string `json:"cause,omitempty"` // of the cancellation
}

// A Fragment says when it was yielded, and when its yield returned.
type Fragment struct {
	At   int64 `json:"at"`
	Back int64 `json:"back"`
}

// An Ending is why a run has ended.
type Ending string

const (
	Complete  Ending = "complete"  // all steps were done
	Failed    Ending = "failed"    // a step has failed, as it was to
	Cancelled Ending = "cancelled" // the context was cancelled, or yield returned false
	InVain    Ending = "in vain"   // nothing ended an AwaitCancel or an AwaitGo in its time
)

// ReportedHeaders are the headers of a request that a Run reports.
var ReportedHeaders = []string{"Accept-Encoding", "Connection", "Idempotency-Key", "Via"}
