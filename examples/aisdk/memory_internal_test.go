package aisdk

import (
	"strconv"
	"testing"

	"github.com/matryer/is"
)

// The memory forgets chats, but none of the last ones.
func TestMemoryIsBounded(t *testing.T) {
	is := is.New(t)
	m := new(memory)
	for i := range 3 * remembered {
		is.NoErr(m.Set(t.Context(), strconv.Itoa(i), "answer "+strconv.Itoa(i)))
	}
	is.True(len(m.young)+len(m.old) <= 2*remembered)
	for i := 2 * remembered; i < 3*remembered; i += 1000 {
		answer, err := m.Get(t.Context(), strconv.Itoa(i))
		is.NoErr(err)
		is.Equal(answer, "answer "+strconv.Itoa(i))
	}
	answer, err := m.Get(t.Context(), "0")
	is.NoErr(err)
	is.Equal(answer, "")
}
