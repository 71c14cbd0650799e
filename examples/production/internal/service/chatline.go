package service

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/production/internal/usage"
	"example.com/botapi/examples/resume"
)

// notes are the log lines of a request that is still being answered. They wait
// for the chat's own line, so that each chat has one line with everything; those
// of a request that starts no chat go to the requestLog.
type notes struct {
	mu    sync.Mutex
	over  bool
	taken []note
}

// A note is a log line that waits.
type note struct {
	slog.Record
	known bool // the request had a valid key by then
}

// mostNotes bounds the notes of one request; further lines are logged
// immediately.
const mostNotes = 16

// take reports whether a record will be logged later.
func (n *notes) take(ctx context.Context, record slog.Record) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.over || len(n.taken) == mostNotes {
		return false
	}
	n.taken = append(n.taken, note{record.Clone(), botapi.AccountFrom(ctx) != ""})
	return true
}

// end returns the notes, once. Later lines are logged immediately.
func (n *notes) end() []note {
	n.mu.Lock()
	defer n.mu.Unlock()
	taken := n.taken
	n.over, n.taken = true, nil
	return taken
}

// notedLines is a slog.Handler that turns the lines of requests into notes.
type notedLines struct{ slog.Handler }

func (h notedLines) Handle(ctx context.Context, record slog.Record) error {
	if t := turnOf(ctx); t != nil && t.notes.take(ctx, record) {
		return nil
	}
	return h.Handler.Handle(ctx, record)
}

func (h notedLines) WithAttrs(attrs []slog.Attr) slog.Handler {
	return notedLines{h.Handler.WithAttrs(attrs)}
}

func (h notedLines) WithGroup(name string) slog.Handler {
	return notedLines{h.Handler.WithGroup(name)}
}

// onChat writes one line and one usage record for each chat. The line omits the
// end user, who is in the record. A chat that was handed back to the proxy has
// no record and is no error: another replica answers it.
func (r *replica) onChat(ctx context.Context, report botapi.ChatReport) {
	attributes := []slog.Attr{
		slog.String("account", report.Account),
		slog.String("bot", report.Bot.Slug),
		slog.Bool("stream", report.Stream),
		slog.Int("status", report.Status),
		slog.Int("fragments", report.Fragments),
		slog.Int64("bytes", report.Bytes),
		slog.Float64("first_fragment_ms", milliseconds(report.FirstFragment)),
		slog.Float64("duration_ms", milliseconds(report.Duration)),
	}
	if report.Err != nil {
		attributes = append(attributes, slog.String("error", report.Err.Error()))
	}
	t := turnOf(ctx)
	t.report = report
	defer r.end(ctx)
	notes := t.notes.end()
	level := slog.LevelInfo
	for _, note := range notes {
		level = max(level, note.Level)
	}
	attributes = append(attributes, details(notes, report.Err)...)
	if t.outcome.Load() == handedBack {
		r.logger.LogAttrs(ctx, min(level, slog.LevelWarn), "chat handed back to the proxy", attributes...)
		return
	}
	r.logger.LogAttrs(ctx, level, "chat", attributes...)
}

// onAnswer is called when a model has returned.
func (r *replica) onAnswer(ctx context.Context, report resume.Report) {
	if report.Outcome == resume.Kept { // other answers have not outlived their engine
		r.end(ctx)
	}
}

// end records the usage of a chat when it is called the second time: its client's
// answer has ended, and its engine has returned. Only then are its tokens final,
// and the limits have counted the same.
func (r *replica) end(ctx context.Context) {
	t := turnOf(ctx)
	if t.ended.Add(1) == 1 {
		r.unrecorded.Add(1)
		return
	}
	if t.outcome.Load() != handedBack {
		r.usage.Add(usage.NewRecord(ctx, t.report))
	}
	r.unrecorded.Add(-1)
}

// details returns the notes as attributes, without the error that the line has
// already.
func details(notes []note, known error) (attributes []slog.Attr) {
	var rest []map[string]string
	for _, note := range notes {
		said := map[string]string{"msg": note.Message}
		note.Attrs(func(a slog.Attr) bool {
			said[a.Key] = a.Value.String()
			return true
		})
		delete(said, "request_id")
		if known == nil || said["error"] != known.Error() {
			rest = append(rest, said)
		} else if stack := said["stack"]; stack != "" {
			attributes = append(attributes, slog.String("stack", stack))
		}
	}
	if len(rest) > 0 {
		attributes = append(attributes, slog.Any("notes", rest))
	}
	return attributes
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
