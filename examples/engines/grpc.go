package engines

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"slices"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/engines/modelpb"
	"example.com/botapi/examples/openai"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// GRPC is a botapi.ChatEngine for the gRPC service with server streaming that
// modelpb/model.proto describes.
//
// The call carries the chat's deadline (ChatTimeout), its cancellation, and the request
// id as metadata. The text is bytes, which are passed on unchanged. An answer is complete
// if the server sent a finish_reason and the status is OK: the status alone is not
// enough, since a server that stops early may also end with OK. Nor is a reason such as
// abort, cancelled, timeout or error: see openai.CheckFinish.
type GRPC struct {
	connection *grpc.ClientConn
	client     modelpb.ModelClient
	model      string
}

// keepAlive notices a connection that the network has forgotten, which would take every
// chat until the operating system gives it up, after a quarter of an hour. On Linux, that
// is 10 seconds after something was sent and not acknowledged (TCP_USER_TIMEOUT). Where
// somebody in between acknowledges it, it is after 3 minutes of silence and a ping: a
// service closes a connection with more than three pings in a silence, unless it permits
// them, and a model may be silent for as long as botapi's default ChatTimeout.
var keepAlive = keepalive.ClientParameters{Time: 3 * time.Minute, Timeout: 10 * time.Second}

// NewGRPC returns an engine for the service at target. An empty model means the
// Bot.Model of each bot. It connects at the first chat. Close it after use.
//
// The connection has keep-alive pings after 3 minutes of silence. For a service that
// permits more of them (keepalive.EnforcementPolicy), use grpc.WithKeepaliveParams with a
// time of 10 seconds.
func NewGRPC(target, model string, options ...grpc.DialOption) (*GRPC, error) {
	options = slices.Concat([]grpc.DialOption{grpc.WithKeepaliveParams(keepAlive)}, options,
		[]grpc.DialOption{grpc.WithDisableRetry()}) // a service config could turn on automatic retries
	connection, err := grpc.NewClient(target, options...)
	if err != nil {
		return nil, err
	}
	return &GRPC{connection: connection, client: modelpb.NewModelClient(connection), model: model}, nil
}

// Close closes the connection and ends all chats that use it.
func (e *GRPC) Close() error { return e.connection.Close() }

// Chat yields the model's answer, each fragment as it arrives.
func (e *GRPC) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		request, err := e.request(req)
		if err != nil {
			yield("", err)
			return
		}
		a := grpcAnswer{ctx: ctx, req: req, usage: openai.UsageFrom(ctx)}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel() // ends the call
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
		if err == io.EOF {
			err = a.end()
		}
		if err != nil {
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

// A grpcAnswer is the state of one call.
type grpcAnswer struct {
	ctx   context.Context // the chat's
	req   *botapi.ChatRequest
	usage *openai.Usage // may be nil
	begun bool          // text was received
	why   string        // the finish_reason; empty until there is one
}

func (a *grpcAnswer) note(r *modelpb.GenerateResponse) {
	a.begun = a.begun || len(r.GetText()) > 0
	a.why = cmp.Or(r.GetFinishReason(), a.why)
	if r.GetPromptTokens() != 0 || r.GetCompletionTokens() != 0 {
		a.usage.Update(openai.Tokens{Prompt: r.GetPromptTokens(), Completion: r.GetCompletionTokens()})
	}
}

// end is called when the status is OK. It returns an error unless the answer is complete.
func (a *grpcAnswer) end() error {
	if a.why == "" {
		return &openai.Failure{Status: http.StatusOK, Streamed: true, Err: errors.New("the stream ended before the answer did")}
	}
	if err := openai.CheckFinish(a.why, a.begun, false); err != nil {
		return err
	}
	a.usage.Finish(a.why)
	return nil
}

// failed makes the error that Chat yields.
func (a *grpcAnswer) failed(err error) error {
	if cause := context.Cause(a.ctx); cause != nil {
		return cause
	}
	if f, ok := errors.AsType[*openai.Failure](err); ok {
		f.Begun = a.begun
		return f.Answer()
	}
	s, _ := status.FromError(err)
	f := openai.EventFailure(a.req, []byte(s.Message()))
	f.Status, f.Streamed, f.Begun = grpcStatus(s.Code()), false, a.begun
	f.TooLong = f.TooLong || s.Code() == codes.OutOfRange
	if f.Status != http.StatusBadRequest {
		f.Mistake = nil
	}
	f.Err = fmt.Errorf("gRPC status %s", s.Code()) // the message may quote the chat
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			f.RetryAfter = info.GetRetryDelay().AsDuration()
		}
	}
	return f.Answer()
}

// grpcStatus returns the corresponding HTTP status.
func grpcStatus(code codes.Code) int {
	switch code {
	case codes.Unavailable: // also if there is no connection or it was lost
		return http.StatusServiceUnavailable
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	case codes.DeadlineExceeded: // the service's own deadline: the chat's has ended the context
		return http.StatusGatewayTimeout
	case codes.InvalidArgument, codes.FailedPrecondition:
		return http.StatusBadRequest
	}
	return http.StatusInternalServerError
}
