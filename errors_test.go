package botapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"

	"example.com/botapi/internal/connection"
)

// An applicationPart is one piece of application code that fails, in a chat or a list,
// with what fail returns or panics with.
type applicationPart struct {
	name               string
	method, path, body string
	install            func(o *Options, fail func(context.Context) error)
}

var applicationParts = []applicationPart{
	{"verifier", "POST", "/v1/chat", chatBodyJSON("hi", false), func(o *Options, fail func(context.Context) error) {
		o.Keys = KeyVerifierFunc(func(ctx context.Context, _ string) (string, error) { return "", fail(ctx) })
	}},
	{"cached verifier", "POST", "/v1/chat", chatBodyJSON("hi", false), func(o *Options, fail func(context.Context) error) {
		o.Keys = CacheKeys(KeyVerifierFunc(func(ctx context.Context, _ string) (string, error) { return "", fail(ctx) }), time.Hour)
	}},
	{"store", "POST", "/v1/chat", chatBodyJSON("hi", false), func(o *Options, fail func(context.Context) error) {
		o.Bots = &fakeStore{bySlug: func(ctx context.Context, _ string) (Bot, error) { return Bot{}, fail(ctx) }}
	}},
	{"store's list", "GET", "/v1/bots", "", func(o *Options, fail func(context.Context) error) {
		o.Bots = &fakeStore{bots: func(ctx context.Context) ([]Bot, error) { return []Bot{echoBot}, fail(ctx) }}
	}},
	{"engine", "POST", "/v1/chat", chatBodyJSON("hi", false), failingEngine},
	{"engine, in a stream", "POST", "/v1/chat", chatBodyJSON("hi", true), failingEngine},
	{"engine, when it is called", "POST", "/v1/chat", chatBodyJSON("hi", true), func(o *Options, fail func(context.Context) error) {
		o.Engine = ChatEngineFunc(func(ctx context.Context, req *ChatRequest) iter.Seq2[string, error] {
			err := fail(ctx)
			return func(yield func(string, error) bool) { yield("", err) }
		})
	}},
	{"route", "GET", routePath, "", func(o *Options, fail func(context.Context) error) {
		o.Routes = []Route{routeTo(func(r *http.Request) (Response, error) { return Reply{Body: []byte("{}")}, fail(r.Context()) })}
	}},
	{"answer of a route", "POST", routePath, chatBodyJSON("hi", true), failingChat(func(c *Chat, fail func() error) {
		c.Answer = func(context.Context) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) { yield("", fail()) }
		}
	})},
	{"JSON of a route", "POST", routePath, chatBodyJSON("hi", false), failingChat(func(c *Chat, fail func() error) {
		c.JSON = func(context.Context) (before, after []byte, err error) { return nil, nil, fail() }
	})},
	{"format of a route", "POST", routePath, chatBodyJSON("hi", true), failingChat(func(c *Chat, fail func() error) {
		c.Stream = &lineFormat{before: func(method string) error {
			if method == "AppendText" {
				return fail()
			}
			return nil
		}}
	})},
}

// failingChat changes the chat of a route so that it fails.
func failingChat(change func(c *Chat, fail func() error)) func(*Options, func(context.Context) error) {
	return func(o *Options, fail func(context.Context) error) {
		o.Routes = []Route{chatRoute(func(r *http.Request, c *Chat) { change(c, func() error { return fail(r.Context()) }) })}
	}
}

func failingEngine(o *Options, fail func(context.Context) error) {
	o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) { yield("", fail(ctx)) })
}

// A loggedError is the log line of a request that fails.
type loggedError struct {
	Level, Error, Stack string
	RequestID           string `json:"request_id"`
}

// play makes the part fail, and returns what the client and the log got.
func (p applicationPart) play(t *testing.T, fail func() error) (got fullResponse, logged loggedError) {
	is := is.New(t)
	var log testLog
	var reports []ChatReport
	o := testOptions(t, io.Discard)
	o.Logger = slog.New(slog.NewJSONHandler(&log, nil))
	o.OnChat = func(_ context.Context, r ChatReport) { reports = append(reports, r) }
	p.install(&o, func(context.Context) error { return fail() })
	got = do(t, New(o), p.method, p.path, p.body, "X-Request-Id", "one-of-many")
	for _, report := range reports {
		is.Equal(report.Status, got.status)
	}
	if log.String() != "" {
		is.NoErr(json.Unmarshal([]byte(log.String()), &logged)) // one line
	}
	return got, logged
}

