package resume

import (
	"strings"
	"testing"

	"example.com/botapi/examples/production/internal/redistest"
	"github.com/matryer/is"
)

// TestAddAgain repeats commands that may have succeeded although they returned
// an error.
func TestAddAgain(t *testing.T) {
	is := is.New(t)
	s := store{Settings{}.Completed(), redistest.NewServer(t).Client(t)}
	title := titleOf("acme", "key", "id")
	claimed, err := s.claim(t.Context(), title, "follower", []byte("body"), 0)
	is.NoErr(err)
	is.Equal(claimed.found, foundNothing)
	for _, texts := range []string{"", "a", "a b", "a b", "a b c"} {
		_, err := s.add(title, 0, strings.Fields(texts), false)
		is.NoErr(err)
	}
	now, err := s.add(title, 3, []string{"d"}, false)
	is.NoErr(err)
	is.Equal(now, added{stateRunning, 4, 0})
	is.NoErr(s.end(title, ending{}))
	is.NoErr(s.end(title, ending{}))

	texts, over, told, err := s.read(t.Context(), title, "follower", 0)
	is.NoErr(err)
	is.Equal(texts, []string{"a", "b", "c", "d"})
	is.True(over)
	is.Equal(told, ending{})
	now, err = s.add(title, 4, []string{"e"}, false)
	is.NoErr(err)
	is.Equal(now.state, stateWhole) // and nothing follows the end
	length, err := s.redis.LLen(t.Context(), s.keys(title)[1]).Result()
	is.NoErr(err)
	is.Equal(length, int64(4))
}

// TestFailoverThatLosesFragments has a Redis that took over from another before
// it had all: missing fragments are added again, and an incomplete answer never
// counts as complete.
func TestFailoverThatLosesFragments(t *testing.T) {
	is := is.New(t)
	s := store{Settings{}.Completed(), redistest.NewServer(t).Client(t)}
	title := titleOf("acme", "key", "id")
	_, err := s.claim(t.Context(), title, "follower", []byte("body"), 0)
	is.NoErr(err)
	_, err = s.add(title, 0, []string{"a", "b", "c"}, false)
	is.NoErr(err)
	is.NoErr(s.redis.LTrim(t.Context(), s.keys(title)[1], 0, 0).Err())
	now, err := s.add(title, 3, []string{"d"}, false)
	is.NoErr(err)
	is.Equal(now, added{stateRunning, 1, 0})
	now, err = s.add(title, 1, []string{"b", "c", "d"}, false)
	is.NoErr(err)
	is.Equal(now, added{stateRunning, 4, 0})
	is.NoErr(s.end(title, ending{}))

	is.NoErr(s.redis.LTrim(t.Context(), s.keys(title)[1], 0, 2).Err())
	_, _, _, err = s.read(t.Context(), title, "follower", 0)
	is.Equal(err, errDied)
	claimed, err := s.claim(t.Context(), title, "follower", []byte("body"), 0)
	is.NoErr(err)
	is.Equal(claimed.found, foundNothing) // anew
}
