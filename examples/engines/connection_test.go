package engines

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/engines/modelpb"
	"example.com/botapi/examples/openai"
	"example.com/botapi/examples/openai/runtimetest"
	"github.com/matryer/is"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

func TestForgottenConnection(t *testing.T) {
	answer := func(w Wire, a Asked) {
		w.Text("Hello")
		if a.last() == "Wait" {
			<-a.Ctx.Done()
		}
		w.End()
	}
	overHTTP := func(engine func(*http.Transport) botapi.ChatEngine, wire func(http.ResponseWriter) Wire) func(*testing.T, *runtimetest.Network) botapi.ChatEngine {
		return func(t *testing.T, network *runtimetest.Network) botapi.ChatEngine {
			server := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				prompt := "Hi"
				if body, _ := io.ReadAll(r.Body); strings.Contains(string(body), "Wait") {
					prompt = "Wait"
				}
				answer(wire(w), Asked{Ctx: r.Context(), Messages: []botapi.ChatMessage{{Content: prompt}}})
			})}
			server.Protocols.SetUnencryptedHTTP2(true)
			go server.Serve(network)
			t.Cleanup(func() { server.Close() })
			transport := openai.NewTransport()
			transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return network.Dial(ctx) }
			transport.Protocols = new(http.Protocols)
			transport.Protocols.SetUnencryptedHTTP2(true)
			t.Cleanup(transport.CloseIdleConnections)
			return engine(transport)
		}
	}
	for name, start := range map[string]func(*testing.T, *runtimetest.Network) botapi.ChatEngine{
		"anthropic": overHTTP(func(transport *http.Transport) botapi.ChatEngine {
			return NewAnthropic(AnthropicConfig{BaseURL: "http://runtime", Key: "sk-1", Transport: transport})
		}, func(w http.ResponseWriter) Wire { return &anthropicWire{w: w} }),
		"ollama": overHTTP(func(transport *http.Transport) botapi.ChatEngine {
			engine, _ := NewOllama(OllamaConfig{BaseURL: "http://runtime", Transport: transport})
			return engine
		}, func(w http.ResponseWriter) Wire { return &ollamaWire{w: w} }),
		"grpc": func(t *testing.T, network *runtimetest.Network) botapi.ChatEngine {
			return startGRPCOn(t, network, answer)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := runtimetest.NewNetwork()
				runtimetest.TestForgottenConnection(t, network, start(t, network))
			})
		})
	}
}

func startGRPCOn(t *testing.T, network *runtimetest.Network, answer func(Wire, Asked)) botapi.ChatEngine {
	server := grpc.NewServer()
	modelpb.RegisterModelServer(server, &modelServer{runtime: new(Runtime), answer: answer})
	go server.Serve(network)
	t.Cleanup(server.Stop)
	engine, err := NewGRPC("passthrough:///runtime", "", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return network.Dial(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { engine.Close() })
	return engine
}

// A service closes a connection with many pings, unless its EnforcementPolicy permits them.
// A chat whose model is silent for botapi's default ChatTimeout is not lost to that.
func TestGRPCServerToleratesThePings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		network := runtimetest.NewNetwork()
		engine := startGRPCOn(t, network, func(w Wire, _ Asked) {
			time.Sleep(botapi.DefaultChatTimeout)
			w.Text("Hello")
			w.End()
		})
		fragments, errs := all(engine.Chat(t.Context(), new(botapi.ChatRequest)))
		is.Equal(fragments, []string{"Hello"})
		is.Equal(len(errs), 0)
	})
}

// The engines' own transports have these pings, too.
func TestOwnTransportHasPings(t *testing.T) {
	is := is.New(t)
	for _, transport := range []http.RoundTripper{
		NewAnthropic(AnthropicConfig{}).config.Transport,
		newOllama(t, "http://runtime").config.Transport,
	} {
		is.True(transport.(*http.Transport).HTTP2.SendPingTimeout > 0)
	}
}