// A trapError panics when one of its methods is called.
type trapError struct{ trap string }

func (e trapError) Error() string   { e.spring("Error"); return "a trap" }
func (e trapError) Is(error) bool   { e.spring("Is"); return false }
func (e trapError) As(any) bool     { e.spring("As"); return false }
func (e trapError) Unwrap() []error { e.spring("Unwrap"); return nil }

func (e trapError) spring(method string) {
	if e.trap == method {
		panic("a trap in " + method)
	}
}

// A nestedTrap panics with a value that panics.
type nestedTrap struct{}

func (nestedTrap) Error() string { panic(trapError{"Error"}) }

type faultyJSON struct{}

func (faultyJSON) MarshalJSON() ([]byte, error) { panic("a bug in the application") }

// An error or a panic has the same effect in every part of the application: a response or
// an aborted connection, and one log line or none.
func TestErrorResponse(t *testing.T) {
	cause := errors.New("dial tcp 10.0.0.7: refused")
	returns := func(err error) func() error { return func() error { return err } }
	responds := func(status int, detail string, pause time.Duration, cause error) func() error {
		return returns(StatusError{status, detail, pause, cause})
	}
	panics := func(value any) func() error { return func() error { panic(value) } }
	trapped := func(trap string) func() error {
		return returns(fmt.Errorf("wrapped: %w", &StatusError{Status: 418, Err: trapError{trap}}))
	}
	list := HTTPValidationError{[]ValidationError{{[]any{"body", "tools", 0, "<name>"}, "unknown tool", "value_error.tool"}}}
	noLoc := []ValidationError{{Msg: "unknown tool", Type: "value_error.tool"}}
	const (
		internal    = `500 {"detail":"Internal Server Error"}`
		invalid     = `422 {"detail":[{"loc":["body","tools",0,"\u003cname\u003e"],"msg":"unknown tool","type":"value_error.tool"}]}`
		badKey      = `Bearer error="invalid_token"`
		panicked    = "ERROR panic while "
		classifying = "ERROR panic while classifying an error: "
	)
	for _, c := range []struct {
		name   string
		fail   func() error
		want   string
		header string // Retry-After or WWW-Authenticate
		log    string // its level, and a part of its text; "": nothing is logged
	}{
		{"a StatusError", responds(429, "Slow down", 1500*time.Millisecond, cause), `429 {"detail":"Slow down"}`, "2", "INFO dial tcp 10.0.0.7"},
		{"a pointer to one", returns(&StatusError{Status: 429, Detail: "Slow down", Err: cause}), `429 {"detail":"Slow down"}`, "", "INFO dial tcp 10.0.0.7"},
		{"a wrapped pointer to one", returns(fmt.Errorf("asking: %w", &StatusError{Status: 503, Detail: "Closed", Err: cause})), `503 {"detail":"Closed"}`, "", "ERROR dial tcp 10.0.0.7"},
		{"one of several", returns(errors.Join(cause, &StatusError{Status: 502, Detail: "Bad upstream"})), `502 {"detail":"Bad upstream"}`, "", "ERROR dial tcp 10.0.0.7"},
		{"one that wraps a pointer to another", responds(503, "Closed", 0, &StatusError{Status: 404, Detail: "No row 7"}), `503 {"detail":"Closed"}`, "", "ERROR No row 7"},
		{"a pointer to one that wraps another", returns(&StatusError{Status: 429, Detail: "Slow down", Err: StatusError{Status: 503, Detail: "Pool is empty"}}), `429 {"detail":"Slow down"}`, "", "INFO Pool is empty"},
		{"one that wraps ErrBotNotFound", responds(410, "Gone", 0, ErrBotNotFound), `410 {"detail":"Gone"}`, "", ""},
		{"one that wraps an abort", responds(502, "Bad upstream", 0, fmt.Errorf("proxy: %w", http.ErrAbortHandler)), `502 {"detail":"Bad upstream"}`, "", "ERROR 502 Bad upstream"},
		{"ErrBotNotFound, and the reason of another chat", returns(errors.Join(ErrBotNotFound, ErrClientLeft)), `404 {"detail":"Bot not found"}`, "", ""},
		{"ErrInvalidKey, and the reason of another chat", returns(errors.Join(ErrChatTimeout, ErrInvalidKey)), `401 {"detail":"Invalid API key"}`, badKey, ""},
		{"one that wraps the reason of another chat", responds(502, "Bad upstream", 0, ErrClientLeft), `502 {"detail":"Bad upstream"}`, "", "ERROR 502 Bad upstream"},
		{"one without a detail", responds(402, "", 0, cause), `402 {"detail":"Payment Required"}`, "", "INFO dial tcp 10.0.0.7"},
		{"one without a detail or a known status", responds(499, "", 0, cause), `499 {"detail":""}`, "", "INFO dial tcp 10.0.0.7"},
		{"a detail that needs escapes", responds(400, "\"a\"\n<b>\u2028[DONE]\xff", 0, nil), `400 {"detail":"\"a\"\n<b>\u2028\u005bDONE]` + "\uFFFD\"}", "", ""},
		{"a 401", responds(401, "Log in again", 0, cause), `401 {"detail":"Log in again"}`, "Bearer", "INFO dial tcp 10.0.0.7"},
		{"a 401 for a bad key", responds(401, "Key expired", 0, ErrInvalidKey), `401 {"detail":"Key expired"}`, badKey, ""},
		{"a 401 for a wrapped bad key", responds(401, "Key expired", 0, fmt.Errorf("row 7: %w", ErrInvalidKey)), `401 {"detail":"Key expired"}`, badKey, ""},
		{"a 403", responds(403, "Not yours", 0, cause), `403 {"detail":"Not yours"}`, "", "INFO dial tcp 10.0.0.7"},
		{"no status", responds(0, "what?", 0, cause), internal, "", "ERROR dial tcp 10.0.0.7"},
		{"a status that is no error", responds(399, "what?", 0, cause), internal, "", "ERROR dial tcp 10.0.0.7"},
		{"the lowest status", responds(400, "low", 0, nil), `400 {"detail":"low"}`, "", ""},
		{"the highest status", responds(599, "high", 0, cause), `599 {"detail":"high"}`, "", "ERROR dial tcp 10.0.0.7"},
		{"a status above all", responds(600, "what?", 0, cause), internal, "", "ERROR dial tcp 10.0.0.7"},
		{"a whole minute", responds(503, "x", time.Minute, nil), `503 {"detail":"x"}`, "60", "INFO 503 x"},
		{"a nanosecond more", responds(503, "x", time.Minute+1, nil), `503 {"detail":"x"}`, "61", "INFO 503 x"},
		{"for ever", responds(503, "x", math.MaxInt64, nil), `503 {"detail":"x"}`, "9223372037", "INFO 503 x"},
		{"a Retry-After with a cause", responds(503, "x", time.Minute, cause), `503 {"detail":"x"}`, "60", "ERROR dial tcp 10.0.0.7"},
		{"never", responds(503, "x", -time.Minute, nil), `503 {"detail":"x"}`, "", "ERROR 503 x"},
		{"any other error", returns(cause), internal, "", "ERROR dial tcp 10.0.0.7"},
		{"a typed nil", returns((*StatusError)(nil)), internal, "", classifying},
		{"ErrBotNotFound", returns(fmt.Errorf("row 7: %w", ErrBotNotFound)), `404 {"detail":"Bot not found"}`, "", ""},
		{"ErrInvalidKey", returns(fmt.Errorf("row 7: %w", ErrInvalidKey)), `401 {"detail":"Invalid API key"}`, badKey, ""},
		{"a cancellation of the application's own", returns(context.Canceled), internal, "", "ERROR context canceled"},
		{"a deadline of the application's own", returns(context.DeadlineExceeded), internal, "", "ERROR context deadline exceeded"},
		{"that another client disconnected", returns(fmt.Errorf("asked together: %w", ErrClientLeft)), internal, "", "ERROR asked together"},
		{"an abort that is returned", returns(fmt.Errorf("proxy: %w", http.ErrAbortHandler)), "aborted", "", ""},

		{"a panic with a text", panics("no table bots"), internal, "", panicked},
		{"a panic with a StatusError", panics(StatusError{Status: 418, Detail: "no table bots"}), internal, "", panicked},
		{"a panic with ErrBotNotFound", panics(ErrBotNotFound), internal, "", panicked},
		{"a panic with an error that wraps an abort", panics(fmt.Errorf("no table bots: %w", http.ErrAbortHandler)), internal, "", panicked},
		{"a panic that cannot be compared", panics([]string{"no table bots"}), internal, "", panicked},
		{"a panic with a value that panics", panics(trapError{"Error"}), internal, "", panicked},
		{"a panic with a value that panics with another", panics(nestedTrap{}), internal, "", panicked},
		{"a panic with nil", panics(nil), internal, "", panicked},
		{"a nil pointer", func() error { var r *ChatRequest; _ = r.Bot; return nil }, internal, "", panicked},
		{"an abort", panics(http.ErrAbortHandler), "aborted", "", ""},

		{"a wrapped list", returns(fmt.Errorf("tools: %w", list)), invalid, "", ""},
		{"a wrapped pointer to a list", returns(fmt.Errorf("tools: %w", &list)), invalid, "", ""},
		{"a list without problems", returns(HTTPValidationError{}), `422 {"detail":[]}`, "", ""},
		{"a list without a Loc", returns(HTTPValidationError{noLoc}), `422 {"detail":[{"loc":[],"msg":"unknown tool","type":"value_error.tool"}]}`, "", ""},
		{"a list that has no JSON form", returns(HTTPValidationError{[]ValidationError{{Loc: []any{make(chan int)}}}}), internal, "", classifying + "encoding a validation error: json: unsupported type: chan int"},
		{"a list whose JSON form panics", returns(HTTPValidationError{[]ValidationError{{Loc: []any{faultyJSON{}}}}}), internal, "", classifying + "a bug in the application"},
		{"a list beside a StatusError", returns(errors.Join(list, StatusError{Status: 502})), `502 {"detail":"Bad Gateway"}`, "", "ERROR invalid request: [body tools 0 <name>]: unknown tool"},
		{"a list that is a StatusError's cause", responds(502, "", 0, list), `502 {"detail":"Bad Gateway"}`, "", "ERROR 502 Bad Gateway: invalid request: [body tools 0 <name>]: unknown tool"},

		{"a trap in Error", returns(trapError{"Error"}), internal, "", classifying + "a trap in Error"},
		{"a trap in Is", trapped("Is"), internal, "", classifying + "a trap in Is"},
		{"a trap in As", trapped("As"), internal, "", classifying + "a trap in As"},
		{"a trap in Unwrap", trapped("Unwrap"), internal, "", classifying + "a trap in Unwrap"},
	} {
		for _, part := range applicationParts {
			t.Run(c.name+" in the "+part.name, func(t *testing.T) {
				is := is.New(t)
				got, log := part.play(t, c.fail)
				response := fmt.Sprint(got.status, " ", got.body)
				if errors.Is(got.err, io.EOF) { // not even a head
					response = "aborted"
				}
				is.Equal(response, c.want)
				is.Equal(got.header.Get("Retry-After")+got.header.Get("Www-Authenticate"), c.header)
				is.True(!strings.Contains(fmt.Sprint(got.header), "10.0.0.7"))
				if c.log == "" {
					is.Equal(log, loggedError{})
					return
				}
				level, text, _ := strings.Cut(c.log, " ")
				is.Equal(log.Level, level)
				is.Equal(log.RequestID, "one-of-many")
				if !strings.Contains(log.Error, text) {
					t.Errorf("%q is logged, want %q", log.Error, text)
				}
				is.Equal(log.Stack != "", strings.HasPrefix(text, "panic while "))
				if c.log == panicked {
					is.True(strings.Contains(log.Stack, "errors_test.go")) // where the panic began
				}
			})
		}
	}
	is.New(t).Equal(noLoc[0].Loc, nil) // the application's own error is not changed
}

