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
)

// A hostPart is one of the host's that fails, with what an error or a panic of fail
// says, in a chat or a list.
type hostPart struct {
	name               string
	method, path, body string
	install            func(o *Options, fail func(context.Context) error)
}

var hostParts = []hostPart{
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
}

func failingEngine(o *Options, fail func(context.Context) error) {
	o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) { yield("", fail(ctx)) })
}

// What is logged of a request that fails.
type loggedError struct {
	Level, Error, Stack string
	RequestID           string `json:"request_id"`
}

// play has the part fail, and returns what the client and the log saw.
func (p hostPart) play(t *testing.T, fail func() error) (got answered, logged loggedError) {
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
func (e trapError) As(any) bool     { e.spring("As"); return e.trap == "As, which lies" }
func (e trapError) Unwrap() []error { e.spring("Unwrap"); return nil }

func (e trapError) spring(method string) {
	if e.trap == method {
		panic("a trap in " + method)
	}
}

type faultyJSON struct{}

func (faultyJSON) MarshalJSON() ([]byte, error) { panic("a bug in the host") }

// What a host's error or panic becomes is the same wherever it comes from: an answer
// or a cut, and one line of the log or none.
func TestErrorResponse(t *testing.T) {
	cause := errors.New("dial tcp 10.0.0.7: refused")
	returns := func(err error) func() error { return func() error { return err } }
	says := func(status int, detail string, pause time.Duration, cause error) func() error {
		return returns(StatusError{status, detail, pause, cause})
	}
	panics := func(value any) func() error { return func() error { panic(value) } }
	trapped := func(trap string) func() error {
		return returns(fmt.Errorf("wrapped: %w", &StatusError{Status: 418, Err: trapError{trap}}))
	}
	list := HTTPValidationError{[]ValidationError{{[]any{"body", "tools", 0, "<name>"}, "unknown tool", "value_error.tool"}}}
	noPlace := []ValidationError{{Msg: "unknown tool", Type: "value_error.tool"}}
	const (
		internal = `500 {"detail":"Internal Server Error"}`
		invalid  = `422 {"detail":[{"loc":["body","tools",0,"\u003cname\u003e"],"msg":"unknown tool","type":"value_error.tool"}]}`
		badKey   = `Bearer error="invalid_token"`
		panicked = "ERROR panic while "
		reading  = "ERROR panic while reading an error: "
	)
	for _, c := range []struct {
		name   string
		fail   func() error
		want   string
		header string // Retry-After or WWW-Authenticate
		log    string // its level, and what is in it; "": nothing is logged
	}{
		{"a StatusError", says(429, "Slow down", 1500*time.Millisecond, cause), `429 {"detail":"Slow down"}`, "2", "INFO dial tcp 10.0.0.7"},
		{"a pointer to one", returns(&StatusError{Status: 429, Detail: "Slow down", Err: cause}), `429 {"detail":"Slow down"}`, "", "INFO dial tcp 10.0.0.7"},
		{"a wrapped pointer to one", returns(fmt.Errorf("asking: %w", &StatusError{Status: 503, Detail: "Closed", Err: cause})), `503 {"detail":"Closed"}`, "", "ERROR dial tcp 10.0.0.7"},
		{"one of several", returns(errors.Join(cause, &StatusError{Status: 502, Detail: "Bad upstream"})), `502 {"detail":"Bad upstream"}`, "", "ERROR dial tcp 10.0.0.7"},
		{"one around a pointer to another", says(503, "Closed", 0, &StatusError{Status: 404, Detail: "No row 7"}), `503 {"detail":"Closed"}`, "", "ERROR No row 7"},
		{"a pointer to one around another", returns(&StatusError{Status: 429, Detail: "Slow down", Err: StatusError{Status: 503, Detail: "Pool is empty"}}), `429 {"detail":"Slow down"}`, "", "INFO Pool is empty"},
		{"one around a bot that is not found", says(410, "Gone", 0, ErrBotNotFound), `410 {"detail":"Gone"}`, "", ""},
		{"one around an abort", says(502, "Bad upstream", 0, fmt.Errorf("proxy: %w", http.ErrAbortHandler)), `502 {"detail":"Bad upstream"}`, "", "ERROR 502 Bad upstream"},
		{"one around the end of another chat", says(502, "Bad upstream", 0, ErrClientLeft), `502 {"detail":"Bad upstream"}`, "", "ERROR 502 Bad upstream"},
		{"one without a detail", says(402, "", 0, cause), `402 {"detail":"Payment Required"}`, "", "INFO dial tcp 10.0.0.7"},
		{"one without a detail or a known status", says(499, "", 0, cause), `499 {"detail":""}`, "", "INFO dial tcp 10.0.0.7"},
		{"a detail that needs escapes", says(400, "\"a\"\n<b>\u2028[DONE]\xff", 0, nil), `400 {"detail":"\"a\"\n<b>\u2028\u005bDONE]` + "\uFFFD\"}", "", ""},
		{"a 401", says(401, "Log in again", 0, cause), `401 {"detail":"Log in again"}`, "Bearer", "INFO dial tcp 10.0.0.7"},
		{"a 401 for a bad key", says(401, "Key expired", 0, ErrInvalidKey), `401 {"detail":"Key expired"}`, badKey, ""},
		{"a 403", says(403, "Not yours", 0, cause), `403 {"detail":"Not yours"}`, "", "INFO dial tcp 10.0.0.7"},
		{"no status", says(0, "what?", 0, cause), internal, "", "ERROR dial tcp 10.0.0.7"},
		{"a status that is no error", says(399, "what?", 0, cause), internal, "", "ERROR dial tcp 10.0.0.7"},
		{"the lowest status", says(400, "low", 0, nil), `400 {"detail":"low"}`, "", ""},
		{"the highest status", says(599, "high", 0, cause), `599 {"detail":"high"}`, "", "ERROR dial tcp 10.0.0.7"},
		{"a status above all", says(600, "what?", 0, cause), internal, "", "ERROR dial tcp 10.0.0.7"},
		{"a whole minute", says(503, "x", time.Minute, nil), `503 {"detail":"x"}`, "60", "INFO 503 x"},
		{"a nanosecond more", says(503, "x", time.Minute+1, nil), `503 {"detail":"x"}`, "61", "INFO 503 x"},
		{"for ever", says(503, "x", math.MaxInt64, nil), `503 {"detail":"x"}`, "9223372037", "INFO 503 x"},
		{"a pause with a cause", says(503, "x", time.Minute, cause), `503 {"detail":"x"}`, "60", "ERROR dial tcp 10.0.0.7"},
		{"never", says(503, "x", -time.Minute, nil), `503 {"detail":"x"}`, "", "ERROR 503 x"},
		{"any other error", returns(cause), internal, "", "ERROR dial tcp 10.0.0.7"},
		{"a typed nil", returns((*StatusError)(nil)), internal, "", reading},
		{"a bot that is not found", returns(fmt.Errorf("row 7: %w", ErrBotNotFound)), `404 {"detail":"Bot not found"}`, "", ""},
		{"a key that is not accepted", returns(fmt.Errorf("row 7: %w", ErrInvalidKey)), `401 {"detail":"Invalid API key"}`, badKey, ""},
		{"a cancellation of the host's own", returns(context.Canceled), internal, "", "ERROR context canceled"},
		{"a deadline of the host's own", returns(context.DeadlineExceeded), internal, "", "ERROR context deadline exceeded"},
		{"that another client left", returns(fmt.Errorf("asked together: %w", ErrClientLeft)), internal, "", "ERROR asked together"},
		{"an abort that is returned", returns(fmt.Errorf("proxy: %w", http.ErrAbortHandler)), "cut", "", ""},

		{"a panic with a text", panics("no table bots"), internal, "", panicked},
		{"a panic with a StatusError", panics(StatusError{Status: 418, Detail: "no table bots"}), internal, "", panicked},
		{"a panic with a bot that is not found", panics(ErrBotNotFound), internal, "", panicked},
		{"a panic around an abort", panics(fmt.Errorf("no table bots: %w", http.ErrAbortHandler)), internal, "", panicked},
		{"a panic that cannot be compared", panics([]string{"no table bots"}), internal, "", panicked},
		{"a panic with nil", panics(nil), internal, "", panicked},
		{"a nil pointer", func() error { var r *ChatRequest; _ = r.Bot; return nil }, internal, "", panicked},
		{"an abort", panics(http.ErrAbortHandler), "cut", "", ""},

		{"a wrapped list", returns(fmt.Errorf("tools: %w", list)), invalid, "", ""},
		{"a wrapped pointer to a list", returns(fmt.Errorf("tools: %w", &list)), invalid, "", ""},
		{"a list without problems", returns(HTTPValidationError{}), `422 {"detail":[]}`, "", ""},
		{"a list without a place", returns(HTTPValidationError{noPlace}), `422 {"detail":[{"loc":[],"msg":"unknown tool","type":"value_error.tool"}]}`, "", ""},
		{"a list that has no JSON form", returns(HTTPValidationError{[]ValidationError{{Loc: []any{make(chan int)}}}}), internal, "", "ERROR encoding a validation error: json: unsupported type: chan int"},
		{"a list whose JSON form panics", returns(HTTPValidationError{[]ValidationError{{Loc: []any{faultyJSON{}}}}}), internal, "", reading + "a bug in the host"},
		{"a list beside a StatusError", returns(errors.Join(list, StatusError{Status: 502})), `502 {"detail":"Bad Gateway"}`, "", "ERROR invalid request: [body tools 0 <name>]: unknown tool"},
		{"a list that is a StatusError's cause", says(502, "", 0, list), `502 {"detail":"Bad Gateway"}`, "", "ERROR 502 : invalid request: [body tools 0 <name>]: unknown tool"},

		{"a trap in Error", returns(trapError{"Error"}), internal, "", reading + "a trap in Error"},
		{"a trap in Is", trapped("Is"), internal, "", reading + "a trap in Is"},
		{"a trap in As", trapped("As"), internal, "", reading + "a trap in As"},
		{"an As that lies", trapped("As, which lies"), internal, "", reading + "an As that returns true has set nothing"},
		{"a trap in Unwrap", trapped("Unwrap"), internal, "", reading + "a trap in Unwrap"},
	} {
		for _, part := range hostParts {
			t.Run(c.name+" in the "+part.name, func(t *testing.T) {
				is := is.New(t)
				got, log := part.play(t, c.fail)
				answer := fmt.Sprint(got.status, " ", got.body)
				if errors.Is(got.err, io.EOF) { // not even a head
					answer = "cut"
				}
				is.Equal(answer, c.want)
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
					is.True(strings.Contains(log.Stack, "errors_test.go")) // from where it began
				}
			})
		}
	}
	is.New(t).Equal(noPlace[0].Loc, nil) // the host's own is not changed
}

