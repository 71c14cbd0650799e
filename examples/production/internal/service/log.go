package service

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/production/internal/usage"
	"example.com/botapi/examples/resume"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
)

// notedLines is a slog.Handler for the lines of requests. They wait in the turn
// for the end of its response: a chat has one line with everything. Later lines, and those
// of a logger that is derived with attributes, are logged immediately.
type notedLines struct{ slog.Handler }

func (h notedLines) Handle(ctx context.Context, line slog.Record) error {
	if t := turnOf(ctx); t != nil && t.note(line) {
		return nil
	}
	return h.Handler.Handle(ctx, line)
}

// note reports whether a line will be logged later.
func (t *turn) note(line slog.Record) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.logged {
		t.notes = append(t.notes, line.Clone())
	}
	return !t.logged
}

// takeNotes returns the notes, once.
func (t *turn) takeNotes() (notes []slog.Record) {
	t.mu.Lock()
	defer t.mu.Unlock()
	notes, t.notes, t.logged = t.notes, nil, true
	return notes
}

// onRequest is called when the response to a request has ended. It writes everything down
// but the work of a model, which usage.Writer records when the model has returned.
func (r *replica) onRequest(ctx context.Context, report botapi.RequestReport) {
	t := turnOf(ctx)
	t.route = report.Route
	r.countResponse(ctx, report)
	if costsNoSlot(report) {
		r.failures.count(report.Account)
	}
	if report.Chat == nil {
		for _, line := range t.takeNotes() {
			line.AddAttrs(slog.String("account", report.Account))
			r.logTogether(ctx, report, line, nil)
		}
		return
	}
	line := t.line(*report.Chat)
	switch outcome := resume.OutcomeFrom(ctx); {
	case outcome == resume.Joined:
		line.Message = "chat joined an answer"
		r.logTogether(ctx, report, line, func(_ string, joins int64) *usage.Record { return usage.NewJoins(*report.Chat, joins) })
	case outcome == resume.Kept && errors.Is(report.Err, botapi.ErrClientLeft): // the model may still be asked
		r.log(ctx, line)
	case t.becomes(final), t.outcome.Load() != asked:
		line.Message = "chat rejected"
		r.logTogether(ctx, report, line, func(why string, chats int64) *usage.Record { return usage.NewRejection(*report.Chat, why, chats) })
	default:
		r.log(ctx, line)
	}
}

// costsNoSlot reports whether a request has failed through its client, or stopped an
// answer. Those that were throttled count already.
func costsNoSlot(r botapi.RequestReport) bool {
	failed := http.StatusBadRequest <= r.Status && r.Status < http.StatusInternalServerError
	return r.Account != "" && (failed && !errors.Is(r.Err, errThrottled) || r.Status == http.StatusNoContent)
}

// countResponse counts an error response.
func (r *replica) countResponse(ctx context.Context, report botapi.RequestReport) {
	if report.Status >= http.StatusBadRequest {
		r.errorResponses.Add(ctx, 1, metric.WithAttributes(
			semconv.HTTPResponseStatusCode(report.Status), attribute.String("reason", reasonOf(report))))
	}
}

// reasonOf is the detail that the client gets, as far as an error has one. All details are
// written in code, but for the number of a message, so that no client can create time
// series.
func reasonOf(report botapi.RequestReport) string {
	own, isOwn := errors.AsType[*botapi.StatusError](report.Err)
	switch {
	case isOwn && own.Status == report.Status && own.Detail != "":
		return withoutNumber(own.Detail)
	case errors.Is(report.Err, botapi.ErrInvalidKey):
		return "Invalid API key"
	case errors.Is(report.Err, botapi.ErrBotNotFound):
		return "Bot not found"
	}
	return http.StatusText(report.Status)
}

// A kind is what is logged as one. Nothing in it comes from a client, so that
// many failing requests of one kind hide no other failure.
type kind struct {
	level   slog.Level
	message string
	about   string // the error, see about
	account string // empty without a valid key: such requests hide none of an account
}

// logTogether logs a line, and has a record of it stored unless there is none, together
// with others of its kind. A request that was handed back to the proxy is no error, and has
// no record: another replica answers it.
func (r *replica) logTogether(ctx context.Context, report botapi.RequestReport, line slog.Record, record func(why string, times int64) *usage.Record) {
	if turnOf(ctx).outcome.Load() == handedBack {
		line.Level, line.Message, record = slog.LevelWarn, "request handed back to the proxy", nil
	}
	k := kind{line.Level, line.Message, about(fieldsOf(line)["error"]), report.Account}
	r.repeats.Count(k, func(times int64) {
		line.AddAttrs(slog.Int64("times", times))
		r.log(ctx, line)
		if record != nil {
			r.usage.Add(record(k.about, times))
		}
	})
}

func (r *replica) log(ctx context.Context, line slog.Record) {
	if h := r.logger.Handler(); h.Enabled(ctx, line.Level) {
		_ = h.Handle(ctx, line)
	}
}

// line returns the line of a chat. It omits the end user, who is in the usage
// record.
func (t *turn) line(report botapi.ChatReport) slog.Record {
	line := slog.NewRecord(time.Now(), slog.LevelInfo, "chat", 0)
	line.AddAttrs(
		slog.String("account", report.Account),
		slog.String("bot", report.Bot.Slug),
		slog.Bool("stream", report.Stream),
		slog.Int("status", report.Status),
		slog.Int("fragments", report.Fragments),
		slog.Int64("bytes", report.Bytes),
		slog.Float64("first_fragment_ms", milliseconds(report.FirstFragment)),
		slog.Float64("duration_ms", milliseconds(report.Duration)),
	)
	var why string
	if report.Err != nil {
		why = report.Err.Error()
		line.AddAttrs(slog.String("error", why))
	}
	var others []map[string]string
	for _, note := range t.takeNotes() {
		line.Level = max(line.Level, note.Level)
		fields := fieldsOf(note)
		if why == "" || fields["error"] != why || fields["stack"] != "" { // otherwise it says nothing else
			others = append(others, fields)
		}
	}
	if len(others) > 0 {
		line.AddAttrs(slog.Any("notes", others))
	}
	return line
}

// fieldsOf returns what a line says.
func fieldsOf(line slog.Record) map[string]string {
	fields := map[string]string{"msg": line.Message}
	line.Attrs(func(a slog.Attr) bool {
		fields[a.Key] = a.Value.String()
		return true
	})
	return fields
}

// about is an error up to its first colon: the status with the client's detail,
// or the operation. That part is written in code, but for the number of a message; the
// rest may contain an address.
func about(text string) string {
	text, _, _ = strings.Cut(strings.TrimPrefix(text, "botapi: "), ": ")
	return withoutNumber(text)
}

// withoutNumber omits what follows the name of a list.
func withoutNumber(text string) string {
	text, _, _ = strings.Cut(text, "[")
	return text
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
