package browser

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"example.com/botapi"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/matryer/is"
)

// press presses a key with others held down.
func (tab *tab) press(key string, modifiers ...kb.Modifier) {
	tab.t.Helper()
	tab.do(chromedp.KeyEvent(key, chromedp.KeyModifiers(modifiers...)))
}

// TestShortcuts uses each shortcut, and finds all in the list.
func TestShortcuts(t *testing.T) {
	is := is.New(t)
	_, tab := talkToMoody(t, botapi.Options{})
	tab.say("one")
	tab.waitForAnswer()
	tab.write("what? ")
	is.Equal(evaluate[string](tab, `document.querySelector("#message").value`), "what? ")
	tab.press("o", kb.ModifierCtrl, kb.ModifierShift)
	tab.wait(`document.querySelector("#new-chat").hidden`)
	tab.say("two")
	tab.waitForAnswer()
	tab.press("l", kb.ModifierMeta, kb.ModifierShift)
	is.Equal(evaluate[string](tab, `document.activeElement.getAttribute("href")`), "#bot=ada")
	tab.press("?")
	tab.see("#help-dialog")
	is.Equal(len(tab.texts("#help-dialog dt")), 10)
	tab.press("o", kb.ModifierCtrl, kb.ModifierShift) // not from here
	is.True(evaluate[bool](tab, `document.querySelector("#help-dialog").open && !document.querySelector("#new-chat").hidden`))
	tab.do(chromedp.KeyEvent(kb.Escape))
	tab.press("k", kb.ModifierCtrl)
	is.Equal(evaluate[string](tab, `document.activeElement.id`), "search")
	tab.press("/", kb.ModifierCtrl)
	tab.see("#help-dialog")
	tab.click("#help-dialog .cancel")

	tab.do(chromedp.EmulateViewport(390, 780))
	tab.press("l", kb.ModifierCtrl, kb.ModifierShift)
	tab.see(".bot")
	is.Equal(evaluate[string](tab, `document.activeElement.getAttribute("href")`), "#bot=ada")
}

// TestKeysThatSend checks that the page names the keys that send and that start a line, which are
// others on a device without a mouse.
func TestKeysThatSend(t *testing.T) {
	is := is.New(t)
	h := startService(t, botapi.Options{}, nil)
	tab := newTab(t)
	keys := `[...document.querySelectorAll("#help-dialog kbd")].slice(0, 2).map((each) => each.textContent)`
	hint := `document.querySelector("#composer-hint").textContent`
	tab.do(chromedp.EmulateViewport(1280, 800, chromedp.EmulateMobile, chromedp.EmulateTouch))
	tab.open(h.URL + "/#key=" + key)
	tab.see(".bot")
	is.Equal(evaluate[[]string](tab, keys), []string{"Ctrl Enter", "Enter"})
	is.Equal(evaluate[string](tab, hint), "Ctrl and Enter sends, Enter starts a line, Escape stops. Ctrl and / lists all shortcuts.")
	tab.click("#message")
	tab.write("one")
	tab.enter()
	tab.write("two")
	tab.enter(kb.ModifierCtrl)
	tab.wait(`document.querySelector(".user .text")?.textContent === "one\ntwo"`)
	tab.waitForAnswer()
	is.True(strings.HasPrefix(evaluate[string](tab, hint), "Ctrl and Enter sends"))

	tab.do(chromedp.EmulateViewport(1280, 800)) // a mouse is connected
	tab.wait(keys + `.join() === "Enter,Shift Enter"`)
	is.Equal(evaluate[string](tab, hint), "Enter sends, Shift and Enter starts a line, Escape stops. Ctrl and / lists all shortcuts.")
}

// TestSkip skips the list with the first link.
func TestSkip(t *testing.T) {
	is := is.New(t)
	_, tab := talkToMoody(t, botapi.Options{})
	is.Equal(evaluate[string](tab, `document.querySelector("a, button, input").id`), "skip")
	tab.tabTo("#skip")
	is.Equal(evaluate[string](tab, `getComputedStyle(document.activeElement).clipPath`), "none")
	tab.enter()
	is.Equal(evaluate[string](tab, `document.activeElement.id`), "message")
	is.Equal(evaluate[string](tab, `getComputedStyle(document.querySelector("#skip")).clipPath`), "inset(50%)")
	is.Equal(evaluate[string](tab, `location.hash`), "")
}

// TestTheme chooses a theme against that of the browser, for both pages.
func TestTheme(t *testing.T) {
	is := is.New(t)
	h := startService(t, botapi.Options{}, nil)
	tab := newTab(t)
	tab.prefer("prefers-color-scheme", "dark")
	tab.open(h.URL + "/#key=" + key)
	tab.see(".bot")
	ground := `getComputedStyle(document.body).backgroundColor`
	const light, dark = "rgb(247, 246, 243)", "rgb(21, 24, 26)"
	is.Equal(evaluate[string](tab, ground), dark)
	is.Equal(tab.text("#theme"), "Theme: automatic")
	tab.click("#theme")
	is.Equal(tab.text("#theme"), "Theme: light")
	is.Equal(evaluate[string](tab, ground), light)
	tab.open(h.URL + "/docs")
	is.Equal(evaluate[string](tab, ground), light)
	tab.prefer("prefers-color-scheme", "light")
	tab.open(h.URL)
	tab.click("#theme")
	is.Equal(tab.text("#theme"), "Theme: dark")
	is.Equal(evaluate[string](tab, ground), dark)
	tab.do(chromedp.Reload())
	tab.see("#theme")
	is.Equal(evaluate[string](tab, ground), dark)
	another := tab.another()
	another.prefer("prefers-color-scheme", "light")
	another.open(h.URL + "/#key=" + key)
	another.see("#theme")
	tab.click("#theme")
	is.Equal(evaluate[string](tab, ground), light)
	another.wait(ground + fmt.Sprintf(" === %q", light))
}

