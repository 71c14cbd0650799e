package openai_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/openai"
	"example.com/botapi/examples/openai/runtimetest"
	"github.com/matryer/is"
)

// A network can forget a connection: nothing that is sent arrives, and nobody closes it. A
// chat in progress keeps a connection of HTTP/2 in use, and all new chats go to it.
func TestForgottenConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		network := runtimetest.NewNetwork()
		server := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, `data: {"choices":[{"delta":{"content":"Hello"}}]}`+"\n\n")
			http.NewResponseController(w).Flush()
			if body, _ := io.ReadAll(r.Body); strings.Contains(string(body), "Wait") {
				<-r.Context().Done()
			}
			io.WriteString(w, `data: {"choices":[{"delta":{},"finish_reason":"stop"}]}`+"\n\n")
		})}
		server.Protocols.SetUnencryptedHTTP2(true)
		go server.Serve(network)
		defer server.Close()
		transport := openai.NewTransport()
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return network.Dial(ctx) }
		transport.Protocols = new(http.Protocols)
		transport.Protocols.SetUnencryptedHTTP2(true)
		defer transport.CloseIdleConnections()
		engine, err := openai.NewEngine(openai.Config{BaseURL: "http://runtime/v1", HTTPClient: &http.Client{Transport: transport}})
		is.NoErr(err)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		ask := func(prompt string, atFirst func()) (failed error) {
			for _, err := range engine.Chat(ctx, &botapi.ChatRequest{Messages: []botapi.ChatMessage{{Role: botapi.RoleUser, Content: prompt}}}) {
				if atFirst != nil {
					atFirst()
					atFirst = nil
				}
				failed = err
			}
			return failed
		}

		is.NoErr(ask("Hi", nil))
		begun, lost := make(chan bool), make(chan error, 1)
		go func() { lost <- ask("Wait", func() { close(begun) }) }()
		<-begun
		is.Equal(network.Connections(), 1) // both chats have used it
		network.Forget()
		failure, ok := errors.AsType[*botapi.StatusError](ask("Hi", nil))
		is.True(ok)
		is.Equal(failure.Status, http.StatusServiceUnavailable) // and not at the end of ctx
		is.True(<-lost != nil)
		is.NoErr(ask("Hi", nil)) // on a new connection
		is.Equal(network.Connections(), 2)
		is.NoErr(ctx.Err())
	})
}
