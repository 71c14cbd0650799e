package routing

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/matryer/is"
)

func tableOf(t testing.TB, patterns ...string) *Table[string] {
	t.Helper()
	table := new(Table[string])
	for _, pattern := range patterns {
		if err := table.Add(pattern, "the route", "the route of "+pattern); err != nil {
			t.Fatal(err)
		}
	}
	return table
}

// find returns the pattern that serves a request, or the methods of its path.
func find(table *Table[string], method, path string) string {
	r := httptest.NewRequest(method, path, nil)
	found, known := table.Find(r)
	switch {
	case !known:
		return "none"
	case found.Route != "the route of "+found.Pattern:
		return "the route of another pattern"
	case len(found.Allow) > 0:
		return found.Pattern + " allows " + strings.Join(found.Allow, ", ")
	}
	return found.Pattern
}

func TestFind(t *testing.T) {
	table := tableOf(t,
		"GET /v1/bots", "POST /v1/chat", "GET /", "GET /with/slash/", "GET /a%20b", "PUT /v1/bots",
		"GET /v1/models/{model}", "DELETE /v1/models/{model}", "GET /v1/models/latest", "HEAD /v1/models/{model}/size",
		"GET /files/{path...}", "POST /tree/{branch}/",
	)
	for request, want := range map[string]string{
		"GET /v1/bots":     "GET /v1/bots",
		"HEAD /v1/bots":    "GET /v1/bots",
		"GET /v1/%62ots":   "GET /v1/bots",
		"GET /v1%2Fbots":   "GET /v1/bots",
		"PUT /v1/bots":     "PUT /v1/bots",
		"POST /v1/bots":    "GET /v1/bots allows GET, HEAD, PUT",
		"get /v1/bots":     "GET /v1/bots allows GET, HEAD, PUT",
		"GET /v1/chat":     "POST /v1/chat allows POST",
		"HEAD /v1/chat":    "POST /v1/chat allows POST",
		"CONNECT /v1/chat": "POST /v1/chat allows POST",
		"GET /a%20b":       "GET /a%20b",
		"GET /a%2520b":     "none",

		// A slash at the end stands for itself.
		"GET /":             "GET /",
		"GET /x":            "none",
		"GET /v1/bots/":     "none",
		"GET /with/slash/":  "GET /with/slash/",
		"GET /with/slash":   "none",
		"GET /with/slash/x": "none",

		// No path is cleaned.
		"GET //v1/bots":          "none",
		"GET /v1//bots":          "none",
		"GET /v1/./bots":         "none",
		"GET /x/../v1/bots":      "none",
		"GET //v1/models/one":    "none",
		"GET /v1/models//one":    "none",
		"GET /v1/models/../bots": "none",
		"GET /v1/models/":        "none",
		"GET /files/a//b":        "none",
		"DELETE /v1//models/one": "none",
		"POST //tree/main/":      "none",
		"POST /tree/main":        "none",
		"OPTIONS *":              "none",
		"GET /v1/models/one/two": "none",
		"GET /files":             "none",

		// Wildcards. A literal pattern is the more specific one.
		"GET /v1/models/one":       "GET /v1/models/{model}",
		"HEAD /v1/models/one":      "GET /v1/models/{model}",
		"DELETE /v1/models/one":    "DELETE /v1/models/{model}",
		"PUT /v1/models/one":       "GET /v1/models/{model} allows DELETE, GET, HEAD",
		"GET /v1/models/a%2Fb":     "GET /v1/models/{model}",
		"GET /v1/models/latest":    "GET /v1/models/latest",
		"HEAD /v1/models/latest":   "GET /v1/models/latest",
		"DELETE /v1/models/latest": "DELETE /v1/models/{model}",
		"PUT /v1/models/latest":    "DELETE /v1/models/{model} allows DELETE, GET, HEAD", // the first that serves this path
		"HEAD /v1/models/one/size": "HEAD /v1/models/{model}/size",
		"GET /v1/models/one/size":  "HEAD /v1/models/{model}/size allows HEAD",
		"GET /files/a/b":           "GET /files/{path...}",
		"GET /files/":              "GET /files/{path...}",
		"POST /files/a/b":          "GET /files/{path...} allows GET, HEAD",
		"POST /tree/main/":         "POST /tree/{branch}/",
	} {
		t.Run(request, func(t *testing.T) {
			method, path, _ := strings.Cut(request, " ")
			is.New(t).Equal(find(table, method, path), want)
		})
	}
}

func TestFindInAnEmptyTable(t *testing.T) {
	is.New(t).Equal(find(new(Table[string]), "GET", "/"), "none")
}

// The values of a path are those of a copy: the caller's request is not changed.
func TestPathValues(t *testing.T) {
	is := is.New(t)
	table := tableOf(t, "GET /v1/models/{model}", "GET /files/{path...}", "GET /v1/bots")
	for path, want := range map[string]string{
		"/v1/models/one": "one,", "/v1/models/a%2Fb%20c": "a/b c,", "/v1/models/%252F": "%2F,", "/files/a/b": ",a/b", "/files/": ",", "/v1/bots": "outer,",
	} {
		r := httptest.NewRequest("GET", path, nil)
		r.Pattern = "/"
		if path == "/v1/bots" {
			r.SetPathValue("model", "outer") // of a mux around the handler
		}
		url := *r.URL
		found, _ := table.Find(r)
		is.Equal(found.Request.PathValue("model")+","+found.Request.PathValue("path"), want)
		is.Equal(r.Pattern, "/")
		is.Equal(*r.URL, url)
		is.Equal(found.Request != r, path != "/v1/bots")
		is.Equal(r.PathValue("path"), "")
	}
}

