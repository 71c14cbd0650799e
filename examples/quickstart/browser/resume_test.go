package browser

import (
	"context"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/quickstart/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/matryer/is"
)

// A model answers one fragment for each that the test says, and counts its calls.
type model struct {
	fragments chan string // "" is the end of an answer; closed after the last
	ended     chan error  // the cause of each call's end; nil if the answer is complete

	mu    sync.Mutex
	calls int
}

func newModel() *model {
	return &model{fragments: make(chan string, 10), ended: make(chan error, 10)}
}

// startModel starts a service with a model, and returns the address of its page.
func startModel(t *testing.T) (m *model, address string) {
	t.Helper()
	m = newModel()
	return m, startService(t, botapi.Options{Engine: m}, nil).URL + "/#key=" + key
}

// sayHello opens a page in a tab, and asks for an answer.
func sayHello(t *testing.T, address string) *tab {
	t.Helper()
	tab := newTab(t)
	tab.open(address)
	tab.say("Hello")
	return tab
}

func (m *model) Chat(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
	m.mu.Lock()
	m.calls++
	m.mu.Unlock()
	return func(yield func(string, error) bool) {
		for {
			select {
			case text, more := <-m.fragments:
				if more && text != "" && yield(text, nil) {
					continue
				}
				m.ended <- nil
			case <-ctx.Done():
				m.ended <- context.Cause(ctx)
			}
			return
		}
	}
}

func (m *model) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls
}

// end returns the cause of the end of a call.
func (m *model) end(t *testing.T) error {
	t.Helper()
	select {
	case err := <-m.ended:
		return err
	case <-time.After(patience):
		t.Fatal("the model goes on")
		return nil
	}
}

// seeAnswer waits until the last answer has this text, complete or not.
func (tab *tab) seeAnswer(text string) {
	tab.t.Helper()
	tab.wait(fmt.Sprintf(`Array.from(document.querySelectorAll(".assistant .text")).at(-1)?.textContent.trim() === %q`, strings.TrimSpace(text)))
}

// watchAnswer records the texts of the last answer, for tookNothingBack.
func (tab *tab) watchAnswer() {
	tab.t.Helper()
	evaluate[any](tab, `
		window.recorded = [];
		new MutationObserver(() => {
			const text = Array.from(document.querySelectorAll(".assistant .text")).at(-1)?.textContent ?? "";
			if (text !== recorded.at(-1)) recorded.push(text);
		}).observe(document.querySelector("#scroller"), { subtree: true, childList: true, characterData: true });
		null`)
}

func (tab *tab) tookNothingBack() {
	tab.t.Helper()
	texts := evaluate[[]string](tab, "recorded")
	for i := range len(texts) - 1 {
		if !strings.HasPrefix(texts[i+1], texts[i]) {
			tab.t.Errorf("the page replaced %q with %q", texts[i], texts[i+1])
		}
	}
}

// recordKeys records the Idempotency-Keys that the page sends from now on.
func (tab *tab) recordKeys() {
	tab.t.Helper()
	evaluate[any](tab, `
		window.sent = [];
		const original = window.fetch;
		window.fetch = (url, init = {}) => {
			if (init.headers?.["Idempotency-Key"]) sent.push(init.method + " " + init.headers["Idempotency-Key"]);
			return original(url, init);
		};
		null`)
}

func (tab *tab) sent() (post, del []string) {
	tab.t.Helper()
	for _, line := range evaluate[[]string](tab, "sent") {
		method, key, _ := strings.Cut(line, " ")
		if method == http.MethodDelete {
			del = append(del, key)
		} else {
			post = append(post, key)
		}
	}
	return post, del
}

