package stackcheck

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/matryer/is"
)

// A middleware makes a stack of net/http's mux.
type middleware func(next http.Handler) http.Handler

// A brokenStack has the one check that must fail, and what it must say.
type brokenStack struct {
	name  string
	stack middleware
	check string
	says  string
}

var brokenStacks = []brokenStack{
	{"a mux whose route has a method", func(api http.Handler) http.Handler {
		mux := http.NewServeMux()
		mux.Handle("GET /v1/bots", api)
		mux.Handle("POST /v1/chat", api)
		return mux
	}, checkErrors, "the router replies itself: its route has a method"},
	{"a mux that has no route for chats", func(api http.Handler) http.Handler {
		mux := http.NewServeMux()
		mux.Handle("/v1/bots", api)
		return mux
	}, checkReach, "/v1/* in chi and echo"},
	{"a prefix that is not stripped", func(api http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.URL.Path = "/api" + r.URL.Path
			api.ServeHTTP(w, r)
		})
	}, checkReach, "http.StripPrefix is missing"},
	{"a redirect to https", func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://chat.example.com"+r.URL.Path, http.StatusMovedPermanently)
		})
	}, checkReach, "redirects"},
	{"a redirect of paths with a slash", func(api http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if tidy := strings.TrimRight(r.URL.Path, "/"); tidy != r.URL.Path {
				http.Redirect(w, r, tidy, http.StatusMovedPermanently)
				return
			}
			api.ServeHTTP(w, r)
		})
	}, checkErrors, "the router redirects paths that it finds untidy"},
	{"pages in place of errors", func(api http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { api.ServeHTTP(&errorPages{ResponseWriter: w}, r) })
	}, checkErrors, "replaces the API's errors"},
	{"errors in an envelope", replacingErrors(func(w http.ResponseWriter, status int, body []byte) {
		body = fmt.Appendf(nil, `{"error":%s}`, body)
		replaceError(w, status, "application/json", body)
	}), checkErrors, "GET /v1/chat: a wrong method ... 405 ... writes errors in a form of its own"},
	{"a text in place of each 422", replacingErrors(func(w http.ResponseWriter, status int, body []byte) {
		if status == http.StatusUnprocessableEntity {
			replaceError(w, status, "text/plain", []byte("Unprocessable Entity"))
			return
		}
		replaceError(w, status, "application/json", body)
	}), checkErrors, "a body without its fields ... 422 ... replaces the API's errors with its own"},
	{"a 400 in place of each 422", replacingErrors(func(w http.ResponseWriter, status int, body []byte) {
		if status == http.StatusUnprocessableEntity {
			status = http.StatusBadRequest
		}
		replaceError(w, status, "application/json", body)
	}), checkErrors, "a body without its fields ... 400 ... changes the status of errors"},
	{"a 403 in place of each 401", replacingErrors(func(w http.ResponseWriter, status int, body []byte) {
		if status == http.StatusUnauthorized {
			status = http.StatusForbidden
		}
		replaceError(w, status, "application/json", body)
	}), checkErrors, "no key ... 403 ... changes the status of errors"},
	{"errors in plain text", replacingErrors(func(w http.ResponseWriter, status int, _ []byte) {
		http.Error(w, http.StatusText(status), status)
	}), checkErrors, "404, Content-Type: text/plain; charset=utf-8 ... replaces the API's errors with its own"},
	{"paths without their last slash", withRequest(func(r *http.Request) { r.URL.Path = strings.TrimRight(r.URL.Path, "/") }),
		checkErrors, "the API was asked for \"/v1/chat\" ... StripSlashes"},
	{"a key that is removed", withRequest(func(r *http.Request) { r.Header.Del("Authorization") }), checkKey, "removes or uses up the Authorization header"},
	{"a key that is replaced", withRequest(func(r *http.Request) { r.Header.Set("Authorization", "Bearer of-the-gateway") }), checkKey, "replaces the Authorization header"},
	{"a scheme that must be Bearer as it is written", withRequest(func(r *http.Request) {
		if !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer ") {
			r.Header.Del("Authorization")
		}
	}), checkKey, "Authorization: bearer in lower case ... it should be a 200 ... the scheme may have any case"},
	{"the last of several keys", withRequest(func(r *http.Request) {
		if keys := r.Header.Values("Authorization"); len(keys) > 0 {
			r.Header.Set("Authorization", keys[len(keys)-1])
		}
	}), checkKey, "a second Authorization ... takes the last Authorization"},
	{"headers of 4 KiB at most", func(api http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if len(r.Header.Get("Authorization")) > 4<<10 {
				http.Error(w, "Too large", http.StatusRequestHeaderFieldsTooLarge)
				return
			}
			api.ServeHTTP(w, r)
		})
	}, checkKey, "an unknown key of 5 KiB ... 431 ... it should be a 401"},
	{"an Idempotency-Key that is removed", withRequest(func(r *http.Request) { r.Header.Del("Idempotency-Key") }), checkHeaders, "passes only the request headers on that it knows"},
	{"a form that is parsed", withRequest(func(r *http.Request) { _ = r.ParseForm() }), checkBody, "middleware has read the body"},
	{"a body that is logged and lost", withRequest(func(r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }), checkBody, "middleware has read the body"},
	{"a body that is bounded", func(api http.Handler) http.Handler { return http.MaxBytesHandler(api, 64<<10) }, checkBody, "bounds the body below MaxBodyBytes"},
	{"a body of which an audit keeps 64 KiB", auditing(64 << 10), checkBody, "the body ends after 65536 bytes of 92 ... io.LimitReader"},
	{"a body of which an audit keeps 16 KiB", auditing(16 << 10), checkBody, "the body ends after 16384 bytes of 32 ... io.LimitReader"},
	{"a 406 for clients of streams", func(api http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Accept") == "text/event-stream" {
				http.Error(w, "JSON only", http.StatusNotAcceptable)
				return
			}
			api.ServeHTTP(w, r)
		})
	}, checkBody, "with Accept: text/event-stream ... 406 ... decides by Accept"},
	{"a body that is decoded and encoded", encodingAgain, checkBody, "an integer of 30 digits as user_id ... str type expected ... decodes bodies and encodes them again"},
	{"a body whose characters are repaired", withRequest(func(r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		body = bytes.ToValidUTF8(body, []byte("\uFFFD"))
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}), checkBody, "a prompt in Latin-1 ... bytes.ToValidUTF8"},
	{"a response with another X-Request-Id", wrapping(func(w http.ResponseWriter) http.ResponseWriter {
		return &changed{ResponseWriter: w, change: func(h http.Header) { h.Set("X-Request-Id", rand.Text()) }}
	}), checkHeaders, "the id of the request has arrived ... proxy_hide_header"},
	{"an ETag that is removed", withHeader("Etag", ""), checkList, "removes ETag"},
	{"an If-None-Match that is compared as one text", withRequest(func(r *http.Request) {
		if tags := r.Header.Get("If-None-Match"); strings.Contains(tags, ",") || strings.HasPrefix(tags, "W/") || tags == "*" {
			r.Header.Del("If-None-Match")
		}
	}), checkList, "If-None-Match: \"another\", ... compares If-None-Match as one text"},
	{"http.TimeoutHandler", func(api http.Handler) http.Handler { return http.TimeoutHandler(api, time.Minute, "too late") }, checkWriter, "http.TimeoutHandler serves the API"},
	{"a wrapper without Flush and Unwrap", wrapping(func(w http.ResponseWriter) http.ResponseWriter { return &logging{w} }), checkWriter, "*stackcheck.logging has neither Flush nor Unwrap"},
	{"a wrapper with Flush and without Unwrap", wrapping(func(w http.ResponseWriter) http.ResponseWriter { return &flushing{logging{w}} }), checkWriter, "*stackcheck.flushing has no Unwrap"},
	{"a wrapper whose inner one is the culprit", wrapping(func(w http.ResponseWriter) http.ResponseWriter { return &unwrapping{&logging{w}} }), checkWriter, "*stackcheck.logging has neither Flush nor Unwrap"},
	{"a wrapper whose deadlines do nothing", wrapping(func(w http.ResponseWriter) http.ResponseWriter { return &undying{unwrapping{w}} }), checkWriter,
		"a response that was written after its deadline ... the SetWriteDeadline of *stackcheck.undying returns nil, and does nothing"},
	{"timeout middleware", func(api http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
			defer cancel()
			api.ServeHTTP(w, r.WithContext(ctx))
		})
	}, checkTimeLimit, "a request whose context has a deadline, in 1m0s"},
	{"timeout middleware around another protocol", func(api http.Handler) http.Handler {
		mux := http.NewServeMux()
		mux.Handle("/v1/", api)
		mux.HandleFunc("/api/", func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
			defer cancel()
			api.ServeHTTP(w, r.WithContext(ctx))
		})
		return mux
	}, checkTimeLimit, "POST /api/chat\narrived: a request whose context has a deadline"},
	{"a lock around all requests", locking(func(*http.Request) string { return "" }), checkSameTime, "serves one request at a time"},
	{"a lock for each connection", locking(func(r *http.Request) string { return r.RemoteAddr }), checkSameTime,
		"sent:    HTTP/2: a chat, while the engine of another was waiting, on the same connection ... on HTTP/1.1 it is right ... each r.RemoteAddr"},
	{"a reverse proxy with four connections", func(api http.Handler) http.Handler {
		return proxying(served(api), &http.Transport{MaxConnsPerHost: 4})
	}, checkSameTime, "while the engines of 4 others were waiting ... MaxConnsPerHost: 4 in the http.Transport ... 2 checks not run"},
	{"markup that is removed", sanitizing, checkBody, "changes bodies"},
	{"a Flush by a timer", func(api http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			f := &timed{unflushed: unflushed{w}}
			defer f.stop()
			api.ServeHTTP(f, r)
		})
	}, checkOneByOne, "flushes by a timer"},
	{"echo's Timeout", func(api http.Handler) http.Handler {
		return http.TimeoutHandler(wrapping(func(w http.ResponseWriter) http.ResponseWriter { return &insisting{unwrapping{w}} })(api), time.Minute, "too late")
	}, checkReach, "http.TimeoutHandler serves the API, and what wraps its ResponseWriter panics ... *stackcheck.insisting, which wraps *http.timeoutWriter"},
	{"responses of 64 KiB at most", wrapping(func(w http.ResponseWriter) http.ResponseWriter {
		return &truncated{unwrapping: unwrapping{w}, contentType: "application/json", most: 64 << 10}
	}), checkLongJSON, "bounds responses"},
	{"compression that swallows the abort", func(api http.Handler) http.Handler { return compressing(swallowing(api), true) }, checkFailure, "for a client with Accept-Encoding: gzip"},
	{"compression without flush", func(api http.Handler) http.Handler { return compressing(api, false) }, checkCompressed, "compression does not flush"},
	{"recovery without another panic", recovering(1, 2), checkFailure, "middleware recovers the panic with http.ErrAbortHandler"},
	{"recovery without another panic on HTTP/2", recovering(2), checkFailure, "sent:    HTTP/2: ... on HTTP/1.1 it is right\n"},
	{"a [DONE] after the error event", func(api http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() {
				if v := recover(); v != nil {
					_, _ = io.WriteString(w, "data: [DONE]\n\n")
					_ = http.NewResponseController(w).Flush()
					panic(v)
				}
			}()
			api.ServeHTTP(w, r)
		})
	}, checkFailure, "appends the end of a complete answer, data: [DONE]"},
	{"a proxy that hides the abort", func(api http.Handler) http.Handler { return &collecting{api: api, hides: true} }, checkFailure, "passes the end of an aborted response on as a normal one"},
	{"a context that does not end", func(api http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			api.ServeHTTP(w, r.WithContext(context.WithoutCancel(r.Context())))
		})
	}, checkDisconnect, "replaces the request's context"},
	{"a retry of failed chats", retrying, checkOnce, "the engine was called 2 times"},
	{"a Connection header", withHeader("Connection", "keep-alive"), checkStream, "middleware sets Connection"},
	{"a Content-Length", withHeader("Content-Length", "9999"), checkStream, "Content-Length"},
	{"a Cache-Control for all responses", withHeader("Cache-Control", "public, max-age=60"), checkList, "rules for caches"},
	{"a Cache-Control for streams", wrapping(func(w http.ResponseWriter) http.ResponseWriter {
		return &changed{ResponseWriter: w, change: func(h http.Header) {
			if h.Get("Content-Type") == "text/event-stream" {
				h.Set("Cache-Control", "no-cache")
			}
		}}
	}), checkStream, "200, Cache-Control: no-cache, ... without the no-transform"},
	{"connections that are closed", func(api http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Connection", "close")
			api.ServeHTTP(w, r)
		})
	}, checkReuse, "Connection: close"},
	{"an end of its own", func(api http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			api.ServeHTTP(w, r)
			if r.URL.Path == "/v1/chat" && w.Header().Get("Content-Type") == "text/event-stream" {
				_, _ = io.WriteString(w, "<!-- served by us -->")
			}
		})
	}, checkStream, "bytes that are right: \"<!-- served by us -->\""},
	{"a stream with a [DONE] in a text", replacingInStreams(`\u005b`, "["), checkStream, "readers stop at the first [DONE] ... encodes them again"},
	{"a stream without double spaces", replacingInStreams("  ", " "), checkStream, "changes bodies"},
	{"a stream without control characters", replacingInStreams(`\u0000`, ""), checkStream, "changes bodies"},
	{"streams that are decoded in blocks", decodingBlocks("text/event-stream"), checkStream, "block by block"},
	{"JSON that is decoded in blocks", decodingBlocks("application/json"), checkLongJSON, "block by block"},
	{"keep-alives that are removed", wrapping(func(w http.ResponseWriter) http.ResponseWriter { return &eventsOnly{unwrapping{w}} }), checkSilence, "removes what is no event"},
	{"a page for 5xx", func(api http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			api.ServeHTTP(&errorPages{ResponseWriter: w, from: 500}, r)
		})
	}, checkEarly, "pages of its own"},
	{"a 500 in place of each 504", replacingErrors(func(w http.ResponseWriter, status int, body []byte) {
		if status == http.StatusGatewayTimeout {
			status = http.StatusInternalServerError
		}
		replaceError(w, status, "application/json", body)
	}), checkEarly, "with 504 and a text ... arrived: 500 ... changes the status of errors"},
	{"CORS on one route", func(api http.Handler) http.Handler {
		mux := http.NewServeMux()
		mux.Handle("/v1/bots", allowing(api))
		mux.Handle("/v1/", api)
		return mux
	}, checkCORS, "wrap the mux"},
	{"CORS that exposes nothing", func(api http.Handler) http.Handler {
		return allowing(withHeader("Access-Control-Expose-Headers", "")(api))
	}, checkCORS, "do not learn when to try again ... does not expose Retry-After"},
	{"CORS of the service and of a proxy", func(api http.Handler) http.Handler {
		return allowingAgain(allowing(api), func(origins []string) []string { return append(origins, "*") })
	}, checkCORS, "Access-Control-Allow-Origin is there twice"},
	{"CORS of the service and of a proxy, in one line", func(api http.Handler) http.Handler {
		return allowingAgain(allowing(api), func([]string) []string { return []string{"*, *"} })
	}, checkCORS, "Access-Control-Allow-Origin is there twice"},
	{"CORS of the service and of a proxy, which leaves out preflights", func(api http.Handler) http.Handler {
		service := allowing(api)
		again := allowingAgain(service, func(origins []string) []string { return append(origins, "*") })
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodOptions {
				service.ServeHTTP(w, r)
				return
			}
			again.ServeHTTP(w, r)
		})
	}, checkCORS, "Access-Control-Allow-Origin is there twice"},
	{"a proxy with an endless buffer", func(api http.Handler) http.Handler { return &collecting{api: api, endless: true} }, checkSlowReader, "buffers responses without a bound"},
	{"streams of 1 MiB at most", wrapping(func(w http.ResponseWriter) http.ResponseWriter {
		return &truncated{unwrapping: unwrapping{w}, contentType: "text/event-stream", most: 1 << 20}
	}), checkSlowReader, "it got 1024 KiB and the normal end ... bounds responses to about 1024 KiB"},
	{"a proxy that collects what is to be JSON", func(api http.Handler) http.Handler {
		collector := &collecting{api: api, size: 1 << 20}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.Header.Get("Accept"), "application/json") {
				collector.ServeHTTP(w, r)
				return
			}
			api.ServeHTTP(w, r)
		})
	}, checkOneByOne, "decides by Accept"},
	{"a rule for clients in Python", func(api http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if agent := strings.ToLower(r.UserAgent()); strings.Contains(agent, "python-") {
				http.Error(w, "<h1>Forbidden</h1>", http.StatusForbidden)
				return
			}
			api.ServeHTTP(w, r)
		})
	}, checkReach, "a firewall or bot filter"},
	{"a list for everyone", func(api http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/bots" && r.Method == http.MethodGet && r.Header.Get("Authorization") == "" {
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, "[]")
				return
			}
			api.ServeHTTP(w, r)
		})
	}, checkErrors, "answers before the API does"},
	{"a cache that does not know keys", cachingFor(func(*http.Request) string { return "" }), checkErrors, "a cache that takes all clients for one"},
	{"a cache that knows keys", cachingFor(func(r *http.Request) string { return r.Header.Get("Authorization") + r.URL.RequestURI() }), checkList, "a cache in front answers, although Cache-Control says private, no-cache"},
	{"a cache in front of compression that ignores Vary", func(api http.Handler) http.Handler {
		return cachingFor(func(r *http.Request) string { return r.Header.Get("Authorization") + r.URL.RequestURI() })(compressing(api, true))
	}, checkList, "ignores Vary: Accept-Encoding"},
	{"compression that is mounted twice", func(api http.Handler) http.Handler {
		return compressingJSON(compressingJSON(api))
	}, checkList, "two compressors"},
	{"compression of everything that is mounted twice", func(api http.Handler) http.Handler {
		return compressing(compressing(api, true), true)
	}, checkList, "two compressors"},
	{"compression of chats that is mounted twice", func(api http.Handler) http.Handler {
		mux := http.NewServeMux()
		mux.Handle("/", api)
		mux.Handle("/v1/chat", compressingJSON(api))
		return compressingJSON(mux)
	}, checkLongJSON, "two compressors"},
	{"compression for everyone", func(api http.Handler) http.Handler {
		return withRequest(func(r *http.Request) {
			if r.URL.Path == "/v1/bots" {
				r.Header.Set("Accept-Encoding", "gzip")
			}
		})(compressing(api, true))
	}, checkList, "for clients that have not asked for it"},
	{"a web application firewall", firewall(http.StatusForbidden), checkBody, "takes the text of a prompt for an attack"},
	{"a web application firewall with a 503", firewall(http.StatusServiceUnavailable), checkBody, "takes the text of a prompt for an attack"},
	{"middleware that limits a rate", limitingFrom("Grüße", 1, 1), checkBody, "sent:    POST /v1/chat\n ... so that this request was not the reason\n ... or middleware, limits"},
	{"middleware that limits a rate on HTTP/2", limitingFrom("Grüße", 2, 1), checkBody, "sent:    POST /v1/chat\n ... so that this request was not the reason\n ... or middleware, limits"},
	{"a proxy whose buffer is not always the same", func(api http.Handler) http.Handler {
		small, large := &collecting{api: api, size: 2 << 10}, &collecting{api: api, size: 16 << 10}
		var turn atomic.Int64
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if turn.Add(1)%2 == 0 {
				small.ServeHTTP(w, r)
				return
			}
			large.ServeHTTP(w, r)
		})
	}, checkOneByOne, "a proxy that ignores X-Accel-Buffering)\n"},
	{"a login of its own", func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Error(w, "Log in", http.StatusUnauthorized) })
	}, checkReach, " checks not run because of this"},
	{"a gateway without a service", func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, "<h1>Bad Gateway</h1>", http.StatusBadGateway)
		})
	}, checkReach, "or the proxy cannot reach the service"},
	{"a Retry-After that is removed", withHeader("Retry-After", ""), checkEarly, "removes Retry-After from responses"},
	{"a key in the log", func(api http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			slog.New(slog.NewTextHandler(appLog, nil)).Info("request", "headers", r.Header)
			api.ServeHTTP(w, r)
		})
	}, checkNoKey, "Bearer KEY"},
	// What takes the longest comes last: of parallel tests, the last ones usually begin first.
	{"a Flush that does not look behind a wrapper", wrapping(func(w http.ResponseWriter) http.ResponseWriter {
		return &asserting{unwrapping{&unwrappingOnly{logging{w}}}}
	}), checkOneByOne, "*stackcheck.unwrappingOnly has no Flush of its own"},
	{"a Flush that does nothing", wrapping(func(w http.ResponseWriter) http.ResponseWriter { return &unflushed{ResponseWriter: w} }), checkOneByOne, "the API's ResponseWriter is *stackcheck.unflushed"},
	{"a proxy that collects 8 KiB", func(api http.Handler) http.Handler { return &collecting{api: api, size: 8 << 10} }, checkOneByOne, "its buffer holds about 8 KiB"},
}