func TestErrorTexts(t *testing.T) {
	is := is.New(t)
	cause := errors.New("pool is empty")
	err := StatusError{Status: 503, Detail: "Busy", Err: cause}
	is.Equal(err.Error(), "503 Busy: pool is empty")
	is.True(errors.Is(err, cause))
	is.Equal(StatusError{Status: 404, Detail: "No"}.Error(), "404 No")
	is.Equal(StatusError{Status: 503}.Error(), "503 Service Unavailable")
	is.Equal(StatusError{Status: 503, Err: cause}.Error(), "503 Service Unavailable: pool is empty")
	is.Equal(StatusError{Status: 499}.Error(), "499") // a status without a text
	is.Equal(StatusError{Status: 499, Err: cause}.Error(), "499: pool is empty")
	is.Equal(StatusError{Status: 400, Detail: "No bot", Err: errors.New("No bot")}.Error(), "400 No bot") // a rejection that may be logged
	isFoundEitherWay(t, err)
	is.True(!errors.As(err, new(HTTPValidationError)))
	invalid := HTTPValidationError{[]ValidationError{{Msg: "bad"}}}
	isFoundEitherWay(t, invalid)
	is.True(!errors.As(invalid, new(StatusError)))
	is.Equal(HTTPValidationError{}.Error(), "invalid request")
	is.Equal(HTTPValidationError{[]ValidationError{{[]any{"body", "x"}, "bad", "t"}, {}}}.Error(), "invalid request: [body x]: bad (2 in all)")
}

