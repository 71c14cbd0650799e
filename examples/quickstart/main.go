// Command quickstart serves three small bots to the clients of every protocol. It needs no
// model, database or network: run it, and paste what it prints.
//
// It also shows what an application sets up around the handler: its own routes,
// server timeouts, logs, keys, limits, counters, answers that outlive their
// connections, and a shutdown that lets running answers finish.
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
	"slices"
	"strings"
	"time"
	"unicode"

	"example.com/botapi"
	"example.com/botapi/examples/aisdk"
	"example.com/botapi/examples/graceful"
	"example.com/botapi/examples/ollama"
	"example.com/botapi/examples/openai"
	"example.com/botapi/examples/quickstart/guide"
	"example.com/botapi/examples/quickstart/page"
	"example.com/botapi/examples/resume"
)

// patience is how long running answers may go on after a signal.
const patience = 20 * time.Second

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
	metrics  bool          // serve them
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
	flags.BoolVar(&s.metrics, "metrics", false, "serve counts of requests and tokens at /metrics, for Prometheus, without a key")
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
	handler, answers := s.service(store, logger)
	ctx := graceful.UntilSignal()
	context.AfterFunc(ctx, func() {
		logger.Info("stopping when the running requests have ended; a second signal stops immediately", "patience", patience)
	})
	err = graceful.ServeOn(ctx, newServer(handler, logger), listener, patience)
	return errors.Join(err, answers.Close(ctx)) // they are in memory: nobody can come back for them any more
}

// service mounts the handler, with the protocols that it serves, beside the program's own
// routes and the pages.
func (s settings) service(bots *botapi.MemoryStore, logger *slog.Logger) (http.Handler, *aisdk.Answers) {
	counts := &metrics{counts: make(map[string]int64)}
	answers := aisdk.NewAnswers(resume.Options{Engine: s.engines(), OnAnswer: counts.answer, Logger: logger})
	protocols := slices.Concat(
		openai.Routes(openai.Options{Bots: bots}),                                 // /v1/chat/completions, /v1/responses, /v1/models
		aisdk.Routes(aisdk.Options{Answers: answers, FinishReason: finishReason}), // /api/chat, of useChat
		ollama.Routes(ollama.Options{Bots: bots, Prefix: "/ollama"}),              // /ollama/api/chat and so on
		answers.Routes(), // DELETE /v1/answers
	)
	api := withTokens(withDocuments(botapi.New(botapi.Options{
		Bots:               bots,
		Keys:               botapi.StaticKeys(map[string]string{s.key: "quickstart"}),
		Engine:             answers,
		MaxConcurrentChats: 100, // as many as your models can take
		MaxChatsPerAccount: 50,
		Routes:             protocols,
		NotFound:           openai.NotFound(protocols),
		OnLimit:            answers.OnLimit,
		Logger:             logger,
		OnChat:             logChats(logger),
		OnRequest:          counts.request,
	})))
	mux := http.NewServeMux()
	for _, path := range []string{"/v1/", "/bots", "/chat", "/answers", "/api/", "/ollama", "/ollama/"} {
		mux.Handle(path, api)
	}
	mux.HandleFunc("GET /health-check", checkHealth)
	if s.metrics {
		mux.Handle("GET /metrics", counts)
	}
	mux.Handle("GET /llms.txt", serveLLMs())
	mux.Handle("/", page.Handler(page.Options{
		Bots:      bots,
		Questions: questions,
		Resume:    true,
		Documents: guide.Documents(),
		WireURL:   "docs/wire.md",
		KeyHint:   "The quickstart printed it, and a link that contains it, in the terminal where you started it.",
	}))
	return mux, answers
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