// A face says which sides of a service the checks see.
type face int

const (
	plain    face = iota // no probe
	probed               // the probe
	silent               // the probe, and no keep-alives
	enduring             // the probe, and a silence of some seconds
	secure               // the probe, and TLS, so that there are HTTP/2 and HTTP/1.1
)

// brokenServices are seen from outside: the orders to the probe pass the stack, too.
var brokenServices = []struct {
	brokenStack
	face face
}{
	{brokenStack{"a web application firewall with a 503", firewall(http.StatusServiceUnavailable), checkBody, "takes the text of a prompt for an attack"}, plain},
	{brokenStack{"a web application firewall", firewall(http.StatusForbidden), checkBody, "takes the text of a prompt for an attack"}, plain},
	{brokenStack{"a limit for the beginning of a response", func(api http.Handler) http.Handler {
		return proxying(served(api), &http.Transport{ResponseHeaderTimeout: 3 * time.Second})
	}, checkSilence, "a time limit for the beginning of a response"}, silent},
	{brokenStack{"a limit for a response", func(api http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), 3*time.Second)
			defer cancel()
			api.ServeHTTP(w, r.WithContext(ctx))
		})
	}, checkSilence, "not only those of models that think for long ... a limit for each response"}, silent},
	{brokenStack{"a limit for silence", func(api http.Handler) http.Handler { return idle(3*time.Second, api) },
		checkSilence, "effect:  answers of models that think for long are aborted\n ... a limit for silence"}, silent},
	{brokenStack{"a WriteTimeout behind a wrapper without Unwrap", writeTimeout(func(w http.ResponseWriter) http.ResponseWriter {
		return &flushing{logging{w}}
	}), checkSilence, "take longer than 3 s are aborted, not only those of models that think for long ... http.Server.WriteTimeout behind middleware that wraps the ResponseWriter without Unwrap"}, enduring},
	{brokenStack{"a WriteTimeout of which nothing is seen before the next fragment", writeTimeout(func(w http.ResponseWriter) http.ResponseWriter {
		return &firstComment{unwrapping{&flushing{logging{w}}}, false}
	}), checkSilence, "are aborted, not only those of models that think for long ... http.Server.WriteTimeout behind middleware that wraps the ResponseWriter without Unwrap"}, enduring},
	{brokenStack{"paths without their last slash", withRequest(func(r *http.Request) { r.URL.Path = strings.TrimRight(r.URL.Path, "/") }),
		checkErrors, "POST /v1/chat/ ... rewrites paths, since this is what the API replies at /v1/chat"}, plain},
	{brokenStack{"a 403 in place of each 401", replacingErrors(func(w http.ResponseWriter, status int, body []byte) {
		if status == http.StatusUnauthorized {
			status = http.StatusForbidden
		}
		replaceError(w, status, "application/json", body)
	}), checkErrors, "no key ... 403 ... changes the status of errors"}, plain},
	{brokenStack{"a scheme that must be Bearer as it is written", withRequest(func(r *http.Request) {
		if !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer ") {
			r.Header.Del("Authorization")
		}
	}), checkKey, "Authorization: bearer in lower case"}, plain},
	{brokenStack{"no keep-alives", func(api http.Handler) http.Handler { return api }, checkSilence, "no byte of the response in ... KeepAlive is off"}, silent},
	{brokenStack{"keep-alives that are removed", wrapping(func(w http.ResponseWriter) http.ResponseWriter { return &eventsOnly{unwrapping{w}} }),
		checkSilence, "the head of the response after ... drops comments"}, probed},
	{brokenStack{"keep-alives that are removed behind a limit for silence", func(api http.Handler) http.Handler {
		return idle(3*time.Second, wrapping(func(w http.ResponseWriter) http.ResponseWriter { return &eventsOnly{unwrapping{w}} })(api))
	}, checkSilence, "drops comments ... a limit for silence then ends the stream"}, enduring},
	{brokenStack{"a restart", restarting(4 * time.Second), checkSilence, "streams that began at different times ended at the same moment"}, silent},
	{brokenStack{"a Flush by a timer behind a limit of requests per second", func(api http.Handler) http.Handler {
		return limitingRate(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			f := &timed{unflushed: unflushed{w}}
			defer f.stop()
			api.ServeHTTP(f, r)
		}))
	}, checkOneByOne, "flushes by a timer"}, probed},
	{brokenStack{"an early restart", restarting(1500 * time.Millisecond), checkSilence, "one like it was not ended after the same time"}, silent},
	{brokenStack{"a limit of requests at a proxy", limiting(http.StatusServiceUnavailable), checkSameTime, "HAProxy's maxconn"}, probed},
	{brokenStack{"a limit of requests at a proxy, with a 429", limiting(http.StatusTooManyRequests), checkSameTime, "HAProxy's maxconn"}, probed},
	{brokenStack{"a reverse proxy with four connections", func(api http.Handler) http.Handler {
		return proxying(served(api), &http.Transport{MaxConnsPerHost: 4})
	}, checkSameTime, "while the engines of 4 others were waiting ... MaxConnsPerHost: 4 in the http.Transport ... 2 checks not run"}, probed},
	{brokenStack{"an abort that is hidden on HTTP/2", recovering(2), checkFailure,
		"sent:    HTTP/2.0: ... on HTTP/1.1 it is right\n ... cause:   what speaks HTTP/2 with clients ends aborted responses like complete ones there (HAProxy 2.6"}, secure},
	{brokenStack{"an abort that is hidden on HTTP/1.1", recovering(1), checkFailure,
		"sent:    HTTP/1.1: ... on HTTP/2.0 it is right\n ... cause:   middleware swallows ... since it is right on HTTP/2.0, look at what speaks HTTP/1.1 with clients\n"}, secure},
	{brokenStack{"an abort that is hidden", recovering(1, 2), checkFailure,
		"sent:    HTTP/2.0: ... on HTTP/1.1 it is the same\n ... cause:   middleware swallows http.ErrAbortHandler, as fiber's adaptor does, or a proxy speaks HTTP/1.0 to the service\n"}, secure},
	{brokenStack{"chats of one key that wait for each other", func(api http.Handler) http.Handler {
		locked := locking(func(r *http.Request) string { return r.Header.Get("Authorization") })(api)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				locked.ServeHTTP(w, r)
				return
			}
			api.ServeHTTP(w, r)
		})
	}, checkSameTime, "of all, or of each key or user"}, probed},
	{brokenStack{"a lock for each connection", locking(func(r *http.Request) string { return r.RemoteAddr }), checkSameTime,
		"sent:    HTTP/2.0: a chat, while the engine of another was waiting, on the same connection ... checks not run"}, secure},
}