// isFoundEitherWay looks for an error as a value and as a pointer, and wraps it as both.
func isFoundEitherWay[E error, P interface {
	*E
	error
}](t *testing.T, err E) {
	t.Helper()
	is := is.New(t)
	for _, either := range []error{err, P(&err)} {
		value, ok := errors.AsType[E](fmt.Errorf("asking: %w", either))
		is.True(ok)
		is.Equal(value, err)
		pointer, ok := errors.AsType[P](fmt.Errorf("asking: %w", either))
		is.True(ok)
		is.Equal(*pointer, err)
	}
}

var nilIterator = ChatEngineFunc(func(context.Context, *ChatRequest) iter.Seq2[string, error] { return nil })

// The cause with which the application cancels a request decides the response, whichever
// part of the application is running. A client that disconnects is not logged; nor is
// http.ErrAbortHandler.
func TestApplicationCancelsInEachPart(t *testing.T) {
	for cause, want := range map[error]string{
		errBroken: `503 {"detail":"Service Unavailable"}`,
		StatusError{Status: 402, Detail: "Pay first"}: `402 {"detail":"Pay first"}`,
		context.DeadlineExceeded:                      `504 {"detail":"The answer took too long"}`,
		context.Canceled:                              "aborted",
		http.ErrAbortHandler:                          "aborted",
	} {
		for _, part := range applicationParts {
			t.Run(fmt.Sprint(cause, ", in the ", part.name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					is := is.New(t)
					var log testLog
					cancelled := make(chan time.Time, 1)
					o := testOptions(t, &log)
					part.install(&o, func(ctx context.Context) error {
						<-ctx.Done()
						cancelled <- time.Now()
						return fmt.Errorf("asking the database: %w", ctx.Err())
					})
					o.OnChat = func(_ context.Context, r ChatReport) {
						if chosen, _ := errors.AsType[StatusError](r.Err); chosen.Status != r.Status || !errors.Is(r.Err, cause) {
							t.Error(r.Status, r.Err)
						}
					}
					ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, cause)
					defer cancel()
					ends, _ := ctx.Deadline()
					w := httptest.NewRecorder()
					response := "aborted"
					if !serveRequest(w, New(o), newRequest(part.method, part.path, strings.NewReader(part.body)).WithContext(ctx)) {
						response = fmt.Sprint(w.Code, " ", w.Body)
					}
					is.Equal(response, want)
					is.Equal(<-cancelled, ends)
					if want == "aborted" {
						is.Equal(w.Body.String()+log.String(), "")
					}
				})
			})
		}
	}
}

