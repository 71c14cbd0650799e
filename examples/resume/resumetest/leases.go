package resumetest

import (
	"strings"
	"testing"
	"time"

	"example.com/botapi/examples/resume"
	"github.com/matryer/is"
)

// testFrozenProcess freezes the process of a model for longer than a lease, so that
// another model gets its slot. Afterwards the first one counts again.
func testFrozenProcess(t *testing.T, backend Backend) {
	is := is.New(t)
	store := backend(t, resume.Settings{RunningPerOwner: 1, Lease: 2 * time.Second})()
	first, second := resume.Ref{Owner: "acme", Key: "k1", ID: "a1"}, resume.Ref{Owner: "acme", Key: "k2", ID: "a2"}
	claim := func(r resume.Ref) resume.State {
		found, err := store.Claim(t.Context(), resume.Claim{Ref: r, Body: "body"})
		is.NoErr(err)
		return found.State
	}
	is.Equal(claim(first), resume.Started)
	time.Sleep(2200 * time.Millisecond)
	is.Equal(claim(second), resume.Started)
	added, err := store.Add(t.Context(), first, 0, nil, true)
	is.NoErr(err)
	is.Equal(added.State, resume.Lost)
	is.NoErr(store.Leave(t.Context(), second, second.ID))
	is.Equal(claim(resume.Ref{Owner: "acme", Key: "k3", ID: "a3"}), resume.TooManyRunning)
	is.NoErr(store.Leave(t.Context(), first, first.ID))
	is.Equal(claim(resume.Ref{Owner: "acme", Key: "k3", ID: "a3"}), resume.Started)
}

// testOutgrownIsRead reads an answer that has outgrown its room for longer than a
// lease after its model has returned.
func testOutgrownIsRead(t *testing.T, backend Backend) {
	is := is.New(t)
	store := backend(t, resume.Settings{AnswerBytes: 20_000, Lease: time.Second})()
	r := resume.Ref{Owner: "acme", Key: "k1", ID: "a1"}
	found, err := store.Claim(t.Context(), resume.Claim{Ref: r, Body: "body"})
	is.NoErr(err)
	is.Equal(found.State, resume.Started)
	for i, text := range []string{"one", strings.Repeat("x", 20_000)} {
		_, err := store.Add(t.Context(), r, i, []string{text}, true)
		is.NoErr(err)
	}
	is.NoErr(store.Leave(t.Context(), r, r.ID))
	for range 6 {
		time.Sleep(300 * time.Millisecond)
		part, err := store.Read(t.Context(), r, "", 0)
		is.NoErr(err)
		is.Equal(part, resume.Part{Texts: []string{"one"}, State: resume.Outgrown})
	}
}
