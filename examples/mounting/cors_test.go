package mounting

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/aisdk"
	"example.com/botapi/examples/openai"
	"example.com/botapi/examples/resume"
	"github.com/chromedp/chromedp"
	"github.com/matryer/is"
)

// preflight asks as a browser does before a request of a page.
func preflight(t *testing.T, server client, method, path, origin, headers string) response {
	t.Helper()
	return server.do(t, http.MethodOptions, path, "",
		"Authorization", "", // a preflight has no key
		"Origin", origin,
		"Access-Control-Request-Method", method,
		"Access-Control-Request-Headers", headers)
}

func TestCORSPreflight(t *testing.T) {
	server := serve(t, CORS(everyDoor(t), pageOrigin))
	for _, request := range []struct{ method, path, headers string }{
		{"GET", "/v1/bots", "authorization,if-none-match,x-request-id"},
		{"HEAD", "/v1/bots", "authorization"},
		{"POST", "/v1/chat", "authorization,content-type,idempotency-key,x-request-id"},
		{"DELETE", "/v1/answers", "authorization,idempotency-key"},
		{"POST", "/v1/chat/completions", "authorization,content-type,x-stainless-lang,x-stainless-of-tomorrow"},
		{"POST", "/v1/responses", "authorization,content-type,idempotency-key,x-stainless-retry-count"},
		{"POST", "/api/chat", "authorization,content-type,user-agent"},
		{"GET", "/api/chat/a/stream", "authorization,user-agent"},
		{"DELETE", "/api/chat/a/stream", "authorization"},
		{"GET", "/api/tags", "authorization,content-type,user-agent"},
	} {
		is := is.New(t)
		got := preflight(t, server, request.method, request.path, pageOrigin, request.headers)
		is.Equal(got.status, http.StatusNoContent)
		is.Equal(got.header.Get("Access-Control-Allow-Origin"), pageOrigin)
		is.Equal(got.header.Get("Access-Control-Allow-Methods"), request.method)
		is.Equal(got.header.Get("Access-Control-Allow-Headers"), request.headers)
		is.Equal(got.header.Get("Access-Control-Max-Age"), "7200")
		is.Equal(got.header.Get("Access-Control-Allow-Credentials"), "")
		is.Equal(got.header.Get("Vary"), "Origin, Access-Control-Request-Method, Access-Control-Request-Headers")

		got = preflight(t, server, request.method, request.path, "https://elsewhere.example.com", request.headers)
		is.Equal(got.header.Get("Access-Control-Allow-Origin"), "")
	}
}

func TestCORSResponses(t *testing.T) {
	server := serve(t, CORS(everyDoor(t), pageOrigin))
	for _, request := range []struct {
		method, path, key string
		status            int
	}{
		{"GET", "/v1/bots", apiKey, http.StatusOK},
		{"HEAD", "/v1/bots", apiKey, http.StatusOK},
		{"POST", "/v1/chat", "", http.StatusUnauthorized}, // without CORS headers, a page cannot read an error
		{"POST", "/v1/responses", "", http.StatusUnauthorized},
		{"DELETE", "/v1/answers", apiKey, http.StatusBadRequest},
		{"GET", "/api/chat/a/stream", apiKey, http.StatusNoContent},
		{"POST", "/api/nothing", apiKey, http.StatusNotFound},
	} {
		is := is.New(t)
		for origin, allowed := range map[string]string{pageOrigin: pageOrigin, "https://elsewhere.example.com": "", "": ""} {
			got := server.do(t, request.method, request.path, "", "Authorization", "Bearer "+request.key, "Origin", origin)
			is.Equal(got.status, request.status)
			is.Equal(got.header.Get("Access-Control-Allow-Origin"), allowed)
			is.Equal(got.header.Get("Vary"), "Origin") // so that no cache gives one page the response to another
			exposed := ""
			if allowed != "" {
				exposed = "Etag, Retry-After, Www-Authenticate, X-Botapi-Answer, X-Request-Id"
			}
			is.Equal(got.header.Get("Access-Control-Expose-Headers"), exposed)
		}
	}
}

func TestCORSOfAllOriginsAndOfNone(t *testing.T) {
	is := is.New(t)
	got := preflight(t, serve(t, CORS(everyDoor(t), "*")), "POST", "/v1/chat", pageOrigin, "authorization")
	is.Equal(got.header.Get("Access-Control-Allow-Origin"), "*")
	is.Equal(got.header.Get("Access-Control-Allow-Headers"), "authorization") // * would not include it
	is.Equal(got.header.Get("Access-Control-Allow-Credentials"), "")

	got = preflight(t, serve(t, CORS(everyDoor(t))), "POST", "/v1/chat", pageOrigin, "authorization")
	is.Equal(got.status, http.StatusMethodNotAllowed)
	is.Equal(got.header.Get("Access-Control-Allow-Origin"), "")
}

