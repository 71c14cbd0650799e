package main

import (
	"embed"
	"io"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"

	"example.com/botapi"
)

//go:embed page
var page embed.FS

// handlePages adds the chat page and the API reference to mux. They are static
// files that speak the public interface, as any other client does.
func handlePages(mux *http.ServeMux, bots botapi.BotStore) {
	handle := func(pattern string, serve http.HandlerFunc) {
		mux.Handle("GET "+pattern, guarded(bots, serve))
	}
	handle("/{$}", func(w http.ResponseWriter, r *http.Request) { servePage(w, r, "chat.html") })
	handle("/docs", func(w http.ResponseWriter, r *http.Request) { servePage(w, r, "docs.html") })
	for _, name := range pageFiles() {
		handle("/page/"+name, func(w http.ResponseWriter, r *http.Request) { servePage(w, r, name) })
	}
	handle("/openapi.json", serveOpenAPI)
}

func pageFiles() (names []string) {
	files, _ := page.ReadDir("page") // it is embedded
	for _, file := range files {
		names = append(names, file.Name())
	}
	return names
}

func servePage(w http.ResponseWriter, r *http.Request, file string) {
	http.ServeFileFS(w, r, page, path.Join("page", file))
}

func serveOpenAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, botapi.OpenAPI) // a client that left needs no answer
}

// guarded has the browser refuse everything that the pages do not need, above
// all scripts and connections from anywhere else.
func guarded(bots botapi.BotStore, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", contentSecurityPolicy(avatarOrigins(r, bots)))
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		header.Set("Cache-Control", "no-cache")
		next.ServeHTTP(w, r)
	})
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

// avatarOrigins lists the servers that the bots' avatars are on. Whoever writes
// the bots file chooses them; a page may load pictures from nowhere else.
func avatarOrigins(r *http.Request, store botapi.BotStore) []string {
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
