// Package histories checks what many clients see of three replicas under faults
// against models of what the documentation promises.
package histories

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

var (
	rounds = flag.Int("rounds", 3, "rounds of histories, with one fault each")
	most   = flag.Int("histories", 30, "histories in a round")
	seed   = flag.Uint64("seed", 0, "of the first round; 0 means a random one")
	only   = flag.String("fault", "", "the only fault")
)

// TestHistories has clients of many accounts ask for answers, and for more than
// they may have, while one fault happens. Each history must be one that its
// model allows.
func TestHistories(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes some seconds")
	}
	c := newCluster(t)
	first := *seed
	if first == 0 {
		first = rand.Uint64()
	}
	checked := make(map[string]int)
	for round := range *rounds {
		seed := first + uint64(round)
		random := rand.New(rand.NewPCG(seed, 0))
		f := faults[seed%uint64(len(faults))]
		if *only != "" && f.name != *only {
			for _, f = range faults {
				if f.name == *only {
					break
				}
			}
		}
		if !c.round(t, seed, random, f) {
			t.Fatalf("again: go test ./internal/histories -seed %d -rounds 1", seed)
		}
		checked[f.name] += *most
	}
	t.Logf("%d histories: %v", *rounds**most, checked)
}

// TestHistoriesInMemory plays those of answers against a store in memory, without
// a fault: what kills a replica or disturbs Redis has no meaning there.
func TestHistoriesInMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes some seconds")
	}
	c := newProcess(t)
	for range *rounds {
		seed := rand.Uint64()
		if !c.round(t, seed, rand.New(rand.NewPCG(seed, 0)), faults[0]) {
			t.Fatal("the seed does not decide how the requests meet: run it again")
		}
	}
}

// A checkable is a history that can be checked.
type checkable interface {
	run(ctx context.Context, seed uint64)
	afterwards(ctx context.Context, seed uint64) // when the fault has ended
	check() (porcupine.CheckResult, porcupine.LinearizationInfo, porcupine.Model)
	faults() *history
}

func (h *history) faults() *history { return h }

func (h *history) against(m porcupine.Model) (porcupine.CheckResult, porcupine.LinearizationInfo, porcupine.Model) {
	result, info := porcupine.CheckOperationsVerbose(m, h.operations, 20*time.Second)
	return result, info, m
}

func (k *keyed) check() (porcupine.CheckResult, porcupine.LinearizationInfo, porcupine.Model) {
	return k.against(keyedModel.ToModel())
}

func (l *limited) check() (porcupine.CheckResult, porcupine.LinearizationInfo, porcupine.Model) {
	return l.against(limitsOf(l.Limits))
}

// round runs histories during a fault, and checks them.
func (c *cluster) round(t *testing.T, seed uint64, random *rand.Rand, f fault) (right bool) {
	t.Helper()
	began := time.Now()
	var histories []checkable
	var all sync.WaitGroup
	for i := range *most {
		name := fmt.Sprintf("r%d-%d", seed, i)
		if i%2 == 0 || c.redis == nil {
			histories = append(histories, newKeyed(c, name, random))
		} else {
			histories = append(histories, newLimited(c, name, random))
		}
	}
	for i, h := range histories {
		all.Go(func() { h.run(t.Context(), seed+uint64(i)) })
	}
	end, away := make(chan struct{}), make(chan []span, 1)
	go func() { away <- c.awaySpans(end) }()
	time.Sleep(time.Duration(300+random.IntN(1200)) * time.Millisecond)
	from := time.Now()
	f.does(t, c, random)
	if f.allowed != (allowed{}) {
		c.settle(t)
		time.Sleep(lease + lease/3)
	}
	to := time.Now()
	all.Wait()
	for _, h := range histories {
		all.Go(func() { h.afterwards(t.Context(), seed) })
	}
	all.Wait()
	close(end)
	ended := time.Now()
	right = true
	spans := <-away
	for i, h := range histories {
		h.faults().during(f.allowed, from, to)
		for _, s := range spans {
			h.faults().during(redisAway, s.from, s.to)
		}
		if midnight := ended.UTC().Truncate(24 * time.Hour); midnight.After(began) { // a new day of tokens
			h.faults().during(allowed{overLimit: true, losesCounts: true}, began, ended)
		}
		right = report(t, h, fmt.Sprintf("%s, seed %d, history %d", f.name, seed, i)) && right
	}
	t.Logf("%s: %v, checked in %v", f.name, ended.Sub(began).Round(time.Millisecond), time.Since(ended).Round(time.Millisecond))
	return right
}

// report reports whether a history is correct, and shows what is wrong with it.
func report(t *testing.T, h checkable, name string) bool {
	t.Helper()
	result, info, model := h.check()
	wrong := h.faults().wrong
	if result == porcupine.Unknown && len(wrong) == 0 {
		t.Logf("%s: not decided in time", name)
	}
	if result != porcupine.Illegal && len(wrong) == 0 {
		return true
	}
	picture := filepath.Join(os.TempDir(), strings.NewReplacer(" ", "-", ",", "").Replace(name)+".html")
	if err := porcupine.VisualizePath(model, info, picture); err != nil {
		t.Error(err)
	}
	slices.SortFunc(h.faults().operations, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	for _, o := range h.faults().operations {
		t.Logf("client %d, from %v to %v: %v", o.ClientId, time.Duration(o.Call), time.Duration(o.Return), o.Input)
	}
	t.Errorf("%s: %s %s; a picture is in %s", name, result, strings.Join(wrong, "; "), picture)
	return false
}
