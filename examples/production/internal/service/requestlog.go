package service

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync"

	"example.com/botapi/examples/production/internal/telemetry"
)

// mostKinds bounds the kinds that a requestLog distinguishes. There are some
// dozens; further ones share one kind.
const mostKinds = 200

// A requestLog writes the lines of requests that start no chat. Anybody can send
// those, in any number, so there is one line per kind in telemetry.LogPeriod,
// which says how many more there were since the last.
type requestLog struct {
	logger *slog.Logger

	mu    sync.Mutex
	kinds map[kind]*telemetry.Sparing
}

// A kind is what lines must have in common to be counted as one. Nothing in it
// comes from a client, so that many failing requests of one kind hide no other
// failure.
type kind struct {
	level   slog.Level
	message string
	about   string // the error, see about
	known   bool   // the request had a valid key: requests without one must not hide it
}

func newRequestLog(logger *slog.Logger) *requestLog {
	return &requestLog{logger: logger, kinds: make(map[kind]*telemetry.Sparing)}
}

// logging writes the notes of a request that starts no chat after its response:
// only then is it known whether it was handed back to the proxy.
func (l *requestLog) logging(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		t := turnOf(req.Context())
		defer func() {
			for _, note := range t.notes.end() {
				if t.outcome.Load() == handedBack && note.Level > slog.LevelWarn {
					note.Level, note.Message = slog.LevelWarn, "request handed back to the proxy"
				}
				l.log(req.Context(), note)
			}
		}()
		next.ServeHTTP(w, req)
	})
}

func (l *requestLog) log(ctx context.Context, n note) {
	if !l.logger.Enabled(ctx, n.Level) {
		return
	}
	l.of(kindOf(n)).Count(func(times int64) {
		if times > 1 {
			n.AddAttrs(slog.Int64("more", times-1))
		}
		_ = l.logger.Handler().Handle(ctx, n.Record) // there is no other log to report it to
	})
}

func (l *requestLog) of(k kind) *telemetry.Sparing {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kinds[k] == nil && len(l.kinds) >= mostKinds {
		k = kind{level: slog.LevelError, message: "several kinds"}
	}
	if l.kinds[k] == nil {
		l.kinds[k] = telemetry.NewSparing()
	}
	return l.kinds[k]
}

// end logs how many lines were omitted. More lines may follow.
func (l *requestLog) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k, lines := range l.kinds {
		if more := lines.Rest(); more > 0 {
			l.logger.LogAttrs(context.Background(), k.level, "lines left out",
				slog.String("of", k.message), slog.String("error", k.about), slog.Int64("more", more))
		}
	}
}

func kindOf(n note) kind {
	k := kind{level: n.Level, message: n.Message, known: n.known}
	n.Attrs(func(a slog.Attr) bool {
		if a.Key == "error" {
			k.about = about(a.Value.String())
		}
		return k.about == ""
	})
	return k
}

// about is an error up to its first colon: the status with the client's detail,
// or the operation. That part is written in code; the rest may contain an
// address, or what a client sent.
func about(text string) string {
	text, _, _ = strings.Cut(text, ": ")
	return text
}
