package runtimes

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	"example.com/botapi/examples/openai"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/propagation"
)

// Endpoint is one address of a runtime.
type Endpoint struct {
	Runtime string // the name that bots use; endpoints may share it
	URL     string // of the API, as in http://127.0.0.1:8000/v1
	Key     string // empty for a runtime that needs none
	// CountAlong means that the runtime reports tokens while it answers: see
	// openai.CountAlong.
	CountAlong bool
}

// UnmarshalText reads NAME=URL.
func (e *Endpoint) UnmarshalText(text []byte) error {
	name, address, ok := strings.Cut(string(text), "=")
	if !ok || name == "" {
		return fmt.Errorf("%q is not NAME=URL", text)
	}
	e.Runtime, e.URL = name, address
	return e.validate()
}

func (e Endpoint) validate() error {
	_, err := e.newEngine(http.DefaultClient)
	return err
}

func (e Endpoint) newEngine(client *http.Client) (*openai.Engine, error) {
	config := openai.Config{BaseURL: e.URL, Key: e.Key, HTTPClient: client}
	if e.CountAlong {
		config.Count = openai.CountAlong
	}
	engine, err := openai.NewEngine(config)
	if err != nil {
		return nil, fmt.Errorf("runtime %q: %w", e.Runtime, err)
	}
	return engine, nil
}

// maxAttempts is the most endpoints that one chat asks.
const maxAttempts = 3

// newClient returns a client that propagates traces to the runtimes.
func newClient(o Options) *http.Client {
	return &http.Client{Transport: otelhttp.NewTransport(o.Transport,
		// Only the trace: a client's baggage must not reach the runtime.
		otelhttp.WithPropagators(propagation.TraceContext{}),
		otelhttp.WithTracerProvider(o.TracerProvider),
		otelhttp.WithMeterProvider(o.MeterProvider))}
}

// An endpoint is an Endpoint with its engine and its health.
type endpoint struct {
	Endpoint
	health
	engine *openai.Engine
	probes http.RoundTripper
	host   string
	port   int
}

// A runtime is all endpoints with one name.
type runtime struct {
	endpoints []*endpoint
	turn      atomic.Uint64
}

// add adds an endpoint with its own engine.
func (r *runtime) add(e Endpoint, client *http.Client, probes http.RoundTripper) error {
	engine, err := e.newEngine(client)
	if err != nil {
		return err
	}
	host, port := address(e.URL)
	r.endpoints = append(r.endpoints, &endpoint{Endpoint: e, engine: engine, probes: probes, host: host, port: port})
	return nil
}

// order returns the endpoints in the order in which one chat tries them. Chats
// begin with each endpoint in turn; those that failed lately come last. An
// endpoint whose pause is over comes first, for this chat only, which finds out
// whether it has recovered. A runtime with one endpoint has it twice, in case
// the connection is lost.
func (r *runtime) order() (order []*endpoint, onTrial *endpoint) {
	if len(r.endpoints) == 1 {
		return []*endpoint{r.endpoints[0], r.endpoints[0]}, nil
	}
	first := int((r.turn.Add(1) - 1) % uint64(len(r.endpoints)))
	var failing []*endpoint
	for _, e := range slices.Concat(r.endpoints[first:], r.endpoints[:first]) {
		switch {
		case e.healthy():
			order = append(order, e)
		case onTrial == nil && e.claim():
			onTrial = e
		default:
			failing = append(failing, e)
		}
	}
	if onTrial != nil {
		order = slices.Insert(order, 0, onTrial)
	}
	order = append(order, failing...)
	return order[:min(len(order), maxAttempts)], onTrial
}
