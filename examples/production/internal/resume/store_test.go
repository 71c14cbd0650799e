package resume

import (
	"strings"
	"testing"
	"time"

	"example.com/botapi/examples/production/internal/redistest"
	"github.com/matryer/is"
)

// TestAddAgain repeats what may have been done although it failed.
func TestAddAgain(t *testing.T) {
	is := is.New(t)
	client := redistest.NewServer(t).Client(t)
	s := store{redis: client, blocking: client.Client, lease: time.Minute, within: time.Minute, reserved: 1000, all: 1000}
	found, _, err := s.claim(t.Context(), "name", "id", []byte("body"))
	is.NoErr(err)
	is.Equal(found, foundNothing)
	for _, texts := range []string{"", "a", "a b", "a b", "a b c"} {
		_, _, err := s.add("name", "id", 0, strings.Fields(texts))
		is.NoErr(err)
	}
	_, _, err = s.add("name", "id", 3, []string{"d"})
	is.NoErr(err)
	is.NoErr(s.end("name", "id", nil, 4))
	is.NoErr(s.end("name", "id", nil, 4))

	var texts []string
	for text, err := range s.follow(t.Context(), "name", "id") {
		is.NoErr(err)
		texts = append(texts, text)
	}
	is.Equal(texts, []string{"a", "b", "c", "d"})
	state, _, err := s.add("name", "id", 4, []string{"e"})
	is.NoErr(err)
	is.Equal(state, stateWhole) // and nothing follows the end
	length, err := client.XLen(t.Context(), fragmentsKey("id")).Result()
	is.NoErr(err)
	is.Equal(length, int64(5))
}
