package stackcheck

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"iter"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/internal/probe"
)

// livelyKeepAlive is the KeepAlive of the kit's second handler; the first sends none.
const livelyKeepAlive = 50 * time.Millisecond

// A Mounting is a handler as an application mounts it.
type Mounting struct {
	Mount  func(api http.Handler) http.Handler
	Prefix string // of the API's paths, such as /assistants
	Origin string // as in Target
	Log    *Log   // of the application's own loggers; may be nil

	Patience time.Duration // as in Target
}

// Inspect runs the checks around a handler of its own, on HTTP/1.1, HTTP/2 and h2c. report, if
// not nil, gets each result.
func Inspect(ctx context.Context, m Mounting, report func(Result)) ([]Result, error) {
	k := newKit(m.Log)
	mounted := m.Mount(k)
	if mounted == nil {
		return nil, errors.New("mount returned nil")
	}
	stacks, closeServers, err := k.serve(mounted, m)
	if err != nil {
		return nil, err
	}
	defer closeServers()
	return runChecks(ctx, stacks, report), ctx.Err()
}

// A kit has a handler for a mount, and sees what it gets.
type kit struct {
	secret, key, livelyKey string
	lateKey                string // of a request whose response is written after its deadline
	quiet, lively          http.Handler
	log                    *Log
	addresses              map[string]bool // of the kit's servers

	mu     sync.Mutex
	visits []visit
	seen   int // visits, also those forgotten
	ended  aborts
}

// A visit is a request that has reached the API.
type visit struct {
	path   string
	limit  time.Duration // until the deadline of its context; 0: none
	writer writerChain
	server string // the address where the request came in; "" if that is no server of net/http
}

// isAt reports whether the API was asked for a path, or for it without the prefix /v1, which is the same.
func (v visit) isAt(path string) bool {
	return v.path == path || v.path == strings.TrimPrefix(path, "/v1")
}

// aborts counts panics with http.ErrAbortHandler: those of the API, and those that have left
// the application's handler.
type aborts struct{ begun, left int }

const kitBot = "probe"

func newKit(l *Log) *kit {
	if l == nil {
		l = new(Log)
	}
	k := &kit{secret: rand.Text(), key: "botapitest-" + rand.Text(), livelyKey: "botapitest-" + rand.Text(), log: l, addresses: make(map[string]bool)}
	k.lateKey = "botapitest-" + rand.Text()
	l.watch(k.keys()...)
	bots, err := botapi.NewMemoryStore(botapi.Bot{UID: "1", Slug: kitBot, Name: "Probe", Model: "none"})
	if err != nil {
		panic(err) // the bot is valid
	}
	none := botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) { yield("no probe", nil) }
	})
	o := botapi.Options{
		Bots:      bots,
		Keys:      botapi.StaticKeys(map[string]string{k.key: "botapitest", k.livelyKey: "botapitest"}),
		Engine:    probe.NewEngine(none, k.secret),
		KeepAlive: -1, // so that a disconnect is not noticed by a write
		Logger:    slog.New(slog.DiscardHandler),
	}
	k.quiet = botapi.New(o)
	o.KeepAlive = livelyKeepAlive
	k.lively = botapi.New(o)
	return k
}

func (k *kit) keys() []string { return []string{k.key, k.livelyKey, k.lateKey} }

// ServeHTTP is the API that is mounted.
func (k *kit) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	v := visit{path: r.URL.Path, writer: chainOf(w)}
	if address, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		v.server = address.String()
	}
	if deadline, has := r.Context().Deadline(); has {
		v.limit = max(time.Until(deadline), time.Nanosecond)
	}
	k.mu.Lock()
	k.visits, k.seen = append(k.visits, v), k.seen+1
	if len(k.visits) > 256 {
		k.visits = k.visits[128:]
	}
	k.mu.Unlock()
	defer k.count(func(a *aborts) { a.begun++ })
	switch botapi.BearerKey(r.Header) {
	case k.lateKey:
		writeLate(w)
	case k.livelyKey:
		k.lively.ServeHTTP(w, r)
	default:
		k.quiet.ServeHTTP(w, r)
	}
}

// count is deferred: it counts a panic with http.ErrAbortHandler, and passes each panic on.
func (k *kit) count(add func(*aborts)) {
	v := recover()
	if v == nil {
		return
	}
	if v == http.ErrAbortHandler {
		k.mu.Lock()
		add(&k.ended)
		k.mu.Unlock()
	}
	panic(v)
}

// outermost serves what the application has mounted.
func (k *kit) outermost(mounted http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer k.count(func(a *aborts) { a.left++ })
		mounted.ServeHTTP(w, r)
	})
}

// mark is for since. Both do nothing without a kit.
func (k *kit) mark() int {
	if k == nil {
		return 0
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.seen
}

// since returns the visits after a mark.
func (k *kit) since(mark int) []visit {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	n := min(k.seen-mark, len(k.visits))
	return append([]visit(nil), k.visits[len(k.visits)-n:]...)
}

// isDirect reports whether the last request has reached the API in the server that the kit has
// sent it to, so that there is middleware between and no proxy.
func (k *kit) isDirect() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.visits) > 0 && k.addresses[k.visits[len(k.visits)-1].server]
}

