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

// patience is the timeout of every wait for the page, far above what any wait
// takes.
const patience = 2 * time.Minute

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

// cleanups run after the last test and clean up what tests share.
var cleanups []func()

func TestMain(m *testing.M) {
	code := m.Run()
	for _, cleanup := range cleanups {
		cleanup()
	}
	os.Exit(code)
}

// A tab is one tab of the browser, with its own storage and history.
type tab struct {
	t        *testing.T
	ctx      context.Context
	pictures string // the only other server to which the page may send requests, if any

	mu         sync.Mutex
	requested  []string // URLs
	complaints []string // exceptions and console output
}

// newTab opens an empty tab. The test fails if the page throws an exception,
// violates its policy, or sends a request to another server.
func newTab(t *testing.T) *tab {
	t.Helper()
	if _, err := findChromium(); err != nil {
		t.Skip("Chromium is not installed")
	}
	is := is.New(t)
	browser, err := chromium()
	is.NoErr(err)
	return openTab(t, browser, chromedp.WithNewBrowserContext())
}

// another opens a tab that shares its storage with this one.
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
		// The browser logs each failed request, which is not the page's fault.
		if event.Entry.Source != log.EntrySourceNetwork {
			tab.complaints = append(tab.complaints, fmt.Sprintf("%s: %s", event.Entry.Source, event.Entry.Text))
		}
	}
}

func (tab *tab) checkManners() {
	is := is.New(tab.t)
	tab.mu.Lock()
	defer tab.mu.Unlock()
	is.Equal(tab.complaints, []string(nil))
	hosts := map[string]bool{}
	for _, address := range tab.requested {
		address, err := url.Parse(address)
		is.NoErr(err)
		if address.Host != tab.pictures {
			hosts[address.Host] = true
		}
	}
	is.True(len(hosts) <= 1) // the page uses one server
}

// do runs actions with a timeout.
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

// evaluate returns the value of a JavaScript expression in the page.
func evaluate[T any](tab *tab, expression string) T {
	tab.t.Helper()
	value, err := chromedp.Run(tab.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	is.New(tab.t).NoErr(err)
	return value
}

// everything returns the beginning of the page's visible text.
func (tab *tab) everything() string {
	text, _ := chromedp.Run(tab.ctx, chromedp.Evaluate[string]("document.body.innerText"))
	return text[:min(len(text), 4000)]
}

// wait waits until a JavaScript expression is true. If the page is reloaded
// meanwhile, it evaluates the expression in the new page.
func (tab *tab) wait(expression string) {
	tab.t.Helper()
	ctx, cancel := context.WithTimeout(tab.ctx, patience)
	defer cancel()
	poll := chromedp.Poll[bool](expression, chromedp.WithPollingInterval(20*time.Millisecond), chromedp.WithPollingTimeout(patience))
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
		strings.Contains(err.Error(), "Execution context was destroyed") ||
		strings.Contains(err.Error(), "Inspected target navigated")
}

// text returns the visible text of an element.
func (tab *tab) text(selector string) string {
	tab.t.Helper()
	return evaluate[string](tab, fmt.Sprintf("document.querySelector(%q)?.innerText ?? 'no '+%q", selector, selector))
}

// texts returns the visible texts of all elements that match.
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

// write types text into the element that has the focus.
func (tab *tab) write(text string) {
	tab.t.Helper()
	_, err := chromedp.Call(tab.ctx, input.InsertText, input.InsertTextParams{Text: text})
	is.New(tab.t).NoErr(err)
}

// enter presses the Enter key as a person does, so that the page's keydown handler
// decides whether it inserts a line break.
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
	for range 40 {
		if evaluate[bool](tab, fmt.Sprintf("document.activeElement.matches(%q)", selector)) {
			return
		}
		tab.do(chromedp.KeyEvent(kb.Tab))
		passed = append(passed, evaluate[string](tab, "document.activeElement.outerHTML.slice(0, 80)"))
	}
	tab.t.Fatalf("the Tab key does not reach %s, only %s", selector, strings.Join(passed, "\n"))
}

// say sends a message in the conversation on show.
func (tab *tab) say(text string) {
	tab.t.Helper()
	tab.wait(`document.activeElement?.id === "message"`)
	tab.write(text)
	if evaluate[bool](tab, `matchMedia("(hover: none) and (pointer: coarse)").matches`) {
		tab.click("#send") // Enter starts a line there
	} else {
		tab.enter()
	}
	tab.wait(fmt.Sprintf(`Array.from(document.querySelectorAll(".user .text")).at(-1)?.textContent === %q`, text))
}

// waitForAnswer waits until the conversation on show shows its last answer
// completely.
func (tab *tab) waitForAnswer() {
	tab.t.Helper()
	tab.wait(`!document.querySelector(".arriving, .filling")`)
}

// prefer sets media features, given as pairs of a name and a value.
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
