package resumetest

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"example.com/botapi/examples/resume"
)

// testRules makes the same random calls of two stores, this one and the rules in
// Go, and compares what they return. No time passes in it: the leases are long.
func testRules(t *testing.T, backend Backend) {
	const rounds, calls = 40, 200
	settings := resume.Settings{
		Running: 4, RunningPerOwner: 3, Readers: 2, ReadersPerOwner: 4,
		AnswerBytes: 17_000, FragmentBytes: 4, OwnerBytes: 3 * resume.LeastRunning, AllBytes: 5 * resume.LeastRunning,
		Lease: time.Hour, Abandon: time.Hour, Keep: time.Hour,
	}
	for round := range rounds {
		seed := rand.Uint64()
		r := rand.New(rand.NewPCG(seed, 0))
		store, rules := backend(t, settings)(), resume.NewMemory(settings)
		var said []string
		var answers []resume.Ref
		readers := []string{"nobody"}
		for call := range calls {
			owner, key := fmt.Sprint("owner", r.IntN(2)), fmt.Sprint("key", r.IntN(3))
			a := resume.Ref{Owner: owner, Key: key, ID: fmt.Sprint(round, "-", call)}
			if len(answers) > 0 && r.IntN(8) > 0 {
				a = answers[max(0, len(answers)-1-r.IntN(4))]
			}
			got, want := "", ""
			what := r.IntN(7)
			from, reader := r.IntN(6), readers[max(0, len(readers)-1-r.IntN(4))]
			texts := strings.Fields(strings.Repeat("word ", r.IntN(4)))
			if r.IntN(30) == 0 {
				texts = append(texts, strings.Repeat("x", 6000))
			}
			c := resume.Claim{Ref: resume.Ref{Owner: owner, Key: key, ID: fmt.Sprint(round, "-", call)}, Body: fmt.Sprint("body", r.IntN(5)/4), Join: r.IntN(5) == 0}
			attended, status := r.IntN(2) == 0, 502*r.IntN(2)
			do := func(s resume.Store) string {
				switch what {
				case 0:
					found, err := s.Claim(t.Context(), c)
					return fmt.Sprint("Claim ", c, found, err)
				case 1, 2:
					added, err := s.Add(t.Context(), a, from, texts, attended)
					added.Unattended = 0 // which is time
					return fmt.Sprint("Add ", a, from, len(texts), attended, added, err)
				case 3:
					ended, err := s.End(t.Context(), a, from, resume.Ending{Status: status, Detail: "failed"})
					return fmt.Sprint("End ", a, from, status, ended, err)
				case 4:
					found, err := s.Stop(t.Context(), owner, key)
					return fmt.Sprint("Stop ", owner, key, found, err)
				case 5:
					part, err := s.Read(t.Context(), a, "", from)
					return fmt.Sprint("Read ", a, from, strings.Join(part.Texts, ","), part.State, part.Ending, err)
				}
				holder := reader
				if status > 0 {
					holder = a.ID
				}
				return fmt.Sprint("Leave ", a, holder, s.Leave(t.Context(), a, holder))
			}
			got, want = do(store), do(rules)
			said = append(said, want)
			if got != want {
				t.Fatalf("seed %d, after\n%s\ngot  %s\nwant %s", seed, strings.Join(said[max(0, len(said)-30):], "\n"), got, want)
			}
			switch {
			case what == 0 && strings.Contains(want, "{started"):
				answers = append(answers, c.Ref)
			case what == 0 && strings.Contains(want, "{found"):
				readers = append(readers, c.ID)
			}
		}
	}
}
