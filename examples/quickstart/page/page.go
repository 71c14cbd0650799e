// Package page serves a chat page and an API reference for a botapi handler.
// Mount it beside the API:
//
//	mux.Handle("/v1/", botapi.New(options))
//	mux.Handle("/", page.Handler(page.Options{Title: "Our bots", Bots: options.Bots}))
//
// The pages are static files, without a framework. They use the public API like any
// other client, so visitors need an API key. A strict Content-Security-Policy
// prevents them from loading anything from other servers except the bots' avatars.
//
// The libraries that show Markdown, code and formulas are in lib, with their licences.
// "go generate", which needs Node.js and npm, builds them from the packages that
// build/package-lock.json names. Only what is in lib is part of the program.
package page

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io/fs"
	"maps"
	"math"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"example.com/botapi"
)

// Options configure the pages. The zero value serves them at the root of a
// server whose API is also at the root.
type Options struct {
	// Title is the heading of the list of bots and part of the window's title.
	// Empty means "Bots".
	Title string
	// BasePath is the path at which the handler is mounted, such as "/chat/".
	// Empty means "/". Do not wrap the handler in http.StripPrefix.
	BasePath string
	// APIPath is the path at which the API is mounted on the same server:
	// "/assistants/" for /assistants/v1/chat. Empty means "/", for /v1/chat.
	APIPath string
	// Bots is the store of the API. The policy allows avatars from any server that
	// these bots name. If it is nil, avatars must be on the server of the pages.
	// Browsers ask for a page without a key: if the store shows each account its own
	// bots, Bots is another one, which lists those of all accounts. Of them, a page
	// has only the servers of the avatars.
	Bots botapi.BotStore
	// Questions maps a bot's slug to the questions that the page suggests while a
	// conversation is empty. Those under "" are for bots without an entry. If there
	// is neither, the page suggests a general question; an empty list means none.
	Questions map[string][]string
	// KeyHint tells visitors, in a sentence, where to find an API key.
	KeyHint string
	// KeepAlive is the KeepAlive of botapi.Options. After twice this time without
	// a byte, the page says that the connection may be lost. Zero means
	// botapi.DefaultKeepAlive; negative means never.
	KeepAlive time.Duration
	// MaxBodyBytes is the MaxBodyBytes of botapi.Options. The page warns before a
	// conversation is longer than that, and offers to go on with its most recent
	// messages. Zero or negative means botapi.DefaultMaxBodyBytes.
	MaxBodyBytes int64
	// WireURL is the address of a text about the API on the wire, to which the reference
	// links: that of docs/wire.md, for example. Empty means no link.
	WireURL string
	// Resume says that the API keeps answers when their connection is lost, as that
	// of examples/resume does. The page then sends an Idempotency-Key with each chat
	// and continues its answer after a reload, after a lost connection and in
	// another tab. Stop stops the model with DELETE /v1/answers.
	Resume bool
	// Documents has texts in Markdown by their names, such as "wire.md", under which they
	// are served below "docs/": as a page to clients that accept text/html and do not name
	// text/markdown, as browsers do, and in Markdown to all others. Links between them are
	// relative. A link to a heading leads to its text in lower case, as on code hosts.
	Documents map[string]string
}

//go:generate npm --prefix build ci --ignore-scripts --no-audit --no-fund
//go:generate npm --prefix build run build

//go:embed *.html *.js *.css *.svg lib
var files embed.FS