// locking serves one request with a tag at a time.
func locking(tag func(*http.Request) string) middleware {
	return func(api http.Handler) http.Handler {
		var locks sync.Map
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			lock, _ := locks.LoadOrStore(tag(r), new(sync.Mutex))
			lock.(*sync.Mutex).Lock()
			defer lock.(*sync.Mutex).Unlock()
			api.ServeHTTP(w, r)
		})
	}
}

// limiting serves one request at a time, and lets others wait for three seconds: one that has ended
// may hold the slot for a while on a busy machine.
func limiting(status int) middleware {
	return func(api http.Handler) http.Handler {
		slot := make(chan struct{}, 1)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			select {
			case slot <- struct{}{}:
				defer func() { <-slot }()
				api.ServeHTTP(w, r)
			case <-time.After(3 * time.Second):
				w.Header().Set("Content-Type", "text/html")
				w.WriteHeader(status)
				_, _ = io.WriteString(w, "<html><body><h1>No server is available</h1></body></html>")
			}
		})
	}
}

// limitingRate lets 20 requests through each second, and 20 in a burst.
func limitingRate(api http.Handler) http.Handler {
	const interval, burst = 50 * time.Millisecond, 20
	var mu sync.Mutex
	var full time.Time // when a burst is possible again
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		next := time.Now()
		if full.After(next) {
			next = full
		}
		next = next.Add(interval)
		isOver := time.Until(next) > burst*interval
		if !isOver {
			full = next
		}
		mu.Unlock()
		if isOver {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "Too many requests", http.StatusTooManyRequests)
			return
		}
		api.ServeHTTP(w, r)
	})
}

