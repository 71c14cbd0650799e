package browser

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/matryer/is"
)

// patience bounds every wait for the page. It is far above what any of them
// takes; only a test that fails uses it up.
const patience = 30 * time.Second

var chromium = sync.OnceValues(startChromium)

// startChromium starts the one browser of all tests, and returns its context.
func startChromium() (context.Context, error) {
	path, err := findChromium()
	if err != nil {
		return nil, err
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path),
		chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-quic", true),
	)
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium's sandbox does not work for root
	}
	ctx, _ := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, _ = chromedp.NewContext(ctx)
	cleanups = append(cleanups, func() { _ = chromedp.Cancel(ctx) })
	return ctx, chromedp.Do(ctx)
}

func findChromium() (string, error) {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", exec.ErrNotFound
}

// cleanups undo, after the last test, what tests share.
var cleanups []func()

func TestMain(m *testing.M) {
	code := m.Run()
	for _, cleanup := range cleanups {
		cleanup()
	}
	os.Exit(code)
}

// A tab is one tab of the browser, with a store and a history of its own.
type tab struct {
	t        *testing.T
	ctx      context.Context
	pictures string // the one other server that the page may ask, if any

	mu         sync.Mutex
	requested  []string // addresses
	complaints []string // of the console
}

// newTab opens an empty tab. At the end of the test, the page must have thrown
// nothing, violated no policy, and asked no other server for anything.
func newTab(t *testing.T) *tab {
	t.Helper()
	if _, err := findChromium(); err != nil {
		t.Skip("Chromium is not installed: the pages are not tried in a browser")
	}
	is := is.New(t)
	browser, err := chromium()
	is.NoErr(err)
	return openTab(t, browser, chromedp.WithNewBrowserContext())
}

// another opens a tab that shares the store with this one.
func (tab *tab) another() *tab {
	tab.t.Helper()
	return openTab(tab.t, tab.ctx)
}

func openTab(t *testing.T, parent context.Context, options ...chromedp.ContextOption) *tab {
	t.Helper()
	is := is.New(t)
	ctx, closeTab := chromedp.NewContext(parent, options...)
	t.Cleanup(closeTab)
	tab := &tab{t: t, ctx: ctx}
	is.NoErr(chromedp.Listen(ctx, tab.listen))
	_, err := chromedp.Call(ctx, network.Enable, network.EnableParams{})
	is.NoErr(err)
	t.Cleanup(tab.checkManners)
	return tab
}

func (tab *tab) listen(event any) {
	tab.mu.Lock()
	defer tab.mu.Unlock()
	switch event := event.(type) {
	case *network.EventRequestWillBeSent:
		tab.requested = append(tab.requested, event.Request.URL)
	case *runtime.EventExceptionThrown:
		tab.complaints = append(tab.complaints, fmt.Sprintf("exception: %+v", event.ExceptionDetails))
	case *runtime.EventConsoleAPICalled:
		tab.complaints = append(tab.complaints, fmt.Sprintf("console: %+v", event.Args))
	case *log.EventEntryAdded:
		// The browser itself notes each request that did not go well.
		if event.Entry.Source != log.EntrySourceNetwork {
			tab.complaints = append(tab.complaints, fmt.Sprintf("%s: %s", event.Entry.Source, event.Entry.Text))
		}
	}
}

func (tab *tab) checkManners() {
	is := is.New(tab.t)
	tab.mu.Lock()
	defer tab.mu.Unlock()
	is.Equal(tab.complaints, []string(nil)) // what the console says
	hosts := map[string]bool{}
	for _, address := range tab.requested {
		address, err := url.Parse(address)
		is.NoErr(err)
		if address.Host != tab.pictures {
			hosts[address.Host] = true
		}
	}
	is.True(len(hosts) <= 1) // the page talks to one server
}

// do carries out actions, within bounds.
func (tab *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	tab.t.Helper()
	ctx, cancel := context.WithTimeout(tab.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		tab.t.Fatalf("%v\nThe page says:\n%s", err, tab.everything())
	}
}

func (tab *tab) open(address string) {
	tab.t.Helper()
	tab.do(chromedp.Navigate(address))
}

