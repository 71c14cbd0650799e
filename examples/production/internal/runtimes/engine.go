// Package runtimes answers chats with model runtimes that have an
// OpenAI-compatible API: vLLM, SGLang, the llama.cpp server, Ollama and hosted
// services.
package runtimes

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"log/slog"
	"net/http"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/openai"
	"example.com/botapi/examples/production/internal/postgres"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// DefaultAttempt is how long a chat waits for an endpoint that sends nothing to
// any chat, if there are others of its name.
const DefaultAttempt = 20 * time.Second

// Options is what an Engine is made of. Endpoints and Settings are required.
type Options struct {
	// Endpoints are the runtimes. Those with one name serve the same models:
	// chats go to each in turn, and to another when one is down; see Watch. A
	// bot that names no runtime uses the name of the first endpoint.
	Endpoints []Endpoint
	// Settings returns how the bot with a uid answers. Its runtime is empty or that of
	// an endpoint. An error ends the chat.
	Settings func(ctx context.Context, uid string) (postgres.Settings, error)

	Attempt time.Duration // 0 means DefaultAttempt

	Transport      http.RoundTripper    // nil means openai.NewTransport()
	TracerProvider trace.TracerProvider // nil means the global one
	MeterProvider  metric.MeterProvider // nil means the global one
	Logger         *slog.Logger         // nil means slog.Default()
}

// Engine is a botapi.ChatEngine with an openai.Engine for each endpoint, which
// defines the request to a runtime and how its response is read.
// botapi.Options.StallTimeout bounds how long a runtime may be silent; an
// endpoint that exceeds it counts as failed.
type Engine struct {
	runtimes    map[string]*runtime
	standard    string // the runtime of bots that name none
	settings    func(ctx context.Context, uid string) (postgres.Settings, error)
	attempt     time.Duration
	instruments *instruments
	logger      *slog.Logger
}

var _ botapi.ChatEngine = (*Engine)(nil)

// New returns an engine, or an error that names the wrong option.
func New(o Options) (*Engine, error) {
	if len(o.Endpoints) == 0 {
		return nil, errors.New("no runtime is configured")
	}
	if o.Settings == nil {
		return nil, errors.New("the option Settings is required")
	}
	if o.Transport == nil {
		o.Transport = openai.NewTransport()
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
		runtimes:    make(map[string]*runtime),
		standard:    o.Endpoints[0].Runtime,
		settings:    o.Settings,
		attempt:     cmp.Or(o.Attempt, DefaultAttempt),
		instruments: instruments,
		logger:      o.Logger,
	}
	if e.logger == nil {
		e.logger = slog.Default()
	}
	client := newClient(o)
	for _, endpoint := range o.Endpoints {
		if e.runtimes[endpoint.Runtime] == nil {
			e.runtimes[endpoint.Runtime] = new(runtime)
		}
		if err := e.runtimes[endpoint.Runtime].add(endpoint, client, o.Transport); err != nil {
			return nil, err
		}
	}
	if err := e.measureHealth(o.MeterProvider.Meter(scope)); err != nil {
		return nil, err
	}
	return e, nil
}

// Chat answers with the bot's model, and passes each piece of text on as it
// arrives.
//
// It yields botapi's errors: an HTTPValidationError for invalid fields in Extra, for
// those that the model does not accept, and for a conversation that is too long for
// it, a StatusError for all failures upstream.
func (e *Engine) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		ctx, observed := e.instruments.begin(ctx, req.Bot.Model)
		err := e.answer(ctx, req, observed, yield)
		observed.end(ctx, err)
		if err != nil && !errors.Is(err, errChatEnded) {
			yield("", err)
		}
	}
}

// errChatEnded ends an answer after yield has returned false.
var errChatEnded = errors.New("the chat has ended")

func (e *Engine) answer(ctx context.Context, req *botapi.ChatRequest, observed *observation, yield func(string, error) bool) error {
	if err := checkExtra(req.Extra); err != nil { // before Settings, after which the model counts as asked
		return err
	}
	settings, err := e.settings(ctx, req.Bot.UID)
	if err != nil {
		return err
	}
	name := cmp.Or(settings.Runtime, e.standard)
	upstream := upstreamRequest(req, settings)
	observed.asks(upstream)
	return forClient(e.speak(ctx, e.runtimes[name], upstream, observed, yield), req.Extra)
}

// speak asks the endpoints of a runtime one after another until one of them has
// begun to answer. After that it tries no other: text that was sent cannot be
// taken back.
func (e *Engine) speak(ctx context.Context, r *runtime, req *botapi.ChatRequest, observed *observation, yield func(string, error) bool) error {
	var last *failure
	order, onTrial := r.order()
	for i, endpoint := range order {
		if last != nil && last.endpoint == endpoint && !last.connectionLost {
			break // the only endpoint, and it would only fail again
		}
		answer := &answer{
			endpoint: endpoint, others: order[i+1:], tries: endpoint == onTrial, attempt: e.attempt,
			observed: observed, yield: yield,
		}
		failed, err := e.try(ctx, answer, req)
		if failed == nil {
			return err
		}
		if last = failed; !last.elsewhere {
			break
		}
	}
	return last.err
}

// try asks one endpoint. A failure means that the endpoint failed; without one,
// nothing else is tried.
func (e *Engine) try(ctx context.Context, a *answer, req *botapi.ChatRequest) (*failure, error) {
	defer a.begin(ctx)()
	err := a.run(req)
	if err == nil || errors.Is(err, errChatEnded) {
		return nil, err
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, botapi.ErrEngineStalled) {
		return nil, cause
	}
	failed := a.failed(err)
	e.logger.WarnContext(ctx, "a model runtime failed",
		slog.String("endpoint", a.endpoint.URL), slog.Bool("begun", a.begun), slog.Any("error", failed.cause))
	return failed, nil
}
