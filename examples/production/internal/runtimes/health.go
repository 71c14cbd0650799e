package runtimes

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

const (
	// recovery is how long an endpoint that failed is a last resort. It doubles
	// with each failed trial, up to longestRecovery.
	recovery        = 10 * time.Second
	longestRecovery = time.Minute

	// probePeriod is how often an endpoint is probed that sends nothing to any
	// chat, and probeTimeout how long it may take to respond. It counts as
	// unreachable after it has missed probesMissed in a row.
	probePeriod  = 2 * time.Second
	probeTimeout = 2 * time.Second
	probesMissed = 2
)

// health is the state of one endpoint, shared by all chats of a replica.
//
// An endpoint is healthy until it fails. Then it pauses: it is a last resort for
// a while, after which one chat tries it. If that succeeds, it is healthy again;
// otherwise the next pause is longer. A runtime that is stopped or unreachable
// often accepts connections and never responds. That is a failure, too, once it
// has sent nothing to any chat for the time of one attempt, or has missed its
// probes. All chats that wait for their first word from it then immediately move
// to other endpoints.
type health struct {
	heard atomic.Uint64 // grows whenever the endpoint sends something

	mu          sync.Mutex
	failures    int // failed trials and the failure before them; 0 means healthy
	pausedUntil time.Time
	unreachable bool // it missed its probes: the next one that it answers ends its pause
	trying      bool // one chat finds out whether it has recovered
	waiting     map[*answer]struct{}
}

func (h *health) healthy() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failures == 0
}

// claim makes a chat the one that tries the endpoint again. It reports whether
// it is time for that and no other chat does.
func (h *health) claim() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failures == 0 || h.trying || time.Now().Before(h.pausedUntil) {
		return false
	}
	h.trying = true
	return true
}

// begin notes that a chat waits for its first word.
func (h *health) begin(a *answer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waiting == nil {
		h.waiting = make(map[*answer]struct{})
	}
	h.waiting[a] = struct{}{}
}

// awaited reports whether a chat still waits for its first word.
func (h *health) awaited(a *answer) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, ok := h.waiting[a]
	return ok
}

// speaks notes the first word to a chat: the endpoint is healthy. It returns
// false if the chat no longer waits.
func (h *health) speaks(a *answer) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failures, h.unreachable = 0, false
	return h.stopWaiting(a)
}

// stopWaiting ends the wait of a chat and reports whether it waited. The caller
// holds the lock.
func (h *health) stopWaiting(a *answer) bool {
	_, waited := h.waiting[a]
	delete(h.waiting, a)
	return waited
}

// end notes that a chat no longer uses the endpoint.
func (h *health) end(a *answer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopWaiting(a)
	if a.tries {
		h.trying = false
	}
}

// fails notes a failure that a chat has seen. Of several concurrent failures
// only the first counts, and none of chats that had no other choice.
func (h *health) fails(a *answer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failures > 0 && !a.tries {
		return
	}
	h.pausedUntil = time.Now().Add(min(recovery<<min(h.failures, 3), longestRecovery))
	h.failures++
}

// hangs notes that the endpoint has sent nothing for the time of an attempt, and
// moves the chats that wait for it.
func (h *health) hangs(a *answer) {
	h.fails(a)
	h.sendAway()
}

// missesProbes notes that the endpoint is unreachable: it is a last resort until
// it answers a probe, or until the probes end.
func (h *health) missesProbes() {
	h.mu.Lock()
	h.failures = max(h.failures, 1)
	h.unreachable = true
	h.pausedUntil = time.Now().Add(recovery)
	h.mu.Unlock()
	h.sendAway()
}

// answersProbe ends the pause of an endpoint that was unreachable. Whether it
// also answers chats is for a chat to find out.
func (h *health) answersProbe() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.unreachable {
		h.unreachable, h.pausedUntil = false, time.Time{}
	}
}

// sendAway moves the waiting chats to other endpoints, if they have a healthy
// one left to try. The others lose nothing by waiting.
func (h *health) sendAway() {
	h.mu.Lock()
	waiting := slices.Collect(maps.Keys(h.waiting))
	h.mu.Unlock()
	for _, a := range waiting {
		if !slices.ContainsFunc(a.others, (*endpoint).healthy) {
			continue
		}
		h.mu.Lock()
		if h.stopWaiting(a) { // its first word may have arrived just now
			a.cancel(errSilent)
		}
		h.mu.Unlock()
	}
}

// Watch probes the endpoints that share their name with others. So an
// unreachable endpoint is noticed before each chat has to find out, and tried
// again as soon as it is back. The function that it returns stops the probes and
// waits for them.
func (e *Engine) Watch() (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var probes sync.WaitGroup
	for _, runtime := range e.runtimes {
		if len(runtime.endpoints) == 1 {
			continue // there is no other endpoint
		}
		for _, endpoint := range runtime.endpoints {
			probes.Go(func() { endpoint.watch(ctx) })
		}
	}
	return func() {
		cancel()
		probes.Wait()
	}
}

func (e *endpoint) watch(ctx context.Context) {
	period := time.NewTicker(probePeriod)
	defer period.Stop()
	missed := 0
	for heard := e.heard.Load(); ; heard = e.heard.Load() {
		select {
		case <-ctx.Done():
			return
		case <-period.C:
		}
		switch {
		case e.heard.Load() != heard && e.healthy():
			missed = 0 // chats show that it works
		case e.answers(ctx):
			missed = 0
			e.answersProbe()
		case ctx.Err() == nil:
			if missed++; missed >= probesMissed {
				e.missesProbes()
			}
		}
	}
}

// answers sends a probe: the list of models, which every runtime has and which
// costs it nothing. Any response below 500 counts.
func (e *endpoint) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, e.URL+"/models", nil)
	if err != nil {
		return false
	}
	if e.Key != "" {
		request.Header.Set("Authorization", "Bearer "+e.Key)
	}
	response, err := e.probes.RoundTrip(request)
	if err != nil {
		return false
	}
	response.Body.Close()
	return response.StatusCode < http.StatusInternalServerError
}

// measureHealth creates the metric of healthy endpoints. Its labels come from
// the configuration.
func (e *Engine) measureHealth(meter metric.Meter) error {
	_, err := meter.Int64ObservableGauge("botapi.runtime.endpoint.up",
		metric.WithDescription("Whether the last chat or probe found the endpoint healthy; 0 while it is a last resort."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			for name, runtime := range e.runtimes {
				for _, endpoint := range runtime.endpoints {
					var up int64
					if endpoint.healthy() {
						up = 1
					}
					o.Observe(up, metric.WithAttributes(attribute.String("runtime", name), attribute.String("endpoint", endpoint.URL)))
				}
			}
			return nil
		}))
	return err
}
