package limits

import (
	"maps"
	"net/http"
	"sync"

	"example.com/botapi"
)

// A place is one chat in progress.
type place struct{ account, lease string }

// places are the chats in progress in this replica.
type places struct {
	max, maxPerAccount int64 // 0 for no limit

	mu       sync.Mutex
	chats    int64
	accounts map[string]int64 // chats of an account, also those that still ask
	leases   map[place]struct{}
}

func newPlaces(limit, perAccount int64) *places {
	return &places{max: limit, maxPerAccount: perAccount, accounts: make(map[string]int64), leases: make(map[place]struct{})}
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
		return 0, tooManyAtOnce(soon)
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

// hold has the lease of an admitted chat renewed until drop.
func (p *places) hold(account, lease string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leases[place{account, lease}] = struct{}{}
}

func (p *places) drop(account, lease string) {
	p.giveBack(account)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.leases, place{account, lease})
}

// held returns the chats that have a lease.
func (p *places) held() []place {
	p.mu.Lock()
	defer p.mu.Unlock()
	held := make([]place, 0, len(p.leases))
	for one := range p.leases {
		held = append(held, one)
	}
	return held
}

// ended returns which of these chats have no lease any more.
func (p *places) ended(held []place) (ended []place) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range held {
		if _, still := p.leases[one]; !still {
			ended = append(ended, one)
		}
	}
	return ended
}

// unsent are tokens that Redis has not taken yet, by account. There are no more
// entries than there are accounts.
type unsent struct {
	mu     sync.Mutex
	tokens map[string]int64
}

func newUnsent() *unsent { return &unsent{tokens: make(map[string]int64)} }

func (u *unsent) add(account string, tokens int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.tokens[account] += tokens
}

func (u *unsent) take() map[string]int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	taken := maps.Clone(u.tokens)
	clear(u.tokens)
	return taken
}
