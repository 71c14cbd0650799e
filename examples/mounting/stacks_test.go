package mounting

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/botapi/examples/botapitest"
	"example.com/botapi/examples/internal/stackcheck"
	"github.com/NYTimes/gziphandler"
	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	chimiddleware "github.com/go-chi/chi/v5/middleware"
	"github.com/gorilla/handlers"
	"github.com/gorilla/mux"
	"github.com/klauspost/compress/gzhttp"
	echomiddleware "github.com/labstack/echo/v5/middleware"
	"github.com/matryer/is"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

type mount = func(api http.Handler) http.Handler

// brokenStacks has for each stack the one check that must fail, and what it must say.
var brokenStacks = []struct {
	name  string
	mount mount
	check string
	says  string
}{
	{"gin's Recovery", inGinDefault, "an incomplete answer looks incomplete", "middleware recovers the panic with http.ErrAbortHandler"},
	{"gorilla's RecoveryHandler", inGorilla(handlers.RecoveryHandler(handlers.RecoveryLogger(discarded{}))), "an incomplete answer looks incomplete", "middleware recovers the panic with http.ErrAbortHandler"},
	{"chi's Timeout", inChi(chimiddleware.Timeout(time.Minute)), "chats have no time limit but the handler's own", "timeout middleware (chi's Timeout"},
	{"echo's ContextTimeout", inEcho(echomiddleware.ContextTimeout(time.Minute)), "chats have no time limit but the handler's own", "echo's ContextTimeout"},
	{"http.TimeoutHandler in chi", inChi(func(h http.Handler) http.Handler { return http.TimeoutHandler(h, time.Minute, "") }), "the handler can flush and set deadlines", "http.TimeoutHandler serves the API"},
	{"a logging wrapper without Unwrap", inChi(logging(func(w http.ResponseWriter) http.ResponseWriter {
		return &struct {
			http.ResponseWriter
			http.Flusher
		}{w, w.(http.Flusher)}
	})), "the handler can flush and set deadlines", "has no Unwrap"},
	{"a logging wrapper without Flush", inGorilla(logging(func(w http.ResponseWriter) http.ResponseWriter { return &struct{ http.ResponseWriter }{w} })), "the handler can flush and set deadlines", "has neither Flush nor Unwrap"},
	{"chi's route with a method", func(api http.Handler) http.Handler {
		r := chi.NewRouter()
		r.Get("/v1/bots", api.ServeHTTP)
		r.Head("/v1/bots", api.ServeHTTP)
		r.Post("/v1/chat", api.ServeHTTP)
		return r
	}, "errors keep their form", "its route has a method"},
	{"gin's routes with a method", func(api http.Handler) http.Handler {
		engine := gin.New()
		engine.GET("/v1/bots", gin.WrapH(api))
		engine.HEAD("/v1/bots", gin.WrapH(api))
		engine.POST("/v1/chat", gin.WrapH(api))
		return engine
	}, "errors keep their form", "its route has a method"},
	{"gorilla's StrictSlash", func(api http.Handler) http.Handler {
		r := mux.NewRouter().StrictSlash(true)
		r.Handle("/v1/chat", api)
		r.PathPrefix("/v1/").Handler(api)
		return r
	}, "errors keep their form", "redirects paths that it finds untidy"},
	{"chi's AllowContentType", inChi(chimiddleware.AllowContentType("application/json")), "request bodies arrive unchanged", "checks the Content-Type"},
	{"chi's BasicAuth", inChi(chimiddleware.BasicAuth("bots", map[string]string{"name": "password"})), "requests reach the API", "wants credentials of its own"},
	{"echo's BodyLimit", inEcho(echomiddleware.BodyLimit(64 << 10)), "request bodies arrive unchanged", "bounds the body below MaxBodyBytes"},
	{"gziphandler", gziphandler.GzipHandler, "fragments of a compressed stream arrive one by one", "compression does not flush"},
	{"chi's Throttle of one request", inChi(chimiddleware.ThrottleBacklog(1, 100, time.Minute)), "chats do not wait for each other", "serves one request at a time"},
}

func TestBrokenStacks(t *testing.T) {
	for _, c := range brokenStacks {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // they mostly wait for what does not come
			is := is.New(t)
			results, err := stackcheck.Inspect(t.Context(), stackcheck.Mounting{Mount: c.mount}, nil)
			is.NoErr(err)
			failed, said := found(t, results)
			is.Equal(failed, []string{c.check})
			is.True(strings.Contains(said, c.says))
		})
	}
}

