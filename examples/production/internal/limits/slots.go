package limits

import (
	"net/http"
	"sync"

	"example.com/botapi"
)

// slots are the chats in progress in this replica.
type slots struct {
	max, maxPerAccount int64 // 0 for no limit

	mu       sync.Mutex
	chats    int64
	accounts map[string]int64 // chats of an account, including those that are still being admitted
}

func newSlots(limit, perAccount int64) *slots {
	return &slots{max: limit, maxPerAccount: perAccount, accounts: make(map[string]int64)}
}

// reserve takes a slot, if this replica's limits allow it, and returns how many
// its account has here.
func (p *slots) reserve(account string) (here int64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.max > 0 && p.chats >= p.max {
		return 0, &botapi.StatusError{Status: http.StatusServiceUnavailable, Detail: "Too many chats in progress", RetryAfter: soon}
	}
	if p.maxPerAccount > 0 && p.accounts[account] >= p.maxPerAccount {
		return 0, rejection{"places", soon}.err()
	}
	p.chats++
	p.accounts[account]++
	return p.accounts[account], nil
}

// release undoes reserve.
func (p *slots) release(account string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.chats--
	p.accounts[account]--
	if p.accounts[account] == 0 {
		delete(p.accounts, account)
	}
}
