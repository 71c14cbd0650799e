package mounting

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"example.com/botapi/examples/internal/stackcheck"
	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/encode"
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/encode/gzip"
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"github.com/matryer/is"
)

// caddySites have the handlers of Caddy's sites, each in front of a service at the socket %s, as
// Caddy makes them of the directives in their names, and the checks that must fail.
var caddySites = map[string]struct {
	handlers string
	failed   []string
}{
	"reverse_proxy":                        {`[{"handler": "reverse_proxy", "upstreams": [{"dial": "unix/%s"}]}]`, nil},
	"reverse_proxy, flush_interval -1":     {`[{"handler": "reverse_proxy", "upstreams": [{"dial": "unix/%s"}], "flush_interval": -1}]`, nil},
	"reverse_proxy, response_buffers 64KB": {`[{"handler": "reverse_proxy", "upstreams": [{"dial": "unix/%s"}], "response_buffers": 64000}]`, []string{"fragments arrive one by one"}},
	"encode gzip, reverse_proxy":           {`[{"handler": "encode", "encodings": {"gzip": {}}, "prefer": ["gzip"]}, {"handler": "reverse_proxy", "upstreams": [{"dial": "unix/%s"}]}]`, nil},
}

// Caddy's reverse_proxy breaks nothing, whether it is told to flush or not, unless it is told to
// buffer. All sites are of one Caddy, since a process has one.
func TestCaddy(t *testing.T) {
	is := is.New(t)
	dir, err := os.MkdirTemp("", "caddy") // t.TempDir is too long for a socket
	is.NoErr(err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	sites := make(map[string]any)
	sockets := make(map[string]string)
	for name, site := range caddySites {
		sockets[name] = filepath.Join(dir, fmt.Sprint("service", len(sockets)))
		sites[name] = map[string]any{
			"listen":          []string{"unix/" + filepath.Join(dir, fmt.Sprint("caddy", len(sites)))},
			"automatic_https": map[string]bool{"disable": true},
			"routes":          []any{map[string]any{"handle": json.RawMessage(fmt.Sprintf(site.handlers, sockets[name]))}},
		}
	}
	config, err := json.Marshal(map[string]any{
		"admin":   map[string]any{"disabled": true, "config": map[string]bool{"persist": false}},
		"logging": map[string]any{"logs": map[string]any{"default": map[string]any{"writer": map[string]string{"output": "discard"}}}},
		"apps":    map[string]any{"http": map[string]any{"servers": sites}},
	})
	is.NoErr(err)
	is.NoErr(caddy.Load(config, true))
	t.Cleanup(func() { _ = caddy.Stop() }) // after the sites
	app, err := caddy.ActiveContext().App("http")
	is.NoErr(err)
	for name, socket := range sockets {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they mostly wait
			is := is.New(t)
			mount := func(api http.Handler) http.Handler {
				service := httptest.NewUnstartedServer(api)
				service.Listener.Close()
				listener, err := net.Listen("unix", socket)
				is.NoErr(err)
				service.Listener = listener
				service.Start()
				t.Cleanup(service.Close)
				return app.(*caddyhttp.App).Servers[name]
			}
			results, err := stackcheck.Inspect(t.Context(), stackcheck.Mounting{Mount: mount}, nil)
			is.NoErr(err)
			failed, _ := found(t, results)
			is.Equal(failed, caddySites[name].failed)
		})
	}
}
