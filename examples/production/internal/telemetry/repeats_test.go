package telemetry_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"example.com/botapi/examples/production/internal/telemetry"
	"github.com/matryer/is"
)

// TestRepeats has two kinds of events. Of each, the first is written immediately, and the
// others after a period, or by Flush.
func TestRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var repeats telemetry.Repeats[string]
		var mu sync.Mutex // a timer writes on a goroutine of its own
		var written []string
		count := func(kind, what string, events int) {
			for range events {
				repeats.Count(kind, func(times int64) {
					mu.Lock()
					defer mu.Unlock()
					written = append(written, fmt.Sprint(what, times))
				})
			}
		}
		taken := func() (lines []string) {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			lines, written = written, nil
			return lines
		}
		count("a", "first ", 1)
		count("a", "later ", 5)
		count("a", "last ", 1)
		count("b", "other ", 1)
		is.Equal(taken(), []string{"first 1", "other 1"})
		time.Sleep(telemetry.LogPeriod)
		is.Equal(taken(), []string{"last 6"})
		time.Sleep(telemetry.LogPeriod)
		is.Equal(taken(), nil) // it is forgotten
		count("a", "again ", 2)
		is.Equal(taken(), []string{"again 1"})
		repeats.Flush()
		repeats.Flush()
		is.Equal(taken(), []string{"again 1"})
	})
}