// lastWriter is that of the last request that has reached the API.
func (k *kit) lastWriter() writerChain {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.visits) == 0 {
		return writerChain{}
	}
	return k.visits[len(k.visits)-1].writer
}

func (k *kit) aborts() aborts {
	if k == nil {
		return aborts{}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ended
}

// lively is the stack whose silent streams have keep-alives soon.
func (s *stack) lively() *stack {
	if s.kit == nil {
		return s
	}
	other := *s
	other.Key = s.kit.livelyKey
	return &other
}

// serve serves the mounted handler with each version of HTTP, and the API itself for orders.
func (k *kit) serve(mounted http.Handler, m Mounting) (stacks []*stack, closeAll func(), err error) {
	var closers []func()
	closeAll = func() {
		for _, c := range closers {
			c()
		}
	}
	plain, err := k.listen(k.outermost(mounted))
	if err != nil {
		return nil, nil, err
	}
	closers = append(closers, plain.close)
	direct, err := k.listen(k.quiet)
	if err != nil {
		closeAll()
		return nil, nil, err
	}
	closers = append(closers, direct.close)
	secure := httptest.NewUnstartedServer(k.outermost(mounted))
	secure.EnableHTTP2, secure.Config.ErrorLog = true, k.errorLog()
	secure.StartTLS()
	k.mu.Lock()
	k.addresses[strings.TrimPrefix(plain.url, "http://")], k.addresses[secure.Listener.Addr().String()] = true, true
	k.mu.Unlock()
	closers = append(closers, func() { secure.CloseClientConnections(); secure.Close() })

	target := Target{URL: direct.url, Key: k.key, Secret: k.secret, Origin: m.Origin, Patience: m.Patience, Transport: func() *http.Transport { return new(http.Transport) }}
	control := newStack(target)
	control.bot = kitBot
	for _, v := range []struct {
		name, url string
		set       func(*http.Protocols, bool)
	}{
		{"HTTP/1.1", plain.url, (*http.Protocols).SetHTTP1},
		{"HTTP/2", secure.URL, (*http.Protocols).SetHTTP2},
		{"h2c", plain.url, (*http.Protocols).SetUnencryptedHTTP2},
	} {
		t := target
		t.URL = v.url + m.Prefix
		if v.url == secure.URL {
			t.Transport = secure.Client().Transport.(*http.Transport).Clone
		}
		s := newStack(t.speaking(v.set))
		s.protocol, s.bot, s.control, s.kit = v.name, kitBot, control, k
		stacks, closers = append(stacks, s), append([]func(){s.close}, closers...)
	}
	closers = append([]func(){control.close}, closers...)
	return stacks, closeAll, nil
}

type listening struct {
	url   string
	close func()
}

// listen serves HTTP/1.1 and h2c on a loopback port.
func (k *kit) listen(h http.Handler) (listening, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return listening{}, fmt.Errorf("a server for the checks: %w", err)
	}
	server := &http.Server{Handler: h, ErrorLog: k.errorLog(), ReadHeaderTimeout: time.Minute, Protocols: new(http.Protocols)}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	go func() { _ = server.Serve(listener) }()
	return listening{"http://" + listener.Addr().String(), func() { _ = server.Close() }}, nil
}

func (k *kit) errorLog() *log.Logger { return log.New(k.log, "", 0) }

// A Log is a writer that finds keys in what is logged. The zero value is ready for use.
type Log struct {
	mu   sync.Mutex
	keys []string
	line string // the first with a key
}

func (l *Log) watch(keys ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keys, l.line = keys, ""
}

func (l *Log) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, key := range l.keys {
		if l.line == "" && bytes.Contains(text, []byte(key)) {
			l.line = strings.ReplaceAll(string(text), key, "KEY")
		}
	}
	return len(text), nil
}

// first returns the first line that had one of the keys.
func (l *Log) first() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.line
}

// Capture has the default loggers of log and log/slog write to l, too, until restore is called.
func (l *Log) Capture() (restore func()) {
	logger, writer, flags := slog.Default(), log.Writer(), log.Flags()
	own := fmt.Sprintf("%T", logger.Handler()) == "*slog.defaultHandler" // it writes to log's, and wrapped it would do so for ever
	if !own {
		level := slog.LevelInfo
		if logger.Enabled(context.Background(), slog.LevelDebug) {
			level = slog.LevelDebug
		}
		slog.SetDefault(slog.New(slog.NewMultiHandler(logger.Handler(), slog.NewTextHandler(l, &slog.HandlerOptions{Level: level}))))
	}
	log.SetOutput(io.MultiWriter(l, writer))
	log.SetFlags(flags)
	return func() {
		if !own {
			slog.SetDefault(logger)
		}
		log.SetOutput(writer)
		log.SetFlags(flags)
	}
}
