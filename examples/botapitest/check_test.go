package botapitest_test

import (
	"log"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/botapi/examples/botapitest"
	"github.com/matryer/is"
)

// loggers is locked by tests with Check, which are parallel to others that do not use the default
// loggers.
var loggers sync.Mutex

func TestCheck(t *testing.T) {
	t.Parallel()
	loggers.Lock()
	t.Cleanup(loggers.Unlock)
	botapitest.Check(t, func(api http.Handler) http.Handler {
		mux := http.NewServeMux()
		mux.Handle("/assistants/", http.StripPrefix("/assistants", api))
		return mux
	}, botapitest.Prefix("/assistants"), new(botapitest.Log))
}

// TestCheckFails runs this test program again with a stack that is broken in three ways.
func TestCheckFails(t *testing.T) {
	is := is.New(t)
	if os.Getenv("BOTAPITEST_BROKEN") != "" {
		botapitest.Check(t, broken)
		return
	}
	again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestCheckFails$", "-test.v")
	again.Env = append(os.Environ(), "BOTAPITEST_BROKEN=yes")
	output, err := again.CombinedOutput()
	is.True(err != nil)
	var failed []string
	for line := range strings.Lines(string(output)) {
		if name, isFailure := strings.CutPrefix(strings.TrimSpace(line), "--- FAIL: TestCheckFails/"); isFailure {
			failed = append(failed, strings.Split(name, " (")[0])
		}
	}
	is.Equal(failed, []string{"the_handler_can_flush_and_set_deadlines", "an_incomplete_answer_looks_incomplete", "no_log_has_a_key"})
	for _, part := range []string{"sent: ", "arrived: ", "effect: ", "cause: ", "see:     docs/operating.md", `first mend what "the handler can flush`, "4 checks not run because of this", "Bearer KEY"} {
		is.True(strings.Contains(string(output), part))
	}
}

// broken logs keys, recovers all panics, and hides Flush and Unwrap.
func broken(api http.Handler) http.Handler {
	logger := slog.Default()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		defer func() {
			_ = recover()
			logger.Info("request", "header", r.Header, "duration", time.Since(began))
		}()
		api.ServeHTTP(struct{ http.ResponseWriter }{w}, r)
	})
}

// Check puts the default loggers back.
func TestCheckRestoresLoggers(t *testing.T) {
	t.Parallel()
	loggers.Lock()
	t.Cleanup(loggers.Unlock)
	is := is.New(t)
	logger, writer, flags := slog.Default(), log.Writer(), log.Flags()
	own := slog.New(slog.NewTextHandler(t.Output(), nil))
	slog.SetDefault(own)
	t.Cleanup(func() {
		slog.SetDefault(logger)
		log.SetOutput(writer)
		log.SetFlags(flags)
	})
	ownWriter, ownFlags := log.Writer(), log.Flags()
	t.Run("check", func(t *testing.T) {
		botapitest.Check(t, func(api http.Handler) http.Handler {
			slog.Info("mounting") // it reaches the application's own handler, too
			return api
		})
	})
	is.Equal(slog.Default(), own)
	is.Equal(log.Writer(), ownWriter)
	is.Equal(log.Flags(), ownFlags)
}

func ExampleCheck() {
	newMux := func(api http.Handler) http.Handler { // the application's own
		mux := http.NewServeMux()
		mux.Handle("/v1/", api)
		return mux
	}
	_ = func(t *testing.T) {
		botapitest.Check(t, newMux, botapitest.Origin("https://app.example.com"))
	}
}
