// Package instant has an optional time that several goroutines share.
package instant

import (
	"sync/atomic"
	"time"
)

// An Instant is an optional time, counted from some start. It is safe for concurrent use.
// The zero value is not set.
type Instant struct {
	plusOne atomic.Int64 // the time plus a nanosecond; 0 if it is not set
}

// Set sets the time.
func (i *Instant) Set(at time.Duration) { i.plusOne.Store(int64(at) + 1) }

// Clear makes the time unset.
func (i *Instant) Clear() { i.plusOne.Store(0) }

// Get returns the time, if it is set.
func (i *Instant) Get() (at time.Duration, isSet bool) {
	plusOne := i.plusOne.Load()
	return time.Duration(plusOne - 1), plusOne != 0
}
