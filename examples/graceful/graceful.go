// Package graceful serves until a context ends, and then lets requests finish for a while.
//
//	log.Fatal(http.ListenAndServe(address, handler))
//
// becomes
//
//	server := &http.Server{Addr: address, Handler: handler, ReadHeaderTimeout: 10 * time.Second}
//	if err := graceful.Serve(graceful.UntilSignal(), server, 20*time.Second); err != nil {
//		log.Fatal(err)
//	}
package graceful

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"example.com/botapi"
)

// endTime is how long requests have to end once their contexts are cancelled.
const endTime = 10 * time.Second

// UntilSignal returns a context that ends with the first interrupt (Ctrl-C) or SIGTERM. A
// second one ends the process immediately.
func UntilSignal() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		signal.Stop(signals) // before the context ends: whoever sees that may rely on it
		cancel()
	}()
	return ctx
}

// Serve listens on server.Addr and serves until ctx ends, as [ServeOn] does.
func Serve(ctx context.Context, server *http.Server, patience time.Duration) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", cmp.Or(server.Addr, ":http"))
	if err != nil {
		return err
	}
	return ServeOn(ctx, server, listener, patience)
}

// ServeOn serves the connections of a listener until ctx ends. Then it closes the listener,
// and requests may finish until patience has passed. After that, their contexts are
// cancelled with a [botapi.StatusError] as the cause: clients of chats get it as the
// response, or as the error event of a stream, which is then aborted. Requests that have not
// ended 10 seconds later lose their connections.
//
// It returns nil once all requests have ended, aborted or not, and otherwise an error: that
// of a listener that has failed, or because requests have lost their connections. It sets
// server.BaseContext; the context that the application's own returns remains the parent.
// For TLS, the listener is one of crypto/tls, whose NextProtos begin with "h2" if HTTP/2 is
// served.
func ServeOn(ctx context.Context, server *http.Server, listener net.Listener, patience time.Duration) error {
	end := cancelRequests(server)
	defer end(nil)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	var failed error
	select {
	case failed = <-served: // running requests may finish in this case, too
	case <-ctx.Done():
	}
	hurry := time.AfterFunc(patience, func() {
		end(botapi.StatusError{Status: http.StatusServiceUnavailable, Detail: "The service is restarting", RetryAfter: 5 * time.Second})
	})
	defer hurry.Stop()
	bounded, cancel := context.WithTimeout(context.Background(), max(patience, 0)+endTime)
	defer cancel()
	if err := server.Shutdown(bounded); err != nil {
		return errors.Join(failed, fmt.Errorf("requests have not ended %v after their contexts: %w", endTime, err), server.Close())
	}
	return failed
}

// cancelRequests returns a function that cancels the contexts of all requests of a server.
func cancelRequests(server *http.Server) context.CancelCauseFunc {
	stopping, end := context.WithCancelCause(context.Background())
	parent := server.BaseContext
	server.BaseContext = func(l net.Listener) context.Context {
		base := context.Background()
		if parent != nil {
			base = parent(l)
		}
		ctx, cancel := context.WithCancelCause(base)
		context.AfterFunc(stopping, func() { cancel(context.Cause(stopping)) })
		return ctx
	}
	return end
}
