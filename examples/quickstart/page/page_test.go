package page

import (
	"compress/gzip"
	"html"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/botapi"
	"github.com/matryer/is"
)

func request(o Options, method, path string, header http.Header) *http.Response {
	r := httptest.NewRequest(method, path, nil)
	r.Header = header
	w := httptest.NewRecorder()
	Handler(o).ServeHTTP(w, r)
	return w.Result()
}

func get(o Options, path string) *http.Response {
	return request(o, http.MethodGet, path, nil)
}

func bodyOf(t *testing.T, response *http.Response) string {
	t.Helper()
	text, err := io.ReadAll(response.Body)
	is.New(t).NoErr(err)
	return string(text)
}

func TestPaths(t *testing.T) {
	tests := []struct {
		path        string
		status      int
		contentType string
	}{
		{"/", 200, "text/html; charset=utf-8"},
		{"/docs", 200, "text/html; charset=utf-8"},
		{"/openapi.json", 200, "application/json"},
		{"/page/chat.js", 200, "text/javascript; charset=utf-8"},
		{"/page/style.css", 200, "text/css; charset=utf-8"},
		{"/page/icon.svg", 200, "image/svg+xml"},
		{"/page/lib/markdown.js", 200, "text/javascript; charset=utf-8"},
		{"/page/lib/LICENSES.txt", 200, "text/plain; charset=utf-8"},
		{"/page/lib/fonts/KaTeX_Main-Regular.woff2", 200, "font/woff2"},
		{"/page/lib/", 404, "application/json"},
		{"/page/build/build.mjs", 404, "application/json"},
		{"/page/", 404, "application/json"},
		{"/page/chat.html", 404, "application/json"},
		{"/page/page.go", 404, "application/json"},
		{"/nothing", 404, "application/json"},
	}
	for _, base := range []string{"", "/", "/assistant", "/assistant/", "assistant/of/mine"} {
		for _, test := range tests {
			t.Run(base+" "+test.path, func(t *testing.T) {
				is := is.New(t)
				response := get(Options{BasePath: base}, strings.TrimSuffix(folder(base), "/")+test.path)
				is.Equal(response.StatusCode, test.status)
				is.Equal(response.Header.Get("Content-Type"), test.contentType)
			})
		}
	}
}

func TestMethods(t *testing.T) {
	is := is.New(t)
	head := request(Options{}, http.MethodHead, "/", nil)
	is.Equal(head.StatusCode, 200)
	is.Equal(bodyOf(t, head), "")
	post := request(Options{}, http.MethodPost, "/docs", nil)
	is.Equal(post.StatusCode, 405)
	is.Equal(post.Header.Get("Allow"), "GET, HEAD")
	is.Equal(bodyOf(t, post), `{"detail":"Method Not Allowed"}`)
}

// TestDocuments checks who gets the page of a document, and who its Markdown.
func TestDocuments(t *testing.T) {
	const text = "# Roses & <beans>\n\nSee the [pond](pond.md#fish).\n"
	o := Options{Title: "Garden", BasePath: "/help/", Documents: map[string]string{"roses.md": text, "pond.md": "# The pond\n"}}
	for accept, isPage := range map[string]bool{
		"": false, "*/*": false, "text/*": false, "application/json": false, "text/html;q=0": false, "text/htmlx": false,
		"text/markdown, text/html;q=0.9, */*;q=0.1": false,
		"text/html": true,
		"text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8": true,
		"application/xhtml+xml, text/html;q=0.5":                                                true,
		"text/html, text/markdown;q=0":                                                          true,
	} {
		t.Run(accept, func(t *testing.T) {
			is := is.New(t)
			response := request(o, http.MethodGet, "/help/docs/roses.md", http.Header{"Accept": {accept}, "Accept-Encoding": {"identity"}})
			is.Equal(response.StatusCode, 200)
			is.Equal(response.Header.Values("Vary"), []string{"Accept", "Accept-Encoding"})
			is.True(strings.HasPrefix(response.Header.Get("Content-Security-Policy"), "default-src 'none'; script-src 'self'; "))
			body := bodyOf(t, response)
			if !isPage {
				is.Equal(response.Header.Get("Content-Type"), "text/markdown; charset=utf-8")
				is.Equal(body, text)
				return
			}
			is.Equal(response.Header.Get("Content-Type"), "text/html; charset=utf-8")
			is.True(strings.Contains(body, "<title>Roses &amp; &lt;beans&gt; · Garden</title>"))
			is.True(strings.Contains(body, "<pre id=\"markdown\">\n# Roses &amp; &lt;beans&gt;\n\nSee the [pond](pond.md#fish).\n</pre>"))
			is.True(strings.Contains(body, `<a href="pond.md">The pond</a>`))
		})
	}
	is := is.New(t)
	page := http.Header{"Accept": {"text/html"}}
	markdown := get(o, "/help/docs/roses.md").Header.Get("ETag")
	is.True(request(o, http.MethodGet, "/help/docs/roses.md", page).Header.Get("ETag") != markdown)
	page.Set("If-None-Match", markdown)
	is.Equal(request(o, http.MethodGet, "/help/docs/roses.md", page).StatusCode, 200)
	is.Equal(request(o, http.MethodGet, "/help/docs/nothing.md", page).StatusCode, 404)
	is.Equal(get(Options{}, "/docs/roses.md").StatusCode, 404)
}

