package resume

import (
	"cmp"
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
	names   map[name]*record   // what a Claim finds, by name
	ids     map[string]*record // those, and what only their readers find
	owners  map[string]*owner
	running leases // slots of models of all owners, by answer, also of one that is over
	bytes   int64  // of all owners
}

// A record is one answer.
type record struct {
	Ref
	body       string
	state      State
	texts      []string
	held       int64 // bytes of texts
	counted    int64 // bytes that the limits count
	ending     Ending
	born       time.Time
	joins      int64
	readers    leases
	unattended time.Time // when an Add first found nobody that follows it; zero if somebody has since
	until      time.Time // when it is forgotten
	timer      *time.Timer
}

// An owner is what the limits of one owner count.
type owner struct {
	bytes            int64
	running, readers leases
}

// leases maps each holder to the end of its lease.
type leases map[string]time.Time

func (l leases) live() int64 {
	for holder, until := range l {
		if time.Until(until) <= 0 {
			delete(l, holder)
		}
	}
	return int64(len(l))
}

// NewMemory returns an empty store.
func NewMemory(s Settings) *Memory {
	return &Memory{
		settings: s.Completed(),
		names:    make(map[name]*record),
		ids:      make(map[string]*record),
		owners:   make(map[string]*owner),
		running:  make(leases),
	}
}

// Settings implements Store.
func (m *Memory) Settings() Settings { return m.settings }

// Claim implements Store.
func (m *Memory) Claim(_ context.Context, c Claim) (Claimed, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.names[c.name()]
	switch {
	case a != nil && c.Body != "" && c.Body != a.body:
		return Claimed{State: OtherBody}, nil
	case a != nil && a.state == Stopped:
		return Claimed{State: Stopped}, nil
	case a != nil && a.state != Outgrown:
		return m.join(a, c), nil
	case c.Join:
		return Claimed{State: Nothing}, nil
	}
	return m.start(c), nil
}

func (m *Memory) start(c Claim) Claimed {
	o := m.owner(c.Owner)
	defer m.dropOwner(c.Owner)
	switch {
	case o.running.live() >= cmp.Or(c.Limits.Running, m.settings.RunningPerOwner), m.running.live() >= m.settings.Running:
		return Claimed{State: TooManyRunning}
	case o.bytes+LeastRunning > m.settings.OwnerBytes, m.bytes+LeastRunning > m.settings.AllBytes:
		return Claimed{State: NoRoom}
	}
	a := &record{Ref: c.Ref, body: c.Body, state: Running, born: time.Now(), readers: make(leases)}
	m.names[a.name()], m.ids[a.ID] = a, a
	m.forgetAfter(a, m.settings.Lease)
	m.count(a, LeastRunning)
	m.renewModel(a.Ref)
	return Claimed{Started, a.ID}
}

func (m *Memory) join(a *record, c Claim) Claimed {
	o := m.owner(a.Owner)
	switch {
	case a.joins >= JoinBurst+int64(time.Since(a.born)/time.Second):
		return Claimed{State: TooManyJoins}
	case a.readers.live() >= m.settings.Readers, o.readers.live() >= cmp.Or(c.Limits.Readers, m.settings.ReadersPerOwner):
		return Claimed{State: TooManyReaders}
	}
	a.joins++
	m.attend(a, c.ID)
	return Claimed{Found, a.ID}
}

// attend gives a reader its slot, or renews that.
func (m *Memory) attend(a *record, reader string) {
	until := time.Now().Add(m.settings.Lease)
	a.readers[reader], m.owner(a.Owner).readers[reader] = until, until
	a.unattended = time.Time{}
}

// renewModel gives a model its slot, or renews that.
func (m *Memory) renewModel(a Ref) {
	until := time.Now().Add(m.settings.Lease)
	m.running[a.ID], m.owner(a.Owner).running[a.ID] = until, until
}

