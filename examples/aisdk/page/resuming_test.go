package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/matryer/is"
)

// A line is what is between the page and its service.
type line struct {
	service http.Handler
	broken  atomic.Pointer[http.HandlerFunc] // serves the chats while it is set
	reached chan string                      // the method of each chat that it has served
}

// newLine starts a service, and the line to it.
func newLine(t *testing.T) (*obedient, *line, *httptest.Server) {
	t.Helper()
	engine := newObedient()
	h, answers := newService(engine, key)
	l := &line{service: h, reached: make(chan string, 100)}
	return engine, l, serve(t, l, answers)
}

func (l *line) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	broken := l.broken.Load()
	if broken == nil || !strings.HasPrefix(r.URL.Path, "/api/chat") {
		l.service.ServeHTTP(w, r)
		return
	}
	defer func() { l.reached <- r.Method }()
	(*broken)(w, r)
}

func (l *line) breaks(how http.HandlerFunc) { l.broken.Store(&how) }

// reads returns the method of the next chat that it serves while it is broken.
func (l *line) reads(t *testing.T) string {
	t.Helper()
	select {
	case method := <-l.reached:
		return method
	case <-time.After(patience):
		t.Fatal("the page asks for nothing")
		return ""
	}
}

func (l *line) works() { l.broken.Store(nil) }

// silent closes connections without a response.
func silent(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// badGateway is what a proxy says while the service is started again.
func badGateway(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusBadGateway)
	_, _ = w.Write([]byte("<html>Bad Gateway</html>"))
}

// clock is a script that stops the timers of 1 to 15 seconds (chromedp has longer ones).
// tick calls the next one, and returns its delay in milliseconds.
const clock = `
	window.timers = [];
	window.tick = () => { const timer = timers.shift(); timer.call(); return timer.delay; };
	window.ahead = 0;
	const { setTimeout: start, clearTimeout: end } = window, now = Date.now;
	window.setTimeout = (call, delay, ...rest) => {
		if (!(delay >= 1000 && delay <= 15_000)) return start(call, delay, ...rest);
		timers.push({ call, delay, id: -delay });
		return -delay;
	};
	window.clearTimeout = (id) => id < 0 ? (timers = timers.filter((timer) => timer.id !== id)) : end(id);
	Date.now = () => now() + ahead;
`

const connectionIsLost = `status === "error" && footer.includes("The connection is lost")`

// loseConnection has the page lose the connection in the middle of an answer.
func loseConnection(t *testing.T, tab *tab, l *line, server *httptest.Server, how http.HandlerFunc) {
	t.Helper()
	tab.waitFor(`status === "ready"`)
	tab.say("tell")
	tab.waitFor(`status === "streaming" && last === "Once"`)
	l.breaks(how)
	server.CloseClientConnections()
	tab.waitFor(connectionIsLost)
}

// TestOutage has an outage that outlasts many attempts.
func TestOutage(t *testing.T) {
	for name, how := range map[string]http.HandlerFunc{"no connection": silent, "a bad gateway": badGateway} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			engine, l, server := newLine(t)
			tab := openPage(t, server.URL+"/#key="+key, clock)
			loseConnection(t, tab, l, server, how)
			for _, delay := range []int{1000, 2000, 4000, 8000, 15_000, 15_000, 15_000} {
				tab.waitFor(`timers.length === 1`)
				is.Equal(evaluate[int](tab, "tick()"), delay)
				is.Equal(l.reads(t), http.MethodGet)
				tab.waitFor(connectionIsLost)
			}
			l.works()
			engine.goOn <- struct{}{}
			evaluate[int](tab, "tick()")
			tab.waitFor(`status === "ready" && last === "Once upon a time, 1" && timers.length === 0`)
			is.Equal(tab.texts(), []string{"tell", "Once upon a time, 1"})
		})
	}
}

// TestReload has the page reloaded during an outage of the service.
func TestReload(t *testing.T) {
	engine, l, server := newLine(t)
	tab := openPage(t, server.URL+"/#key="+key, clock)
	loseConnection(t, tab, l, server, badGateway)
	tab.do(chromedp.Reload())
	tab.waitFor(connectionIsLost + ` && last === "Once"`)
	l.works()
	engine.goOn <- struct{}{}
	evaluate[int](tab, "tick()")
	tab.waitFor(`status === "ready" && last === "Once upon a time, 1"`)
}

