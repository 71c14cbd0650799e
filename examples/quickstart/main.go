// Command quickstart serves three small bots over the bot API. It needs no
// model, database or network: run it, and paste the commands that it prints.
//
// It also shows what an application sets up around the handler: its own routes,
// server timeouts, logs, keys, answers that outlive their connections, and a
// shutdown that lets running answers finish.
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
	"example.com/botapi/examples/quickstart/page"
	"example.com/botapi/examples/resume"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run returns the exit code: 1 if the service failed, 2 if a flag is wrong.
func run(args []string, stdout, stderr io.Writer) int {
	s, err := parseSettings(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	if err := s.serve(stdout, stderr); err != nil {
		fmt.Fprintln(stderr, "quickstart:", err)
		return 1
	}
	return 0
}

// settings come from the command line and the environment.
type settings struct {
	address  string
	key      string
	botsFile string // empty: the built-in bots
	pace     time.Duration
	runtime  *modelRuntime // nil: no real model
}

// parseSettings prints an error to stderr before it returns it.
func parseSettings(args []string, stderr io.Writer) (settings, error) {
	var s settings
	var runtime, model string
	flags := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&s.address, "addr", "127.0.0.1:8080", "`address` to listen on; port 0 picks a free port")
	flags.StringVar(&s.key, "key", "", "the API `key`; the default is $BOTAPI_KEY or, if that is empty, a random key, which is printed")
	flags.StringVar(&s.botsFile, "bots", "", "JSON `file` of bots to serve, read again on SIGHUP (default three built-in bots)")
	flags.StringVar(&runtime, "runtime", "", "base `URL` of a model runtime with an OpenAI-compatible API; $BOTAPI_RUNTIME_KEY is its key, if it needs one")
	flags.StringVar(&model, "model", "", "`name` of the model at the runtime")
	flags.DurationVar(&s.pace, "pace", 75*time.Millisecond, "wait between two words of a stream")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	s.key = cmp.Or(s.key, os.Getenv("BOTAPI_KEY"), rand.Text())
	err := s.check(flags.Args())
	if err == nil {
		s.runtime, err = newRuntime(runtime, model)
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		flags.Usage()
	}
	return s, err
}

// check does not put a rejected key into its error: standard error is often
// kept in a log.
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
func (s settings) serve(stdout, stderr io.Writer) error {
	logger := slog.New(slog.NewTextHandler(stderr, nil))
	if s.runtime != nil {
		s.runtime.problem = s.runtime.probe(context.Background())
	}
	store := new(botapi.MemoryStore)
	if err := s.loadBots(store); err != nil {
		return err
	}
	if s.botsFile != "" {
		defer s.reloadOnHangup(store, logger)()
	}
	stop := make(chan os.Signal, 2)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(stop)

	listener, err := net.Listen("tcp", s.address)
	if err != nil {
		return fmt.Errorf("%w; -addr chooses another address", err)
	}
	if s.runtime != nil && s.runtime.problem != nil {
		fmt.Fprintln(stderr, "quickstart:", s.runtime.problem) // the runtime may be started later
	}
	if err := s.announce(stdout, listener.Addr(), store); err != nil {
		return err
	}
	answers := resume.New(resume.Options{Engine: s.engines(), Logger: logger})
	defer stopAll(answers, logger)
	return serveUntil(stop, newServer(s.routes(store, answers, logger), logger), listener, logger)
}

// stopAll stops the answers that continue without a reader. They are kept in
// memory, and the server has been shut down: nobody can come back for them.
func stopAll(answers *resume.Engine, logger *slog.Logger) {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	if err := answers.Close(now); err != nil {
		logger.Warn(err.Error())
	}
}

// routes mounts the handler beside the program's own routes and the pages.
func (s settings) routes(store botapi.BotStore, answers *resume.Engine, logger *slog.Logger) http.Handler {
	keys := botapi.StaticKeys(map[string]string{s.key: "quickstart"})
	api := answers.Handler(botapi.New(botapi.Options{
		Bots:   store,
		Keys:   keys,
		Engine: answers,
		Logger: logger,
		OnChat: logChats(logger),
	}), keys)
	api = withDocuments(api)
	mux := http.NewServeMux()
	mux.Handle("/v1/", api)
	mux.Handle("/bots", api)
	mux.Handle("/chat", api)
	mux.Handle("/answers", api)
	mux.HandleFunc("GET /health-check", checkHealth)
	mountDocuments(mux)
	mux.Handle("/", page.Handler(page.Options{
		Bots:      store,
		Questions: questions,
		Resume:    true,
		KeyHint:   "The quickstart printed it, and a link that contains it, in the terminal where you started it.",
	}))
	return mux
}

// checkHealth serves the health check that the published Python client sends
// first.
func checkHealth(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"status":"ok"}`) // fails only if the client has disconnected
}

// logChats writes one line for each chat. A report contains no text of the chat.
func logChats(logger *slog.Logger) func(context.Context, botapi.ChatReport) {
	return func(ctx context.Context, r botapi.ChatReport) {
		level, outcome := slog.LevelInfo, "complete"
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

// newServer sets the timeouts of the server. A stream may last longer than
// WriteTimeout: the handler replaces it with a timeout for each write.
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
	logger.Info("stopping when the running requests have ended; a second signal stops immediately")

	ended := make(chan error, 1)
	go func() { ended <- server.Shutdown(context.Background()) }()
	select {
	case err := <-ended:
		<-served // http.ErrServerClosed
		return err
	case <-stop:
		_ = server.Close() // the process ends here in any case
		return errors.New("stopped before the running requests had ended")
	}
}