// Handler serves the chat page at the base path, and below it the API reference
// at "docs", the Documents at "docs/", botapi.OpenAPI at "openapi.json" and the pages'
// files at "page/".
// Other paths get a 404, and methods other than GET and HEAD a 405, in the same
// JSON form as errors of the API.
func Handler(o Options) http.Handler {
	base := folder(o.BasePath)
	documents := map[string]document{
		base:                  o.page("chat.html", base),
		base + "docs":         o.page("docs.html", base),
		base + "openapi.json": newDocument("openapi.json", []byte(botapi.OpenAPI)),
	}
	for name, asset := range assets() {
		documents[base+"page/"+name] = asset
	}
	for name, document := range o.markdown() {
		documents[base+"docs/"+name] = document
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		document, found := documents[r.URL.Path]
		switch {
		case !found:
			writeError(w, http.StatusNotFound)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			writeError(w, http.StatusMethodNotAllowed)
		default:
			setSecurityHeaders(w.Header(), document.imageOrigins(r, o.Bots))
			document.serve(w, r)
		}
	})
}

// assets returns the files that the pages load, by name.
var assets = sync.OnceValue(func() map[string]document {
	all := map[string]document{}
	_ = fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, _ error) error { // embedded: cannot fail
		if !entry.IsDir() && path.Ext(name) != ".html" {
			text, _ := files.ReadFile(name)
			all[name] = newDocument(name, text)
		}
		return nil
	})
	return all
})

func writeError(w http.ResponseWriter, status int) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, `{"detail":%q}`, http.StatusText(status)) // fails only if the client has disconnected
}

// pages has the templates of the pages, and what their heads have in common: head.html, with
// the way from the page to the chat page.
var pages = template.Must(template.ParseFS(files, "*.html"))

// page executes the template of a page with the options, of which options.js reads those that scripts need.
func (o Options) page(name, base string) document {
	options, _ := json.Marshal(map[string]any{ // cannot fail
		"api":       relative(base, o.APIPath),
		"keepAlive": o.keepAlive().Seconds(),
		"keyHint":   o.KeyHint,
		"mostBytes": cmp.Or(max(o.MaxBodyBytes, 0), botapi.DefaultMaxBodyBytes),
		"questions": o.Questions,
		"resume":    o.Resume,
	})
	return execute(name, struct{ Title, KeyHint, WireURL, Options string }{cmp.Or(o.Title, "Bots"), o.KeyHint, o.WireURL, string(options)})
}

func execute(name string, data any) document {
	var text bytes.Buffer
	if err := pages.ExecuteTemplate(&text, name, data); err != nil {
		panic(err) // impossible: the templates are embedded, and the data of each has one type
	}
	return newDocument(name, text.Bytes())
}

// markdown returns the Documents, each with its page.
func (o Options) markdown() map[string]document {
	type entry struct{ Name, Heading string }
	var entries []entry
	for _, name := range slices.Sorted(maps.Keys(o.Documents)) {
		first, _, _ := strings.Cut(o.Documents[name], "\n")
		entries = append(entries, entry{name, strings.TrimPrefix(first, "# ")})
	}
	all := map[string]document{}
	for _, e := range entries {
		d := newDocument(e.Name, []byte(o.Documents[e.Name]))
		page := execute("document.html", struct {
			entry
			Title, Text string
			Documents   []entry
		}{e, cmp.Or(o.Title, "Bots"), o.Documents[e.Name], entries})
		d.page = &page
		all[e.Name] = d
	}
	return all
}

// relative returns the API's path relative to the pages, so that both work behind
// a proxy that strips a prefix.
func relative(base, api string) string {
	up := strings.Repeat("../", strings.Count(base, "/")-1)
	return "./" + up + strings.TrimPrefix(folder(api), "/")
}

// folder returns a path that begins and ends with a slash.
func folder(name string) string {
	return strings.TrimSuffix(path.Clean("/"+name), "/") + "/"
}

func (o Options) keepAlive() time.Duration {
	if o.KeepAlive < 0 {
		return math.MaxInt64
	}
	return cmp.Or(o.KeepAlive, botapi.DefaultKeepAlive)
}

// A document is the content of one path.
type document struct {
	name   string
	text   []byte
	packed []byte // compressed; nil for fonts, which are
	etag   string
	page   *document // what browsers get instead; nil for the same
}

