package botapi

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"
)

// These tests play one chat again and again, each time in another order of
// events. At every point where nothing more happens by itself, each of the
// events that could come next is taken, one after the other, each in a run of
// its own; and so is each pair of events of different parties, which are let
// loose together. orders_play_test.go has the chat, its parties and the events,
// orders_rules_test.go what must hold in every order, orders_wire_test.go the
// connection.
//
// An order that fails is printed as a line that repeats it alone, with the rules
// that did not hold and what could be seen after its last event. Races between
// events that come together want more than one try:
//
//	go test -run TestEveryOrder -order 'h1 stream: small, error|leave' -count 100
//
// A machine with time goes deeper:
//
//	go test -run TestEveryOrder -depth 5 -timeout 0
var (
	oneOrder   = flag.String("order", "", "the one order of events to play")
	orderDepth = flag.Int("depth", 0, "how many events an order has; 0: as many as the suite has time for")
)

// An order is what happens in one chat: a step is one event, or several that are
// let loose together.
type order []string

func (o order) String() string { return strings.Join(o, ", ") }

// then is a new order.
func (o order) then(step string) order { return append(slices.Clip(o), step) }

// isShort is whether it has one event at most.
func (o order) isShort() bool { return len(o) <= 1 && !strings.Contains(o.String(), "|") }

// played is what an order has led to.
type played struct {
	violated []string
	state    string   // as it can be seen from outside
	next     []string // the events that could come
	missed   bool     // an event could not come
}

// playOrder plays one chat, from its start. What a chat leaves behind takes a while
// to find: only short orders are searched for it, and the first that ends some way.
func playOrder(t *testing.T, s surface, o order, ends map[string]bool) (result played) {
	line := s.name + ": " + o.String()
	watch := time.AfterFunc(30*time.Second, func() { panic("an order hangs: " + line) })
	defer watch.Stop()
	defer func() {
		if v := recover(); v != nil {
			result.violated = append(result.violated, fmt.Sprint("everything ends: ", v))
		}
	}()
	labels := pprof.Labels("order", line) // a crash shows them, too
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
			if searched && p.leftBehind() {
				p.violate("nothing refers to a chat that is over")
			}
			result.violated = p.violated
		})
	})
	return result
}

// make has a step happen, and everything that follows from it. It reports
// whether it was possible.
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

// eventNamed has no name where there is no such event.
func eventNamed(name string) (named orderEvent) {
	for _, event := range orderEvents {
		if event.name == name {
			named = event
		}
	}
	return named
}

// next are the events that could come now.
func (p *play) next() (names []string) {
	for _, event := range orderEvents {
		if event.possible(p) {
			names = append(names, event.name)
		}
	}
	return names
}

// state is all that can be seen from outside, in words that are equal where
// nothing tells two states apart.
func (p *play) state() string {
	var alarms []time.Duration
	for _, due := range p.alarms() {
		alarms = append(alarms, due.at-p.clock())
	}
	e, got, report := p.engine, p.got, p.report()
	return fmt.Sprintf(`
	engine: idle %t, deaf %t, over %t, finished %t, yielding %t, yields %d, bytes %d (certain %d), context ended %t
	client: status %d, whole %t, cut %t, bytes %d, keep-alives %t, done %t, failure %q, reading %t, waiting bytes %d
	report: reasons %q, reports %d, status %d, fragments %d, bytes %d
	server: returned %t, slot free %t, writing %t
	happened: %v
	timers: %v`,
		e.idle, e.deaf, e.over, e.finished, e.yielding(), len(e.yields), len(e.wholeText), len(e.certainText), e.contextEnded(),
		got.status, got.whole, got.cut, len(got.text), got.keepAlives > 0, got.done, got.failure, p.wire.reading, len(p.wire.waiting),
		p.stopNames(), len(p.reports), report.Status, report.Fragments, report.Bytes,
		p.returned.Load(), p.slotFree, p.writing(),
		p.happened,
		alarms)
}

// What this test notices was tried with faults that are planted in the package,
// one at a time: .ci/faults core does that again, and fails if one goes unnoticed.
// They are patches below testdata/faults, and begin with what they break:
//
//	head -qn 1 testdata/faults/*.patch
func TestEveryOrder(t *testing.T) {
	if *oneOrder != "" {
		playAlone(t, *oneOrder)
		return
	}
	collected := debug.SetGCPercent(400) // little of an order lasts
	before := heapInUse()
	t.Cleanup(func() { // when all of them are over
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

// suiteDepth is less where everything takes ten times as long.
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
		t.Error("one of these events could not come")
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
	apart   bool // one event at a time
	all     bool // also what comes after a state that was seen before

	orders int
	states map[string]order // with the first order that led to each
	ends   map[string]bool
	found  []string
}

// enoughFound orders that fail are enough to see what is wrong.
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

// play plays an order, and returns those that are one step longer.
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

// What leads to a state that was seen before is left out. That loses nothing
// that can be seen: without it, no other states are found.
func TestSkippingLosesNothing(t *testing.T) {
	t.Parallel()
	const depth = 3 // what is less deep, skips nothing
	if suiteDepth() < depth {
		t.Skip("no race is looked for here that TestEveryOrder does not find")
	}
	some := walk{surface: surfaceNamed(t, "h1 stream"), depth: depth, apart: true}
	all := some
	all.all = true
	some.run(t)
	all.run(t)
	for state, o := range all.states {
		if _, ok := some.states[state]; !ok {
			t.Errorf("not found without %q: %s", o, state)
		}
	}
}

// A patch begins with a sentence about what it breaks.
func TestEveryFaultIsDescribed(t *testing.T) {
	is := is.New(t)
	faults, err := filepath.Glob("testdata/faults/*.patch")
	is.NoErr(err)
	is.True(len(faults) >= 58)
	described := regexp.MustCompile(`^[A-Z].*\.\n\n--- a/`)
	for _, fault := range faults {
		if !described.MatchString(readDocument(t, fault)) {
			t.Errorf("%s does not say what it breaks", fault)
		}
	}
}
