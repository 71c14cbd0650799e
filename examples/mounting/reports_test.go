package mounting_test

import (
	"context"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/matryer/is"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"example.com/botapi"
	"example.com/botapi/examples/mounting"
)

// TestRejections counts what three clients get, and reads it as Prometheus does.
func TestRejections(t *testing.T) {
	is := is.New(t)
	bots, err := botapi.NewMemoryStore(botapi.Bot{UID: "1", Slug: "parrot", Name: "Parrot", Model: "m"})
	is.NoErr(err)
	registry := prometheus.NewRegistry()
	api := httptest.NewServer(botapi.New(botapi.Options{
		Bots: bots,
		Keys: mounting.LimitRate(botapi.StaticKeys(map[string]string{"k": "acme"}), 0.001, 2),
		Engine: botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) { yield("", botapi.StatusError{Status: 529, Detail: "Busy"}) }
		}),
		Logger:    slog.New(slog.DiscardHandler),
		OnRequest: mounting.CountRejections(registry),
	}))
	defer api.Close()
	post := func(key string) (status int, retryAfter string) {
		r, err := http.NewRequestWithContext(t.Context(), "POST", api.URL+"/v1/chat", strings.NewReader(`{"bot_slug":"parrot","prompt":"hi","stream":false}`))
		is.NoErr(err)
		r.Header.Set("Authorization", "Bearer "+key)
		res, err := http.DefaultClient.Do(r)
		is.NoErr(err)
		defer res.Body.Close()
		return res.StatusCode, res.Header.Get("Retry-After")
	}
	var got []int
	for _, key := range []string{"k", "k", "k", "wrong"} {
		status, retryAfter := post(key)
		got = append(got, status)
		is.Equal(retryAfter != "", status == 429)
	}
	is.Equal(got, []int{529, 529, 429, 401})

	api.Close() // OnRequest may still run when a client has its response
	metrics := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(metrics, httptest.NewRequest("GET", "/metrics", nil))
	text, err := io.ReadAll(metrics.Body)
	is.NoErr(err)
	for _, line := range []string{
		`botapi_rejections_total{account="acme",bot="parrot",route="POST /v1/chat",status="529"} 2`,
		`botapi_rejections_total{account="acme",bot="",route="POST /v1/chat",status="429"} 1`,
		`botapi_rejections_total{account="",bot="",route="POST /v1/chat",status="401"} 1`,
	} {
		is.True(strings.Contains(string(text), line+"\n"))
	}
}
