package resume

import (
	"cmp"
	"container/heap"
	"context"
	"sync"
	"time"
)

// Memory is a Store for one process, and the rules of answers: a state machine
// behind one mutex. An answer that nobody reads costs its text and no goroutine.
type Memory struct {
	Watchers
	settings Settings

	mu      sync.Mutex
	names   map[name]*kept   // what a Claim finds
	ids     map[string]*kept // those, and what only their readers find
	owners  map[string]*owner
	running leases // of all owners, by answer
	bytes   int64  // of all owners
	forget  expiries
	timer   *time.Timer // for the first of forget
}

type name struct{ owner, key string }

// A kept is one answer.
type kept struct {
	Ref
	body    string
	state   State
	texts   []string
	held    int64 // bytes of texts
	counted int64 // bytes that the limits count
	ending  Ending
	born    time.Time
	joins   int64
	readers leases
	alone   time.Time // when its last reader left; zero if it has readers
	until   time.Time // when it is forgotten
	index   int       // in expiries
}

// An owner has the counts of an owner.
type owner struct {
	bytes            int64
	running, readers leases
}

// leases says until when each holder is believed in.
type leases map[string]time.Time

func (l leases) live(now time.Time) int64 {
	for holder, until := range l {
		if !until.After(now) {
			delete(l, holder)
		}
	}
	return int64(len(l))
}

// NewMemory returns an empty store.
func NewMemory(s Settings) *Memory {
	m := &Memory{
		settings: s.Completed(),
		names:    make(map[name]*kept),
		ids:      make(map[string]*kept),
		owners:   make(map[string]*owner),
		running:  make(leases),
	}
	m.timer = time.AfterFunc(m.settings.Keep, func() { defer m.enter(new(time.Time))() })
	m.timer.Stop()
	return m
}

// enter locks the store and forgets what has expired. The result unlocks it.
func (m *Memory) enter(now *time.Time) func() {
	m.mu.Lock()
	*now = time.Now()
	for len(m.forget) > 0 && !m.forget[0].until.After(*now) {
		m.drop(m.forget[0])
	}
	return func() {
		if len(m.forget) > 0 {
			m.timer.Reset(m.forget[0].until.Sub(*now))
		}
		m.mu.Unlock()
	}
}

// Settings implements Store.
func (m *Memory) Settings() Settings { return m.settings }

// Claim implements Store.
func (m *Memory) Claim(_ context.Context, c Claim) (Claimed, error) {
	var now time.Time
	defer m.enter(&now)()
	a := m.names[name{c.Owner, c.Key}]
	switch {
	case a != nil && c.Body != "" && c.Body != a.body:
		return Claimed{State: Other}, nil
	case a != nil && a.state == Stopped:
		return Claimed{State: Stopped}, nil
	case a != nil && a.state != Outgrown:
		return m.join(a, c, now), nil
	case c.Join:
		return Claimed{State: Nothing}, nil
	}
	return m.start(c, now), nil
}

func (m *Memory) start(c Claim, now time.Time) Claimed {
	o := m.owner(c.Owner)
	defer m.dropOwner(c.Owner)
	switch {
	case o.running.live(now) >= cmp.Or(c.Limits.Running, m.settings.RunningPerOwner), m.running.live(now) >= m.settings.Running:
		return Claimed{State: Busy}
	case o.bytes+LeastRunning > m.settings.OwnerBytes, m.bytes+LeastRunning > m.settings.AllBytes:
		return Claimed{State: NoRoom}
	}
	a := &kept{Ref: c.Ref, body: c.Body, state: Running, born: now, readers: make(leases), until: now.Add(m.settings.Lease)}
	m.names[name{a.Owner, a.Key}], m.ids[a.ID] = a, a
	heap.Push(&m.forget, a)
	m.count(a, LeastRunning)
	m.renew(a.Ref, now, true)
	return Claimed{Started, a.ID}
}

func (m *Memory) join(a *kept, c Claim, now time.Time) Claimed {
	o := m.owner(a.Owner)
	switch {
	case a.joins >= JoinBurst+int64(now.Sub(a.born)/time.Second):
		return Claimed{State: Hurried}
	case a.readers.live(now) >= m.settings.Readers, o.readers.live(now) >= cmp.Or(c.Limits.Readers, m.settings.ReadersPerOwner):
		return Claimed{State: Crowded}
	}
	a.joins++
	m.attend(a, c.Reader, now)
	return Claimed{Found, a.ID}
}

// attend gives a reader its slot, or renews that.
func (m *Memory) attend(a *kept, reader string, now time.Time) {
	a.readers[reader] = now.Add(m.settings.Lease)
	m.owner(a.Owner).readers[reader] = now.Add(m.settings.Lease)
	a.alone = time.Time{}
}

// renew gives a model its slot if it is new, and otherwise renews the one that
// it has.
func (m *Memory) renew(a Ref, now time.Time, isNew bool) {
	if _, runs := m.running[a.ID]; runs || isNew {
		m.running[a.ID] = now.Add(m.settings.Lease)
		m.owner(a.Owner).running[a.ID] = now.Add(m.settings.Lease)
	}
}

// Add implements Store.
func (m *Memory) Add(_ context.Context, r Ref, from int, texts []string, attended bool) (Added, error) {
	var now time.Time
	defer m.enter(&now)()
	m.renew(r, now, false)
	a := m.ids[r.ID]
	switch {
	case a == nil:
		return Added{State: Lost}, nil
	case a.state != Running && a.state != Outgrown:
		return Added{State: a.state}, nil
	}
	m.expire(a, now.Add(m.settings.Lease))
	if have := len(a.texts); a.state == Running && from <= have && from+len(texts) > have {
		m.append(a, texts[have-from:])
		m.Tell(a.ID, false)
	}
	if attended || a.readers.live(now) > 0 {
		a.alone = time.Time{}
	} else if a.alone.IsZero() {
		a.alone = now
	}
	added := Added{State: a.state, Have: len(a.texts)}
	if !a.alone.IsZero() {
		added.Alone = now.Sub(a.alone)
		if added.Alone >= m.settings.Alone {
			m.drop(a)
			added.State = Lost
		}
	}
	return added, nil
}

