package telemetry

import (
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// LogPeriod is how often the log has what may be so for each request.
const LogPeriod = 10 * time.Second

// Sparing counts what may happen any number of times, and has it logged in one
// line for many.
type Sparing struct {
	sometimes rate.Sometimes
	count     atomic.Int64 // since the last line
}

// NewSparing returns one that has a line written each LogPeriod at most.
func NewSparing() *Sparing {
	return &Sparing{sometimes: rate.Sometimes{Interval: LogPeriod}}
}

// Count counts one more. Where a line is due, it calls log with how often it
// happened since the last line, this time included.
func (s *Sparing) Count(log func(times int64)) {
	s.count.Add(1)
	s.sometimes.Do(func() { log(s.count.Swap(0)) })
}

// Rest returns how often it happened since the last line, and counts anew.
func (s *Sparing) Rest() int64 { return s.count.Swap(0) }
