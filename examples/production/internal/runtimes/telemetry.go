package runtimes

import (
	"context"
	"errors"
	"net/url"
	"strconv"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/openai"
	"example.com/botapi/examples/resume"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/semconv/v1.41.0/genaiconv"
	"go.opentelemetry.io/otel/trace"
)

const scope = "example.com/botapi/examples/production/internal/runtimes"

// The buckets that the GenAI semantic conventions recommend, extended to the
// longest chat.
var (
	durationBuckets   = []float64{0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84, 327.68, 655.36}
	firstChunkBuckets = []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 320, 640}
	tokenBuckets      = []float64{1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864}
)

// instruments measure chats under the names of the GenAI semantic conventions,
// which have no name for the chats in progress; that one is our own.
type instruments struct {
	tracer     trace.Tracer
	inProgress metric.Int64UpDownCounter
	duration   genaiconv.ClientOperationDuration
	firstChunk genaiconv.ClientOperationTimeToFirstChunk
	tokens     genaiconv.ClientTokenUsage
}

func newInstruments(traces trace.TracerProvider, metrics metric.MeterProvider) (*instruments, error) {
	meter := metrics.Meter(scope, metric.WithSchemaURL(semconv.SchemaURL))
	i := &instruments{tracer: traces.Tracer(scope, trace.WithSchemaURL(semconv.SchemaURL))}
	var errs [4]error
	i.inProgress, errs[0] = meter.Int64UpDownCounter("botapi.chats.in_progress",
		metric.WithDescription("Chats in progress."), metric.WithUnit("{chat}"))
	i.duration, errs[1] = genaiconv.NewClientOperationDuration(meter, metric.WithExplicitBucketBoundaries(durationBuckets...))
	i.firstChunk, errs[2] = genaiconv.NewClientOperationTimeToFirstChunk(meter, metric.WithExplicitBucketBoundaries(firstChunkBuckets...))
	i.tokens, errs[3] = genaiconv.NewClientTokenUsage(meter, metric.WithExplicitBucketBoundaries(tokenBuckets...))
	return i, errors.Join(errs[:]...)
}

// An observation collects the telemetry of one chat. It never holds any text of
// it.
type observation struct {
	*instruments
	span     trace.Span
	start    time.Time
	model    string
	endpoint *endpoint // the last one that was asked; nil before that

	answerID, answeredBy string // the runtime's ids of the answer and its model
	used                 openai.Tokens
	counted              bool // the runtime has reported tokens
}

// begin starts the span of a chat; the context it returns carries it.
func (i *instruments) begin(ctx context.Context, model string) (context.Context, *observation) {
	ctx, span := i.tracer.Start(ctx, "chat "+model, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		semconv.GenAIOperationNameChat,
		semconv.GenAIProviderNameOpenAI, // the name of the protocol, whatever the runtime is
		semconv.GenAIRequestModel(model),
	))
	i.inProgress.Add(ctx, 1)
	return ctx, &observation{instruments: i, span: span, start: time.Now(), model: model}
}

func (o *observation) asks(req *botapi.ChatRequest) {
	if temperature := numberIn(req.Extra, "temperature"); temperature != nil {
		o.span.SetAttributes(semconv.GenAIRequestTemperature(*temperature))
	}
	if tokens := numberIn(req.Extra, "max_tokens"); tokens != nil {
		o.span.SetAttributes(semconv.GenAIRequestMaxTokens(int(*tokens)))
	}
}

func (o *observation) askedAt(e *endpoint) { o.endpoint, o.answerID, o.counted = e, "", false }

// firstFragment records the first text, not the first chunk: a user does not see
// chunks without text.
func (o *observation) firstFragment(ctx context.Context) {
	elapsed := time.Since(o.start).Seconds()
	o.span.SetAttributes(semconv.GenAIResponseTimeToFirstChunk(elapsed))
	o.firstChunk.Record(ctx, elapsed, genaiconv.OperationNameChat, genaiconv.ProviderNameOpenAI, o.attributes()...)
}

// saw records the fields of a chunk besides its text.
func (o *observation) saw(c openai.Chunk) {
	if o.answerID == "" && c.ID != "" {
		o.answerID, o.answeredBy = c.ID, c.Model
	}
	if len(c.Finish) > 0 {
		o.span.SetAttributes(semconv.GenAIResponseFinishReasons(string(c.Finish)))
	}
	if c.Counted {
		o.used, o.counted = c.Tokens, true
	}
}

func (o *observation) end(ctx context.Context, err error) {
	defer o.span.End()
	o.inProgress.Add(ctx, -1)
	o.span.SetAttributes(o.attributes()...)
	if o.answerID != "" {
		o.span.SetAttributes(semconv.GenAIResponseID(o.answerID), semconv.GenAIResponseModel(o.answeredBy))
	}
	o.endTokens(ctx)
	attributes := o.attributes()
	if err != nil {
		failed := semconv.ErrorTypeKey.String(errorType(err))
		attributes = append(attributes, failed)
		o.span.SetAttributes(failed)
		o.span.SetStatus(codes.Error, "")
	}
	o.duration.Record(ctx, time.Since(o.start).Seconds(), genaiconv.OperationNameChat, genaiconv.ProviderNameOpenAI, attributes...)
}

func (o *observation) endTokens(ctx context.Context) {
	if !o.counted {
		return
	}
	o.span.SetAttributes(
		semconv.GenAIUsageInputTokens(int(o.used.Prompt)),
		semconv.GenAIUsageOutputTokens(int(o.used.Completion)))
	o.tokens.Record(ctx, o.used.Prompt, genaiconv.OperationNameChat, genaiconv.ProviderNameOpenAI,
		genaiconv.TokenTypeInput, o.attributes()...)
	o.tokens.Record(ctx, o.used.Completion, genaiconv.OperationNameChat, genaiconv.ProviderNameOpenAI,
		genaiconv.TokenTypeOutput, o.attributes()...)
}

// attributes says which model was asked, and at which address.
func (o *observation) attributes() []attribute.KeyValue {
	attributes := []attribute.KeyValue{semconv.GenAIRequestModel(o.model)}
	if o.endpoint != nil {
		attributes = append(attributes, semconv.ServerAddress(o.endpoint.host), semconv.ServerPort(o.endpoint.port))
	}
	return attributes
}

// errorType returns one of a few kinds of errors.
func errorType(err error) string {
	if errors.Is(err, resume.ErrStopped) || errors.Is(err, resume.ErrAbandoned) {
		return "canceled"
	}
	if answer, ok := errors.AsType[*botapi.StatusError](err); ok {
		return strconv.Itoa(answer.Status)
	}
	if _, ok := errors.AsType[*botapi.HTTPValidationError](err); ok {
		return "422"
	}
	switch {
	case errors.Is(err, errChatEnded), errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	default:
		return semconv.ErrorTypeOther.Value.AsString()
	}
}

// address returns the host and the port of a URL.
func address(rawURL string) (host string, port int) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return "", 0
	}
	if port, err = strconv.Atoi(u.Port()); err == nil {
		return u.Hostname(), port
	}
	if u.Scheme == "https" {
		return u.Hostname(), 443
	}
	return u.Hostname(), 80
}
