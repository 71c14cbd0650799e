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
	if err := p.rejects(account); err != nil {
		return 0, err
	}
	p.chats++
	p.accounts[account]++
	return p.accounts[account], nil
}

// full returns the error that reserve would return.
func (p *slots) full(account string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rejects(account)
}

// rejects is called with the lock held.
func (p *slots) rejects(account string) error {
	if p.max > 0 && p.chats >= p.max {
		return &botapi.StatusError{Status: http.StatusServiceUnavailable, Detail: "Too many chats in progress", RetryAfter: soon}
	}
	if p.maxPerAccount > 0 && p.accounts[account] >= p.maxPerAccount {
		return rejection{"places", soon}.err()
	}
	return nil
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
