// Package routing finds what serves a request, by the patterns of [http.ServeMux] but
// without its redirects, which would turn a POST into a GET, and without its responses.
package routing

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// A Table has the routes of a handler. It is not changed after the last Add. The zero value
// is empty.
type Table[T any] struct {
	byPath   map[string][]entry[T] // literal patterns
	names    map[string]string     // of routes, by their patterns in the mux
	mux      *http.ServeMux        // all patterns: finds conflicts, and matches wildcards
	wildcard bool
	added    int
}

type entry[T any] struct {
	order   int // of Add
	name    string
	method  string
	pattern string
	route   T
}

// A Match is what a Table has for a request.
type Match[T any] struct {
	Route   T             // the first of the path, if the method is not allowed
	Pattern string        // of the route
	Request *http.Request // with the path's values, in a copy, if the pattern has wildcards
	Allow   []string      // the methods of the path, if the request has another one
}

// Add adds a route for a pattern such as "GET /v1/models/{model}". The method is required,
// a host is not allowed. A trailing slash stands for itself. A pattern without wildcards is
// compared after percent-decoding. Add fails if another route claims the same requests, and
// names both.
func (t *Table[T]) Add(pattern, name string, route T) (err error) {
	method, path, _ := strings.Cut(pattern, " ")
	if method == "" || !strings.HasPrefix(path, "/") {
		return fmt.Errorf("%s: the pattern %q is not a method, a space and a path", name, pattern)
	}
	if t.mux == nil {
		t.byPath, t.names, t.mux = make(map[string][]entry[T]), make(map[string]string), http.NewServeMux()
	}
	inMux := method + " " + path
	if strings.HasSuffix(path, "/") {
		inMux += "{$}"
	}
	e := entry[T]{t.added, name, method, pattern, route}
	defer func() {
		if v := recover(); v != nil {
			err = t.conflict(pattern, name, fmt.Sprint(v))
		}
	}()
	t.mux.HandleFunc(inMux, func(w http.ResponseWriter, r *http.Request) {
		found := w.(*result[T])
		found.entry, found.request = &e, r
	})
	t.added++
	t.names[inMux] = name
	if strings.Contains(path, "{") {
		t.wildcard = true
		return nil
	}
	return t.addLiteral(path, e)
}

// addLiteral finds conflicts that the mux does not: it tells a %2F from a slash.
func (t *Table[T]) addLiteral(path string, e entry[T]) error {
	if decoded, err := url.PathUnescape(path); err == nil {
		path = decoded
	}
	for _, other := range t.byPath[path] {
		if other.method == e.method {
			return claimedTwice(e.pattern, e.name, other.pattern, other.name)
		}
	}
	t.byPath[path] = append(t.byPath[path], e)
	return nil
}

var conflicting = regexp.MustCompile(`conflicts with pattern "([^"]+)"`)

// conflict makes an error of what the mux says against a pattern.
func (t *Table[T]) conflict(pattern, name, problem string) error {
	if other := conflicting.FindStringSubmatch(problem); other != nil {
		return claimedTwice(pattern, name, other[1], t.names[other[1]])
	}
	return fmt.Errorf("%s: the pattern %q: %s", name, pattern, problem)
}

func claimedTwice(pattern, name, otherPattern, otherName string) error {
	return fmt.Errorf("%s claims %q, and %s claims %q: some requests would belong to both", name, pattern, otherName, otherPattern)
}

// Find finds the route of a request, comparing literal patterns with r.URL.Path.
func (t *Table[T]) Find(r *http.Request) (m Match[T], known bool) {
	literal := t.byPath[r.URL.Path]
	for _, method := range [...]string{r.Method, getOf(r.Method)} {
		for i := range literal {
			if literal[i].method == method {
				return Match[T]{Route: literal[i].route, Pattern: literal[i].pattern, Request: r}, true
			}
		}
	}
	if t.wildcard {
		if found := t.match(r, r.Method); found.entry != nil {
			return Match[T]{Route: found.entry.route, Pattern: found.entry.pattern, Request: found.request}, true
		}
	}
	return t.otherMethods(r, r.Method, literal)
}

// getOf returns the method whose routes serve this one, too.
func getOf(method string) string {
	if method == http.MethodHead {
		return http.MethodGet
	}
	return method
}

// Allowed returns the methods of the routes of a request's path, without one.
func (t *Table[T]) Allowed(r *http.Request, without string) []string {
	const noMethod = "-" // asked with a method that no route has, a mux says in Allow which ones the path has
	found, _ := t.otherMethods(r, noMethod, t.byPath[r.URL.Path])
	return slices.DeleteFunc(found.Allow, func(method string) bool { return method == without })
}

func (t *Table[T]) otherMethods(r *http.Request, asked string, entries []entry[T]) (m Match[T], known bool) {
	if t.wildcard {
		for _, method := range strings.Split(t.match(r, asked).header.Get("Allow"), ", ") {
			if found := t.match(r, method); method != "" && found.entry != nil {
				entries = append(slices.Clip(entries), *found.entry)
			}
		}
	}
	if len(entries) == 0 {
		return m, false
	}
	first := entries[0]
	for _, e := range entries {
		m.Allow = append(m.Allow, e.method)
		if e.method == http.MethodGet {
			m.Allow = append(m.Allow, http.MethodHead)
		}
		if e.order < first.order {
			first = e
		}
	}
	slices.Sort(m.Allow)
	m.Allow = slices.Compact(m.Allow)
	m.Route, m.Pattern, m.Request = first.route, first.pattern, r
	return m, true
}

// match asks the mux, with a copy of the request, which the mux changes. Of what the mux would
// write, a redirect for instance, only the header is kept.
func (t *Table[T]) match(r *http.Request, method string) *result[T] {
	found := &result[T]{header: make(http.Header)}
	copied := r.WithContext(r.Context())
	copied.Method = method
	t.mux.ServeHTTP(found, copied)
	return found
}

// A result is the ResponseWriter of a mux that is only asked for a route.
type result[T any] struct {
	entry   *entry[T] // nil if there is none
	request *http.Request
	header  http.Header
}

func (f *result[T]) Header() http.Header         { return f.header }
func (f *result[T]) Write(p []byte) (int, error) { return len(p), nil }
func (f *result[T]) WriteHeader(int)             {}
