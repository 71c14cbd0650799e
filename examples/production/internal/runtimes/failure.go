package runtimes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"

	"example.com/botapi"
	"example.com/botapi/examples/openai"
)

// A failure is what an answer's error means: for the client, and for the next
// try.
type failure struct {
	endpoint  *endpoint
	cause     error
	err       error // what the client gets
	elsewhere bool  // another endpoint may do better
	brokeOff  bool  // the same endpoint may do better: only a connection was lost
}

// failed judges the error of this answer.
func (a *answer) failed(err error) *failure {
	f := a.judge(err)
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

func (a *answer) judge(err error) *failure {
	upstream, isUpstream := errors.AsType[*openai.Failure](err)
	switch cause := context.Cause(a.ctx); {
	case errors.Is(cause, errSilent):
		return &failure{err: gatewayTimeout("The model did not begin to answer in time", errSilent), elsewhere: true}
	case errors.Is(cause, botapi.ErrEngineStalled):
		a.endpoint.fails(a)
		return &failure{err: cause}
	case !isUpstream || upstream.TooLong:
		return &failure{err: err}
	case upstream.Begun:
		return &failure{err: err}
	case upstream.Streamed:
		a.endpoint.fails(a)
		return &failure{err: err, elsewhere: true, brokeOff: true}
	}
	return a.judgeStatus(err, upstream)
}

// judgeStatus judges an endpoint that refused the request, or was not reached.
func (a *answer) judgeStatus(err error, upstream *openai.Failure) *failure {
	switch upstream.Status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return &failure{err: err} // another one would not accept it either
	case http.StatusTooManyRequests, http.StatusNotFound:
		// It is busy, or has no such model, which others may have. Neither is an
		// illness.
		return &failure{err: err, elsewhere: true}
	default: // 401, 403, 5xx, what nobody expects, and 0 for no response
		a.endpoint.fails(a)
		return &failure{err: err, elsewhere: true, brokeOff: upstream.Status == 0 && !isDialError(err)}
	}
}

func gatewayTimeout(detail string, cause error) error {
	return &botapi.StatusError{Status: http.StatusGatewayTimeout, Detail: detail, Err: cause}
}

func isDialError(err error) bool {
	operation, ok := errors.AsType[*net.OpError](err)
	return ok && operation.Op == "dial"
}
