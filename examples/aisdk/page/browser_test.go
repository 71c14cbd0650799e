package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"example.com/botapi/examples/resume"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/matryer/is"
)

var screenshot = flag.String("screenshot", "", "the `file` for a picture of the page")

// patience is the timeout of every wait for the page, far above what any wait takes.
const patience = 15 * time.Second

// A tab is one tab of Chromium.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu         sync.Mutex
	exceptions []string
}

var built = sync.OnceValue(func() error { return run("npm", "run", "build") })

// openPage starts Chromium with the page of a chat. The scripts run before those of the
// page. The test fails if the page throws an exception.
func openPage(t *testing.T, address string, scripts ...string) *tab {
	t.Helper()
	install(t)
	is := is.New(t)
	is.NoErr(built())
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(chromium(t)), chromedp.WSURLReadTimeout(patience))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium's sandbox does not work for root
	}
	allocator, closeBrowser := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(closeBrowser)
	return openTab(t, allocator, address, scripts...)
}

func chromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("Chromium is not installed")
	return ""
}

func openTab(t *testing.T, parent context.Context, address string, scripts ...string) *tab {
	t.Helper()
	ctx, closeTab := chromedp.NewContext(parent)
	t.Cleanup(closeTab)
	tab := &tab{t: t, ctx: ctx}
	is.New(t).NoErr(chromedp.Listen(ctx, func(event any) {
		if thrown, ok := event.(*runtime.EventExceptionThrown); ok {
			tab.mu.Lock()
			defer tab.mu.Unlock()
			tab.exceptions = append(tab.exceptions, fmt.Sprintf("%+v", thrown.ExceptionDetails))
		}
	}))
	t.Cleanup(func() {
		tab.mu.Lock()
		defer tab.mu.Unlock()
		is.New(t).Equal(tab.exceptions, []string(nil))
	})
	for _, script := range scripts {
		_, err := chromedp.Call(ctx, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: script})
		is.New(t).NoErr(err)
	}
	tab.do(chromedp.Navigate(address))
	return tab
}

func (tab *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	tab.t.Helper()
	ctx, cancel := context.WithTimeout(tab.ctx, patience)
	defer cancel()
	is.New(tab.t).NoErr(chromedp.Do(ctx, actions...))
}

func evaluate[T any](tab *tab, expression string) T {
	tab.t.Helper()
	value, err := chromedp.Run(tab.ctx, chromedp.Evaluate[T](expression))
	is.New(tab.t).NoErr(err)
	return value
}

// saidIn is a script for what was said in an item of the conversation, without its author.
const saidIn = `((item) => [...item.childNodes].filter((node) => !node.matches?.(".unseen")).map((node) => node.textContent).join(""))`

// waitFor waits until an expression about the page's status and its texts is true.
func (tab *tab) waitFor(expression string) {
	tab.t.Helper()
	ctx, cancel := context.WithTimeout(tab.ctx, patience)
	defer cancel()
	_, err := chromedp.Run(ctx, chromedp.Poll[bool](`(() => {
		const status = document.querySelector("#status")?.textContent;
		const last = [...document.querySelectorAll(".conversation > li")].map(`+saidIn+`).at(-1);
		const footer = document.querySelector("footer")?.textContent;
		return `+expression+`;
	})()`, chromedp.WithPollingInterval(20*time.Millisecond)))
	if err != nil {
		text, _ := chromedp.Run(tab.ctx, chromedp.Evaluate[string]("document.body.innerText"))
		tab.t.Fatalf("waiting for %s: %v\nThe page says:\n%s", expression, err, text)
	}
}

func (tab *tab) say(text string) {
	tab.t.Helper()
	evaluate[any](tab, `document.querySelector("textarea").focus()`)
	tab.write(text)
	tab.click("form button") // Send
}

func (tab *tab) write(text string) {
	tab.t.Helper()
	_, err := chromedp.Call(tab.ctx, input.InsertText, input.InsertTextParams{Text: text})
	is.New(tab.t).NoErr(err)
}

// enter presses Enter, as keyboards do.
func (tab *tab) enter(modifiers ...kb.Modifier) {
	tab.t.Helper()
	for _, direction := range []input.DispatchKeyEventType{kb.KeyDown, kb.KeyUp} {
		event := input.DispatchKeyEventParams{Type: direction, Key: "Enter", Code: "Enter", WindowsVirtualKeyCode: 13, NativeVirtualKeyCode: 13}
		if direction == kb.KeyDown {
			event.Text = "\r"
		}
		for _, modifier := range modifiers {
			event.Modifiers |= int64(modifier)
		}
		_, err := chromedp.Call(tab.ctx, input.DispatchKeyEvent, event)
		is.New(tab.t).NoErr(err)
	}
}

