package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/botapi"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/cdproto/tracing"
	"github.com/chromedp/chromedp"
	"github.com/matryer/is"
)

// TestWork compares the CPU time of the page's main thread for an answer of many
// fragments with that for a quarter of them: a sum of CPU time depends on the machine.
const (
	fewFragments = manyFragments / 4
	littleWork   = 3 * time.Second        // of CPU time: less says nothing of how the work grows
	mostGrowth   = 6                      // 4 if the work grows with the length of the answer, 16 if it grows with its square
	mostTask     = 200 * time.Millisecond // of CPU time, see slowness
)

// TestWork has a bot that answers without pauses, with each kind of text.
func TestWork(t *testing.T) {
	tests := []struct {
		name, first, fragment string
		selector              string // of the element that each fragment becomes
	}{
		{"paragraph", "", "one *it* and `code` ", "em"},
		{"paragraphs", "", "some **bold** words.\n\n", "p"},
		{"quote", "", "> one *it* and `code`\n", "blockquote em"},
		{"list", "", "- one *it* and `code`\n", "li"},
		{"table", "| a | b |\n|---|---|\n", "| one *it* | `code` |\n", "td code"},
		{"code", "```go\n", "func f(i int) string { return \"it\" } // code\n", ""},
		{"right to left", "", "שלום *עולם* `code` ", "em"},
		{"one line", "", "abcdefghij", ""},
		{"one line of code", "```\n", "abcdefghij", ""},
		{"one line of a list", "- ", "שלום *עולם* ", "em"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			is := is.New(t)
			_, few, _ := answerWithoutPause(t, test.first, test.fragment, fewFragments)
			tab, many, longest := answerWithoutPause(t, test.first, test.fragment, manyFragments)
			for range 5 { // other programs in the same caches cost time: the minimum counts
				if many <= max(littleWork, mostGrowth*few) && longest <= mostTask {
					break
				}
				again, total, task := answerWithoutPause(t, test.first, test.fragment, manyFragments)
				tab, many, longest = again, min(many, total), min(longest, task)
			}
			is.True(many <= max(littleWork, mostGrowth*few))
			is.True(longest <= mostTask)

			text := `document.querySelectorAll(".assistant .text")[1]`
			if test.selector != "" {
				is.Equal(evaluate[int](tab, fmt.Sprintf("%s.querySelectorAll(%q).length", text, test.selector)), manyFragments)
				is.True(!strings.Contains(evaluate[string](tab, text+".textContent"), "*"))
			} else {
				said := strings.TrimSpace(test.fragment)
				is.Equal(strings.Count(evaluate[string](tab, text+".textContent"), said), manyFragments)
			}
		})
	}
}

// mostStep is the limit of CPU time for one step in which the page shows more of a
// long text, see slowness: nobody notices a wait as long as that.
const mostStep = 100 * time.Millisecond

// TestSteps shows a long text of each kind: as it arrives, and after a reload, when
// all of it is there from the beginning.
func TestSteps(t *testing.T) {
	texts := longTexts()
	is.New(t).Equal(len(texts), 48)
	h := startService(t, botapi.Options{Engine: botapi.ChatEngineFunc(func(_ context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			for fragment := range slices.Chunk([]rune(texts[req.Messages[0].Content]), 1000) {
				if !yield(string(fragment), nil) {
					return
				}
			}
		}
	})}, nil)
	tab := newTab(t)
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			arriving, again := longestSteps(t, tab, h.URL, name, texts[name])
			for range 5 { // other programs in the same caches cost time: the minimum counts
				if max(arriving, again) <= mostStep {
					break
				}
				a, b := longestSteps(t, tab, h.URL, name, texts[name])
				arriving, again = min(arriving, a), min(again, b)
			}
			is.True(arriving <= mostStep)
			is.True(again <= mostStep)
		})
	}
}

const nothingForeign = foreign + `foreign(document.querySelectorAll(".assistant .text")[1])`

// longestSteps returns the CPU time of the longest task while an answer arrives, and
// while it is shown again.
func longestSteps(t *testing.T, tab *tab, address, question, answer string) (arriving, again time.Duration) {
	t.Helper()
	is := is.New(t)
	tab.open(address + "/health-check")
	evaluate[any](tab, `localStorage.clear(); null`)
	tab.open(address + "/#key=" + key)
	tab.see(".bot")
	work := tab.watchWork()
	tab.say(question)
	tab.see(".regenerate")
	tab.waitForAnswer()
	allOfIt, arriving := work.end(mostStep)
	is.True(evaluate[string](tab, `JSON.parse(Object.values(localStorage)[0]).turns[0].answer`) == answer)
	is.Equal(evaluate[[]string](tab, nothingForeign), []string{})

	work = tab.watchWork()
	tab.do(chromedp.Reload())
	tab.see(".regenerate")
	tab.waitForAnswer()
	_, again = work.end(mostStep)
	is.Equal(evaluate[[]string](tab, nothingForeign), []string{})
	t.Logf("arriving %v of %v, again %v of %v", arriving.Round(time.Millisecond), allOfIt.Round(time.Millisecond), again.Round(time.Millisecond), tab.worked().Round(time.Millisecond))
	return arriving, again
}

