package service

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"
)

// TestRejectedAllTheTime plays an account that tries each minute, one that pauses,
// and one that gives up.
func TestRejectedAllTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		r := newRejected()
		for minute := range 11 {
			is.Equal(r.allTheTime(), int64(0))
			r.saw("each minute")
			if minute != 4 && minute != 5 {
				r.saw("with a pause")
			}
			if minute < 10 {
				time.Sleep(time.Minute)
			}
		}
		is.Equal(r.allTheTime(), int64(1))
		time.Sleep(2 * time.Minute)
		is.Equal(r.allTheTime(), int64(1)) // it may still be trying
		time.Sleep(time.Second)
		is.Equal(r.allTheTime(), int64(0)) // it has given up
	})
}
