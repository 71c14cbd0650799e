package limits

import (
	"context"
	"sync"
)

// mostEntries bounds the entries that wait for Redis: beyond it, those of one
// account are merged.
const mostEntries = 10_000

// An entry is what one chat has to be charged with.
type entry struct {
	account, lease string
	used           int64 // since the previous entry
	reserved       int64 // that stay reserved
	goesOn         bool
	day, known     int64 // what the account had used on which day, before the batch
}

// A book has the entries that Redis has not counted yet. A batch stays in it
// until it is settled.
type book struct {
	news chan struct{} // there are entries; has capacity for one value

	mu       sync.Mutex
	chats    map[*chat]struct{} // in progress
	entries  []entry
	sending  []entry         // the current batch
	number   int64           // of the current batch
	waiting  map[string]*sum // the sums of all entries, by account, sending included
	settling chan struct{}   // closed, and replaced, when a batch is settled
}

// A sum is the total of one account's entries.
type sum struct {
	entries int
	ended   int // entries of chats that have ended
	used    int64
}

func newBook() *book {
	return &book{
		news:     make(chan struct{}, 1),
		chats:    make(map[*chat]struct{}),
		waiting:  make(map[string]*sum),
		settling: make(chan struct{}),
	}
}

func (b *book) begin(c *chat) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.chats[c] = struct{}{}
}

// end enters the end of a chat.
func (b *book) end(c *chat) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.chats, c)
	b.enterLast(c.entry(false))
	select {
	case b.news <- struct{}{}:
	default:
	}
}

// release enters the end of a chat that was not admitted because Redis did not
// respond in time: Redis may still grant it a slot. It sends no news, since
// Redis may run the earlier command only later.
func (b *book) release(c *chat) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.enterLast(entry{account: c.account, lease: c.lease})
}

// enterLast enters the last entry of a chat.
func (b *book) enterLast(e entry) {
	if len(b.entries) >= mostEntries {
		b.sumUp()
	}
	b.enter(e)
}

// renew enters every chat in progress, unless a batch is still waiting.
func (b *book) renew() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.sending) > 0 {
		return // Redis is away: leases are renewed when it is back
	}
	for c := range b.chats {
		b.enter(c.entry(true))
	}
}

// entry is called with the lock of the book held.
func (c *chat) entry(goesOn bool) entry {
	used := c.used()
	e := entry{account: c.account, lease: c.lease, used: max(0, used-c.counted), goesOn: goesOn}
	c.counted = max(c.counted, used)
	if goesOn {
		e.reserved = max(0, c.reserved-c.counted)
	}
	return e
}

func (b *book) enter(e entry) {
	b.entries = append(b.entries, e)
	b.count(e, 1)
}

// count adds an entry to the sums, or with n = -1 removes it.
func (b *book) count(e entry, n int) {
	s := b.waiting[e.account]
	if s == nil {
		s = new(sum)
		b.waiting[e.account] = s
	}
	s.entries += n
	s.used += int64(n) * e.used
	if !e.goesOn {
		s.ended += n
	}
	if s.entries == 0 {
		delete(b.waiting, e.account)
	}
}

// sumUp merges the entries of each account. Their leases then expire unrenewed.
// It is called with the lock held.
func (b *book) sumUp() {
	used := make(map[string]int64)
	for _, e := range b.entries {
		used[e.account] += e.used
		b.count(e, -1)
	}
	b.entries = b.entries[:0]
	for account, tokens := range used {
		b.enter(entry{account: account, used: tokens})
	}
}

// unsettled returns the tokens of an account that are not settled.
func (b *book) unsettled(account string) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.waiting[account]; s != nil {
		return s.used
	}
	return 0
}

// batch returns the entries to settle next: the same ones until they are
// settled. What t knows is noted once, since it may later include this very
// batch, if only the response to it was lost.
func (b *book) batch(t *tallies) (number int64, batch []entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.sending) == 0 && len(b.entries) > 0 {
		n := min(len(b.entries), settledTogether)
		b.sending, b.entries = b.entries[:n:n], b.entries[n:]
		b.number++
		t.note(b.sending)
	}
	return b.number, b.sending
}

func (b *book) settled() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.sending {
		b.count(e, -1)
	}
	b.sending = nil
	close(b.settling)
	b.settling = make(chan struct{})
}

// hasEnded reports whether chats of an account have ended here and are not
// settled.
func (b *book) hasEnded(account string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.waiting[account]
	return s != nil && s.ended > 0
}

// waitFor waits until the chats of an account that have ended here are settled:
// for the current batch and the next. It returns false if ctx ended first.
func (b *book) waitFor(ctx context.Context, account string) bool {
	for range 2 {
		b.mu.Lock()
		settling := b.settling
		b.mu.Unlock()
		if !b.hasEnded(account) {
			return true
		}
		select {
		case <-settling:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// close returns the tokens that were not settled, by account.
func (b *book) close() map[string]int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	rest := make(map[string]int64)
	for _, e := range append(b.sending, b.entries...) {
		if e.used > 0 {
			rest[e.account] += e.used
		}
	}
	b.sending, b.entries = nil, nil
	return rest
}