// TestSecondVisit checks that a browser loads only changed files again.
func TestSecondVisit(t *testing.T) {
	is := is.New(t)
	etag := get(Options{}, "/").Header.Get("ETag")
	again := http.Header{"If-None-Match": {etag}}
	is.Equal(request(Options{}, http.MethodGet, "/", again).StatusCode, 304)
	is.Equal(request(Options{Title: "Another"}, http.MethodGet, "/", again).StatusCode, 200)
}

// TestDownload checks how much a browser loads for the chat page: with a formula, and
// all its fonts that a common formula needs.
func TestDownload(t *testing.T) {
	is := is.New(t)
	total := 0
	for _, name := range append(slices.Collect(maps.Keys(assets())), "../") {
		if strings.HasPrefix(name, "doc") || strings.HasSuffix(name, ".txt") || strings.Contains(name, "fonts/") && !strings.Contains(name, "KaTeX_M") && !strings.Contains(name, "KaTeX_Size") {
			continue
		}
		response := request(Options{}, http.MethodGet, path.Join("/page", name), http.Header{"Accept-Encoding": {"gzip"}})
		is.Equal(response.StatusCode, 200)
		total += len(bodyOf(t, response))
	}
	is.True(total < 400_000)
}

// TestCompression checks that text is compressed for clients that accept it, and has
// another ETag then.
func TestCompression(t *testing.T) {
	is := is.New(t)
	plain := get(Options{}, "/page/chat.js")
	packed := request(Options{}, http.MethodGet, "/page/chat.js", http.Header{"Accept-Encoding": {"br, gzip;q=0.5"}})
	is.Equal(plain.Header.Get("Content-Encoding"), "")
	is.Equal(packed.Header.Get("Content-Encoding"), "gzip")
	is.Equal(packed.Header.Get("Content-Type"), "text/javascript; charset=utf-8")
	is.Equal(packed.Header.Get("Vary"), "Accept-Encoding")
	is.True(packed.Header.Get("ETag") != plain.Header.Get("ETag"))
	unpacked, err := gzip.NewReader(packed.Body)
	is.NoErr(err)
	text, err := io.ReadAll(unpacked)
	is.NoErr(err)
	is.Equal(string(text), bodyOf(t, plain))
	for _, refused := range []string{"gzip;q=0", "identity", "x-gzipped"} {
		header := http.Header{"Accept-Encoding": {refused}}
		is.Equal(request(Options{}, http.MethodGet, "/page/chat.js", header).Header.Get("Content-Encoding"), "")
	}
	again := http.Header{"Accept-Encoding": {"gzip"}, "If-None-Match": {packed.Header.Get("ETag")}}
	is.Equal(request(Options{}, http.MethodGet, "/page/chat.js", again).StatusCode, 304)
}

// inOptions returns members of the JSON object that the pages' scripts read, as they are in the page.
func inOptions(members string) string {
	return html.EscapeString(members)
}