func TestErrorTexts(t *testing.T) {
	is := is.New(t)
	cause := errors.New("pool is empty")
	err := StatusError{Status: 503, Detail: "Busy", Err: cause}
	is.Equal(err.Error(), "503 Busy: pool is empty")
	is.True(errors.Is(err, cause))
	is.Equal(StatusError{Status: 404, Detail: "No"}.Error(), "404 No")
	isFoundEitherWay(t, err)
	is.True(!errors.As(err, new(HTTPValidationError)))
	invalid := HTTPValidationError{[]ValidationError{{Msg: "bad"}}}
	isFoundEitherWay(t, invalid)
	is.True(!errors.As(invalid, new(StatusError)))
	is.Equal(HTTPValidationError{}.Error(), "invalid request")
	is.Equal(HTTPValidationError{[]ValidationError{{[]any{"body", "x"}, "bad", "t"}, {}}}.Error(), "invalid request: [body x]: bad (2 in all)")
}

// isFoundEitherWay looks for an error as a value and as a pointer, where it stands
// as either.
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

// What a host ends a request with is its answer, whichever part notices. A client
// that leaves is nobody's failure, nor is an order to cut.
func TestHostEndsARequestInEachPart(t *testing.T) {
	for cause, want := range map[error]string{
		errBroken: `503 {"detail":"Service Unavailable"}`,
		StatusError{Status: 402, Detail: "Pay first"}: `402 {"detail":"Pay first"}`,
		context.DeadlineExceeded:                      `504 {"detail":"The answer took too long"}`,
		context.Canceled:                              "cut",
		http.ErrAbortHandler:                          "cut",
	} {
		for _, part := range hostParts {
			t.Run(fmt.Sprint(cause, ", in the ", part.name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					is := is.New(t)
					var log testLog
					told := make(chan time.Time, 1)
					o := testOptions(t, &log)
					part.install(&o, func(ctx context.Context) error {
						<-ctx.Done()
						told <- time.Now()
						return fmt.Errorf("asking the database: %w", ctx.Err())
					})
					o.OnChat = func(_ context.Context, r ChatReport) {
						if answer, _ := errors.AsType[StatusError](r.Err); answer.Status != r.Status || !errors.Is(r.Err, cause) {
							t.Error(r.Status, r.Err)
						}
					}
					ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, cause)
					defer cancel()
					ends, _ := ctx.Deadline()
					w := httptest.NewRecorder()
					answer := "cut"
					if !serveRequest(w, New(o), newRequest(part.method, part.path, strings.NewReader(part.body)).WithContext(ctx)) {
						answer = fmt.Sprint(w.Code, " ", w.Body)
					}
					is.Equal(answer, want)
					is.Equal(<-told, ends)
					if want == "cut" {
						is.Equal(w.Body.String()+log.String(), "")
					}
				})
			})
		}
	}
}

