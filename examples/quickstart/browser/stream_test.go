package browser

import (
	"context"
	"iter"
	"strings"
	"testing"

	"example.com/botapi"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/chromedp"
	"github.com/matryer/is"
)

const manyFragments = 20_000

// TestFastStream has a bot that answers without pauses. It checks that the page
// keeps drawing frames, and lays itself out at most twice per frame.
func TestFastStream(t *testing.T) {
	texts := map[string]string{
		"one paragraph": "word ",
		"paragraphs":    "some **bold** words.\n\n",
		"one list":      "- an item\n",
		"code":          "```go\nx := 1\n",
	}
	for name, fragment := range texts {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			gate := make(chan struct{})
			h := startService(t, botapi.Options{Engine: repeats(fragment, manyFragments, gate)}, nil)
			tab := newTab(t)
			tab.open(h.URL + "/#key=" + key)
			tab.say("Hello")
			tab.see(".arriving")
			_, err := chromedp.Call(tab.ctx, performance.Enable, performance.EnableParams{})
			is.NoErr(err)
			evaluate[any](tab, countFrames)
			before := tab.metric("LayoutCount")
			close(gate)
			tab.waitForAnswer()
			layouts := int(tab.metric("LayoutCount") - before)
			frames := evaluate[int](tab, "frames")
			t.Logf("%d frames, %d layouts", frames, layouts)
			is.True(frames > 1)             // the page does not freeze: half a second has five frames on a busy machine
			is.True(layouts <= 2*frames+10) // one for the text, and one if another part of it comes into view
			is.Equal(strings.Count(evaluate[string](tab, `document.querySelectorAll(".assistant .text")[1].textContent`), textOf(fragment)), manyFragments)
		})
	}
}

const countFrames = `
	window.frames = 0;
	const count = () => { frames++; requestAnimationFrame(count); };
	requestAnimationFrame(count);
	null`

// textOf returns a fragment without its marks.
func textOf(fragment string) string {
	return strings.TrimSpace(strings.NewReplacer("*", "", "- ", "", "```go\n", "").Replace(fragment))
}

// repeats yields the same fragment many times after the gate has opened.
func repeats(fragment string, times int, gate <-chan struct{}) botapi.ChatEngine {
	return botapi.ChatEngineFunc(func(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			select {
			case <-gate:
			case <-ctx.Done():
				return
			}
			for range times {
				if !yield(fragment, nil) {
					return
				}
			}
		}
	})
}