// TestCORSInABrowser has a page in Chromium use the service from another origin, with the
// libraries of all clients.
func TestCORSInABrowser(t *testing.T) {
	buildPage(t)
	browser := startChromium(t)
	page := httptest.NewServer(http.HandlerFunc(servePage))
	t.Cleanup(page.Close)
	stranger := strings.Replace(page.URL, "127.0.0.1", "localhost", 1) // the same page, at an origin that is not allowed
	service := serve(t, CORS(everyDoor(t), page.URL)).server
	for client, want := range map[string]string{
		"botapi": `{
			"list": [200, 1], "again": [304, "of-the-page"],
			"begun": ["kept", "data: {\"content\":\"Once\"}\n\n"], "stopped": 204, "joined": [410, "The answer was stopped"],
			"busy": [503, "7"], "stranger": [401, "Bearer"]
		}`,
		"openai": `{
			"models": ["echo"], "completion": "Hello?", "kept": "kept", "hasRequestID": true, "response": "Hello?",
			"busy": [503, "7"]
		}`,
		"useChat": `{"sent": "Once", "cameBack": "Once", "stopped": 204}`,
		"ollama":  `{"generate": 404, "list": 404}`,
	} {
		t.Run(client, func(t *testing.T) {
			is := is.New(t)
			call := fmt.Sprintf("clients.%s(%q, %q).then(JSON.stringify)", client, service, apiKey)
			saw, err := evaluate(t, browser, page.URL, call)
			is.NoErr(err)
			is.Equal(inOrder(t, saw), inOrder(t, want))
			_, err = evaluate(t, browser, stranger, call)
			is.True(err != nil) // the browser hides the responses from the page
		})
	}
}

// everyDoor returns the handlers of all protocols, with answers that outlive their
// connections.
func everyDoor(t *testing.T) http.Handler {
	t.Helper()
	o := options(t, nil, t.Output())
	answers := aisdk.NewAnswers(resume.Options{Engine: botapi.ChatEngineFunc(obeying), Logger: o.Logger})
	t.Cleanup(func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		is.New(t).NoErr(answers.Close(ended))
	})
	o.Engine, o.OnLimit = answers, answers.OnLimit
	o.Routes = slices.Concat(openai.Routes(openai.Options{Bots: o.Bots}), aisdk.Routes(aisdk.Options{Answers: answers}), answers.Routes())
	return botapi.New(o)
}

// obeying repeats the last message, or does what it says: "wait" after the first word
// until it is stopped, or "fail".
func obeying(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		switch order := req.Messages[len(req.Messages)-1].Content; order {
		case "wait":
			if yield("Once", nil) {
				<-ctx.Done()
			}
		case "fail":
			yield("", &botapi.StatusError{Status: http.StatusServiceUnavailable, Detail: "Busy", RetryAfter: 7 * time.Second})
		default:
			yield(order, nil)
		}
	}
}

// inOrder returns JSON whose members are in alphabetical order.
func inOrder(t *testing.T, text string) string {
	t.Helper()
	var value any
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	ordered, _ := json.Marshal(value) // it has just been read from JSON
	return string(ordered)
}

func servePage(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/page.js" {
		http.ServeFile(w, r, "page/dist/page.js")
		return
	}
	w.Header().Set("Content-Type", "text/html")
	_, _ = io.WriteString(w, `<!doctype html><script src="page.js"></script>`)
}

// buildPage builds the page with the packages at the versions in package-lock.json.
func buildPage(t *testing.T) {
	t.Helper()
	for _, arguments := range []string{"ci --ignore-scripts --no-audit --no-fund", "run build"} {
		if _, err := exec.LookPath("npm"); err != nil {
			t.Skip("npm is not installed")
		}
		npm := exec.CommandContext(t.Context(), "npm", strings.Fields(arguments)...)
		npm.Dir = "page"
		if output, err := npm.CombinedOutput(); err != nil {
			t.Fatalf("npm %s: %v\n%s", arguments, err, output)
		}
	}
}

func startChromium(t *testing.T) context.Context {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(chromium(t)), chromedp.WSURLReadTimeout(time.Minute))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium's sandbox does not work for root
	}
	allocator, closeBrowser := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(closeBrowser)
	browser, closeTab := chromedp.NewContext(allocator)
	t.Cleanup(closeTab)
	is.New(t).NoErr(chromedp.Do(browser))
	return browser
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

// evaluate opens a page, and returns what a promise of it resolves to.
func evaluate(t *testing.T, browser context.Context, page, promise string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(browser, time.Minute)
	defer cancel()
	is.New(t).NoErr(chromedp.Do(ctx, chromedp.Navigate(page)))
	return chromedp.Run(ctx, chromedp.Evaluate[string](promise, chromedp.EvalAwaitPromise))
}