// A client that stops reading is reported as such even if ChatTimeout passes meanwhile: a
// write in progress keeps its WriteTimeout.
func TestChatTimeoutDuringAStalledWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		conn, reports := dialChat(t, false, fragmentsOf(strings.Repeat("x", 3*connection.MaxChunk)), func(o *Options) { o.ChatTimeout = time.Second })
		defer conn.Close() // the client reads nothing
		report := <-reports
		is.True(errors.Is(report.Err, ErrClientStalled))
		is.True(report.Duration >= DefaultWriteTimeout)
	})
}

// A reason of another chat is hidden in the report; everything else that an error wraps is
// found there.
func TestReportHidesReasonsOfAnotherChat(t *testing.T) {
	is := is.New(t)
	for _, reason := range []error{ErrClientLeft, ErrClientStalled, ErrChatTimeout, ErrEngineStalled} {
		err := playChat(t, way{}, failing(errors.Join(errOverloaded, errBroken, reason))).report(t).Err
		is.Equal(len(reasonsIn(err)), 0)
		is.True(errors.Is(err, errBroken))
		is.True(!errors.Is(err, io.EOF))
		status, ok := errors.AsType[StatusError](err)
		is.True(ok)
		is.Equal(status.Status, errOverloaded.Status)
		_, ok = errors.AsType[HTTPValidationError](err)
		is.True(!ok)
	}
}

