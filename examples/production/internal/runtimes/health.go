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
	// recovery is how long an endpoint that failed is the last choice. It
	// doubles with each trial that fails, up to longestRecovery.
	recovery        = 10 * time.Second
	longestRecovery = time.Minute

	// probePeriod is how often an endpoint is probed that no chat heard of
	// meanwhile, and probeTimeout how long it may take to answer. It is gone
	// after probesMissed of them in a row.
	probePeriod  = 2 * time.Second
	probeTimeout = 2 * time.Second
	probesMissed = 2
)

// health is what all chats of a replica know together of one endpoint.
//
// It is well until it fails. Then it is the last choice for a while, after
// which one chat tries it: if that is answered it is well again, else the next
// while is longer. A runtime that is stopped or out of reach often takes
// connections and never answers: that is a failure, too, once nobody has heard
// of it for as long as one attempt may take, or once it has missed its probes.
// All chats that wait for their first word from it then go elsewhere at once.
type health struct {
	heard atomic.Uint64 // grows with every sign of life

	mu       sync.Mutex
	failures int // trials that failed, and what began them; 0 means that it is well
	rests    time.Time
	gone     bool // it missed its probes: the next that it answers ends its rest
	trying   bool // one chat finds out whether it is well again
	waiting  map[*answer]struct{}
}

func (h *health) well() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failures == 0
}

// claim makes a chat the one that tries the endpoint again. It reports whether
// it is time for that, and nobody else does.
func (h *health) claim() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failures == 0 || h.trying || time.Now().Before(h.rests) {
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

// speaks notes the first word to a chat: the endpoint is well. It is false when
// the chat no longer waits.
func (h *health) speaks(a *answer) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failures, h.gone = 0, false
	return h.leaves(a)
}

// leaves ends the wait of a chat and reports whether it waited. The lock is the
// caller's.
func (h *health) leaves(a *answer) bool {
	_, waited := h.waiting[a]
	delete(h.waiting, a)
	return waited
}

// end notes that a chat has nothing more to do with the endpoint.
func (h *health) end(a *answer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leaves(a)
	if a.tries {
		h.trying = false
	}
}

// fails notes a failure that a chat has seen. Of many at once, and of those of
// chats that had no other choice, only the first counts.
func (h *health) fails(a *answer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failures > 0 && !a.tries {
		return
	}
	h.rests = time.Now().Add(min(recovery<<min(h.failures, 3), longestRecovery))
	h.failures++
}

// hangs notes that nobody has heard of the endpoint for as long as an attempt
// may take, and sends away who waits for it.
func (h *health) hangs(a *answer) {
	h.fails(a)
	h.sendAway()
}

// missesProbes notes that the endpoint is gone: it is the last choice until it
// answers a probe, or until nobody probes any more.
func (h *health) missesProbes() {
	h.mu.Lock()
	h.failures = max(h.failures, 1)
	h.gone = true
	h.rests = time.Now().Add(recovery)
	h.mu.Unlock()
	h.sendAway()
}

// answersProbe ends the rest of an endpoint that was gone. That it answers
// chats, too, is for a chat to find out.
func (h *health) answersProbe() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gone {
		h.gone, h.rests = false, time.Time{}
	}
}

// sendAway ends the wait of those chats that have somewhere else to go. The
// others have nothing to lose by waiting on.
func (h *health) sendAway() {
	h.mu.Lock()
	waiting := slices.Collect(maps.Keys(h.waiting))
	h.mu.Unlock()
	for _, a := range waiting {
		if !slices.ContainsFunc(a.others, (*endpoint).well) {
			continue
		}
		h.mu.Lock()
		if h.leaves(a) { // it may have had its first word just now
			a.cancel(errSilent)
		}
		h.mu.Unlock()
	}
}

// Watch probes the endpoints that have others beside them, so that one that is
// gone is known before each chat finds out by itself, and one that is back is
// tried at once. The function that it returns ends that and waits for it.
func (e *Engine) Watch() (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var probes sync.WaitGroup
	for _, runtime := range e.runtimes {
		if len(runtime.endpoints) == 1 {
			continue // there is no choice
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
		case e.heard.Load() != heard && e.well():
			missed = 0 // chats know
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
// costs it nothing. Any answer will do but one that says that it is not ready.
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

// measureHealth lets the metrics have which endpoints are well. Their labels
// are what the configuration says.
func (e *Engine) measureHealth(meter metric.Meter) error {
	_, err := meter.Int64ObservableGauge("botapi.runtime.endpoint.up",
		metric.WithDescription("Whether chats or probes found the endpoint well the last time; 0 while it is the last choice."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			for name, runtime := range e.runtimes {
				for _, endpoint := range runtime.endpoints {
					var up int64
					if endpoint.well() {
						up = 1
					}
					o.Observe(up, metric.WithAttributes(attribute.String("runtime", name), attribute.String("endpoint", endpoint.URL)))
				}
			}
			return nil
		}))
	return err
}