// evaluate returns what a JavaScript expression is worth in the page.
func evaluate[T any](tab *tab, expression string) T {
	tab.t.Helper()
	value, err := chromedp.Run(tab.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	is.New(tab.t).NoErr(err)
	return value
}

// everything is the beginning of what a person sees.
func (tab *tab) everything() string {
	text, _ := chromedp.Run(tab.ctx, chromedp.Evaluate[string]("document.body.innerText"))
	return text[:min(len(text), 4000)]
}

// wait waits until a JavaScript expression is true. A page that is just being
// loaded anew takes the expression with it: then the new one is asked.
func (tab *tab) wait(expression string) {
	tab.t.Helper()
	ctx, cancel := context.WithTimeout(tab.ctx, patience)
	defer cancel()
	poll := chromedp.Poll[bool](expression, chromedp.WithPollingInterval(20*time.Millisecond))
	_, err := chromedp.Run(ctx, poll)
	for err != nil && ctx.Err() == nil && isReloading(err) {
		_, err = chromedp.Run(ctx, poll)
	}
	if err != nil {
		tab.t.Fatalf("waiting for %s: %v\nThe page says:\n%s", expression, err, tab.everything())
	}
}

func isReloading(err error) bool {
	return strings.Contains(err.Error(), "Cannot find context with specified id") ||
		strings.Contains(err.Error(), "Execution context was destroyed")
}

// text returns what a person sees of an element.
func (tab *tab) text(selector string) string {
	tab.t.Helper()
	return evaluate[string](tab, fmt.Sprintf("document.querySelector(%q)?.innerText ?? 'no '+%q", selector, selector))
}

// texts returns what a person sees of all elements that match.
func (tab *tab) texts(selector string) []string {
	tab.t.Helper()
	return evaluate[[]string](tab, fmt.Sprintf("Array.from(document.querySelectorAll(%q), (each) => each.innerText)", selector))
}

func (tab *tab) see(selector string) {
	tab.t.Helper()
	tab.wait(fmt.Sprintf("document.querySelector(%q)?.checkVisibility() ?? false", selector))
}

func (tab *tab) click(selector string) {
	tab.t.Helper()
	tab.see(selector)
	tab.do(chromedp.Click(chromedp.CSS(selector)))
}

// write types text into whatever has the focus.
func (tab *tab) write(text string) {
	tab.t.Helper()
	_, err := chromedp.Call(tab.ctx, input.InsertText, input.InsertTextParams{Text: text})
	is.New(tab.t).NoErr(err)
}

// enter presses the Enter key as a person does: what a page does on the way
// down decides whether a character comes of it.
func (tab *tab) enter(modifiers ...kb.Modifier) {
	tab.t.Helper()
	for _, direction := range []input.DispatchKeyEventType{kb.KeyDown, kb.KeyUp} {
		event := input.DispatchKeyEventParams{Type: direction, Key: "Enter", Code: "Enter", WindowsVirtualKeyCode: 13, NativeVirtualKeyCode: 13}
		if direction == kb.KeyDown {
			event.Text = "\r"
		}
		if len(modifiers) > 0 {
			event.Modifiers = int64(modifiers[0])
		}
		_, err := chromedp.Call(tab.ctx, input.DispatchKeyEvent, event)
		is.New(tab.t).NoErr(err)
	}
}

// tabTo presses Tab until an element has the focus.
func (tab *tab) tabTo(selector string) {
	tab.t.Helper()
	var passed []string
	for range 20 {
		if evaluate[bool](tab, fmt.Sprintf("document.activeElement.matches(%q)", selector)) {
			return
		}
		tab.do(chromedp.KeyEvent(kb.Tab))
		passed = append(passed, evaluate[string](tab, "document.activeElement.outerHTML.slice(0, 80)"))
	}
	tab.t.Fatalf("the Tab key does not reach %s, but %s", selector, strings.Join(passed, "\n"))
}

// say sends a message in the conversation on show.
func (tab *tab) say(text string) {
	tab.t.Helper()
	tab.wait(`document.activeElement?.id === "message"`)
	tab.write(text)
	tab.enter()
	tab.wait(fmt.Sprintf(`Array.from(document.querySelectorAll(".user .text")).at(-1)?.textContent === %q`, text))
}

// waitForAnswer waits until no answer is arriving in the conversation on show,
// and all of it is there to see.
func (tab *tab) waitForAnswer() {
	tab.t.Helper()
	tab.wait(`!document.querySelector(".arriving, .filling")`)
}

// prefer sets media features: pairs of a name and a value.
func (tab *tab) prefer(features ...string) {
	tab.t.Helper()
	var params emulation.SetEmulatedMediaParams
	for pair := range slices.Chunk(features, 2) {
		params.Features = append(params.Features, &emulation.MediaFeature{Name: pair[0], Value: pair[1]})
	}
	tab.do(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, emulation.SetEmulatedMedia, params)
		return err
	}))
}
