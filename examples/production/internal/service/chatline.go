package service

import (
	"context"
	"iter"
	"log/slog"
	"sync"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/production/internal/resume"
)

// chatNotes are what was to be logged while a chat is being answered. They wait
// for the chat's own line, so that each chat has one line that says it all.
type chatNotes struct {
	mu       sync.Mutex
	chatting bool
	records  []slog.Record
}

// mostNotes bounds what one chat may say; more is logged at once.
const mostNotes = 16

func (n *chatNotes) begin() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.chatting = true
}

// take reports whether a record will be in the chat's line.
func (n *chatNotes) take(record slog.Record) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.chatting || len(n.records) == mostNotes {
		return false
	}
	n.records = append(n.records, record.Clone())
	return true
}

// end returns the records. What is said later is logged at once.
func (n *chatNotes) end() []slog.Record {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.chatting = false
	return n.records
}

// chatLines is a log whose lines of chats wait for the line of their chat.
type chatLines struct{ slog.Handler }

func (h chatLines) Handle(ctx context.Context, record slog.Record) error {
	if t := turnOf(ctx); t != nil && t.chat.take(record) {
		return nil
	}
	return h.Handler.Handle(ctx, record)
}

func (h chatLines) WithAttrs(attrs []slog.Attr) slog.Handler {
	return chatLines{h.Handler.WithAttrs(attrs)}
}

func (h chatLines) WithGroup(name string) slog.Handler {
	return chatLines{h.Handler.WithGroup(name)}
}

// noting is an engine whose chats keep their notes.
func noting(engine botapi.ChatEngine) botapi.ChatEngine {
	return botapi.ChatEngineFunc(func(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
		turnOf(ctx).chat.begin()
		return engine.Chat(ctx, req)
	})
}

// onChat writes one line and one record for each chat. The line leaves out the
// end user, who is in the record. A chat that the proxy has back has no record:
// it is another replica's.
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
	notes := t.chat.end()
	level := slog.LevelInfo
	for _, note := range notes {
		level = max(level, note.Level)
	}
	attributes = append(attributes, details(notes, report.Err)...)
	if t.outcome.Load() == handedBack {
		r.logger.LogAttrs(ctx, level, "chat handed back to the proxy", attributes...)
		return
	}
	r.logger.LogAttrs(ctx, level, "chat", attributes...)
	resume.WhenOver(ctx, func() { r.usage.OnChat(ctx, report) }) // tokens are counted when the model has ended
}

// details is what notes say besides the error that the line has already.
func details(notes []slog.Record, known error) (attributes []slog.Attr) {
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