// A client that does not read has stalled, though ChatTimeout passes meanwhile: a
// write that is under way then still has its WriteTimeout.
func TestChatTimeoutDuringAStalledWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		conn, reports := dialChat(t, false, fragmentsOf(strings.Repeat("x", 3*maxPart)), func(o *Options) { o.ChatTimeout = time.Second })
		defer conn.Close() // and does not read before
		report := <-reports
		is.True(errors.Is(report.Err, ErrClientStalled))
		is.True(report.Duration >= DefaultWriteTimeout)
	})
}

// A trapContext panics when it is asked whether it is over.
type trapContext struct{ context.Context }

func (trapContext) Err() error { panic("a trap in the context") }

func TestHostContextPanics(t *testing.T) {
	is := is.New(t)
	var log testLog
	o := testOptions(t, &log)
	o.Bots = &fakeStore{bySlug: func(context.Context, string) (Bot, error) { return Bot{}, context.Canceled }}
	r := newRequest("POST", "/v1/chat", strings.NewReader(chatBodyJSON("hi", false)))
	is.Equal(record(New(o), r.WithContext(trapContext{r.Context()})).Code, 500)
	is.True(strings.Contains(log.String(), "a trap in the context"))
}

// A trapLog panics at each line.
type trapLog struct{ slog.Handler }

func (trapLog) Handle(context.Context, slog.Record) error { panic("a trap in the log") }

func TestLoggerPanics(t *testing.T) {
	is := is.New(t)
	o := testOptions(t, io.Discard)
	o.Logger = slog.New(trapLog{o.Logger.Handler()})
	o.MaxConcurrentChats = 1
	failingEngine(&o, func(context.Context) error { return errBroken })
	h := New(o)
	for range 2 { // the second has the place of the first
		got := postChat(h, chatBodyJSON("hi", true))
		is.Equal(got.Code, 500)
		is.Equal(got.Body.String(), `{"detail":"Internal Server Error"}`)
	}
}