func TestAddRejects(t *testing.T) {
	for _, c := range []struct{ before, pattern, want string }{
		{"", "", "not a method, a space and a path"},
		{"", "/v1/bots", "not a method, a space and a path"},
		{"", " /v1/bots", "not a method, a space and a path"},
		{"", "GET", "not a method, a space and a path"},
		{"", "GET v1/bots", "not a method, a space and a path"},
		{"", "GET  /v1/bots", "not a method, a space and a path"},
		{"", "GET bots.example/v1/bots", "not a method, a space and a path"},
		{"", "G(T /v1/bots", "invalid method"},
		{"", "GET /v1//bots", "unclean path"},
		{"", "GET /{a}/{a}", "duplicate wildcard name"},
		{"", "GET /{a", "bad wildcard segment"},
		{"GET /v1/bots", "GET /v1/bots", "some requests would belong to both"},
		{"GET /a/{x}", "GET /a/{y}", "some requests would belong to both"},
		{"GET /a/{x}", "GET /{y}/b", "some requests would belong to both"},
		{"GET /with/slash/", "GET /with/slash/{$}", "some requests would belong to both"},
		{"GET /a b", "GET /a%20b", "some requests would belong to both"},
		{"GET /a/b", "GET /a%2Fb", "GET /a/b"},
		{"GET /a%2Fb", "GET /a/b", "GET /a%2Fb"},
	} {
		t.Run(c.before+" and "+c.pattern, func(t *testing.T) {
			is := is.New(t)
			var table Table[string]
			if c.before != "" {
				is.NoErr(table.Add(c.before, "the route", ""))
			}
			err := table.Add(c.pattern, "the route", "")
			is.True(err != nil)
			is.True(strings.Contains(err.Error(), c.want))
			is.True(strings.Contains(err.Error(), c.pattern))
			is.True(strings.Contains(err.Error(), c.before)) // both are named
		})
	}
	for _, fits := range [][]string{{"GET /a", "POST /a"}, {"GET /a", "GET /{x}"}, {"GET /a", "HEAD /a"}, {"GET /a", "GET /a/"}, {"CONNECT /a//b"}} {
		tableOf(t, fits...)
	}
}

// FuzzFind compares a table with a ServeMux for paths that a mux neither cleans nor
// redirects.
func FuzzFind(f *testing.F) {
	patterns := []string{
		"GET /v1/bots", "POST /v1/chat", "GET /{$}", "GET /a%20b", "GET /v1/models/{model}", "DELETE /v1/models/{model}",
		"GET /v1/models/latest", "HEAD /v1/models/{model}/size", "GET /files/{path...}", "PUT /{x}/{y}",
	}
	table, mux := tableOf(f, patterns...), http.NewServeMux()
	for _, pattern := range patterns {
		mux.HandleFunc(pattern, func(http.ResponseWriter, *http.Request) {})
	}
	for _, path := range []string{"/", "/v1/bots", "/v1/models/a%2Fb", "/a%20b", "/v1/models/latest", "/files/x/y/", "/tree/x/", "/x/%62", "/v1/models/one/size"} {
		for _, method := range []string{"GET", "HEAD", "POST", "DELETE", "PUT", "OPTIONS"} {
			f.Add(method, path)
		}
	}
	f.Fuzz(func(t *testing.T, method, path string) {
		u, err := url.ParseRequestURI(path)
		if err != nil || !strings.HasPrefix(path, "/") || u.Host != "" || method == "" || method == http.MethodConnect {
			return
		}
		if u.Path == "/files" || (&url.URL{Path: u.Path}).EscapedPath() != u.EscapedPath() {
			return // a mux redirects the first to /files/; a literal pattern is compared with the decoded path
		}
		r := &http.Request{Method: method, URL: u, Host: "bots.example", Header: make(http.Header)}
		asked := r.Clone(t.Context())
		var recorded httptest.ResponseRecorder
		mux.ServeHTTP(&recorded, asked)
		found, known := table.Find(r)
		status := recorded.Code
		if status == 0 {
			status = http.StatusOK
		}
		got := http.StatusOK
		switch {
		case !known:
			got = http.StatusNotFound
		case len(found.Allow) > 0:
			got = http.StatusMethodNotAllowed
		}
		if status == http.StatusMovedPermanently || status == http.StatusTemporaryRedirect || status == http.StatusPermanentRedirect {
			status = http.StatusNotFound
		}
		if got != status {
			t.Fatalf("%s %s: %d, but %d of the mux", method, path, got, status)
		}
		if got == http.StatusOK && (found.Pattern != asked.Pattern || found.Request.PathValue("model") != asked.PathValue("model")) {
			t.Fatalf("%s %s: %q, but %q of the mux", method, path, found.Pattern, asked.Pattern)
		}
		if got == http.StatusMethodNotAllowed {
			allow := strings.Split(recorded.Header().Get("Allow"), ", ")
			slices.Sort(allow)
			if !slices.Equal(found.Allow, allow) {
				t.Fatalf("%s %s: %q, but %q of the mux", method, path, found.Allow, allow)
			}
		}
	})
}
