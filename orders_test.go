package botapi

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
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
// An order that fails is printed as a line that repeats it alone. Races between
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

// endsSeen are the ways in which orders of one surface have ended. What a chat
// leaves behind takes a while to find: only the first order that ends some way is
// searched for it.
type endsSeen map[string]bool

func (seen endsSeen) isNew(way string) bool {
	known := seen[way]
	seen[way] = true
	return !known
}

// played is what an order has led to.
type played struct {
	violated []string
	state    string   // as it can be seen from outside
	next     []string // the events that could come
	missed   bool     // an event could not come
}

// playOrder plays one chat, from its start.
func playOrder(t *testing.T, s surface, o order, seen endsSeen) (result played) {
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
			p := newPlay(t, s)
			p.start(t)
			p.settle()
			way := ""
			for _, step := range o {
				way = fmt.Sprint(step, " while something is written: ", p.look().calling)
				if !p.make(step) {
					result.missed = true
					break
				}
			}
			result.state, result.next = p.state(), p.next()
			searched := o.isShort() || p.isOver() && !strings.Contains(way, "|") && seen.isNew(way)
			p.end(searched)
			result.violated = p.violated
			if searched && p.leftBehind() {
				result.violated = append(result.violated, "nothing refers to a chat that is over")
			}
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

func eventNamed(name string) orderEvent { return orderEvents[indexOfEvent(name)] }

func indexOfEvent(name string) int {
	return slices.IndexFunc(orderEvents, func(e orderEvent) bool { return e.name == name })
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
	s := p.look()
	report, _ := s.report()
	return fmt.Sprint(
		p.engineIdle(), p.engine.isDeaf(), s.engineOver, s.finished, s.yielding, len(s.yields), len(s.wholeText), len(s.certainText), s.contextEnded, "; ",
		s.gone, s.catchesUp, s.got.status, s.got.whole, s.got.cut, len(s.got.text), s.got.keepAlives > 0, s.got.done, s.got.failure, p.wire.reading, len(p.wire.waiting), "; ",
		s.stopNames(), len(s.reports), report.Status, report.Fragments, report.Bytes, s.returned, s.placeFree, s.calling, "; ",
		p.happened, p.untilAlarms(s))
}

func (p *play) untilAlarms(s sight) (left []time.Duration) {
	for _, due := range p.alarms(s) {
		left = append(left, due.at-s.at)
	}
	return left
}

// What this test notices was tried with faults that are planted in the package,
// one at a time: .ci/faults does that again, and fails if one goes unnoticed. They
// are patches below testdata/faults, to be kept applicable:
//
//   - buffer-kept: A buffer whose write failed is kept.
//   - cancel-taken-for-leaving: An engine's own context.Canceled is taken for a client that has left.
//   - chat-timeout-ignored-while-sending: ChatTimeout waits for the write that is under way.
//   - context-ends-first: The context of the engine ends with the request, before there is a reason.
//   - context-not-cancelled: The context of the engine does not end when the client leaves.
//   - context-without-cause: The context of the engine does not say why it has ended.
//   - cut-character-lost: A character that stays incomplete is left out.
//   - cut-character-not-held: A character whose end is still to come is replaced at once.
//   - done-after-a-failure: The terminator follows the error event.
//   - done-without-the-end: The terminator is sent for an answer that failed, too.
//   - duration-of-the-stop: Duration is the moment of the stop, not of the end.
//   - engine-not-waited-for: ServeHTTP returns before an engine that is about to.
//   - engine-waited-for-unflushed: ServeHTTP waits for an engine that hangs where the writer cannot flush.
//   - engine-waited-for: ServeHTTP waits for an engine that hangs.
//   - error-event-missing-unflushed: A broken stream says nothing where the writer cannot flush.
//   - error-event-missing: A broken stream is cut without saying why.
//   - error-not-flushed: A refusal waits in the writer while OnChat is called.
//   - exit-taken-for-the-end: An engine that ends its goroutine has finished.
//   - figures-of-the-queue: The report counts text that was never sent.
//   - first-text-late: FirstFragment is the moment of the second fragment.
//   - fragment-dropped: What finds the queue full is lost.
//   - fragment-repeated: A full queue is written twice.
//   - fragments-after-the-end: Fragments are taken when the chat has stopped.
//   - host-not-heard: The status that the host chose when it ended the request is not the answer.
//   - keep-alive-after-the-end: A keep-alive follows the end of the answer.
//   - keep-alive-missing: There is one keep-alive, and no second.
//   - keep-alive-too-early: A keep-alive does not mind what was written since the last.
//   - keep-alive-within-an-event: A keep-alive does not wait for the write that is under way.
//   - lost-reason: A broken stream is reported as whole.
//   - missing-cut: A broken stream ends like a whole one.
//   - missing-flush: A stream is not flushed behind its events.
//   - missing-pause: A broken stream is cut at once.
//   - no-report-of-a-hanging-engine: A chat is not reported before its engine has returned.
//   - no-write-deadline: A write may last for ever.
//   - panic-not-recovered: A panic of the engine takes the process down.
//   - pause-cut-short: A host that ends the request during the pause cuts the stream.
//   - place-freed-after-the-report: A place is held until OnChat has returned.
//   - place-freed-before-the-answer: A place is given back when the chat stops, before its answer has ended.
//   - place-freed-early: A place is given back by the first of engine and answer, not by the later.
//   - place-lost: The place of a chat whose engine failed is never given back.
//   - report-before-the-end: OnChat is called before the client has the end of its answer.
//   - second-reason: What happens while the answer ends replaces the reason to stop.
//   - second-report: A chat whose engine hangs is reported a second time.
//   - stall-counts-the-client: StallTimeout counts the time that a client takes to read.
//   - stall-not-counted: StallTimeout does not begin before the first fragment.
//   - stall-taken-for-leaving: A client that does not read is taken for one that has left.
//   - text-beside-an-error: The text beside an error is sent.
//   - timer-left-while-writing: The timer of the next keep-alive outlives a stream that ends within a write.
//   - timer-left: The timer of the next keep-alive outlives its stream.
//   - token-ignored: The handler does not wait for the write that is under way.
//   - token-not-given-back: The token is lost with a write that fails.
//   - told-to-go-on: An engine that goes on after the end is told that more is wanted.
//   - unbounded-queue: A client that does not read does not hold its engine back.
//   - write-after-the-return: A deadline is set behind the back of the handler.
//   - write-not-broken-off: The write that is under way goes on when the client has left.
//   - wrong-status: An engine that stalls is answered 500.
func TestEveryOrder(t *testing.T) {
	if *oneOrder != "" {
		playAlone(t, *oneOrder)
		return
	}
	before := heapInUse()
	t.Cleanup(func() { // when all of them are over
		if grown := heapInUse() - before; grown > 1<<20 {
			t.Errorf("%d bytes left behind", grown)
		}
	})
	for _, s := range surfaces {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			w := newWalk(s)
			w.depth = cmp.Or(*orderDepth, suiteDepth())
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
	build, _ := debug.ReadBuildInfo()
	if slices.Contains(build.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		return 2
	}
	return 3
}

func playAlone(t *testing.T, line string) {
	name, events, _ := strings.Cut(line, ": ")
	i := slices.IndexFunc(surfaces, func(s surface) bool { return s.name == name })
	if i < 0 {
		t.Fatalf("no surface is named %q", name)
	}
	var o order
	if events != "" {
		o = strings.Split(events, ", ")
	}
	for name := range strings.FieldsFuncSeq(events, func(r rune) bool { return strings.ContainsRune(", |", r) }) {
		if indexOfEvent(name) < 0 {
			t.Fatalf("no event is named %q", name)
		}
	}
	result := playOrder(t, surfaces[i], o, make(endsSeen))
	t.Log(result.state)
	t.Log("next: ", result.next)
	if result.missed {
		t.Error("one of these events could not come")
	}
	for _, rule := range result.violated {
		t.Error(rule)
	}
}

// A walk plays every order of events of one surface, the short ones first.
type walk struct {
	surface
	depth int
	all   bool // also what comes after a state that was seen before
	apart bool // one event at a time

	orders int
	states map[string]order
	ends   endsSeen
	found  []string
}

// enoughFound orders that fail are enough to see what is wrong.
const enoughFound = 5

func newWalk(s surface) *walk {
	return &walk{surface: s, states: make(map[string]order), ends: make(endsSeen)}
}

func (w *walk) run(t *testing.T) {
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
		w.found = append(w.found, fmt.Sprintf("go test -run TestEveryOrder -order '%s: %s'\n\t%s", w.name, o, strings.Join(result.violated, "\n\t")))
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
// that can be seen: without it, the same states are found.
func TestSkippingLosesNothing(t *testing.T) {
	const depth = 3 // what is less deep, skips nothing
	if suiteDepth() < depth {
		t.Skip("no race is looked for here that TestEveryOrder does not find")
	}
	for _, s := range surfaces {
		if s.hasty || s.http2 == s.stream || !s.flushes && !s.stream {
			continue // three will do
		}
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			some, all := newWalk(s), newWalk(s)
			all.all = true
			for _, w := range []*walk{some, all} {
				w.depth, w.apart = depth, true
				w.run(t)
				is.Equal(len(w.found), 0)
			}
			for state, o := range all.states {
				if _, ok := some.states[state]; !ok {
					t.Errorf("not found without %q: %s", o, state)
				}
			}
			is.True(some.orders < all.orders)
		})
	}
}

func TestEveryFaultIsListed(t *testing.T) {
	is := is.New(t)
	faults, err := filepath.Glob("testdata/faults/*.patch")
	is.NoErr(err)
	is.True(len(faults) >= 20)
	source, err := os.ReadFile("orders_test.go")
	is.NoErr(err)
	is.Equal(strings.Count(string(source), "\n//   - "), len(faults)) // and no more
	for _, fault := range faults {
		patch, err := os.ReadFile(fault)
		is.NoErr(err)
		what, _, _ := strings.Cut(string(patch), "\n")
		listed := fmt.Sprintf("//   - %s: %s\n", strings.TrimSuffix(filepath.Base(fault), ".patch"), what)
		if !strings.Contains(string(source), listed) {
			t.Errorf("not listed: %s", listed)
		}
	}
}