// impatience makes the tests faster that wait for what does not come.
const impatience = 2 * time.Second

// appLog is that of the stack that logs keys.
var appLog = new(Log)

func TestBrokenStacks(t *testing.T) {
	t.Parallel()
	for _, c := range brokenStacks {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // they mostly wait for what does not come
			is := is.New(t)
			m := Mounting{Mount: c.stack, Patience: impatience}
			if c.check == checkNoKey {
				m.Log = appLog
			}
			results, err := Inspect(t.Context(), m, nil)
			is.NoErr(err)
			c.assert(t, results)
		})
	}
}

func TestBrokenServices(t *testing.T) {
	t.Parallel()
	for _, c := range brokenServices {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			k := newKit(nil)
			api := k.lively
			if c.face == silent {
				api = k.quiet
			}
			server := httptest.NewUnstartedServer(c.stack(api))
			server.Config.ErrorLog = k.errorLog()
			if server.EnableHTTP2 = c.face == secure; server.EnableHTTP2 {
				server.StartTLS()
			} else {
				server.Start()
			}
			t.Cleanup(server.Close)
			target := Target{URL: server.URL, Key: k.key, Transport: server.Client().Transport.(*http.Transport).Clone, Patience: impatience}
			if c.face != plain {
				target.Secret = k.secret
			}
			if c.face == enduring {
				target.Silence = 2 * stagger
			}
			results, err := Diagnose(t.Context(), target)
			is.NoErr(err)
			c.assert(t, results)
		})
	}
}