// answerWithoutPause returns the tab that has shown many fragments, and the CPU time
// of that: in all, and of the longest task.
func answerWithoutPause(t *testing.T, first, fragment string, fragments int) (tab *tab, total, longest time.Duration) {
	t.Helper()
	gate := make(chan struct{})
	h := startService(t, botapi.Options{Engine: begins(first, repeats(fragment, fragments, gate))}, nil)
	tab = newTab(t)
	tab.open(h.URL + "/#key=" + key)
	tab.say("Hello")
	tab.see(".arriving")
	work := tab.watchWork()
	close(gate)
	tab.waitForAnswer()
	total, longest = work.end(mostTask)
	t.Logf("%d fragments: %v of the main thread, the longest task %v", fragments, total.Round(time.Millisecond), longest.Round(time.Millisecond))
	return tab, total, longest
}

// begins yields first before the fragments of the engine.
func begins(first string, engine botapi.ChatEngine) botapi.ChatEngine {
	return botapi.ChatEngineFunc(func(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			if yield(first, nil) {
				engine.Chat(ctx, req)(yield)
			}
		}
	})
}

// work measures a page's main thread.
type work struct {
	tab    *tab
	forget context.CancelFunc // ends listening
	before time.Duration
	done   chan struct{}

	mu    sync.Mutex
	tasks []traceEvent
	mains map[[2]int]bool // process and thread of each page
}

// A traceEvent is a task, or the name of a thread.
type traceEvent struct {
	Name     string
	PID, TID int
	TDur     float64 // CPU time in microseconds
	Args     struct{ Name string }
}

func (tab *tab) watchWork() *work {
	tab.t.Helper()
	is := is.New(tab.t)
	w := &work{tab: tab, done: make(chan struct{}), mains: map[[2]int]bool{}}
	_, err := chromedp.Call(tab.ctx, performance.Enable, performance.EnableParams{TimeDomain: performance.EnableTimeDomainThreadTicks})
	is.NoErr(err)
	ctx, cancel := context.WithCancel(tab.ctx)
	w.forget = cancel
	is.NoErr(chromedp.Listen(ctx, w.listen))
	_, err = chromedp.Call(tab.ctx, tracing.Start, tracing.StartParams{TraceConfig: &tracing.TraceConfig{IncludedCategories: []string{"toplevel"}, ExcludedCategories: []string{"*"}}})
	is.NoErr(err)
	w.before = tab.worked()
	return w
}

func (w *work) listen(event any) {
	switch event := event.(type) {
	case *tracing.EventDataCollected:
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, text := range event.Value {
			var e traceEvent
			if json.Unmarshal(text, &e) != nil {
				continue // not a task
			}
			if e.Name == "thread_name" && e.Args.Name == "CrRendererMain" {
				w.mains[[2]int{e.PID, e.TID}] = true
			}
			if strings.HasSuffix(e.Name, "RunTask") {
				w.tasks = append(w.tasks, e)
			}
		}
	case *tracing.EventTracingComplete:
		close(w.done)
	}
}

// end returns the CPU time of the main thread in all, and that of its longest task. If
// that is more than most, it is the time on a machine without slowness.
func (w *work) end(most time.Duration) (total, longest time.Duration) {
	w.tab.t.Helper()
	is := is.New(w.tab.t)
	defer w.forget()
	total = w.tab.worked() - w.before
	_, err := chromedp.Call(w.tab.ctx, tracing.End, cdp.Empty{})
	is.NoErr(err)
	select {
	case <-w.done:
	case <-time.After(patience):
		w.tab.t.Fatal("the browser does not send its trace")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, task := range w.tasks {
		if w.mains[[2]int{task.PID, task.TID}] {
			longest = max(longest, time.Duration(task.TDur)*time.Microsecond)
		}
	}
	is.True(longest > 0) // there were tasks
	if longest > most {
		longest = time.Duration(float64(longest) / w.tab.slowness())
	}
	return total, longest
}

// calibration is work like that of the page: it makes, lays out and removes elements.
// It takes usualWork of CPU time on a machine of 2026 that does nothing else.
const (
	calibration = `(() => {
		const box = document.createElement("div");
		document.body.append(box);
		for (let i = 0; i < 10; i++) {
			for (let j = 0; j < 200; j++) {
				const line = document.createElement("p");
				for (const name of ["em", "code", "strong"]) line.append(name + " ", Object.assign(document.createElement(name), { textContent: name.replace(/e/g, i) }));
				box.append(line);
			}
			box.getBoundingClientRect();
			box.replaceChildren();
		}
		box.remove();
	})()`
	usualWork = 100 * time.Millisecond
)

// slowness returns how many times more CPU time the page takes for the same work than
// on a usual machine that does nothing else, at least 1. On a busy machine, programs
// share caches, cores and perhaps the clock of the machine below.
func (tab *tab) slowness() float64 {
	tab.t.Helper()
	least := time.Hour
	for range 5 {
		before := tab.worked()
		evaluate[any](tab, calibration)
		least = min(least, tab.worked()-before)
	}
	return max(1, float64(least)/float64(usualWork))
}

// worked returns the CPU time of the page's main thread so far.
func (tab *tab) worked() time.Duration {
	return time.Duration(tab.metric("TaskDuration") * float64(time.Second))
}

// metric returns one of the browser's metrics of the page.
func (tab *tab) metric(name string) float64 {
	tab.t.Helper()
	is := is.New(tab.t)
	metrics, err := chromedp.Call(tab.ctx, performance.GetMetrics, cdp.Empty{})
	is.NoErr(err)
	for _, metric := range metrics.Metrics {
		if metric.Name == name {
			return metric.Value
		}
	}
	tab.t.Fatalf("the browser does not know %s", name)
	return 0
}
