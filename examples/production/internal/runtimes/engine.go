// Package runtimes answers chats with model runtimes that speak the OpenAI
// chat completions protocol: vLLM, SGLang, the llama.cpp server, Ollama and
// hosted services.
package runtimes

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/production/internal/postgres"
	"github.com/openai/openai-go/v3"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

const (
	// DefaultFirstFragment is how long a chat waits for its first text, over
	// all endpoints that are tried. A model that thinks before it speaks counts
	// as silent.
	DefaultFirstFragment = time.Minute
	// DefaultStall is how long a runtime may be silent between two chunks.
	DefaultStall = time.Minute
)

// Settings knows how a bot answers; botapi.ErrBotNotFound is a bot that has
// been unpublished since the chat was admitted.
type Settings interface {
	Settings(ctx context.Context, uid string) (postgres.Settings, error)
}

// Options is what an Engine is made of. Endpoints and Settings are required.
type Options struct {
	// Endpoints are the runtimes. Those with one name serve the same models:
	// chats go to each in turn, and to another when one is down. A bot without
	// a runtime of its own uses the name of the first endpoint.
	Endpoints []Endpoint
	Settings  Settings

	FirstFragment time.Duration // 0 means DefaultFirstFragment
	Stall         time.Duration // 0 means DefaultStall

	Transport      http.RoundTripper             // nil means NewTransport()
	Propagator     propagation.TextMapPropagator // hands traces on to runtimes; nil means the global one
	TracerProvider trace.TracerProvider          // nil means the global one
	MeterProvider  metric.MeterProvider          // nil means the global one
	Logger         *slog.Logger                  // nil means slog.Default()
}

// Engine is a botapi.ChatEngine. Its upstream request is always a stream, also
// for a client that wants one body: that is how a client that leaves stops the
// model at once. The upstream request ends with the chat's context.
type Engine struct {
	runtimes      map[string]*runtime
	standard      string // the runtime of bots that name none
	settings      Settings
	firstFragment time.Duration
	stall         time.Duration
	instruments   *instruments
	logger        *slog.Logger
}

var _ botapi.ChatEngine = (*Engine)(nil)

// New returns an engine, or says which option is wrong.
func New(o Options) (*Engine, error) {
	if len(o.Endpoints) == 0 {
		return nil, errors.New("no runtime is configured")
	}
	if o.Settings == nil {
		return nil, errors.New("nobody knows the bots' settings")
	}
	if o.Propagator == nil {
		o.Propagator = otel.GetTextMapPropagator()
	}
	if o.TracerProvider == nil {
		o.TracerProvider = otel.GetTracerProvider()
	}
	if o.MeterProvider == nil {
		o.MeterProvider = otel.GetMeterProvider()
	}
	instruments, err := newInstruments(o.TracerProvider, o.MeterProvider)
	if err != nil {
		return nil, err
	}
	e := &Engine{
		runtimes:      make(map[string]*runtime),
		standard:      o.Endpoints[0].Runtime,
		settings:      o.Settings,
		firstFragment: orDefault(o.FirstFragment, DefaultFirstFragment),
		stall:         orDefault(o.Stall, DefaultStall),
		instruments:   instruments,
		logger:        o.Logger,
	}
	if e.logger == nil {
		e.logger = slog.Default()
	}
	client := newClient(o)
	for _, endpoint := range o.Endpoints {
		if err := endpoint.validate(); err != nil {
			return nil, err
		}
		if e.runtimes[endpoint.Runtime] == nil {
			e.runtimes[endpoint.Runtime] = new(runtime)
		}
		e.runtimes[endpoint.Runtime].add(endpoint, client)
	}
	return e, nil
}

func orDefault(d, whenZero time.Duration) time.Duration {
	if d == 0 {
		return whenZero
	}
	return d
}

// Chat answers with the bot's model, passing each piece of text on as it comes.
//
// The errors it yields are botapi's: an HTTPValidationError for members of
// Extra that make no sense and for a conversation that the model cannot hold,
// a StatusError for everything that is wrong upstream.
func (e *Engine) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		ctx, observed := e.instruments.begin(ctx, req.Bot.Model)
		err := e.answer(ctx, req, observed, func(text string) bool { return yield(text, nil) })
		observed.end(ctx, err)
		if err != nil && !errors.Is(err, errUnwanted) {
			yield("", err)
		}
	}
}

// errUnwanted ends an answer that nobody wants any more: yield has said so.
var errUnwanted = errors.New("the client is gone")

func (e *Engine) answer(ctx context.Context, req *botapi.ChatRequest, observed *observation, yield func(string) bool) error {
	settings, err := e.settings.Settings(ctx, req.Bot.UID)
	if errors.Is(err, botapi.ErrBotNotFound) {
		return &botapi.StatusError{Status: http.StatusNotFound, Detail: "Bot not found", Err: err}
	}
	if err != nil {
		return err
	}
	name := settings.Runtime
	if name == "" {
		name = e.standard
	}
	runtime, ok := e.runtimes[name]
	if !ok {
		return fmt.Errorf("bot %q: no runtime is configured as %q", req.Bot.Slug, name)
	}
	params, err := completionParams(req, settings)
	if err != nil {
		return err
	}
	observed.asks(params)
	return e.speak(ctx, runtime, params, observed, yield)
}

// speak asks the endpoints of a runtime one after another until one of them
// has begun to answer. From then on there is no other try: half an answer
// cannot be taken back.
func (e *Engine) speak(ctx context.Context, r *runtime, params openai.ChatCompletionNewParams, observed *observation, yield func(string) bool) error {
	patience := newPatience(ctx, e.firstFragment, e.stall)
	defer patience.end()
	var last *failure
	for _, endpoint := range r.order() {
		if last != nil && last.endpoint == endpoint && !last.brokeOff {
			break // the only endpoint, and it would only say the same again
		}
		answer := answer{endpoint: endpoint, patience: patience, observed: observed, yield: yield}
		err := answer.run(params, botapi.RequestIDFrom(ctx))
		if err == nil || errors.Is(err, errUnwanted) {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		last = answer.failed(err)
		e.logger.WarnContext(ctx, "a model runtime failed",
			slog.String("endpoint", endpoint.URL), slog.Bool("begun", answer.begun), slog.Any("error", last.cause))
		if !last.elsewhere {
			break
		}
	}
	return last.err
}