// stopsNothing names the stacks whose finding says nothing about what the other checks look at.
var stopsNothing = []string{
	"a 406 for clients of streams",
	"an If-None-Match that is compared as one text",
	"a scheme that must be Bearer as it is written", "the last of several keys", "headers of 4 KiB at most",
	"a form that is parsed", "a body that is bounded", "a body of which an audit keeps 64 KiB", "a web application firewall", "a web application firewall with a 503",
	"middleware that limits a rate", "middleware that limits a rate on HTTP/2", "a body that is decoded and encoded", "a body whose characters are repaired", "a cache that does not know keys",
}

// assert fails if another check has failed, or not this one, or with other words: of what it must
// say, there may be several parts, in their order.
func (c brokenStack) assert(t *testing.T, results []Result) {
	t.Helper()
	is := is.New(t)
	var failed []string
	var said strings.Builder
	skipped, notRun := 0, 0
	for _, r := range results {
		if r.Skipped != "" {
			skipped++
		}
		is.Equal(r.Problem, "")
		for _, f := range r.Findings {
			failed = append(failed, r.Check)
			notRun += f.NotRun
			fmt.Fprintln(&said, f)
			is.True(f.Sent != "" && f.Arrived != "" && f.Effect != "" && f.Cause != "" && f.Doc != "")
		}
	}
	t.Log(said.String())
	is.Equal(notRun, skipped)
	is.Equal(failed, []string{c.check})
	is.True(skipped == 0 || !slices.Contains(stopsNothing, c.name))
	rest := said.String()
	for part := range strings.SplitSeq(c.says, " ... ") {
		_, after, says := strings.Cut(rest, part)
		if !says {
			t.Errorf("it does not say %q", part)
		}
		rest = after
	}
}

// A stream without keep-alives that was not aborted in a minute is none that proxies abort after a
// minute.
func TestEffectOfSilence(t *testing.T) {
	is := is.New(t)
	is.True(strings.HasPrefix(effectOfSilence(20*time.Second), "proxies abort silent streams, most of them after 60 s"))
	is.True(strings.HasPrefix(effectOfSilence(75*time.Second), "nothing has aborted this stream in 75 s"))
}

// A stream with fragments all the time has one soon after another has ended, at whatever time that
// was: only a write shows that a server's WriteTimeout has passed. The probe takes 64 steps.
func TestFragmentsAllTheTime(t *testing.T) {
	is := is.New(t)
	const most = 5 * time.Minute
	steps := seldom(most)
	is.True(len(steps) <= 64)
	var times []time.Duration
	var passed time.Duration
	for _, step := range steps {
		if step.Text != "" {
			times = append(times, passed)
		}
		passed += step.Millis.Duration()
	}
	is.True(passed > untilFragment(most)+together) // it has not ended until then
	for ended := stagger; ended <= most; ended += time.Second {
		i := slices.IndexFunc(times, func(at time.Duration) bool { return at > ended })
		is.True(i > 0)
		is.True(times[i]-times[i-1] < ended/2) // no limit for silence that has ended the other
		is.True(times[i] <= untilFragment(ended))
	}
}

