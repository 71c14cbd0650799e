package runtimes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"

	"example.com/botapi"
	"example.com/botapi/examples/openai"
)

// A failure is what an answer's error means for the client and for the next try.
type failure struct {
	endpoint       *endpoint
	cause          error
	err            error // what the client gets
	elsewhere      bool  // another endpoint may succeed
	connectionLost bool  // the same endpoint may succeed: only a connection was lost
}

// failed classifies the error of this answer.
func (a *answer) failed(err error) *failure {
	f := a.classify(err)
	f.endpoint, f.cause = a.endpoint, err
	if answer, ok := errors.AsType[*botapi.StatusError](f.err); ok {
		f.cause = answer.Err
		answer.Err = fmt.Errorf("runtime %s: %w", a.endpoint.URL, answer.Err)
	}
	if a.begun {
		f.elsewhere = false
	}
	return f
}

func (a *answer) classify(err error) *failure {
	upstream, isUpstream := errors.AsType[*openai.Failure](err)
	switch cause := context.Cause(a.ctx); {
	case errors.Is(cause, errSilent):
		late := &botapi.StatusError{Status: http.StatusGatewayTimeout, Detail: "The model did not begin to answer in time", Err: errSilent}
		return &failure{err: late, elsewhere: true}
	case errors.Is(cause, botapi.ErrEngineStalled):
		if a.stalls() {
			a.endpoint.fails(a)
		}
		return &failure{err: cause}
	case !isUpstream || upstream.TooLong || upstream.NoText || upstream.Mistake != nil:
		return &failure{err: err}
	case upstream.Begun:
		return &failure{err: err}
	case upstream.Streamed:
		a.endpoint.fails(a)
		return &failure{err: err, elsewhere: true, connectionLost: true}
	}
	return a.classifyStatus(err, upstream)
}

// classifyStatus classifies the failure of an endpoint that rejected the request
// or was not reached.
func (a *answer) classifyStatus(err error, upstream *openai.Failure) *failure {
	switch upstream.Status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return &failure{err: err} // another one would not accept it either
	case http.StatusTooManyRequests, http.StatusNotFound:
		// It is busy, or lacks the model, which others may have. Neither means
		// that it is unhealthy.
		return &failure{err: err, elsewhere: true}
	default: // 401, 403, 5xx, unexpected ones, and 0 for no response
		a.endpoint.fails(a)
		return &failure{err: err, elsewhere: true, connectionLost: upstream.Status == 0 && !isDialError(err)}
	}
}

func isDialError(err error) bool {
	operation, ok := errors.AsType[*net.OpError](err)
	return ok && operation.Op == "dial"
}

// forClient names the field that the client has sent, if the runtime does not accept
// it. A setting of the bot's is no mistake of the client's.
func forClient(err error, sent map[string]json.RawMessage) error {
	upstream, ok := errors.AsType[*openai.Failure](err)
	if !ok || upstream.Mistake == nil || upstream.Mistake.Loc[1] == "messages" {
		return err
	}
	names := []string{fmt.Sprint(upstream.Mistake.Loc[1])}
	if names[0] == "max_tokens" { // the smallest of several
		names = []string{"max_completion_tokens", "max_tokens", "max_words"}
	}
	for _, name := range names {
		if value, ok := sent[name]; ok && string(value) != "null" {
			upstream.Mistake.Loc[1] = name
			return upstream.Answer()
		}
	}
	upstream.Mistake = nil
	return upstream.Answer()
}
