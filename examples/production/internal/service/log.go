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
// starts no chat: see logNotes.
type notedLines struct{ slog.Handler }

func (h notedLines) Handle(ctx context.Context, line slog.Record) error {
	if t := turnOf(ctx); t != nil && t.note(line) {
		return nil
	}
	return h.Handler.Handle(ctx, line)
}

func (h notedLines) WithAttrs(attrs []slog.Attr) slog.Handler {
	return notedLines{h.Handler.WithAttrs(attrs)}
}

func (h notedLines) WithGroup(name string) slog.Handler {
	return notedLines{h.Handler.WithGroup(name)}
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

// logNotes writes the notes of a request that has started no chat after its
// response: only then is it known whether it was handed back to the proxy, and so no
// error.
func (r *replica) logNotes(ctx context.Context, t *turn) {
	for _, line := range t.takeNotes() {
		if t.outcome.Load() == handedBack && line.Level > slog.LevelWarn {
			line.Level, line.Message = slog.LevelWarn, "request handed back to the proxy"
		}
		k := kind{line.Message, about(textOf(line, "error")), t.account}
		r.repeats.count(k, func(times int64) {
			r.logger.LogAttrs(ctx, line.Level, line.Message, append(attributesOf(line), slog.Int64("times", times))...)
		})
	}
}

// onChat is called when the client's answer to a chat has ended.
func (r *replica) onChat(ctx context.Context, report botapi.ChatReport) {
	turnOf(ctx).report = report
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
// limits have counted the same.
//
// Chats that an account has had rejected for the same reason are written down
// together; so are those that were handed back to the proxy, which are no errors,
// and have no record: another replica answers them.
func (r *replica) end(ctx context.Context) {
	t := turnOf(ctx)
	if t.ended.Add(1) == 1 {
		r.unrecorded.Add(1)
		return
	}
	defer r.unrecorded.Add(-1)
	level, line := t.line()
	report, outcome := t.report, t.outcome.Load()
	if report.Err == nil || outcome == asked || outcome != handedBack && report.Status == http.StatusOK {
		r.logger.LogAttrs(ctx, level, "chat", line...)
		r.usage.Add(usage.NewRecord(ctx, report))
		return
	}
	message := "chat rejected"
	if outcome == handedBack {
		message, level = "chat handed back to the proxy", min(level, slog.LevelWarn)
	}
	why := about(report.Err.Error())
	r.repeats.count(kind{message, why, report.Account}, func(times int64) {
		r.logger.LogAttrs(ctx, level, message, append(line, slog.Int64("times", times))...)
		if outcome != handedBack {
			r.usage.Add(usage.NewRejection(report, why, times))
		}
	})
}

// line returns the line of a chat. It omits the end user, who is in the usage
// record.
func (t *turn) line() (level slog.Level, line []slog.Attr) {
	report := &t.report
	line = []slog.Attr{
		slog.String("account", report.Account),
		slog.String("bot", report.Bot.Slug),
		slog.Bool("stream", report.Stream),
		slog.Int("status", report.Status),
		slog.Int("fragments", report.Fragments),
		slog.Int64("bytes", report.Bytes),
		slog.Float64("first_fragment_ms", milliseconds(report.FirstFragment)),
		slog.Float64("duration_ms", milliseconds(report.Duration)),
	}
	var why string
	if report.Err != nil {
		why = report.Err.Error()
		line = append(line, slog.String("error", why))
	}
	var others []map[string]string
	for _, note := range t.takeNotes() {
		level = max(level, note.Level)
		if why == "" || textOf(note, "error") != why {
			other := map[string]string{"msg": note.Message}
			for _, a := range attributesOf(note) {
				other[a.Key] = a.Value.String()
			}
			others = append(others, other)
		} else if stack := textOf(note, "stack"); stack != "" {
			line = append(line, slog.String("stack", stack))
		}
	}
	if len(others) > 0 {
		line = append(line, slog.Any("notes", others))
	}
	return level, line
}

func attributesOf(line slog.Record) (attributes []slog.Attr) {
	line.Attrs(func(a slog.Attr) bool {
		attributes = append(attributes, a)
		return true
	})
	return attributes
}

func textOf(line slog.Record, name string) (text string) {
	line.Attrs(func(a slog.Attr) bool {
		if a.Key == name {
			text = a.Value.String()
		}
		return true
	})
	return text
}

// about is an error up to its first colon: the status with the client's detail,
// or the operation. That part is written in code; the rest may contain an
// address, or what a client sent.
func about(text string) string {
	text, _, _ = strings.Cut(strings.TrimPrefix(text, "botapi: "), ": ")
	return text
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
