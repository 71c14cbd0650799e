package engines

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"

	"example.com/botapi"
	"example.com/botapi/examples/engines/modelpb"
	"example.com/botapi/examples/openai"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// GRPC is a botapi.ChatEngine in front of a gRPC service with server streaming,
// the one of modelpb/model.proto.
//
// The call carries the deadline of the chat (ChatTimeout) and its cancellation, and
// the request id as metadata. Text is bytes, which pass as they are. An answer is
// whole when a finish_reason has come and the status is OK: a server that gives up
// in silence ends with OK, too.
type GRPC struct {
	connection *grpc.ClientConn
	client     modelpb.ModelClient
	model      string
}

// NewGRPC returns an engine that asks the service at target for the model; an empty
// one means each bot's own, Bot.Model. It connects when it is first asked. Close it.
func NewGRPC(target, model string, options ...grpc.DialOption) (*GRPC, error) {
	// A service's configuration could make the client ask again by itself.
	connection, err := grpc.NewClient(target, append(options, grpc.WithDisableRetry())...)
	if err != nil {
		return nil, err
	}
	return &GRPC{connection: connection, client: modelpb.NewModelClient(connection), model: model}, nil
}

// Close ends the connection, and all chats over it.
func (e *GRPC) Close() error { return e.connection.Close() }

// Chat answers with the model, passing each piece of text on as it comes.
func (e *GRPC) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		request, err := e.request(req)
		if err != nil {
			yield("", err)
			return
		}
		a := grpcAnswer{ctx: ctx, usage: openai.UsageFrom(ctx)}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel() // ends the call, however this ends
		ctx = metadata.AppendToOutgoingContext(ctx, "x-request-id", botapi.RequestIDFrom(ctx))
		stream, err := e.client.Generate(ctx, request)
		for err == nil {
			var r *modelpb.GenerateResponse
			if r, err = stream.Recv(); err != nil {
				break
			}
			a.note(r)
			if len(r.GetText()) > 0 && !yield(string(r.GetText()), nil) {
				return
			}
		}
		if err != io.EOF || !a.finished {
			yield("", a.failed(err))
		}
	}
}

func (e *GRPC) request(req *botapi.ChatRequest) (*modelpb.GenerateRequest, error) {
	settings, err := openai.ReadExtra(req.Extra)
	if err != nil {
		return nil, err
	}
	request := &modelpb.GenerateRequest{
		Model:       cmp.Or(e.model, req.Bot.Model),
		Temperature: settings.Temperature,
		TopP:        settings.TopP,
		MaxTokens:   settings.MaxTokens,
		Seed:        settings.Seed,
		Stop:        settings.Stop,
	}
	for _, m := range req.Messages {
		request.Messages = append(request.Messages, &modelpb.Message{Role: string(m.Role), Content: m.Content})
	}
	return request, nil
}

// A grpcAnswer is what has come of one call.
type grpcAnswer struct {
	ctx      context.Context // the chat's
	usage    *openai.Usage   // nil if nobody counts
	begun    bool            // text has come
	finished bool            // the model has said that the answer is over
}

func (a *grpcAnswer) note(r *modelpb.GenerateResponse) {
	a.begun = a.begun || len(r.GetText()) > 0
	a.finished = a.finished || r.GetFinishReason() != ""
	if a.usage == nil {
		return
	}
	if r.GetPromptTokens() > 0 || r.GetCompletionTokens() > 0 {
		a.usage.Report(openai.Tokens{Prompt: r.GetPromptTokens(), Completion: r.GetCompletionTokens()})
	}
	if r.GetFinishReason() != "" {
		a.usage.Finish(r.GetFinishReason())
	}
}

// failed is the error for the chat's handler. err is io.EOF if the status was OK.
func (a *grpcAnswer) failed(err error) error {
	if cause := context.Cause(a.ctx); cause != nil {
		return cause
	}
	f := &openai.Failure{Begun: a.begun}
	if err == io.EOF {
		f.Status, f.Streamed = http.StatusOK, true
		f.Err = errors.New("the stream ended before the answer did")
		return f.Answer()
	}
	said, _ := status.FromError(err)
	f.Status = grpcStatus(said.Code())
	f.TooLong = said.Code() == codes.OutOfRange
	f.Err = fmt.Errorf("gRPC status %s", said.Code()) // its message may quote the chat
	for _, detail := range said.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			f.RetryAfter = info.GetRetryDelay().AsDuration()
		}
	}
	return f.Answer()
}

// grpcStatus is the HTTP status that means the same.
func grpcStatus(code codes.Code) int {
	switch code {
	case codes.Unavailable: // no connection, too, and one that was lost
		return http.StatusServiceUnavailable
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	case codes.DeadlineExceeded: // one of the service's own: the chat's is over with its context
		return http.StatusGatewayTimeout
	case codes.InvalidArgument, codes.FailedPrecondition:
		return http.StatusBadRequest
	}
	return http.StatusInternalServerError
}
