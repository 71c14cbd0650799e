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