// TestResumeAfterReload reloads the page in the middle of an answer, and before its
// first fragment.
func TestResumeAfterReload(t *testing.T) {
	is := is.New(t)
	m, address := startModel(t)
	tab := sayHello(t, address)
	tab.see(".arriving")
	tab.wait(`Object.values(localStorage).some((text) => text.includes("pending"))`)
	is.True(!evaluate[bool](tab, `JSON.stringify(localStorage).includes("`+key+`")`)) // the API key
	for m.count() == 0 {
		time.Sleep(time.Millisecond)
	}
	tab.do(chromedp.Reload()) // the model thinks
	tab.see(".arriving")
	m.fragments <- "One, "
	m.fragments <- "two, "
	tab.seeAnswer("One, two, ")

	tab.do(chromedp.Reload())
	tab.see(".arriving")
	tab.watchAnswer()
	tab.seeAnswer("One, two, ")
	m.fragments <- "three."
	tab.seeAnswer("One, two, three.")
	close(m.fragments)
	tab.waitForAnswer()
	is.NoErr(m.end(t))
	tab.tookNothingBack()
	is.Equal(m.count(), 1)
	is.Equal(tab.texts(".failure"), []string{})
	is.Equal(tab.answers(), []string{"One, two, three."})

	tab.do(chromedp.Reload())
	tab.see(".regenerate")
	is.Equal(tab.answers(), []string{"One, two, three."})
	is.Equal(m.count(), 1)
}

// TestResumeInBackground reloads the page while it shows another conversation.
func TestResumeInBackground(t *testing.T) {
	is := is.New(t)
	m, address := startModel(t)
	tab := sayHello(t, address)
	m.fragments <- "One, "
	tab.seeAnswer("One, ")
	tab.click(`.bot[href="#bot=bo"]`)
	tab.wait(`document.querySelector("#chat-name")?.textContent === "Bo"`)
	tab.do(chromedp.Reload())
	tab.wait(`document.querySelector("#chat-name")?.textContent === "Bo"`)
	tab.wait(`document.querySelector(".bot[href='#bot=ada'] .state").textContent === "is answering"`)
	m.fragments <- "two."
	close(m.fragments)
	tab.wait(`document.querySelector(".bot[href='#bot=ada'] .state").textContent !== "is answering"`)
	tab.click(`.bot[href="#bot=ada"]`)
	tab.seeAnswer("One, two.")
	is.Equal(tab.texts(".failure"), []string{})
	is.Equal(m.count(), 1)
}

// A lossyNetwork is a proxy between the page and a service whose connections a test can
// cut.
type lossyNetwork struct {
	address  string // of the page
	listener net.Listener
	mu       sync.Mutex
	down     bool
	open     map[net.Conn]bool
}

func startNetwork(t *testing.T, page string) *lossyNetwork {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	is.New(t).NoErr(err)
	service, path, _ := strings.Cut(strings.TrimPrefix(page, "http://"), "/")
	n := &lossyNetwork{address: "http://" + listener.Addr().String() + "/" + path, listener: listener, open: map[net.Conn]bool{}}
	t.Cleanup(func() {
		listener.Close()
		n.cut(true)
	})
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go n.serve(client, service)
		}
	}()
	return n
}

func (n *lossyNetwork) serve(client net.Conn, service string) {
	defer client.Close()
	server, err := net.Dial("tcp", service)
	if err != nil {
		return
	}
	defer server.Close()
	n.mu.Lock()
	isDown := n.down
	if !isDown {
		n.open[client], n.open[server] = true, true
	}
	n.mu.Unlock()
	if isDown {
		return
	}
	go func() {
		_, _ = io.Copy(server, client)
		server.Close()
	}()
	_, _ = io.Copy(client, server)
}

// cut closes all connections and, with down, those that are opened later, too.
func (n *lossyNetwork) cut(down bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = down
	for conn := range n.open {
		conn.Close()
	}
	clear(n.open)
}