// TestComesBackImmediately has no timers: the page comes back when the network does, and
// when a person looks at it. The library would do the latter for texts that it knows.
func TestComesBackImmediately(t *testing.T) {
	for event, happens := range map[string]func(*tab){
		"online": func(tab *tab) {
			for _, offline := range []bool{true, false} {
				_, err := chromedp.Call(tab.ctx, network.OverrideNetworkState, network.OverrideNetworkStateParams{Offline: offline, DownloadThroughput: -1, UploadThroughput: -1})
				is.New(tab.t).NoErr(err)
			}
		},
		"visibilitychange": func(tab *tab) {
			evaluate[bool](tab, `document.dispatchEvent(new Event("visibilitychange"))`)
		},
	} {
		t.Run(event, func(t *testing.T) {
			is := is.New(t)
			engine, l, server := newLine(t)
			tab := openPage(t, server.URL+"/#key="+key, clock, wording("Error in input stream"))
			loseConnection(t, tab, l, server, silent)
			happens(tab)
			is.Equal(l.reads(t), http.MethodGet)
			tab.waitFor(connectionIsLost)
			l.works()
			engine.goOn <- struct{}{}
			happens(tab)
			tab.waitFor(`status === "ready" && last === "Once upon a time, 1"`)
		})
	}
}

// TestGivesUp has an outage that outlasts the answer. The page stops asking, but for the
// return of the network, and says that the answer is incomplete.
func TestGivesUp(t *testing.T) {
	is := is.New(t)
	_, l, server := newLine(t)
	tab := openPage(t, server.URL+"/#key="+key, clock)
	loseConnection(t, tab, l, server, silent)
	tab.waitFor(`timers.length === 1`)
	evaluate[int](tab, "ahead = 3 * 60_000; tick()")
	is.Equal(l.reads(t), http.MethodGet)
	is.Equal(evaluate[int](tab, "timers.length"), 0)
	tab.waitFor(connectionIsLost)

	l.works()
	is.Equal(remove(t, server.URL+"/api/chat/"+evaluate[string](tab, `new URLSearchParams(location.hash.slice(1)).get("chat")`)+"/stream"), 204)
	evaluate[bool](tab, `dispatchEvent(new Event("online"))`)
	tab.waitFor(`status === "ready" && last === "Once" && footer.includes("The last answer is incomplete.")`)
	tab.do(chromedp.Reload())
	tab.waitFor(`status === "ready" && last === "Once" && footer.includes("The last answer is incomplete.")`)
}

// TestQuestionDuringAttempt asks while the page still asks for an earlier answer.
func TestQuestionDuringAttempt(t *testing.T) {
	is := is.New(t)
	engine, l, server := newLine(t)
	arrived, release := make(chan struct{}), make(chan struct{})
	l.breaks(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			close(arrived)
			<-release
		}
		l.service.ServeHTTP(w, r)
	})
	tab := openPage(t, server.URL+"/#key="+key)
	<-arrived
	evaluate[any](tab, `
		window.seen = [];
		new MutationObserver(() => seen.push(document.querySelector("#status").textContent))
			.observe(document.querySelector("#status"), { characterData: true, subtree: true }); null`)
	tab.say("tell")
	tab.waitFor(`status === "streaming" && last === "Once"`)
	close(release)
	is.Equal(l.reads(t), http.MethodGet)
	engine.goOn <- struct{}{}
	tab.waitFor(`status === "ready" && last === "Once upon a time, 1"`)
	is.Equal(evaluate[[]string](tab, "seen"), []string{"submitted", "streaming", "ready"})
}

// TestLostQuestion loses a message before the service has it.
func TestLostQuestion(t *testing.T) {
	is := is.New(t)
	_, l, server := newLine(t)
	tab := openPage(t, server.URL+"/#key="+key, clock)
	tab.waitFor(`status === "ready"`)
	tab.say("say Hello")
	tab.waitFor(`status === "ready" && last === "Hello"`)
	l.breaks(silent)
	tab.say("say Bye")
	tab.waitFor(connectionIsLost)
	l.works()
	evaluate[int](tab, "tick()")
	tab.waitFor(`status === "ready" && footer.includes("The last message has no answer.")`)
	is.Equal(tab.texts(), []string{"say Hello", "Hello", "say Bye"}) // the answer to the first one came again
	tab.click("#regenerate")
	tab.waitFor(`status === "ready" && last === "Bye" && !footer.includes("no answer")`)
}

