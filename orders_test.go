package botapi

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// These tests play one chat again and again, each time with another order of events.
// Whenever all goroutines are blocked, each event that is possible next is tried in a run
// of its own, and so is each pair of events of different parties, which happen
// concurrently. orders_play_test.go has the chat, its parties and the events,
// orders_rules_test.go has the rules that must hold in every order, and
// orders_wire_test.go has the connection.
//
// For an order that fails, the test prints the command that repeats it, the violated
// rules, and the state after the last event. A race between concurrent events may take
// many tries:
//
//	go test -run TestEveryOrder -order 'h1 stream: small, error|disconnect' -count 100
//
// Longer orders take more time:
//
//	go test -run TestEveryOrder -depth 5 -timeout 0
var (
	oneOrder   = flag.String("order", "", "the one order of events to play")
	orderDepth = flag.Int("depth", 0, "how many events an order has; 0: 3, or 2 with the race detector")
)

// An order is what happens in one chat. A step is one event, or several concurrent ones.
type order []string

func (o order) String() string { return strings.Join(o, ", ") }

// then returns a new order with one more step.
func (o order) then(step string) order { return append(slices.Clip(o), step) }

// isShort reports whether the order has at most one event.
func (o order) isShort() bool { return len(o) <= 1 && !strings.Contains(o.String(), "|") }

// played is the result of an order.
type played struct {
	violated []string
	state    string   // as seen from outside
	next     []string // the possible events
	missed   bool     // an event of the order was not possible
}

// playOrder plays one chat, from its start. Searching for leaks is slow: only short orders
// are searched, and the first order with each way to end.
func playOrder(t *testing.T, s surface, o order, ends map[string]bool) (result played) {
	line := s.name + ": " + o.String()
	watch := time.AfterFunc(30*time.Second, func() { panic("an order hangs: " + line) })
	defer watch.Stop()
	defer func() {
		if v := recover(); v != nil {
			result.violated = append(result.violated, fmt.Sprint("no goroutine hangs: ", v))
		}
	}()
	labels := pprof.Labels("order", line) // a crash shows them
	pprof.Do(context.Background(), labels, func(context.Context) {
		synctest.Test(t, func(t *testing.T) {
			p := newPlay(s)
			p.start(t)
			p.settle()
			way, searched := "", o.isShort()
			for _, step := range o {
				way = fmt.Sprint(step, " while something is written: ", p.writing())
				if result.missed = !p.make(step); result.missed {
					break
				}
			}
			result.state, result.next = p.state(), p.next()
			if p.returned.Load() && !strings.Contains(way, "|") && !ends[way] {
				ends[way], searched = true, true
			}
			p.end(searched)
			if searched && p.retained() {
				p.violate("nothing retains the request of a chat that is over")
			}
			result.violated = p.violated
		})
	})
	return result
}

// make makes a step happen, and everything that follows from it. It reports whether the
// step was possible.
func (p *play) make(step string) bool {
	p.steps++
	var happening []orderEvent
	for name := range strings.SplitSeq(step, "|") {
		event := eventNamed(name)
		if !event.possible(p) {
			return false
		}
		happening = append(happening, event)
	}
	for _, event := range happening {
		event.happen(p)
	}
	p.settle()
	return true
}

// eventNamed returns an event without a name if there is no such event.
func eventNamed(name string) (named orderEvent) {
	for _, event := range orderEvents {
		if event.name == name {
			named = event
		}
	}
	return named
}

// next returns the events that are possible now.
func (p *play) next() (names []string) {
	for _, event := range orderEvents {
		if event.possible(p) {
			names = append(names, event.name)
		}
	}
	return names
}

// state describes everything that can be seen from outside. Two states with the same
// description are the same.
func (p *play) state() string {
	var alarms []time.Duration
	for _, due := range p.alarms() {
		alarms = append(alarms, due.at-p.clock())
	}
	e, got, report := p.engine, p.got, p.report()
	return fmt.Sprintf(`
	engine: idle %t, ignores cancellation %t, over %t, finished %t, yielding %t, yields %d, bytes %d (certain %d), context ended %t
	client: status %d, complete %t, aborted %t, bytes %d, keep-alives %t, done %t, failure %q, reading %t, waiting bytes %d
	report: reasons %q, reports %d, status %d, fragments %d, bytes %d
	server: returned %t, slot free %t, held %t, writing %t
	happened: %v
	timers: %v`,
		e.idle, e.ignores, e.over, e.finished, e.yielding(), len(e.yields), len(e.fullText), len(e.certainText), e.contextEnded(),
		got.status, got.complete, got.aborted, len(got.text), got.keepAlives > 0, got.done, got.failure, p.wire.reading, len(p.wire.waiting),
		p.stopNames(), len(p.reports), report.Status, report.Fragments, report.Bytes,
		p.returned.Load(), p.slotFree, p.release != nil, p.writing(),
		p.happened,
		alarms)
}