// found returns the names of the checks that have failed, and what they say.
func found(t *testing.T, results []stackcheck.Result) (failed []string, said string) {
	t.Helper()
	for _, r := range results {
		if r.Problem != "" {
			t.Errorf("%s could not be checked: %s", r.Check, r.Problem)
		}
		for _, f := range r.Findings {
			failed = append(failed, r.Check)
			said += fmt.Sprintf("%s\n%s\n", r.Check, f)
		}
	}
	t.Log(said)
	return slices.Compact(failed), said
}

// Mountings as documented, and middleware that breaks nothing.
func TestGoodStacks(t *testing.T) {
	for _, m := range mountings {
		t.Run(m.name, func(t *testing.T) {
			options := []botapitest.Option{botapitest.Prefix(m.prefix)}
			if m.name == "CORS" {
				options = append(options, botapitest.Origin(pageOrigin))
			}
			botapitest.Check(t, m.mount, options...)
		})
	}
	for name, mount := range map[string]mount{
		"chi's Compress":                          inChi(chimiddleware.Compress(5)),
		"chi's Compress of streams":               inChi(chimiddleware.Compress(5, "text/*", "application/json")),
		"chi's Logger":                            inChi(chimiddleware.RequestLogger(&chimiddleware.DefaultLogFormatter{Logger: discarded{}, NoColor: true})),
		"chi's Recoverer and RequestID":           inChi(chimiddleware.Recoverer, chimiddleware.RequestID, chimiddleware.Heartbeat("/ping")),
		"echo's Gzip":                             inEcho(echomiddleware.Gzip()),
		"echo's Recover":                          inEcho(echomiddleware.Recover()),
		"echo's RequestID":                        inEcho(echomiddleware.RequestID()),
		"gorilla's CompressHandler":               inGorilla(handlers.CompressHandler),
		"gorilla's CombinedLoggingHandler":        inGorilla(func(h http.Handler) http.Handler { return handlers.CombinedLoggingHandler(io.Discard, h) }),
		"gzhttp":                                  func(api http.Handler) http.Handler { return gzhttp.GzipHandler(api) },
		"Prometheus":                              instrumented,
		"httputil.ReverseProxy, FlushInterval 0":  proxied(t, 0),
		"httputil.ReverseProxy, FlushInterval -1": proxied(t, -1),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			results, err := stackcheck.Inspect(t.Context(), stackcheck.Mounting{Mount: mount}, nil)
			is.New(t).NoErr(err)
			failed, _ := found(t, results)
			is.New(t).Equal(failed, nil)
		})
	}
}

// inChi mounts a handler in a chi router with middleware.
func inChi(middlewares ...func(http.Handler) http.Handler) mount {
	return func(api http.Handler) http.Handler {
		r := chi.NewRouter()
		r.Use(middlewares...)
		r.Handle("/v1/*", api)
		return r
	}
}

// inGorilla mounts a handler in a gorilla router with middleware.
func inGorilla(middlewares ...mux.MiddlewareFunc) mount {
	return func(api http.Handler) http.Handler {
		r := mux.NewRouter().SkipClean(true)
		r.Use(middlewares...)
		r.PathPrefix("/v1/").Handler(api)
		return r
	}
}

func logging(wrap func(http.ResponseWriter) http.ResponseWriter) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { next.ServeHTTP(wrap(w), r) })
	}
}

func instrumented(api http.Handler) http.Handler {
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "requests_total"}, []string{"code"})
	durations := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "seconds"}, []string{"code"})
	sizes := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "bytes"}, []string{"code"})
	return promhttp.InstrumentHandlerCounter(requests, promhttp.InstrumentHandlerDuration(durations, promhttp.InstrumentHandlerResponseSize(sizes, api)))
}

// proxied serves the API on another server, behind httputil.ReverseProxy.
func proxied(t *testing.T, flush time.Duration) mount {
	return func(api http.Handler) http.Handler {
		server := httptest.NewServer(api)
		t.Cleanup(server.Close)
		address, err := url.Parse(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		proxy := &httputil.ReverseProxy{
			Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(address) },
			FlushInterval: flush,
			ErrorLog:      slog.NewLogLogger(slog.DiscardHandler, 0),
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).EnableFullDuplex() // as docs/operating.md says
			defer r.Body.Close()
			proxy.ServeHTTP(w, r)
		})
	}
}

// discarded is a logger of nothing.
type discarded struct{}

func (discarded) Print(...any)   {}
func (discarded) Println(...any) {}