// wording is a script that rewords the errors of lost connections.
func wording(text string) string {
	return fmt.Sprintf(`
	const request = window.fetch;
	const reword = (error) => { throw error instanceof TypeError ? new TypeError(%q) : error; };
	window.fetch = async (...what) => {
		const response = await request(...what).catch(reword);
		if (response.status === 204) return response; // for which Chromium sometimes has a body
		const reader = response.body.getReader();
		return new Response(new ReadableStream({
			async pull(stream) {
				const { done, value } = await reader.read().catch(reword);
				done ? stream.close() : stream.enqueue(value);
			},
			cancel: (reason) => reader.cancel(reason),
		}), response);
	};`, text)
}

// TestBrowsersTexts loses the connection with the texts of other browsers.
func TestBrowsersTexts(t *testing.T) {
	for _, text := range []string{
		"Error in input stream", "NetworkError when attempting to fetch resource.", // Firefox
		"Load failed", "The network connection was lost.", "The Internet connection appears to be offline.", // Safari
	} {
		t.Run(text, func(t *testing.T) {
			engine, l, server := newLine(t)
			tab := openPage(t, server.URL+"/#key="+key, clock, wording(text))
			loseConnection(t, tab, l, server, silent)
			evaluate[int](tab, "tick()")
			l.reads(t)
			tab.waitFor(connectionIsLost)
			l.works()
			engine.goOn <- struct{}{}
			evaluate[int](tab, "tick()")
			tab.waitFor(`status === "ready" && last === "Once upon a time, 1"`)
		})
	}
}

// TestEndThatLooksNormal has a proxy that ends a response normally when it has lost the
// service.
func TestEndThatLooksNormal(t *testing.T) {
	engine, l, server := newLine(t)
	tab := openPage(t, server.URL+"/#key="+key, clock)
	tab.waitFor(`status === "ready"`)
	l.breaks(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer func() { _ = recover() }() // http.ErrAbortHandler
		l.service.ServeHTTP(&losingWriter{w, cancel}, r.WithContext(ctx))
	})
	tab.say("tell")
	tab.waitFor(connectionIsLost + ` && last === "Once"`)
	l.works()
	engine.goOn <- struct{}{}
	evaluate[int](tab, "tick()")
	tab.waitFor(`status === "ready" && last === "Once upon a time, 1"`)
}

// A losingWriter loses the service when text has been written. It does not let the service
// end the connection with a deadline.
type losingWriter struct {
	http.ResponseWriter
	lose func()
}

func (w *losingWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	if bytes.Contains(p, []byte("text-delta")) {
		w.Flush()
		w.lose()
	}
	return n, err
}

func (w *losingWriter) Flush() { w.ResponseWriter.(http.Flusher).Flush() }

// TestStopFails stops an answer that the service does not stop: the answer goes on, and
// so does the page.
func TestStopFails(t *testing.T) {
	for name, how := range map[string]struct {
		breaks http.HandlerFunc
		text   string
	}{
		"no connection": {silent, "Failed to fetch"},
		"unavailable": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "Too many answers are being stopped", http.StatusTooManyRequests)
		}, "Too many answers are being stopped"},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			engine, l, server := newLine(t)
			tab := openPage(t, server.URL+"/#key="+key, clock)
			tab.waitFor(`status === "ready"`)
			tab.say("tell")
			tab.waitFor(`status === "streaming" && last === "Once"`)
			l.breaks(how.breaks)
			tab.click("#stop")
			tab.waitFor(fmt.Sprintf(`status === "streaming" && footer.includes("The answer could not be stopped, and goes on: %s")`, how.text))
			for range len(l.reached) {
				is.Equal(l.reads(t), http.MethodDelete)
			}
			is.Equal(len(engine.ended), 0)
			l.works()
			tab.click("#stop")
			tab.waitFor(`status === "ready" && last === "Once" && !footer.includes("stopped")`)
			is.True(<-engine.ended != nil)
		})
	}
}

// TestStopWithoutConnection stops an answer whose connection is lost.
func TestStopWithoutConnection(t *testing.T) {
	engine, l, server := newLine(t)
	tab := openPage(t, server.URL+"/#key="+key, clock)
	loseConnection(t, tab, l, server, silent)
	l.works()
	tab.click("#stop")
	tab.waitFor(`status === "ready" && last === "Once" && timers.length === 0`)
	is.New(t).True(<-engine.ended != nil)
}
