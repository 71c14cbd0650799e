package service

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync"

	"example.com/botapi/examples/production/internal/telemetry"
)

// mostKinds bounds the kinds that a refusalLog tells apart. There are some
// dozens; what goes beyond is one kind.
const mostKinds = 200

// A refusalLog has the lines of requests that came to no chat. Anybody can send
// those, in any number: of each kind there is one line in telemetry.LogPeriod,
// which says how many more there were since the last.
type refusalLog struct {
	logger *slog.Logger

	mu    sync.Mutex
	kinds map[kind]*telemetry.Sparing
}

// A kind is what lines have in common that stand for each other. Nothing in it
// comes from a client: who sends many requests that fail hides no other failure.
type kind struct {
	level   slog.Level
	message string
	about   string // the error, see about
	known   bool   // the request had a good key: strangers do not hide what happens to others
}

func newRefusalLog(logger *slog.Logger) *refusalLog {
	return &refusalLog{logger: logger, kinds: make(map[kind]*telemetry.Sparing)}
}

// logging writes what there is to say of requests that came to no chat, when
// they have been answered: only then is known whether the proxy has them back.
func (l *refusalLog) logging(next http.Handler) http.Handler {
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

func (l *refusalLog) log(ctx context.Context, n note) {
	if !l.logger.Enabled(ctx, n.Level) {
		return
	}
	l.of(kindOf(n)).Count(func(times int64) {
		if times > 1 {
			n.AddAttrs(slog.Int64("more", times-1))
		}
		_ = l.logger.Handler().Handle(ctx, n.Record) // there is no other log to say it in
	})
}

func (l *refusalLog) of(k kind) *telemetry.Sparing {
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

// end says what no line has said yet. There may come more lines after it.
func (l *refusalLog) end() {
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

// about is an error up to its first colon: the status with what the client is
// told, or what was being done. That is written in code; what follows may have
// an address in it, or what somebody sent.
func about(text string) string {
	text, _, _ = strings.Cut(text, ": ")
	return text
}