var goodStacks = map[string]Mounting{
	"the handler itself": {Mount: func(api http.Handler) http.Handler { return api }},
	"a mux":              {Mount: inMux},
	"a prefix": {Prefix: "/assistants", Mount: func(api http.Handler) http.Handler {
		mux := http.NewServeMux()
		mux.Handle("/assistants/", http.StripPrefix("/assistants", api))
		return mux
	}},
	"recovery with another panic": {Mount: func(api http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() {
				if v := recover(); v != nil {
					panic(v)
				}
			}()
			api.ServeHTTP(w, r)
		})
	}},
	"a wrapper with Unwrap":          {Mount: wrapping(func(w http.ResponseWriter) http.ResponseWriter { return &unwrapping{w} })},
	"compression that flushes":       {Mount: func(api http.Handler) http.Handler { return compressing(api, true) }},
	"compression of JSON":            {Mount: compressingJSON},
	"CORS":                           {Mount: func(api http.Handler) http.Handler { return allowing(inMux(api)) }, Origin: "https://app.example.com"},
	"CORS for all, without a demand": {Mount: func(api http.Handler) http.Handler { return allowing(inMux(api)) }},
	"a reverse proxy": {Mount: func(api http.Handler) http.Handler {
		return proxying(served(api), new(http.Transport))
	}},
}

func TestGoodStacks(t *testing.T) {
	t.Parallel()
	for name, m := range goodStacks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			results, err := Inspect(t.Context(), m, nil)
			is.NoErr(err)
			for _, r := range results {
				is.Equal(r.Problem, "")
				is.Equal(r.Skipped, "")
				for _, f := range r.Findings {
					t.Errorf("%s\n%s", f.Check, f)
				}
			}
		})
	}
}

func inMux(api http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/v1/", api)
	return mux
}

func withRequest(change func(*http.Request)) middleware {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			change(r)
			next.ServeHTTP(w, r)
		})
	}
}

// withHeader sets a header of the response, or removes it, when the status is written.
func withHeader(name, value string) middleware {
	return wrapping(func(w http.ResponseWriter) http.ResponseWriter {
		return &header{ResponseWriter: w, name: name, value: value}
	})
}

func wrapping(wrap func(http.ResponseWriter) http.ResponseWriter) middleware {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { next.ServeHTTP(wrap(w), r) })
	}
}

type header struct {
	http.ResponseWriter
	name, value string
	done        bool
}

func (w *header) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *header) WriteHeader(status int) {
	isStream := w.Header().Get("Content-Type") == "text/event-stream"
	if w.value != "" && (isStream || w.name == "Cache-Control") {
		w.Header().Set(w.name, w.value)
	} else if w.value == "" {
		w.Header().Del(w.name)
	}
	w.done = true
	w.ResponseWriter.WriteHeader(status)
}

func (w *header) Write(p []byte) (int, error) {
	if !w.done {
		w.WriteHeader(http.StatusOK)
	}
	return w.ResponseWriter.Write(p)
}

type logging struct{ w http.ResponseWriter }

func (l *logging) Header() http.Header         { return l.w.Header() }
func (l *logging) WriteHeader(status int)      { l.w.WriteHeader(status) }
func (l *logging) Write(p []byte) (int, error) { return l.w.Write(p) }

type flushing struct{ logging }

func (f *flushing) Flush() { _ = http.NewResponseController(f.w).Flush() }

type unwrapping struct{ http.ResponseWriter }

func (w *unwrapping) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// unwrappingOnly has an Unwrap, and no Flush.
type unwrappingOnly struct{ logging }

func (w *unwrappingOnly) Unwrap() http.ResponseWriter { return w.w }

// undying has deadlines that do nothing.
type undying struct{ unwrapping }

func (w *undying) SetReadDeadline(time.Time) error  { return nil }
func (w *undying) SetWriteDeadline(time.Time) error { return nil }

// asserting flushes as chi's Compress does.
type asserting struct{ unwrapping }

func (w *asserting) Flush() {
	if f, flushes := w.ResponseWriter.(http.Flusher); flushes {
		f.Flush()
	}
}

// unflushed has a Flush that does nothing.
type unflushed struct{ http.ResponseWriter }

func (w *unflushed) Unwrap() http.ResponseWriter { return w.ResponseWriter }
func (w *unflushed) Flush()                      {}

// timed flushes 300 ms after the first write that was not flushed.
type timed struct {
	unflushed
	mu      sync.Mutex
	timer   *time.Timer
	stopped bool
}

func (w *timed) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer == nil {
		w.timer = time.AfterFunc(300*time.Millisecond, w.flushNow)
	}
	return w.ResponseWriter.Write(p)
}

func (w *timed) flushNow() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.stopped {
		_ = http.NewResponseController(w.ResponseWriter).Flush()
	}
	w.timer = nil
}

func (w *timed) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
}

// insisting panics if what it wraps cannot flush, as echo's does.
type insisting struct{ unwrapping }

func (w *insisting) Flush() {
	if err := http.NewResponseController(w.ResponseWriter).Flush(); err != nil {
		panic(err)
	}
}

// truncated drops the rest of a long response.
type truncated struct {
	unwrapping
	contentType   string
	most, written int
}

func (w *truncated) WriteHeader(status int) {
	if w.Header().Get("Content-Length") != "" && len(w.Header().Get("Content-Length")) > 5 {
		w.Header().Del("Content-Length")
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *truncated) Write(p []byte) (int, error) {
	rest := p
	if w.Header().Get("Content-Type") == w.contentType {
		rest = p[:min(len(p), w.most-w.written)]
		w.written += len(rest)
	}
	_, err := w.ResponseWriter.Write(rest)
	return len(p), err
}

// decodingBlocks decodes each KiB of a response alone.
func decodingBlocks(contentType string) middleware {
	return wrapping(func(w http.ResponseWriter) http.ResponseWriter {
		return &blocks{unwrapping{w}, contentType}
	})
}

// replacingInStreams changes the text of streams.
func replacingInStreams(old, replacement string) middleware {
	return wrapping(func(w http.ResponseWriter) http.ResponseWriter {
		return &replacing{unwrapping{w}, []byte(old), []byte(replacement)}
	})
}

type replacing struct {
	unwrapping
	old, replacement []byte
}

func (w *replacing) Write(p []byte) (int, error) {
	changed := p
	if w.Header().Get("Content-Type") == "text/event-stream" {
		changed = bytes.ReplaceAll(p, w.old, w.replacement)
	}
	_, err := w.ResponseWriter.Write(changed)
	return len(p), err
}

type blocks struct {
	unwrapping
	contentType string
}

func (w *blocks) WriteHeader(status int) {
	if len(w.Header().Get("Content-Length")) > 3 {
		w.Header().Del("Content-Length")
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *blocks) Write(p []byte) (int, error) {
	if w.Header().Get("Content-Type") != w.contentType {
		return w.ResponseWriter.Write(p)
	}
	for block := range slices.Chunk(p, 1<<10) {
		if _, err := w.ResponseWriter.Write(bytes.ToValidUTF8(block, []byte("\uFFFD"))); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// restarting aborts all open requests, once, when one has been open for so long.
func restarting(after time.Duration) middleware {
	return func(api http.Handler) http.Handler {
		var mu sync.Mutex
		open := make(map[*http.Request]context.CancelFunc)
		restart := sync.OnceFunc(func() {
			mu.Lock()
			defer mu.Unlock()
			for _, abort := range open {
				abort()
			}
		})
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, abort := context.WithCancel(r.Context())
			defer abort()
			mu.Lock()
			open[r] = abort
			mu.Unlock()
			defer func() {
				mu.Lock()
				defer mu.Unlock()
				delete(open, r)
			}()
			defer time.AfterFunc(after, restart).Stop()
			api.ServeHTTP(w, r.WithContext(ctx))
			if ctx.Err() != nil {
				panic(http.ErrAbortHandler)
			}
		})
	}
}

// idle aborts a response of which nothing was sent for so long.
func idle(most time.Duration, api http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, abort := context.WithCancel(r.Context())
		defer abort()
		timer := time.AfterFunc(most, abort)
		defer timer.Stop()
		api.ServeHTTP(&active{unwrapping{w}, func() { timer.Reset(most) }}, r.WithContext(ctx))
		if ctx.Err() != nil {
			panic(http.ErrAbortHandler)
		}
	})
}

