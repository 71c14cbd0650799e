package telemetry

import (
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// LogPeriod is the least time between two log lines of one Sparing.
const LogPeriod = 10 * time.Second

// Sparing counts events that may be frequent, and logs many of them in one line.
type Sparing struct {
	sometimes rate.Sometimes
	count     atomic.Int64 // since the last line
}

// NewSparing returns a Sparing that logs at most one line per LogPeriod.
func NewSparing() *Sparing {
	return &Sparing{sometimes: rate.Sometimes{Interval: LogPeriod}}
}

// Count counts one event. If a line is due, it calls log with the number of
// events since the last line, this one included.
func (s *Sparing) Count(log func(times int64)) {
	s.count.Add(1)
	s.sometimes.Do(func() { log(s.count.Swap(0)) })
}