// TestConnectionLost cuts the page's connection for some seconds while the model
// goes on.
func TestConnectionLost(t *testing.T) {
	is := is.New(t)
	m, address := startModel(t)
	n := startNetwork(t, address)
	tab := sayHello(t, n.address)
	m.fragments <- "One, "
	m.fragments <- "two, "
	tab.seeAnswer("One, two, ")
	tab.watchAnswer()
	n.cut(true)
	tab.see(".arriving .lost")
	is.Equal(tab.text(".arriving .lost"), "The answer is interrupted. The page tries to get the rest of it.")
	m.fragments <- "three, "
	time.Sleep(3 * time.Second)
	is.Equal(tab.texts(".failure"), []string{})
	n.cut(false)
	tab.seeAnswer("One, two, three, ")
	tab.wait(`!document.querySelector(".lost:not([hidden])")`)

	n.cut(false) // again, for a moment
	m.fragments <- "four."
	close(m.fragments)
	tab.waitForAnswer()
	tab.tookNothingBack()
	is.Equal(tab.answers(), []string{"One, two, three, four."})
	is.Equal(tab.texts(".failure"), []string{})
	is.NoErr(m.end(t))
	is.Equal(m.count(), 1)
}

// TestConnectionLostForGood checks that the page gives up after a while, and that
// "Try again" gets the answer that the service has kept.
func TestConnectionLostForGood(t *testing.T) {
	is := is.New(t)
	m, address := startModel(t)
	n := startNetwork(t, address)
	tab := sayHello(t, n.address)
	m.fragments <- "One, "
	tab.seeAnswer("One, ")
	n.cut(true)
	tab.see(".arriving .lost")
	tab.forward(2 * time.Minute)
	tab.see(".failure")
	is.Equal(tab.text(".failure-title"), "The server cannot be reached.")
	is.Equal(tab.answers(), []string{"One,"})

	n.cut(false)
	m.fragments <- "two."
	close(m.fragments)
	is.NoErr(m.end(t))
	tab.click(".again")
	tab.seeAnswer("One, two.")
	tab.waitForAnswer()
	is.Equal(tab.texts(".failure"), []string{})
	is.Equal(m.count(), 1)
}

// TestBotFails checks that the page asks a bot that has failed again only if the error
// says when, and not for long.
func TestBotFails(t *testing.T) {
	down := botapi.StatusError{Status: http.StatusServiceUnavailable, Detail: "The model starts again"}
	soon := down
	soon.RetryAfter = time.Second
	tests := map[string]struct {
		err   error
		calls int32
	}{
		"for good":                         {errMood, 1},
		"without a time":                   {down, 1},
		"for the moment":                   {soon, 3},
		"before its first":                 {errMood, 1},
		"before its first, for the moment": {soon, 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			var calls atomic.Int32
			tab := sayHello(t, startService(t, botapi.Options{Engine: botapi.ChatEngineFunc(func(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
				calls.Add(1)
				text := "Well,"
				if strings.HasPrefix(name, "before") {
					text = ""
				}
				return fails(text, nil, test.err).Chat(ctx, req)
			})}, nil).URL+"/#key="+key)
			tab.see(".failure")
			is.Equal(calls.Load(), test.calls)
			tab.click(".again:enabled")
			tab.wait(`!document.querySelector(".arriving") && document.querySelector(".failure") !== null`)
			is.Equal(calls.Load(), 2*test.calls)
		})
	}
}

// TestResumeInSecondTab opens a conversation in a second tab while it is being
// answered, and stops the answer there.
func TestResumeInSecondTab(t *testing.T) {
	for _, isStopped := range []bool{false, true} {
		t.Run(fmt.Sprintf("stopped %t", isStopped), func(t *testing.T) {
			is := is.New(t)
			m, address := startModel(t)
			first := sayHello(t, address)
			m.fragments <- "One, "
			first.seeAnswer("One, ")

			second := first.another()
			second.open(address)
			second.see(".arriving")
			second.seeAnswer("One, ")
			m.fragments <- "two, "
			first.seeAnswer("One, two, ")
			second.seeAnswer("One, two, ")
			want := "One, two, "
			if isStopped {
				second.click("#stop")
				is.True(m.end(t) != nil)
			} else {
				m.fragments <- "three."
				close(m.fragments)
				is.NoErr(m.end(t))
				want += "three."
			}
			for _, tab := range []*tab{first, second} {
				tab.waitForAnswer()
				tab.seeAnswer(want)
			}
			is.Equal(second.texts(".failure"), []string{})
			is.Equal(m.count(), 1)
		})
	}
}

