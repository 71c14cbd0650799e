package service

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/production/internal/usage"
	"example.com/botapi/examples/resume"
)

// notedLines is a slog.Handler for the lines of requests. They wait in the turn
// for the end of its chat, whose one line has everything, or of a request that
// starts no chat: see logNotes. A logger that is derived with attributes logs
// immediately.
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

// takeNotes returns the notes, once. Later lines are logged immediately.
func (t *turn) takeNotes() (notes []slog.Record) {
	t.mu.Lock()
	defer t.mu.Unlock()
	notes, t.notes, t.logged = t.notes, nil, true
	return notes
}

// logNotes logs the notes of a request that has started no chat after its
// response: only then is it known whether it was handed back to the proxy.
func (r *replica) logNotes(ctx context.Context, t *turn) {
	for _, line := range t.takeNotes() {
		line.AddAttrs(slog.String("account", t.account))
		r.logTogether(ctx, t, line)
	}
}

// logTogether logs a line, and has a rejected chat recorded, together with others of
// its kind. A request that was handed back to the proxy is no error, and its chat has
// no record: another replica answers it.
func (r *replica) logTogether(ctx context.Context, t *turn, line slog.Record) {
	isHandedBack := t.outcome.Load() == handedBack
	if isHandedBack {
		line.Level, line.Message = slog.LevelWarn, "request handed back to the proxy"
	}
	k := kind{line.Level, line.Message, about(fieldsOf(line)["error"]), t.account}
	r.repeats.count(k, func(times int64) {
		line.AddAttrs(slog.Int64("times", times))
		r.log(ctx, line)
		if t.report != nil && !isHandedBack {
			r.usage.Add(usage.NewRejection(*t.report, k.about, times))
		}
	})
}

func (r *replica) log(ctx context.Context, line slog.Record) {
	if h := r.logger.Handler(); h.Enabled(ctx, line.Level) {
		_ = h.Handle(ctx, line)
	}
}

// onChat is called when the client's answer to a chat has ended.
func (r *replica) onChat(ctx context.Context, report botapi.ChatReport) {
	turnOf(ctx).report = &report
	r.end(ctx)
}

// onAnswer is called when a model has returned.
func (r *replica) onAnswer(ctx context.Context, report resume.Report) {
	if report.Outcome == resume.Kept { // other answers have not outlived their engine
		r.end(ctx)
	}
}

// end writes down a chat when it is called the second time: its client's answer
// has ended, and its engine has returned. Only then are its tokens final, and the
// limits have counted the same. Chats that asked no model, and got no answer of another
// chat, are written down together.
func (r *replica) end(ctx context.Context) {
	t := turnOf(ctx)
	if t.ended.Add(1) == 1 {
		r.unrecorded.Add(1)
		return
	}
	defer r.unrecorded.Add(-1)
	line := t.line()
	if t.outcome.Load() != asked && t.report.Status != http.StatusOK {
		line.Message = "chat rejected"
		r.logTogether(ctx, t, line)
		return
	}
	r.log(ctx, line)
	r.usage.Add(usage.NewRecord(ctx, *t.report))
}

// line returns the line of a chat. It omits the end user, who is in the usage
// record.
func (t *turn) line() slog.Record {
	report := t.report
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
// or the operation. That part is written in code; the rest may contain an
// address, or what a client sent.
func about(text string) string {
	text, _, _ = strings.Cut(strings.TrimPrefix(text, "botapi: "), ": ")
	return text
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
