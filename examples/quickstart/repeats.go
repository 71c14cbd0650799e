package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"sync"

	"example.com/botapi"
)

// repeats counts how often the same messages were sent for another answer. A request
// tells this by its Idempotency-Key: a client chooses another one for each answer, and
// a request with a key that is known does not reach the engine. Requests without a key are
// not counted. The zero value is ready for use.
type repeats struct {
	mu     sync.Mutex
	counts map[[sha256.Size]byte]int // by digest: no text of a chat is kept
}

const mostCounted = 1000 // conversations

// count returns how often the messages of a request were sent before.
func (r *repeats) count(ctx context.Context, req *botapi.ChatRequest) int {
	if botapi.RequestFrom(ctx).Header().Get("Idempotency-Key") == "" {
		return 0
	}
	conversation, _ := json.Marshal([]any{req.Bot.UID, req.Messages}) // cannot fail
	digest := sha256.Sum256(conversation)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.counts == nil || len(r.counts) >= mostCounted {
		r.counts = make(map[[sha256.Size]byte]int)
	}
	r.counts[digest]++
	return r.counts[digest] - 1
}