// active notes when bytes are written.
type active struct {
	unwrapping
	note func()
}

func (w *active) Write(p []byte) (int, error) {
	if len(p) > 0 {
		w.note()
	}
	return w.ResponseWriter.Write(p)
}

// firewall blocks what looks like an attack, in the first bytes of a body.
func firewall(status int) middleware {
	attack := regexp.MustCompile(`(?i)<script>|union\s+select|\.\./\.\./etc/passwd|\$\{jndi:|;\s*drop\s+table`)
	return func(api http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if attack.Match(body[:min(len(body), 4<<10)]) {
				http.Error(w, "<h1>Request blocked</h1>", status)
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			api.ServeHTTP(w, r)
		})
	}
}

// sanitizing removes markup from bodies.
func sanitizing(api http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		for _, markup := range []string{`\u003cb\u003e`, `\u003c/b\u003e`} {
			body = bytes.ReplaceAll(body, []byte(markup), nil)
		}
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		api.ServeHTTP(w, r)
	})
}

// encodingAgain decodes bodies, and encodes them again.
func encodingAgain(api http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var v any
		if json.Unmarshal(body, &v) == nil {
			body, _ = json.Marshal(v)
		}
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		api.ServeHTTP(w, r)
	})
}

// auditing notes the beginning of each body, and loses the rest.
func auditing(most int64) middleware {
	return withRequest(func(r *http.Request) {
		body, _ := io.ReadAll(io.LimitReader(r.Body, most))
		r.Body = io.NopCloser(bytes.NewReader(body))
	})
}

// recovering recovers all panics, on these versions of HTTP.
func recovering(versions ...int) middleware {
	return func(api http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() {
				if v := recover(); v != nil && !slices.Contains(versions, r.ProtoMajor) {
					panic(v)
				}
			}()
			api.ServeHTTP(w, r)
		})
	}
}

// swallowing recovers aborts of compressed responses.
func swallowing(api http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if v := recover(); v != nil && w.Header().Get("Content-Encoding") == "" {
				panic(v)
			}
		}()
		api.ServeHTTP(w, r)
	})
}

// eventsOnly drops comments.
type eventsOnly struct{ unwrapping }

func (w *eventsOnly) Write(p []byte) (int, error) {
	_, err := w.ResponseWriter.Write(bytes.ReplaceAll(p, []byte(": keep-alive\n"), nil))
	return len(p), err
}

// firstComment drops comments after the first.
type firstComment struct {
	unwrapping
	seen bool
}

func (w *firstComment) Write(p []byte) (int, error) {
	if bytes.Equal(p, []byte(keepAlive)) && w.seen {
		return len(p), nil
	}
	w.seen = true
	return w.ResponseWriter.Write(p)
}

// writeTimeout is a reverse proxy in front of a server with a WriteTimeout of three seconds.
func writeTimeout(wrap func(http.ResponseWriter) http.ResponseWriter) middleware {
	return func(api http.Handler) http.Handler {
		service := httptest.NewUnstartedServer(wrapping(wrap)(api))
		service.Config.WriteTimeout = 3 * time.Second
		service.Start() // until the program ends
		return proxying(service.Listener.Addr(), new(http.Transport))
	}
}

// replacingErrors collects each error of the API that is no event, and has another one written.
func replacingErrors(write func(w http.ResponseWriter, status int, body []byte)) middleware {
	return func(api http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			e := &errorCollector{unwrapping: unwrapping{w}}
			api.ServeHTTP(e, r)
			if e.status != 0 {
				write(w, e.status, e.body.Bytes())
			}
		})
	}
}

func replaceError(w http.ResponseWriter, status int, contentType string, body []byte) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Del("Content-Length")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

type errorCollector struct {
	unwrapping
	status int
	body   bytes.Buffer
}

func (w *errorCollector) WriteHeader(status int) {
	if status >= 400 {
		w.status = status
		return
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *errorCollector) Write(p []byte) (int, error) {
	if w.status != 0 {
		return w.body.Write(p)
	}
	return w.ResponseWriter.Write(p)
}

// errorPages writes a page in place of each error.
type errorPages struct {
	http.ResponseWriter
	from     int // the least status; 0: 400
	replaced bool
}

func (w *errorPages) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *errorPages) WriteHeader(status int) {
	if status >= max(w.from, 400) && status != http.StatusUnprocessableEntity && status != http.StatusUnauthorized {
		w.replaced = true
		w.Header().Set("Content-Type", "text/html")
		w.Header().Del("Content-Length")
		w.ResponseWriter.WriteHeader(status)
		_, _ = io.WriteString(w.ResponseWriter, "<h1>Sorry</h1>")
		return
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *errorPages) Write(p []byte) (int, error) {
	if w.replaced {
		return len(p), nil
	}
	return w.ResponseWriter.Write(p)
}

// served serves a handler on a port of its own until the program ends, as another process would.
func served(h http.Handler) net.Addr { return httptest.NewServer(h).Listener.Addr() }

// proxying passes requests on, as docs/operating.md says.
func proxying(service net.Addr, transport *http.Transport) http.Handler {
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: service.String()}) },
		Transport: transport,
		ErrorLog:  slog.NewLogLogger(slog.DiscardHandler, 0),
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		defer r.Body.Close()
		proxy.ServeHTTP(w, r)
	})
}

// collecting passes requests on to a server with the API, and the response when size bytes have
// come, or its end, whichever that is.
type collecting struct {
	api     http.Handler
	size    int
	hides   bool // an aborted response
	endless bool // it reads all that there is
}