// TestStartOverInAnotherTab checks that a tab that follows an answer does not bring
// back what another one has removed.
func TestStartOverInAnotherTab(t *testing.T) {
	is := is.New(t)
	m, address := startModel(t)
	first := sayHello(t, address)
	m.fragments <- "One, "
	first.seeAnswer("One, ")
	second := first.another()
	second.open(address)
	second.see(".arriving")
	first.clear()
	is.True(m.end(t) != nil)
	second.wait(`document.querySelectorAll(".user").length === 0`)
	is.True(!evaluate[bool](second, `Object.values(localStorage).some((text) => text.includes("Hello"))`))
}

// TestDeletedInAnotherTab checks that a conversation that another tab removes while an
// answer arrives stays away, with its model stopped, until that tab restores it.
func TestDeletedInAnotherTab(t *testing.T) {
	ways := map[string]struct{ remove, restore func(*tab) }{
		"delete":     {func(tab *tab) { tab.click(".conversation-item .delete") }, func(tab *tab) { tab.click(".restore") }},
		"clear":      {func(tab *tab) { tab.clear() }, func(tab *tab) { tab.click(".cleared button") }},
		"delete all": {func(tab *tab) { tab.click("#delete-all"); tab.click("#delete-now") }, nil},
	}
	for way, do := range ways {
		for _, isKept := range []bool{true, false} {
			t.Run(fmt.Sprint(way, " ", isKept), func(t *testing.T) {
				is := is.New(t)
				m := newModel()
				address := startPage(t, botapi.Options{Engine: m}, page.Options{Resume: isKept}).URL + "/#key=" + key
				first := sayHello(t, address)
				m.fragments <- "An earlier answer."
				m.fragments <- "" // the end
				is.NoErr(m.end(t))
				first.waitForAnswer()
				first.say("And now?")
				m.fragments <- "One, "
				first.seeAnswer("One, ")

				second := first.another()
				second.open(address)
				second.wait(`document.querySelectorAll(".user").length === 2`)
				second.seeAnswer("One, ") // which the first tab stores every second
				do.remove(second)
				is.True(m.end(t) != nil)
				first.wait(`document.querySelectorAll(".user, .conversation-item").length === 0`)
				is.Equal(first.text("#announcement"), "This conversation was deleted in another tab.")
				is.Equal(first.texts(".cleared"), []string{"This conversation was deleted in another tab."})
				is.True(!evaluate[bool](first, `Object.values(localStorage).some((text) => text.includes("Hello") || text.includes("And now"))`))
				if do.restore != nil {
					do.restore(second)
					for _, tab := range []*tab{first, second} {
						tab.wait(`document.querySelectorAll(".user").length === 2`)
						is.Equal(tab.texts(".user .text"), []string{"Hello", "And now?"})
						is.Equal(tab.answers(), []string{"An earlier answer.", "One,"})
						is.Equal(tab.texts(".cleared"), []string{})
					}
					return
				}
				first.say("I go on")
				m.fragments <- "Yes."
				first.seeAnswer("Yes.")
				is.Equal(first.texts(".cleared"), []string{})
			})
		}
	}
}

