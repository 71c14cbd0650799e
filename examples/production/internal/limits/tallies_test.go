package limits

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"
)

// TestChatsInProgressAtMidnight has two accounts active on a day, one of which has a
// chat in progress when it ends.
func TestChatsInProgressAtMidnight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		all := newTallies()
		here, err := all.reserve("busy")
		is.NoErr(err)
		is.Equal(here, int64(1))
		all.saw("busy", 7, rejection{"tokens", time.Hour})
		all.saw("idle", 7, rejection{})
		time.Sleep(24 * time.Hour)

		_, tokens := all.seen("busy")
		is.Equal(tokens, int64(0))
		is.Equal(len(all.all), 1) // the other one is forgotten
		here, err = all.reserve("busy")
		is.NoErr(err)
		is.Equal(here, int64(2))
		all.release("busy")
		all.release("busy")
		is.NoErr(all.rejected("busy"))
		time.Sleep(24 * time.Hour)
		is.NoErr(all.rejected("other"))
		is.Equal(len(all.all), 1)
	})
}

// TestRejectedWithoutRedis has Redis reject an account for each reason.
func TestRejectedWithoutRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for reason, lasts := range map[string]bool{"minute": true, "tokens": true, "slots": false, "reserved": false} {
			is := is.New(t)
			all := newTallies()
			why := rejection{reason, mostRejected}
			all.saw("acme", 0, why)
			is.Equal(all.rejected("acme"), why.err())
			is.NoErr(all.rejected("globex"))
			_, err := all.reserve("acme")
			is.Equal(err != nil, lasts) // otherwise Redis is asked: a chat may have ended at another replica
			time.Sleep(mostRejected)
			is.NoErr(all.rejected("acme"))
		}
	})
}