// An error that does not come from the end of the request's context decides, even if the
// application has cancelled the request meanwhile.
func TestApplicationCancelsAndAnErrorDecides(t *testing.T) {
	is := is.New(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	o := testOptions(t, io.Discard)
	o.Bots = &fakeStore{bySlug: func(context.Context, string) (Bot, error) {
		cancel(errOverloaded)
		return Bot{}, ErrBotNotFound
	}}
	r := newRequest("POST", "/v1/chat", strings.NewReader(chatBodyJSON("hi", false))).WithContext(ctx)
	is.Equal(record(New(o), r).Code, 404)
}

// A trapLog panics for each line.
type trapLog struct{ slog.Handler }

func (trapLog) Handle(context.Context, slog.Record) error { panic("a trap in the log") }

func TestLoggerPanics(t *testing.T) {
	is := is.New(t)
	o := testOptions(t, io.Discard)
	o.Logger = slog.New(trapLog{o.Logger.Handler()})
	o.MaxConcurrentChats = 1
	failingEngine(&o, func(context.Context) error { return errBroken })
	h := New(o)
	for range 2 { // the second needs the slot of the first
		got := postChat(h, chatBodyJSON("hi", true))
		is.Equal(got.Code, 500)
		is.Equal(got.Body.String(), `{"detail":"Internal Server Error"}`)
	}
}

// The client does not wait for the Logger: an error event is sent first.
func TestErrorEventDoesNotWaitForTheLogger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		engine := engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
			if yield("Hi", nil) {
				yield("", StatusError{Status: 503, Detail: "No model"})
			}
		})
		got := playOn(t, httptest.NewRecorder(), true, engine, func(o *Options) {
			o.Logger = slog.New(callingHandler{o.Logger.Handler(), func() { time.Sleep(2 * DefaultWriteTimeout) }})
		})
		is.Equal(got.body, data("Hi")+errorEvent(503, "No model"))
		is.True(strings.Contains(got.log, "No model"))
	})
}

// A panic that comes after the answer has ended is logged, but for that with which an engine
// that is a reverse proxy aborts.
func TestEnginePanicsAfterItsAnswer(t *testing.T) {
	for _, c := range []struct {
		value  any
		logged bool
	}{{"too late", true}, {http.ErrAbortHandler, false}} {
		got := playOn(t, httptest.NewRecorder(), true, engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
			yield("", errOverloaded)
			panic(c.value)
		}))
		is.New(t).Equal(strings.Contains(got.log, "the engine panicked after its answer had ended"), c.logged)
	}
}
