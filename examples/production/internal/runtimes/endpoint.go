package runtimes

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/propagation"
)

// Endpoint is one address of a runtime.
type Endpoint struct {
	Runtime string // the name that bots use; endpoints may share it
	URL     string // of the API, as in http://127.0.0.1:8000/v1
	Key     string // empty for a runtime that asks for none
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

func (e *Endpoint) validate() error {
	u, err := url.Parse(e.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("runtime %q: %q is not an http or https URL", e.Runtime, e.URL)
	}
	if u.User != nil {
		return fmt.Errorf("runtime %q: the URL has a user in it; it would be logged", e.Runtime)
	}
	return nil
}

const (
	// maxAttempts is how many endpoints one chat asks at most.
	maxAttempts = 3

	dialTimeout = 3 * time.Second
	// idleTimeout is below the 5 seconds after which uvicorn, which vLLM and
	// SGLang run on, closes idle connections: a chat sent into a connection
	// that is being closed fails for nothing.
	idleTimeout = 4 * time.Second
)

// NewTransport returns a transport for runtimes: it gives up on dead hosts
// soon, and does not limit how many streams one host has.
func NewTransport() *http.Transport {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = (&net.Dialer{Timeout: dialTimeout}).DialContext
	transport.IdleConnTimeout = idleTimeout
	transport.MaxIdleConns = 0
	transport.MaxIdleConnsPerHost = 256
	return transport
}

// newClient returns a client that hands traces on to the runtimes and follows
// no redirects: they would turn a POST into a GET.
func newClient(o Options) *http.Client {
	return &http.Client{
		Transport: otelhttp.NewTransport(o.Transport,
			// The trace and nothing else: a client's baggage is no business
			// of the runtime's.
			otelhttp.WithPropagators(propagation.TraceContext{}),
			otelhttp.WithTracerProvider(o.TracerProvider),
			otelhttp.WithMeterProvider(o.MeterProvider)),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// An endpoint is an Endpoint with its client and what is known of its health.
type endpoint struct {
	Endpoint
	health
	chats  openai.ChatCompletionService
	probes http.RoundTripper
	host   string
	port   int
}

// A runtime is the endpoints that share a name.
type runtime struct {
	endpoints []*endpoint
	turn      atomic.Uint64
}

// add makes a client of its own for the endpoint. The service is made directly
// and not through openai.NewClient, which would send the key in OPENAI_API_KEY
// to any runtime that has none.
func (r *runtime) add(e Endpoint, client *http.Client, probes http.RoundTripper) {
	options := []option.RequestOption{
		option.WithBaseURL(e.URL),
		option.WithHTTPClient(client),
		option.WithMaxRetries(0), // trying again is the engine's
	}
	if e.Key != "" {
		options = append(options, option.WithAPIKey(e.Key))
	}
	host, port := address(e.URL)
	r.endpoints = append(r.endpoints, &endpoint{
		Endpoint: e,
		chats:    openai.NewChatCompletionService(options...),
		probes:   probes,
		host:     host,
		port:     port,
	})
}

// order returns the endpoints in the order in which one chat tries them: each
// chat begins with another one, and those that failed lately come last. One
// that had its rest comes first, for this chat alone: it finds out whether that
// endpoint is well again. A runtime with one endpoint has it twice, for a
// connection that breaks off.
func (r *runtime) order() (order []*endpoint, onTrial *endpoint) {
	if len(r.endpoints) == 1 {
		return []*endpoint{r.endpoints[0], r.endpoints[0]}, nil
	}
	first := int((r.turn.Add(1) - 1) % uint64(len(r.endpoints)))
	var failing []*endpoint
	for _, e := range slices.Concat(r.endpoints[first:], r.endpoints[:first]) {
		switch {
		case e.well():
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