func (tab *tab) click(selector string) {
	tab.t.Helper()
	tab.do(chromedp.Click(chromedp.CSS(selector)))
}

func (tab *tab) texts() []string {
	tab.t.Helper()
	return evaluate[[]string](tab, `[...document.querySelectorAll(".conversation > li")].map(`+saidIn+`)`)
}

// TestPage chats, stops, regenerates, is reloaded in the middle of an answer, and gets it.
func TestPage(t *testing.T) {
	is := is.New(t)
	engine := newObedient()
	h, answers := newService(engine, key)
	server := serve(t, h, answers)
	tab := openPage(t, server.URL+"/#key="+key)

	tab.waitFor(`status === "ready"`)
	tab.say("say Hello")
	tab.waitFor(`status === "ready" && last === "Hello"`)

	tab.say("tell")
	tab.waitFor(`status === "streaming" && last === "Once"`)
	tab.click("#stop")
	tab.waitFor(`status === "ready"`)
	is.True(errors.Is(<-engine.ended, resume.ErrStopped))
	is.Equal(tab.texts(), []string{"say Hello", "Hello", "tell", "Once"})
	tab.do(chromedp.Reload()) // what was stopped does not go on
	tab.waitFor(`status === "ready" && last === "Once"`)

	tab.click("#regenerate")
	tab.waitFor(`status === "streaming" && last === "Once"`)
	tab.do(chromedp.Reload())
	tab.waitFor(`status === "streaming" && last === "Once"`)
	engine.goOn <- struct{}{}
	tab.waitFor(`status === "ready" && last === "Once upon a time, 3"`)
	is.Equal(tab.texts(), []string{"say Hello", "Hello", "tell", "Once upon a time, 3"})

	tab.do(chromedp.Reload()) // the complete answer, in place of itself
	tab.waitFor(`status === "ready" && last === "Once upon a time, 3"`)
	is.Equal(len(tab.texts()), 4)

	tab.say("tell")
	tab.waitFor(`status === "streaming" && last === "Once"`)
	server.CloseClientConnections() // useChat reports a lost connection, and the page comes back
	engine.goOn <- struct{}{}
	tab.waitFor(`status === "ready" && last === "Once upon a time, 5"`)

	tab.say("fail 503")
	tab.waitFor(`status === "error" && document.querySelector("[role=alert]").textContent === "This is a 503"`)
	tab.say("say Goodbye")
	tab.waitFor(`status === "ready" && last === "Goodbye"`)
	if *screenshot != "" {
		picture, err := chromedp.Run(tab.ctx, chromedp.CaptureScreenshot())
		is.NoErr(err)
		is.NoErr(os.WriteFile(*screenshot, picture, 0o644))
	}
}

// TestTwoTabs opens one chat in two tabs: both follow its answer.
func TestTwoTabs(t *testing.T) {
	is := is.New(t)
	engine := newObedient()
	h, answers := newService(engine, key)
	server := serve(t, h, answers)
	first := openPage(t, server.URL+"/#key="+key)
	first.waitFor(`status === "ready"`)
	first.say("tell")
	first.waitFor(`status === "streaming" && last === "Once"`)
	second := openTab(t, first.ctx, evaluate[string](first, "location.href"))
	second.waitFor(`status === "streaming" && last === "Once"`)
	engine.goOn <- struct{}{}
	for _, tab := range []*tab{first, second} {
		tab.waitFor(`status === "ready" && last === "Once upon a time, 1"`)
	}
	is.True(slices.Equal(first.texts(), second.texts()))
}

// TestTurnsOfTwoTabs says something in one of two tabs, and then in the other.
func TestTurnsOfTwoTabs(t *testing.T) {
	is := is.New(t)
	_, _, server := newLine(t)
	first := openPage(t, server.URL+"/#key="+key)
	first.waitFor(`status === "ready"`)
	first.say("say One")
	first.waitFor(`status === "ready" && last === "One"`)
	second := openTab(t, first.ctx, evaluate[string](first, "location.href"))
	second.waitFor(`status === "ready" && last === "One"`)
	first.say("say Two")
	second.waitFor(`status === "ready" && last === "Two"`)
	second.say("say Three")
	second.waitFor(`status === "ready" && last === "Three"`)
	first.waitFor(`status === "ready" && last === "Three"`)
	for _, tab := range []*tab{first, second} {
		tab.do(chromedp.Reload())
		tab.waitFor(`status === "ready" && last === "Three"`)
		is.Equal(tab.texts(), []string{"say One", "One", "say Two", "Two", "say Three", "Three"})
	}
}