// TestThemeMovesNothing checks that the button stays below the pointer.
func TestThemeMovesNothing(t *testing.T) {
	is := is.New(t)
	tab := newTab(t)
	tab.do(chromedp.EmulateViewport(1280, 800))
	tab.open(startService(t, botapi.Options{}, nil).URL + "/#key=" + key)
	tab.see(".bot")
	corners := `[...document.querySelectorAll("footer > :not([hidden])")].map((each) => (({ left, top }) => left + "," + top)(each.getBoundingClientRect()))`
	before := evaluate[[]string](tab, corners)
	for range 3 {
		tab.click("#theme")
		is.Equal(evaluate[[]string](tab, corners), before)
	}
}

// TestActionsOnAPhone checks that the buttons of a message take room only when it was
// touched, but for those of the last answer.
func TestActionsOnAPhone(t *testing.T) {
	is := is.New(t)
	tab := newTab(t)
	tab.do(chromedp.EmulateViewport(390, 780, chromedp.EmulateMobile, chromedp.EmulateTouch))
	greet(tab, startService(t, botapi.Options{}, nil).URL+"/#key="+key+"&bot=ada")
	tab.waitForAnswer()
	is.True(evaluate[bool](tab, `matchMedia("(hover: none)").matches`))
	heights := `Array.from(document.querySelectorAll(".user .actions, .assistant:last-child .actions"), (each) => each.offsetHeight > 0)`
	is.Equal(evaluate[[]bool](tab, heights), []bool{false, true})
	tab.touch(".user .text")
	tab.wait(heights + `.every(Boolean)`)

	// The buttons of the first message go away, and nothing moves below the finger before it has
	// pressed one of those below.
	tab.touch(".assistant:last-child .regenerate")
	tab.wait(`document.querySelector(".assistant:last-child .place").textContent === "2 / 2"`)
	tab.waitForAnswer()

	// Where there are other versions, the buttons that lead to them stay.
	tab.touch(".user .text")
	tab.touch(".user .edit")
	tab.write(" again")
	tab.touch("#send")
	tab.wait(`document.querySelector(".user .place").textContent === "2 / 2"`)
	tab.waitForAnswer()
	tab.touch(".assistant:last-child .text")
	is.Equal(evaluate[[]bool](tab, heights), []bool{true, true})
}

// touch touches the middle of an element with a finger.
func (tab *tab) touch(selector string) {
	tab.t.Helper()
	at := evaluate[[]float64](tab, fmt.Sprintf(`(({ x, y, width, height }) => [x + width / 2, y + height / 2])(document.querySelector(%q).getBoundingClientRect())`, selector))
	for _, event := range []input.DispatchTouchEventParams{
		{Type: input.DispatchTouchEventTypeTouchStart, TouchPoints: []*input.TouchPoint{{X: at[0], Y: at[1]}}},
		{Type: input.DispatchTouchEventTypeTouchEnd, TouchPoints: []*input.TouchPoint{}},
	} {
		_, err := chromedp.Call(tab.ctx, input.DispatchTouchEvent, event)
		is.New(tab.t).NoErr(err)
	}
}

// TestWrap wraps the long lines of a block of code while it arrives, and undoes that.
func TestWrap(t *testing.T) {
	is := is.New(t)
	gate := make(chan struct{})
	h := startService(t, botapi.Options{Engine: begins("```go\n"+strings.Repeat("long(); ", 100), repeats("more\n", 3, gate))}, nil)
	tab := newTab(t)
	tab.open(h.URL + "/#key=" + key)
	tab.say("Hello")
	tab.see(".code .wrap")
	isWide := `(({ scrollWidth, clientWidth }) => scrollWidth > clientWidth)(document.querySelector(".code pre"))`
	tab.wait(isWide)
	tab.click(".code .wrap")
	is.True(!evaluate[bool](tab, isWide))
	close(gate)
	tab.waitForAnswer()
	is.True(!evaluate[bool](tab, isWide))
	is.Equal(evaluate[string](tab, `document.querySelector(".code .wrap").ariaPressed`), "true")
	tab.click(".code .wrap")
	is.True(evaluate[bool](tab, isWide))
}

// TestOffline sends a message without a network. It is sent when there is one.
func TestOffline(t *testing.T) {
	is := is.New(t)
	_, tab := talkToMoody(t, botapi.Options{})
	offline := func(offline bool) {
		rule := &network.Conditions{Offline: offline, DownloadThroughput: -1, UploadThroughput: -1}
		_, err := chromedp.Call(tab.ctx, network.EmulateNetworkConditionsByRule, network.EmulateNetworkConditionsByRuleParams{MatchedNetworkConditions: []*network.Conditions{rule}})
		is.NoErr(err)
		_, err = chromedp.Call(tab.ctx, network.OverrideNetworkState, network.OverrideNetworkStateParams{Offline: offline, DownloadThroughput: -1, UploadThroughput: -1})
		is.NoErr(err)
	}
	offline(true)
	tab.say("one")
	tab.see(".arriving .lost")
	is.Equal(tab.text(".arriving .lost"), "The server cannot be reached: the message is not sent yet. The page keeps trying.")
	is.Equal(tab.text("#announcement"), tab.text(".arriving .lost"))
	tab.forward(5 * time.Minute)
	tab.wait(`document.querySelector(".arriving .elapsed").textContent.startsWith("5 min")`)
	is.Equal(tab.texts(".failure"), []string{})
	offline(false)
	tab.seeLast("Answer 1")
	is.Equal(fmt.Sprint(tab.texts(".lost:not([hidden])")), "[]")
}
