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
		all := newTallies(0, 1)
		here, err := all.reserve("busy")
		is.NoErr(err)
		is.Equal(here, int64(1))
		all.saw("busy", 7, rejection{"tokens", time.Hour})
		all.saw("idle", 7, rejection{})
		time.Sleep(24 * time.Hour)

		_, tokens := all.seen("busy")
		is.Equal(tokens, int64(0))
		is.Equal(len(all.all), 1) // the other one is forgotten
		_, err = all.reserve("busy")
		is.Equal(err, rejection{"places", soon}.err())
		all.release("busy")
		is.NoErr(all.rejected("busy"))
		is.Equal(all.chats, int64(0))
		time.Sleep(24 * time.Hour)
		is.NoErr(all.rejected("other"))
		is.Equal(len(all.all), 1)
	})
}

// TestRejectedWithoutRedis has Redis reject an account for each reason at a replica that
// has one slot, and then none.
func TestRejectedWithoutRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for reason, lasts := range map[string]bool{"minute": true, "tokens": true, "places": false, "reserved": false} {
			is := is.New(t)
			all := newTallies(1, 0)
			why := rejection{reason, mostRejected}
			all.saw("acme", 0, why)
			is.Equal(all.rejected("acme"), why.err())
			is.NoErr(all.rejected("globex"))
			_, err := all.reserve("acme")
			is.Equal(err != nil, lasts)  // otherwise Redis is asked: a chat may have ended at another replica
			_, _ = all.reserve("globex") // now there is none

			full := all.rejected("globex")
			is.True(full != nil)
			is.Equal(all.rejected("acme"), why.err()) // no other replica would admit it
			_, err = all.reserve("acme")
			if lasts {
				is.Equal(err, why.err())
			} else {
				is.Equal(err, full)
			}
			time.Sleep(mostRejected)
			is.Equal(all.rejected("acme"), full)
		}
	})
}
