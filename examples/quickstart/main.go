// Command quickstart serves two small bots over the botapi interface, on one
// machine and without any network: run it, and paste the commands it prints.
//
// It also shows what a host program does around the handler: routes of its own,
// time limits for its server, logs, keys, and a stop that lets running answers
// finish.
package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
	"unicode"

	"example.com/botapi"
	"example.com/botapi/examples/quickstart/eliza"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run returns the exit code: 1 when the service could not do its work, 2 when
// it was called wrongly.
func run(args []string, stdout, stderr io.Writer) int {
	s, err := parseSettings(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	if err := s.serve(stdout, slog.New(slog.NewTextHandler(stderr, nil))); err != nil {
		fmt.Fprintln(stderr, "quickstart:", err)
		return 1
	}
	return 0
}

// settings are what the command line and the environment say.
type settings struct {
	address  string
	key      string
	botsFile string // empty: the built-in bots
	pace     time.Duration
}

// parseSettings has told the user of an error when it returns one.
func parseSettings(args []string, stderr io.Writer) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&s.address, "addr", "127.0.0.1:8080", "`address` to listen on; port 0 takes a free one")
	flags.StringVar(&s.key, "key", "", "the API `key`; without it $BOTAPI_KEY, else one is made up and printed")
	flags.StringVar(&s.botsFile, "bots", "", "JSON `file` of bots to serve, read again on SIGHUP (default two built-in bots)")
	flags.DurationVar(&s.pace, "pace", 75*time.Millisecond, "wait between two words of a stream")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	s.key = cmp.Or(s.key, os.Getenv("BOTAPI_KEY"), rand.Text())
	err := s.check(flags.Args())
	if err != nil {
		fmt.Fprintln(stderr, err)
		flags.Usage()
	}
	return s, err
}

// check does not show the key that it refuses: standard error is often kept.
func (s settings) check(extra []string) error {
	switch {
	case len(extra) > 0:
		return fmt.Errorf("unexpected argument %q", extra[0])
	case strings.ContainsFunc(s.key, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }):
		return errors.New("the key must not contain white space or control characters")
	case s.pace < 0:
		return errors.New("the pace must not be negative")
	}
	return nil
}

// serve returns when the service has stopped.
func (s settings) serve(stdout io.Writer, logger *slog.Logger) error {
	store := new(botapi.MemoryStore)
	if err := loadBots(store, s.botsFile); err != nil {
		return err
	}
	if s.botsFile != "" {
		defer reloadOnHangup(store, s.botsFile, logger)()
	}
	stop := make(chan os.Signal, 2)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(stop)

	listener, err := net.Listen("tcp", s.address)
	if err != nil {
		return fmt.Errorf("%w; -addr chooses another address", err)
	}
	if err := s.announce(stdout, listener.Addr(), store); err != nil {
		return err
	}
	return serveUntil(stop, newServer(s.routes(store, logger), logger), listener, logger)
}

// routes is where the program's own routes stand beside the handler.
func (s settings) routes(store botapi.BotStore, logger *slog.Logger) http.Handler {
	handler := botapi.New(botapi.Options{
		Bots:   store,
		Keys:   botapi.StaticKeys(map[string]string{s.key: "quickstart"}),
		Engine: eliza.Engine{Pace: s.pace},
		Logger: logger,
		OnChat: logChats(logger),
	})
	own := http.NewServeMux()
	own.HandleFunc("GET /health-check", checkHealth)
	handlePages(own, store)
	return beside(own, handler)
}

// beside serves the program's own routes, and leaves the rest to the handler.
// So a path that nobody has and a method that a route does not have are
// answered in the interface's form, too, with a request id.
func beside(own *http.ServeMux, handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, pattern := own.Handler(r); pattern != "" {
			own.ServeHTTP(w, r)
			return
		}
		get := r.Clone(r.Context())
		get.Method = http.MethodGet
		if _, pattern := own.Handler(get); pattern != "" {
			r = r.Clone(r.Context())
			r.URL.Path = "/v1/bots" // has the same methods as each of these routes: GET and HEAD
		}
		handler.ServeHTTP(w, r)
	})
}

// checkHealth answers what the published Python client asks before anything
// else.
func checkHealth(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"status":"ok"}`) // a client that left needs no answer
}

// logChats writes one line for each chat. Reports hold no text of a chat.
func logChats(logger *slog.Logger) func(context.Context, botapi.ChatReport) {
	return func(ctx context.Context, r botapi.ChatReport) {
		level, outcome := slog.LevelInfo, "whole"
		if r.Err != nil {
			level, outcome = slog.LevelWarn, r.Err.Error()
		}
		logger.LogAttrs(ctx, level, "chat",
			slog.String("request_id", r.RequestID),
			slog.String("account", r.Account),
			slog.String("bot", r.Bot.Slug),
			slog.Bool("stream", r.Stream),
			slog.Int("status", r.Status),
			slog.Int("fragments", r.Fragments),
			slog.Int64("bytes", r.Bytes),
			slog.Duration("first_fragment", r.FirstFragment),
			slog.Duration("duration", r.Duration),
			slog.String("outcome", outcome),
		)
	}
}

// newServer bounds what a client may take time for. A stream may last longer
// than WriteTimeout: the handler lifts it and bounds each write by itself.
func newServer(handler http.Handler, logger *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelWarn),
	}
}

// serveUntil serves until the first signal, and lets running requests finish
// until the second.
func serveUntil(stop <-chan os.Signal, server *http.Server, listener net.Listener, logger *slog.Logger) error {
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return err
	case <-stop:
	}
	logger.Info("stopping when the running requests have ended; a second signal stops at once")

	ended := make(chan error, 1)
	go func() { ended <- server.Shutdown(context.Background()) }()
	select {
	case err := <-ended:
		<-served // it said that the server is closed
		return err
	case <-stop:
		_ = server.Close() // the process ends here in any case
		return errors.New("stopped before the running requests had ended")
	}
}