var collectors sync.Map // servers by API

func (c *collecting) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	server, _ := collectors.LoadOrStore(c.api, sync.OnceValue(func() net.Addr { return served(c.api) }))
	out := r.Clone(r.Context())
	out.URL.Scheme, out.URL.Host, out.RequestURI = "http", server.(func() net.Addr)().String(), ""
	out.Proto, out.ProtoMajor, out.ProtoMinor = "HTTP/1.1", 1, 1
	res, err := http.DefaultTransport.RoundTrip(out)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer res.Body.Close()
	for name, values := range res.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(res.StatusCode)
	body := io.Reader(res.Body)
	if c.endless {
		body = endless(body)
	}
	collected, buffer := 0, make([]byte, 1<<10)
	for {
		n, err := body.Read(buffer)
		_, _ = w.Write(buffer[:n])
		if collected += n; collected >= c.size {
			_ = http.NewResponseController(w).Flush()
			collected = 0
		}
		if err != nil && err != io.EOF && !c.hides {
			panic(http.ErrAbortHandler)
		}
		if err != nil {
			return
		}
	}
}

// endless reads all of a body as soon as it comes.
func endless(body io.Reader) io.Reader {
	reader, writer := io.Pipe()
	chunks := make(chan []byte, 1<<20)
	var failed error
	go func() {
		defer close(chunks)
		for {
			chunk := make([]byte, 4<<10)
			n, err := body.Read(chunk)
			chunks <- chunk[:n]
			if err != nil {
				failed = err
				return
			}
		}
	}()
	go func() {
		for chunk := range chunks {
			_, _ = writer.Write(chunk)
		}
		_ = writer.CloseWithError(failed)
	}()
	return reader
}

// retrying sends a chat again that got a 503.
func retrying(api http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(http.MaxBytesReader(w, r.Body, 2<<20))
		if bytes.Contains(body, []byte(`"fail"`)) && !bytes.Contains(body, []byte(`"text"`)) && bytes.Contains(body, []byte("503")) {
			again := r.Clone(r.Context())
			again.Body = io.NopCloser(bytes.NewReader(body))
			api.ServeHTTP(httptest.NewRecorder(), again)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		api.ServeHTTP(w, r)
	})
}

// compressing compresses everything for clients that want it.
func compressing(next http.Handler, flush bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			next.ServeHTTP(w, r)
			return
		}
		z := &zipping{ResponseWriter: w, flush: flush}
		defer func() {
			if v := recover(); v != nil {
				panic(v)
			}
			if z.zip != nil {
				_ = z.zip.Close()
			}
		}()
		next.ServeHTTP(z, r)
	})
}

// compressingJSON leaves out streams.
func compressingJSON(next http.Handler) http.Handler {
	zipped := wrapping(func(w http.ResponseWriter) http.ResponseWriter {
		return &zippingJSON{zipping: zipping{ResponseWriter: w, flush: true}}
	})(ending(next))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			zipped.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// ending closes the compression of a response that was not aborted.
func ending(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r)
		if z := w.(*zippingJSON); z.zip != nil {
			_ = z.zip.Close()
		}
	})
}

type zippingJSON struct{ zipping }

func (z *zippingJSON) WriteHeader(status int) {
	if z.Header().Get("Content-Type") == "application/json" {
		z.zipping.WriteHeader(status)
		return
	}
	z.ResponseWriter.WriteHeader(status)
}

func (z *zippingJSON) Write(p []byte) (int, error) {
	if z.Header().Get("Content-Type") == "application/json" {
		return z.zipping.Write(p)
	}
	return z.ResponseWriter.Write(p)
}

type zipping struct {
	http.ResponseWriter
	zip   *gzip.Writer
	flush bool
}

func (z *zipping) Unwrap() http.ResponseWriter { return z.ResponseWriter }

func (z *zipping) Write(p []byte) (int, error) {
	if z.zip == nil {
		z.Header().Set("Content-Encoding", "gzip")
		z.zip = gzip.NewWriter(z.ResponseWriter)
	}
	return z.zip.Write(p)
}

func (z *zipping) WriteHeader(status int) {
	z.Header().Del("Content-Length")
	if status != http.StatusNotModified {
		z.Header().Set("Content-Encoding", "gzip")
		z.zip = gzip.NewWriter(z.ResponseWriter)
	}
	z.ResponseWriter.WriteHeader(status)
}

func (z *zipping) FlushError() error {
	if z.flush && z.zip != nil {
		if err := z.zip.Flush(); err != nil {
			return err
		}
	}
	return http.NewResponseController(z.ResponseWriter).Flush()
}

// cachingFor keeps the list for all requests with one tag.
func cachingFor(tag func(*http.Request) string) middleware {
	return func(api http.Handler) http.Handler {
		var kept sync.Map
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet || r.URL.Path != "/v1/bots" || r.Header.Get("If-None-Match") != "" {
				api.ServeHTTP(w, r)
				return
			}
			response, isKept := kept.Load(tag(r))
			if !isKept {
				recorder := httptest.NewRecorder()
				api.ServeHTTP(recorder, r)
				response = recorder
				if recorder.Code == http.StatusOK {
					kept.Store(tag(r), response)
				}
			}
			answer := response.(*httptest.ResponseRecorder)
			maps.Copy(w.Header(), answer.Header())
			w.WriteHeader(answer.Code)
			_, _ = w.Write(answer.Body.Bytes())
		})
	}
}

// allowing is CORS middleware.
func allowing(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*")
		w.Header().Set("Access-Control-Expose-Headers", "Retry-After, X-Request-Id")
		if r.Method == http.MethodOptions {
			w.Header().Set("Access-Control-Allow-Methods", "GET, POST, DELETE")
			w.Header().Set("Access-Control-Allow-Headers", r.Header.Get("Access-Control-Request-Headers"))
			w.WriteHeader(http.StatusNoContent)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// allowingAgain changes which origins a response allows.
func allowingAgain(next http.Handler, change func([]string) []string) http.Handler {
	const name = "Access-Control-Allow-Origin"
	return wrapping(func(w http.ResponseWriter) http.ResponseWriter {
		return &changed{ResponseWriter: w, change: func(h http.Header) { h[name] = change(h[name]) }}
	})(next)
}

// changed changes the header of a response when its status is written.
type changed struct {
	http.ResponseWriter
	change func(http.Header)
}

func (w *changed) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *changed) WriteHeader(status int) {
	w.change(w.Header())
	w.ResponseWriter.WriteHeader(status)
}

func TestEachCheckHasABrokenStack(t *testing.T) {
	is := is.New(t)
	never := map[string]string{
		"an answer of a bot arrives": "examples/doctor tests it: it is only for engines without a probe",
	}
	for _, c := range checks {
		isBroken := slices.ContainsFunc(brokenStacks, func(s brokenStack) bool { return s.check == c.name })
		is.True(isBroken != (never[c.name] != "")) // either
	}
}