func newDocument(name string, text []byte) document {
	d := document{name: name, text: text, etag: fmt.Sprintf("%x", sha256.Sum256(text))}
	if path.Ext(name) != ".woff2" {
		var packed bytes.Buffer
		w := gzip.NewWriter(&packed)
		_, _ = w.Write(text) // a buffer does not fail
		_ = w.Close()
		d.packed = packed.Bytes()
	}
	return d
}

func (d document) serve(w http.ResponseWriter, r *http.Request) {
	if d.page != nil {
		w.Header().Add("Vary", "Accept")
		if accept := accepted(r, "Accept"); htmlAccepted.MatchString(accept) && !markdownAccepted.MatchString(accept) {
			d = *d.page
		}
	}
	text, etag := d.text, d.etag
	if d.packed != nil {
		w.Header().Add("Vary", "Accept-Encoding")
		if gzipAccepted.MatchString(accepted(r, "Accept-Encoding")) {
			w.Header().Set("Content-Encoding", "gzip")
			text, etag = d.packed, d.etag+"-gzip"
		}
	}
	w.Header().Set("ETag", `"`+etag+`"`)
	w.Header().Set("Content-Type", contentTypes[path.Ext(d.name)])
	http.ServeContent(w, r, d.name, time.Time{}, bytes.NewReader(text))
}

func accepted(r *http.Request, header string) string {
	return strings.Join(r.Header.Values(header), ",")
}

var (
	gzipAccepted     = accepts("gzip")
	htmlAccepted     = accepts("text/html")
	markdownAccepted = accepts("text/markdown")
)

// accepts matches a header that names a value, with a weight that is not 0.
func accepts(value string) *regexp.Regexp {
	return regexp.MustCompile(`(?:^|[ ,])` + value + ` *(?:$|,|; *q=(?:1|0\.0*[1-9]))`)
}

// contentTypes are fixed here, since those of package mime depend on the machine.
var contentTypes = map[string]string{
	".html":  "text/html; charset=utf-8",
	".md":    "text/markdown; charset=utf-8",
	".js":    "text/javascript; charset=utf-8",
	".css":   "text/css; charset=utf-8",
	".svg":   "image/svg+xml",
	".json":  "application/json",
	".txt":   "text/plain; charset=utf-8",
	".woff2": "font/woff2",
}

// setSecurityHeaders makes the browser block everything that the pages do not
// need, above all scripts from other servers and connections to them.
func setSecurityHeaders(header http.Header, imageOrigins []string) {
	header.Set("Content-Security-Policy", contentSecurityPolicy(imageOrigins))
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cache-Control", "no-cache")
}

func contentSecurityPolicy(imageOrigins []string) string {
	return strings.Join([]string{
		"default-src 'none'",
		"script-src 'self'",
		"style-src 'self'",
		"font-src 'self'",
		"connect-src 'self'",
		"img-src " + strings.Join(append([]string{"'self'", "data:"}, imageOrigins...), " "),
		"base-uri 'none'",
		"form-action 'none'",
		"frame-ancestors 'none'",
		"require-trusted-types-for 'script'",
	}, "; ")
}

// imageOrigins lists the other servers from which a page may load pictures: those
// of the bots' avatars.
func (d document) imageOrigins(r *http.Request, store botapi.BotStore) []string {
	if store == nil || path.Ext(d.name) != ".html" {
		return nil
	}
	bots, err := store.Bots(r.Context())
	if err != nil {
		return nil // the page then shows initials instead of pictures
	}
	var origins []string
	for _, bot := range bots {
		avatar, err := url.Parse(bot.AvatarURL)
		if err == nil && plainHost.MatchString(avatar.Host) && (avatar.Scheme == "https" || avatar.Scheme == "http") {
			origins = append(origins, avatar.Scheme+"://"+avatar.Host)
		}
	}
	slices.Sort(origins)
	return slices.Compact(origins)
}

// plainHost matches hosts that contain no characters with a meaning in the policy.
var plainHost = regexp.MustCompile(`^[a-zA-Z0-9.:\[\]-]+$`)
