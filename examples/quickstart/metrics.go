package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"example.com/botapi"
	"example.com/botapi/examples/openai"
	"example.com/botapi/examples/resume"
)

// metrics counts requests and tokens, and serves the counts in the text format of Prometheus.
type metrics struct {
	mu     sync.Mutex
	counts map[string]int64 // by name and labels
}

var quoteLabel = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

func (m *metrics) add(n int64, name, labels string, values ...any) {
	for i, value := range values {
		values[i] = quoteLabel.Replace(fmt.Sprint(value))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts[name+"{"+fmt.Sprintf(labels, values...)+"}"] += n
}

// request counts one request, for botapi.Options.OnRequest.
func (m *metrics) request(_ context.Context, r botapi.RequestReport) {
	m.add(1, "botapi_requests_total", `route="%s",bot="%s",status="%v"`, r.Route, r.Bot.Slug, r.Status)
}

// answer counts the tokens of one call of a model, for resume.Options.OnAnswer: those of an
// answer that several requests follow count once.
func (m *metrics) answer(ctx context.Context, r resume.Report) {
	used, _ := openai.UsageFrom(ctx).Tokens()
	m.add(used.Prompt, "botapi_tokens_total", `bot="%s",kind="prompt"`, r.Request.Bot.Slug)
	m.add(used.Completion, "botapi_tokens_total", `bot="%s",kind="completion"`, r.Request.Bot.Slug)
}

func (m *metrics) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	m.mu.Lock()
	counts := maps.Clone(m.counts)
	m.mu.Unlock()
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	last := ""
	for _, series := range slices.Sorted(maps.Keys(counts)) {
		if name, _, _ := strings.Cut(series, "{"); name != last {
			fmt.Fprintf(w, "# TYPE %s counter\n", name)
			last = name
		}
		fmt.Fprintf(w, "%s %d\n", series, counts[series])
	}
}