// TestDeletedAndWrittenAtTheSameTime has another tab that writes a conversation in the
// moment in which this one deletes it.
func TestDeletedAndWrittenAtTheSameTime(t *testing.T) {
	is := is.New(t)
	_, tab := talkToMoody(t, botapi.Options{})
	tab.say("one")
	tab.waitForAnswer()
	evaluate[any](tab, `window.chat = Object.entries(localStorage).find(([name]) => name.startsWith("botapi.chat.")); null`)
	const write = `localStorage.setItem(...chat); dispatchEvent(new StorageEvent("storage", { key: chat[0], newValue: chat[1] })); null`
	const there = `chat[0] in localStorage`
	tab.write("a draft")
	tab.click(".conversation-item .delete")
	evaluate[any](tab, write)
	is.True(!evaluate[bool](tab, there))
	evaluate[any](tab, `document.querySelector(".restore").click(); null`)
	is.True(evaluate[bool](tab, there))
	is.Equal(evaluate[string](tab, `document.querySelector("#message").value`), "a draft")
	evaluate[any](tab, write)
	is.True(evaluate[bool](tab, there))
	tab.click(".conversation-item .delete")
	evaluate[any](tab, `chat[1] = chat[1].replace(/"id":"[^"]*"/, '"id":"another"'); `+write) // a new conversation in that tab
	is.True(evaluate[bool](tab, there))
	evaluate[any](tab, `chat = ["botapi.draft." + chat[0].split(".").at(-1), "a draft"]; `+write)
	is.True(evaluate[bool](tab, there))
}

// TestDeletedBeforeTheEvent removes a conversation from the store without an event, as
// another tab might have done in this moment.
func TestDeletedBeforeTheEvent(t *testing.T) {
	is := is.New(t)
	m, address := startModel(t)
	tab := sayHello(t, address)
	m.fragments <- "One, "
	tab.seeAnswer("One, ")
	evaluate[any](tab, `Object.keys(localStorage).filter((name) => name.startsWith("botapi.chat.")).forEach((name) => localStorage.removeItem(name)); null`)
	m.fragments <- "two, "
	is.True(m.end(t) != nil)
	tab.wait(`document.querySelectorAll(".user, .conversation-item").length === 0`)
	is.Equal(evaluate[int](tab, `localStorage.length`), 0)
	tab.say("Hello again")
	m.fragments <- "Well."
	tab.seeAnswer("Well.")
}

// TestStopStopsTheModel checks each way to stop an answer, and that another one then
// has another key.
func TestStopStopsTheModel(t *testing.T) {
	ways := map[string]func(*tab){
		"button":       func(tab *tab) { tab.click("#stop") },
		"Escape":       func(tab *tab) { tab.do(chromedp.KeyEvent(kb.Escape)) },
		"delete chats": func(tab *tab) { tab.click("#delete-all"); tab.click("#delete-now") },
		"first of all": func(tab *tab) { tab.click("#stop") }, // before the first fragment
		"after reload": func(tab *tab) { tab.do(chromedp.Reload()); tab.see(".arriving"); tab.click("#stop") },
		"start over":   func(tab *tab) { tab.clear() },
	}
	for way, stop := range ways {
		t.Run(way, func(t *testing.T) {
			m, address := startModel(t)
			tab := sayHello(t, address)
			if way == "first of all" {
				tab.see(".arriving")
			} else {
				m.fragments <- "One, "
				tab.seeAnswer("One, ")
			}
			stop(tab)
			if err := m.end(t); err == nil {
				t.Error("the answer is complete")
			}
		})
	}
}

func TestRegenerateAfterStop(t *testing.T) {
	is := is.New(t)
	m, address := startModel(t)
	tab := newTab(t)
	tab.open(address)
	tab.see(".bot")
	tab.recordKeys()
	tab.say("Hello")
	m.fragments <- "One, "
	tab.seeAnswer("One, ")
	tab.click("#stop")
	is.True(m.end(t) != nil)
	tab.see(".stopped")
	is.Equal(tab.text(".stopped .note"), "Stopped")
	tab.click(".regenerate")
	m.fragments <- "Another."
	tab.seeAnswer("Another.")
	close(m.fragments)
	tab.waitForAnswer()
	is.NoErr(m.end(t))
	posted, deleted := tab.sent()
	is.Equal(len(posted), 2)
	is.True(posted[0] != posted[1])
	is.Equal(deleted, posted[:1])
	is.Equal(m.count(), 2)
}