// append adds fragments, unless an answer outgrows its room by them.
func (m *Memory) append(a *kept, texts []string) {
	held := a.held
	for _, text := range texts {
		held += int64(len(text)) + m.settings.FragmentBytes
	}
	size := max(AnswerOverhead+held, LeastRunning)
	more := size - a.counted
	if size > m.settings.AnswerBytes || more > 0 && (m.owner(a.Owner).bytes+more > m.settings.OwnerBytes || m.bytes+more > m.settings.AllBytes) {
		a.state = Outgrown
		return
	}
	a.texts, a.held = append(a.texts, texts...), held
	m.count(a, size)
}

// End implements Store.
func (m *Memory) End(_ context.Context, r Ref, fragments int, e Ending) error {
	var now time.Time
	defer m.enter(&now)()
	a := m.ids[r.ID]
	if a == nil || a.state != Running && a.state != Outgrown {
		return nil
	}
	keep := m.settings.Keep
	switch {
	case e.Status == 0 && a.state == Running && len(a.texts) == fragments:
		a.state = Complete
	case e.Status == 0:
		m.drop(a)
		return nil
	default:
		m.free(a)
		a.state, a.ending, keep = Failed, e, m.settings.Lease
	}
	m.count(a, AnswerOverhead+a.held)
	m.expire(a, now.Add(keep))
	m.Tell(a.ID, false)
	return nil
}

// Stop implements Store.
func (m *Memory) Stop(_ context.Context, owner, key string) (found bool, err error) {
	var now time.Time
	defer m.enter(&now)()
	a := m.names[name{owner, key}]
	if a == nil {
		return false, nil
	}
	if a.state == Running || a.state == Outgrown {
		a.state, a.texts = Stopped, nil
		m.count(a, AnswerOverhead)
		m.expire(a, now.Add(m.settings.Keep))
		m.Tell(a.ID, true)
	}
	return true, nil
}

// Read implements Store.
func (m *Memory) Read(_ context.Context, r Ref, reader string, from int) (Part, error) {
	var now time.Time
	defer m.enter(&now)()
	a := m.ids[r.ID]
	if a == nil {
		return Part{State: Lost}, nil
	}
	if reader != "" {
		m.attend(a, reader, now)
	}
	if (a.state == Complete || a.state == Failed) && a.until.Sub(now) < m.settings.Lease { // it is kept while it is read
		m.expire(a, now.Add(m.settings.Lease))
	}
	texts := a.texts[min(from, len(a.texts)):]
	if len(texts) > PartFragments {
		return Part{Texts: texts[:PartFragments], State: Running}, nil
	}
	return Part{Texts: texts, State: a.state, Ending: a.ending}, nil
}

// Leave implements Store.
func (m *Memory) Leave(_ context.Context, r Ref, holder string) error {
	var now time.Time
	defer m.enter(&now)()
	o := m.owner(r.Owner)
	if holder == r.ID {
		delete(m.running, holder)
		delete(o.running, holder)
	} else {
		delete(o.readers, holder)
		if a := m.ids[r.ID]; a != nil {
			delete(a.readers, holder)
		}
	}
	m.dropOwner(r.Owner)
	return nil
}

// owner returns the counts of an owner. They are dropped when they are empty.
func (m *Memory) owner(id string) *owner {
	o := m.owners[id]
	if o == nil {
		o = &owner{running: make(leases), readers: make(leases)}
		m.owners[id] = o
	}
	return o
}

func (m *Memory) dropOwner(id string) {
	if o := m.owners[id]; o != nil && o.bytes == 0 && len(o.running) == 0 && len(o.readers) == 0 {
		delete(m.owners, id)
	}
}

// count sets how many bytes the limits count for an answer.
func (m *Memory) count(a *kept, bytes int64) {
	m.owner(a.Owner).bytes += bytes - a.counted
	m.bytes += bytes - a.counted
	a.counted = bytes
}

// drop forgets an answer.
func (m *Memory) drop(a *kept) {
	m.free(a)
	delete(m.ids, a.ID)
	heap.Remove(&m.forget, a.index)
	m.count(a, 0)
	for reader := range a.readers {
		delete(m.owner(a.Owner).readers, reader)
	}
	m.dropOwner(a.Owner)
	m.Tell(a.ID, false)
}

// free takes the key from an answer: the next Claim does not find it.
func (m *Memory) free(a *kept) {
	if key := (name{a.Owner, a.Key}); m.names[key] == a {
		delete(m.names, key)
	}
}

// expire sets when an answer is forgotten.
func (m *Memory) expire(a *kept, until time.Time) {
	a.until = until
	heap.Fix(&m.forget, a.index)
}

// expiries is a heap of answers, the first to be forgotten first.
type expiries []*kept

func (e expiries) Len() int           { return len(e) }
func (e expiries) Less(i, j int) bool { return e[i].until.Before(e[j].until) }
func (e expiries) Swap(i, j int) {
	e[i], e[j] = e[j], e[i]
	e[i].index, e[j].index = i, j
}

func (e *expiries) Push(a any) {
	added := a.(*kept)
	added.index = len(*e)
	*e = append(*e, added)
}

func (e *expiries) Pop() any {
	last := (*e)[len(*e)-1]
	(*e)[len(*e)-1] = nil
	*e = (*e)[:len(*e)-1]
	return last
}