// Add implements Store.
func (m *Memory) Add(_ context.Context, r Ref, from int, texts []string, attended bool) (Added, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.renewModel(r)
	a := m.ids[r.ID]
	switch {
	case a == nil:
		return Added{State: Lost}, nil
	case a.state.isFinal():
		return Added{State: a.state}, nil
	}
	m.forgetAfter(a, m.settings.Lease)
	if have := len(a.texts); a.state == Running && from <= have && from+len(texts) > have {
		m.append(a, texts[have-from:])
	}
	if attended || a.readers.live() > 0 {
		a.unattended = time.Time{}
		return Added{State: a.state, Have: len(a.texts)}, nil
	}
	if a.unattended.IsZero() {
		a.unattended = time.Now()
	}
	added := Added{a.state, len(a.texts), time.Since(a.unattended)}
	if added.Unattended >= m.settings.Abandon {
		m.drop(a)
		added.State = Lost
	}
	return added, nil
}

// append adds fragments, unless an answer outgrows its room by them.
func (m *Memory) append(a *record, texts []string) {
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
func (m *Memory) End(_ context.Context, r Ref, fragments int, e Ending) (State, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.ids[r.ID]
	switch {
	case a == nil:
		return Lost, nil
	case a.state.isFinal():
		return a.state, nil
	case fragments == forgotten, a.state == Running && e.Status == 0 && len(a.texts) != fragments:
		m.drop(a)
		return Lost, nil
	case a.state == Outgrown:
		m.free(a)
		m.forgetAfter(a, m.settings.Lease)
		return Lost, nil // its state stays Outgrown, for its present readers
	case e.Status == 0:
		a.state = Complete
		m.forgetAfter(a, m.settings.Keep)
	default:
		m.free(a)
		a.state, a.ending = Failed, e
		m.forgetAfter(a, m.settings.Lease)
	}
	m.count(a, AnswerOverhead+a.held)
	return a.state, nil
}

// Stop implements Store.
func (m *Memory) Stop(_ context.Context, owner, key string) (found bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.names[name{owner, key}]
	if a == nil {
		return false, nil
	}
	if !a.state.isFinal() {
		a.state, a.texts = Stopped, nil
		m.count(a, AnswerOverhead)
		m.forgetAfter(a, m.settings.Keep)
		m.Tell(a.ID)
	}
	return true, nil
}

// Read implements Store.
func (m *Memory) Read(_ context.Context, r Ref, reader string, from int) (Part, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.ids[r.ID]
	if a == nil {
		return Part{State: Lost}, nil
	}
	if reader != "" {
		m.attend(a, reader)
	}
	if a.state != Running && time.Until(a.until) < m.settings.Lease { // it stays while it is read
		m.forgetAfter(a, m.settings.Lease)
	}
	texts := a.texts[min(from, len(a.texts)):]
	if len(texts) > PartFragments {
		return Part{Texts: texts[:PartFragments], State: Running}, nil
	}
	return Part{Texts: texts, State: a.state, Ending: a.ending}, nil
}

// Leave implements Store.
func (m *Memory) Leave(_ context.Context, r Ref, holder string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
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
func (m *Memory) count(a *record, bytes int64) {
	m.owner(a.Owner).bytes += bytes - a.counted
	m.bytes += bytes - a.counted
	a.counted = bytes
}

// drop forgets an answer.
func (m *Memory) drop(a *record) {
	m.free(a)
	delete(m.ids, a.ID)
	a.timer.Stop()
	m.count(a, 0)
	for reader := range a.readers {
		delete(m.owner(a.Owner).readers, reader)
	}
	m.dropOwner(a.Owner)
}

// free takes the key from an answer: the next Claim does not find it.
func (m *Memory) free(a *record) {
	if name := a.name(); m.names[name] == a {
		delete(m.names, name)
	}
}

// forgetAfter sets when an answer is forgotten.
func (m *Memory) forgetAfter(a *record, after time.Duration) {
	a.until = time.Now().Add(after)
	if a.timer != nil {
		a.timer.Reset(after)
		return
	}
	a.timer = time.AfterFunc(after, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.ids[a.ID] == a && time.Until(a.until) <= 0 {
			m.drop(a)
		}
	})
}