// TestAnswerCannotBeContinued has a service that rejects the second request for an
// answer, after a reload.
func TestAnswerCannotBeContinued(t *testing.T) {
	tests := []struct {
		status        int
		detail, title string // title is empty where a note says why
	}{
		{http.StatusNotFound, "Answer not found", "The server does not have this answer any more."},
		{http.StatusConflict, "Another chat has this Idempotency-Key", "This answer cannot be continued."},
		{http.StatusGone, "The answer was stopped", ""},
	}
	for _, test := range tests {
		t.Run(http.StatusText(test.status), func(t *testing.T) {
			is := is.New(t)
			var mu sync.Mutex
			var seen []string
			answer := func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				seen = append(seen, r.Header.Get("Idempotency-Key"))
				count := len(seen)
				mu.Unlock()
				w.Header().Set("X-Botapi-Answer", "kept")
				switch count {
				case 1:
					stream("data: {\"content\":\"Well,\"}\n\n", true)(w, r)
				case 2:
					w.Header().Set("Content-Type", "application/json")
					w.WriteHeader(test.status)
					_, _ = fmt.Fprintf(w, `{"detail":%q}`, test.detail)
				default:
					stream("data: {\"content\":\"Well, well.\"}\n\ndata: [DONE]\n\n", false)(w, r)
				}
			}
			tab := newTab(t)
			tab.open(startService(t, botapi.Options{}, answer).URL + "/#key=" + key)
			tab.say("Hello")
			tab.seeAnswer("Well,")
			tab.do(chromedp.Reload())
			again := ".again"
			if test.title == "" {
				again = ".regenerate"
				tab.see(".stopped")
				is.Equal(tab.text(".stopped .note"), "Stopped")
			} else {
				tab.see(".failure")
				is.Equal(tab.text(".failure-title"), test.title)
			}
			is.Equal(tab.answers(), []string{"Well,"})

			tab.click(again)
			tab.seeAnswer("Well, well.")
			tab.waitForAnswer()
			mu.Lock()
			defer mu.Unlock()
			is.Equal(len(seen), 3)
			is.Equal(seen[0], seen[1])
			is.True(seen[1] != seen[2])
		})
	}
}

// TestErrorEventSaysWhetherToComeBack has streams that end with an error event.
func TestErrorEventSaysWhetherToComeBack(t *testing.T) {
	tests := map[string]struct {
		event    string
		requests int
	}{
		"unavailable":    {`{"detail":"Service Unavailable","status":503,"retry_after":1}`, 2},
		"failed":         {`{"detail":"Internal Server Error","status":500}`, 1},
		"without status": {`{"detail":"Internal Server Error"}`, 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			var mu sync.Mutex
			requests := 0
			answer := func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				requests++
				count := requests
				mu.Unlock()
				w.Header().Set("X-Botapi-Answer", "kept")
				text := "data: {\"content\":\"Well,\"}\n\n"
				if count == 1 {
					text += "event: error\ndata: " + test.event + "\n\n"
				} else {
					text += "data: {\"content\":\" well.\"}\n\ndata: [DONE]\n\n"
				}
				stream(text, count == 1)(w, r)
			}
			tab := newTab(t)
			tab.open(startService(t, botapi.Options{}, answer).URL + "/#key=" + key)
			tab.say("Hello")
			if test.requests == 1 {
				tab.see(".failure")
				tab.seeAnswer("Well,")
			} else {
				tab.seeAnswer("Well, well.")
			}
			mu.Lock()
			defer mu.Unlock()
			is.Equal(requests, test.requests)
		})
	}
}