// TestOptionsReachThePage checks the elements that the pages' scripts read.
func TestOptionsReachThePage(t *testing.T) {
	tests := []struct {
		options Options
		path    string
		says    string
	}{
		{Options{}, "/", `<title>Bots</title>`},
		{Options{Title: `Tom & "Jerry"`}, "/", `<title>Tom &amp; &#34;Jerry&#34;</title>`},
		{Options{}, "/", inOptions(`"keepAlive":15,`)},
		{Options{KeepAlive: 1500 * time.Millisecond}, "/", inOptions(`"keepAlive":1.5,`)},
		{Options{}, "/", inOptions(`"resume":false}`)},
		{Options{}, "/", inOptions(`"mostBytes":1048576,`)},
		{Options{MaxBodyBytes: -1}, "/", inOptions(`"mostBytes":1048576,`)},
		{Options{MaxBodyBytes: 500}, "/", inOptions(`"mostBytes":500,`)},
		{Options{Resume: true}, "/", inOptions(`"resume":true}`)},
		{Options{Questions: map[string][]string{"": {"Why?"}}}, "/", inOptions(`"questions":{"":["Why?"]}`)},
		{Options{KeyHint: "Ask <Tom>."}, "/", `sent to this server only. Ask &lt;Tom&gt;.`},
		{Options{KeyHint: "Ask <Tom>."}, "/docs", inOptions(`"keyHint":"Ask \u003cTom\u003e."`)},
		{Options{}, "/docs", `<title>API reference · Bots</title>`},
		{Options{Title: `Tom & "Jerry"`}, "/docs", `<p class="service" dir="auto">Tom &amp; &#34;Jerry&#34;</p>`},
		{Options{}, "/", inOptions(`"api":"./"`)},
		{Options{}, "/docs", inOptions(`"api":"./"`)},
		{Options{APIPath: "assistants"}, "/", inOptions(`"api":"./assistants/"`)},
		{Options{BasePath: "/chat"}, "/chat/", inOptions(`"api":"./../"`)},
		{Options{BasePath: "/a/b/", APIPath: "/a/"}, "/a/b/docs", inOptions(`"api":"./../../a/"`)},
	}
	for _, test := range tests {
		t.Run(test.says, func(t *testing.T) {
			is := is.New(t)
			is.True(strings.Contains(bodyOf(t, get(test.options, test.path)), test.says))
		})
	}
}

func TestSecurityHeaders(t *testing.T) {
	for _, path := range []string{"/", "/docs", "/page/chat.js", "/page/icon.svg", "/openapi.json"} {
		t.Run(path, func(t *testing.T) {
			is := is.New(t)
			header := get(Options{}, path).Header
			policy := header.Get("Content-Security-Policy")
			is.True(strings.HasPrefix(policy, "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; connect-src 'self'; img-src 'self' data:; "))
			is.True(!strings.Contains(policy, "unsafe"))
			is.Equal(header.Get("X-Content-Type-Options"), "nosniff")
			is.Equal(header.Get("Referrer-Policy"), "no-referrer")
		})
	}
}

// TestAvatarOrigins checks that the policy allows the servers of the avatars, and
// that an avatar's URL cannot add anything else to the policy.
func TestAvatarOrigins(t *testing.T) {
	is := is.New(t)
	var bots []botapi.Bot
	for i, avatar := range []string{
		"https://pictures.example/a.png",
		"https://pictures.example/b.png",
		"http://127.0.0.1:9000/c.png",
		"https://sly.example;script-src/d.png",
		"ftp://files.example/e.png",
		"",
	} {
		id := string(rune('a' + i))
		bots = append(bots, botapi.Bot{UID: id, Slug: id, Name: id, Model: "a model", AvatarURL: avatar})
	}
	store := new(botapi.MemoryStore)
	is.NoErr(store.Replace(bots...))
	policy := get(Options{Bots: store}, "/").Header.Get("Content-Security-Policy")
	is.True(strings.Contains(policy, "; img-src 'self' data: http://127.0.0.1:9000 https://pictures.example; "))
	is.True(!strings.Contains(policy, "sly.example"))
}
