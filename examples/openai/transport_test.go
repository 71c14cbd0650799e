package openai_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"example.com/botapi/examples/openai"
	"example.com/botapi/examples/openai/runtimetest"
	"github.com/matryer/is"
)

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
		runtimetest.TestForgottenConnection(t, network, engine)
	})
}
