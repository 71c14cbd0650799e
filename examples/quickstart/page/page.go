// Package page serves a chat page and an API reference for a botapi handler,
// from the host's own program. Mount it beside the api:
//
//	mux.Handle("/v1/", botapi.New(options))
//	mux.Handle("/", page.Handler(page.Options{Title: "Our bots", Bots: options.Bots}))
//
// The pages are static files, without a framework or a build step. They speak
// the public interface, as any other client does: visitors need an API key. A
// strict Content-Security-Policy keeps them from loading anything from
// elsewhere, except for the bots' avatars.
package page

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"math"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"example.com/botapi"
)

// Options are what a host may choose. The zero value serves the pages at the
// root of a server, for an api that is at its root, too.
type Options struct {
	// Title names the bots of this service, in the list and in the title of the
	// browser's window. Empty means "Bots".
	Title string
	// BasePath is the path that the host mounts the handler at, such as "/chat/".
	// Empty means "/". Do not use http.StripPrefix in front of the handler.
	BasePath string
	// APIPath is the path that the api is mounted at: "/assistants/" if it
	// answers at /assistants/v1/chat. Empty means "/", for /v1/chat. It is a path
	// of the server that serves the pages.
	APIPath string
	// Bots are those of the api. The pages load the bots' avatars from wherever
	// they are. If it is nil, avatars must be on the server of the pages.
	Bots botapi.BotStore
	// Questions are suggested to the visitor while a conversation is empty, by
	// the slug of the bot. Those under "" are for bots without their own. Without
	// them, one that suits every bot is suggested; an empty list means none.
	Questions map[string][]string
	// KeyHint tells visitors, in a sentence, where they find an API key.
	KeyHint string
	// KeepAlive is that of botapi.Options: the page reports a lost connection
	// when twice this time has passed in silence. Zero means
	// botapi.DefaultKeepAlive; negative: never.
	KeepAlive time.Duration
}

//go:embed *.html *.js *.css *.svg
var files embed.FS

// Handler serves the chat page at the base path, the API reference at "docs"
// below it, botapi.OpenAPI at "openapi.json", and their files below "page/". It
// answers other paths with 404 and other methods than GET and HEAD with 405,
// both in the form of the api's own errors.
func Handler(o Options) http.Handler {
	base := folder(o.BasePath)
	documents := map[string]document{
		base:                  o.page("chat.html", base),
		base + "docs":         o.page("docs.html", base),
		base + "openapi.json": newDocument("openapi.json", []byte(botapi.OpenAPI)),
	}
	for _, name := range assets() {
		text, _ := files.ReadFile(name) // it is embedded
		documents[base+"page/"+name] = newDocument(name, text)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		document, found := documents[r.URL.Path]
		switch {
		case !found:
			refuse(w, http.StatusNotFound)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			refuse(w, http.StatusMethodNotAllowed)
		default:
			guard(w.Header(), document.imageOrigins(r, o.Bots))
			document.serve(w, r)
		}
	})
}

// assets are the files that the pages load.
func assets() (names []string) {
	entries, _ := files.ReadDir(".") // it is embedded
	for _, entry := range entries {
		if path.Ext(entry.Name()) != ".html" {
			names = append(names, entry.Name())
		}
	}
	return names
}

func refuse(w http.ResponseWriter, status int) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, `{"detail":%q}`, http.StatusText(status)) // a client that left needs no answer
}

var pages = template.Must(template.ParseFS(files, "*.html"))

// page fills in what the options say.
func (o Options) page(name, base string) document {
	questions, _ := json.Marshal(o.Questions) // always has a JSON form
	var text bytes.Buffer
	err := pages.ExecuteTemplate(&text, name, struct {
		Title, API, Questions, KeyHint string
		KeepAlive                      float64
	}{
		Title:     cmp.Or(o.Title, "Bots"),
		API:       relative(base, o.APIPath),
		Questions: string(questions),
		KeyHint:   o.KeyHint,
		KeepAlive: o.keepAlive().Seconds(),
	})
	if err != nil {
		panic(err) // the pages are embedded, and their data is the same each time
	}
	return newDocument(name, text.Bytes())
}

// relative returns the api's path as seen from the pages, so that both may be
// behind a proxy that takes a prefix off.
func relative(base, api string) string {
	up := strings.Repeat("../", strings.Count(base, "/")-1)
	return "./" + up + strings.TrimPrefix(folder(api), "/")
}

// folder returns a path with a slash at both ends.
func folder(name string) string {
	return strings.TrimSuffix(path.Clean("/"+name), "/") + "/"
}

func (o Options) keepAlive() time.Duration {
	if o.KeepAlive < 0 {
		return math.MaxInt64
	}
	return cmp.Or(o.KeepAlive, botapi.DefaultKeepAlive)
}

// A document is what one path answers.
type document struct {
	name string
	text []byte
	etag string
}

func newDocument(name string, text []byte) document {
	return document{name, text, fmt.Sprintf(`"%x"`, sha256.Sum256(text))}
}

func (d document) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("ETag", d.etag)
	w.Header().Set("Content-Type", contentTypes[path.Ext(d.name)])
	http.ServeContent(w, r, d.name, time.Time{}, bytes.NewReader(d.text))
}

// contentTypes do not depend on what the machine says about extensions.
var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".svg":  "image/svg+xml",
	".json": "application/json",
}

// guard has the browser refuse everything that the pages do not need, above all
// scripts and connections from anywhere else.
func guard(header http.Header, imageOrigins []string) {
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
		"connect-src 'self'",
		"img-src " + strings.Join(append([]string{"'self'", "data:"}, imageOrigins...), " "),
		"base-uri 'none'",
		"form-action 'none'",
		"frame-ancestors 'none'",
		"require-trusted-types-for 'script'",
	}, "; ")
}

// imageOrigins lists the servers that the bots' avatars are on. A page may load
// pictures from nowhere else.
func (d document) imageOrigins(r *http.Request, store botapi.BotStore) []string {
	if store == nil || path.Ext(d.name) != ".html" {
		return nil
	}
	bots, err := store.Bots(r.Context())
	if err != nil {
		return nil // the initials of the bots' names take the pictures' place
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

// plainHost matches hosts that cannot be taken for another part of the policy.
var plainHost = regexp.MustCompile(`^[a-zA-Z0-9.:\[\]-]+$`)