func TestEveryOrder(t *testing.T) {
	if *oneOrder != "" {
		playAlone(t, *oneOrder)
		return
	}
	collected := debug.SetGCPercent(400) // most memory of an order is garbage soon
	before := heapInUse()
	t.Cleanup(func() { // after all parallel subtests
		debug.SetGCPercent(collected)
		if grown := heapInUse() - before; grown > 1<<20 {
			t.Errorf("%d bytes left behind", grown)
		}
	})
	for _, s := range surfaces {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			w := walk{surface: s, depth: cmp.Or(*orderDepth, suiteDepth())}
			began := time.Now()
			w.run(t)
			t.Logf("%d orders, %d states, %d ways to end, %v", w.orders, len(w.states), len(w.ends), time.Since(began).Round(time.Millisecond))
			for _, found := range w.found {
				t.Error(found)
			}
		})
	}
}

// suiteDepth is smaller with the race detector, which is ten times slower.
func suiteDepth() int {
	if raceDetector {
		return 2
	}
	return 3
}

// playAlone plays an order as it was printed.
func playAlone(t *testing.T, line string) {
	name, events, _ := strings.Cut(line, ": ")
	var o order
	if events != "" {
		o = strings.Split(events, ", ")
	}
	for _, name := range strings.FieldsFunc(events, func(r rune) bool { return strings.ContainsRune(", |", r) }) {
		if eventNamed(name).name == "" {
			t.Fatalf("no event is named %q", name)
		}
	}
	result := playOrder(t, surfaceNamed(t, name), o, make(map[string]bool))
	t.Log("after the last event:", result.state, "\n\tnext:", result.next)
	if result.missed {
		t.Error("one of these events was not possible")
	}
	for _, rule := range result.violated {
		t.Error(rule)
	}
}

func surfaceNamed(t *testing.T, name string) surface {
	i := slices.IndexFunc(surfaces, func(s surface) bool { return s.name == name })
	if i < 0 {
		t.Fatalf("no surface is named %q", name)
	}
	return surfaces[i]
}

// A walk plays every order of events of one surface, the short ones first.
type walk struct {
	surface surface
	depth   int
	apart   bool // no concurrent events
	all     bool // continue also from a state that was seen before

	orders int
	states map[string]order // the first order that led to each
	ends   map[string]bool  // the ways to end that were searched for leaks
	found  []string
}

// enoughFound is how many failing orders a walk collects before it stops.
const enoughFound = 5

func (w *walk) run(t *testing.T) {
	w.states, w.ends = make(map[string]order), make(map[string]bool)
	orders := make([][]order, w.depth+3) // by their number of events
	orders[0] = []order{nil}
	for events := 0; events <= w.depth; events++ {
		for _, o := range orders[events] {
			if len(w.found) >= enoughFound {
				return
			}
			singles, pairs := w.play(t, o)
			orders[events+1] = append(orders[events+1], singles...)
			orders[events+2] = append(orders[events+2], pairs...)
		}
		orders[events] = nil
	}
}

// play plays an order, and returns the orders that are one step longer.
func (w *walk) play(t *testing.T, o order) (singles, pairs []order) {
	w.orders++
	result := playOrder(t, w.surface, o, w.ends)
	if len(result.violated) > 0 {
		w.found = append(w.found, fmt.Sprintf("go test -run TestEveryOrder -order '%s: %s'\n\t%s\nafter the last event:%s", w.surface.name, o, strings.Join(result.violated, "\n\t"), result.state))
		return nil, nil
	}
	_, seen := w.states[result.state]
	if !seen {
		w.states[result.state] = o
	}
	if result.missed || seen && !w.all {
		return nil, nil
	}
	for i, a := range result.next {
		if a != "second" {
			singles = append(singles, o.then(a))
		}
		for _, b := range result.next[i+1:] {
			if !w.apart && eventNamed(a).by != eventNamed(b).by {
				pairs = append(pairs, o.then(a+"|"+b))
			}
		}
	}
	return singles, pairs
}

// A walk does not continue from a state that it has seen before. This skips no state: a walk
// that always continues finds the same ones.
func TestSkippingLosesNothing(t *testing.T) {
	t.Parallel()
	const depth = 3 // a shorter walk skips nothing
	if suiteDepth() < depth {
		t.Skip("with the race detector, TestEveryOrder is enough")
	}
	some := walk{surface: surfaceNamed(t, "h1 stream"), depth: depth, apart: true}
	all := some
	all.all = true
	some.run(t)
	all.run(t)
	for _, found := range slices.Concat(some.found, all.found) {
		t.Error(found) // a walk stops at an order that fails
	}
	for state, o := range all.states {
		if _, ok := some.states[state]; ok {
			continue
		}
		again := playOrder(t, some.surface, o, make(map[string]bool)) // a race may have decided it
		if _, ok := some.states[again.state]; !ok {
			t.Errorf("not found without %q: %s", o, state)
		}
	}
}
