package eliza

import (
	"crypto/sha256"
	"encoding/json"
	"sync"

	"example.com/botapi"
)

// Repeats counts how often the same messages were sent to the same bot, for Again of an
// [Engine]. The zero value is ready for use, by several goroutines.
type Repeats struct {
	mu     sync.Mutex
	counts map[[sha256.Size]byte]int // by digest: no text of a chat is kept
}

const mostCounted = 1000 // conversations

// Count returns how often the messages of a request were counted before.
func (r *Repeats) Count(req *botapi.ChatRequest) int {
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
