package resume

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"
)

// TestMemoryIsGivenBack has 10,000 keys of 100 owners end in every way, and waits:
// nothing is left, without a further call.
func TestMemoryIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		m := NewMemory(Settings{Running: 1 << 20, RunningPerOwner: 1 << 20})
		for i := range 10_000 {
			r := Ref{Owner: fmt.Sprint("owner", i%100), Key: fmt.Sprint("key", i), ID: fmt.Sprint("id", i)}
			c := Claim{Ref: r, Body: "body"}
			claimed, err := m.Claim(t.Context(), c)
			is.NoErr(err)
			is.Equal(claimed.State, Started)
			_, _ = m.Add(t.Context(), r, 0, []string{"text"}, true)
			c.ID = fmt.Sprint("reader", i)
			claimed, _ = m.Claim(t.Context(), c)
			is.Equal(claimed.State, Found)
			switch i % 4 {
			case 0: // complete
				ended, err := m.End(t.Context(), r, 1, Ending{})
				is.NoErr(err)
				is.Equal(ended, Complete)
			case 1: // failed
				ended, err := m.End(t.Context(), r, 1, Ending{Status: 500})
				is.NoErr(err)
				is.Equal(ended, Failed)
			case 2:
				found, _ := m.Stop(t.Context(), r.Owner, r.Key)
				is.True(found)
			} // otherwise its process dies
			if i%4 != 3 {
				is.NoErr(m.Leave(t.Context(), r, r.ID))
				is.NoErr(m.Leave(t.Context(), r, c.ID))
			} else {
				is.NoErr(m.Leave(t.Context(), r, c.ID))
				is.NoErr(m.Leave(t.Context(), r, r.ID))
			}
		}
		time.Sleep(m.settings.Keep + time.Second)
		m.mu.Lock()
		defer m.mu.Unlock()
		is.Equal(len(m.names)+len(m.ids)+len(m.owners)+len(m.running), 0)
		is.Equal(m.bytes, int64(0))
	})
}

// TestTextsAreShared reads one answer often: a store in memory copies no text.
func TestTextsAreShared(t *testing.T) {
	is := is.New(t)
	m := NewMemory(Settings{})
	r := Ref{"owner", "key", "id"}
	_, err := m.Claim(t.Context(), Claim{Ref: r, Body: "body"})
	is.NoErr(err)
	_, err = m.Add(t.Context(), r, 0, []string{strings.Repeat("x", 500_000)}, true)
	is.NoErr(err)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 1000 {
		part, err := m.Read(t.Context(), r, "", 0)
		is.NoErr(err)
		is.Equal(len(part.Texts[0]), 500_000)
	}
	runtime.ReadMemStats(&after)
	is.True(after.TotalAlloc-before.TotalAlloc < 1<<20)
}
