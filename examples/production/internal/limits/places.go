package limits

import (
	"net/http"
	"sync"

	"example.com/botapi"
)

// places are the chats in progress in this replica.
type places struct {
	max, maxPerAccount int64 // 0 for no limit

	mu       sync.Mutex
	chats    int64
	accounts map[string]int64 // chats of an account, also those that still ask
}

func newPlaces(limit, perAccount int64) *places {
	return &places{max: limit, maxPerAccount: perAccount, accounts: make(map[string]int64)}
}

// reserve counts one chat more, if this replica's limits allow it, and returns
// how many its account has here.
func (p *places) reserve(account string) (here int64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.max > 0 && p.chats >= p.max {
		return 0, &botapi.StatusError{Status: http.StatusServiceUnavailable, Detail: "Too many chats in progress", RetryAfter: soon}
	}
	if p.maxPerAccount > 0 && p.accounts[account] >= p.maxPerAccount {
		return 0, refusal{"places", soon}.err()
	}
	p.chats++
	p.accounts[account]++
	return p.accounts[account], nil
}

// giveBack undoes reserve.
func (p *places) giveBack(account string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.chats--
	p.accounts[account]--
	if p.accounts[account] == 0 {
		delete(p.accounts, account)
	}
}
