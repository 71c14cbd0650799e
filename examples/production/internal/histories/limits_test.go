package histories

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"example.com/botapi/examples/production/internal/limits"
	"github.com/anishathalye/porcupine"
)

// A limitState is what an account has used of its limits. It is unknown whether
// chats in doubt count. Used and reserved tokens are between two bounds: it is
// unknown what a chat has used whose client has disconnected.
type limitState struct{ begun, admitted, doubt, least, most int }

// limitsOf models what the documentation says of an account's limits: a chat is
// admitted if there is room for it, and rejected only if there is none.
func limitsOf(l limits.Limits) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return limitState{} },
		Step: func(state, in, _ any) (bool, any) {
			s := state.(limitState)
			so := s.step(in.(act), int(l.ConcurrentChats), int(l.ChatsPerMinute), int(l.TokensPerDay))
			return so, s
		},
		DescribeOperation: func(in, _ any) string { return in.(act).String() },
		DescribeState:     func(state any) string { return fmt.Sprintf("%+v", state) },
	}
}

// step reports whether an act may happen, and updates what the account has used.
func (s *limitState) step(a act, concurrent, perMinute, perDay int) bool {
	before := *s
	switch a.does + " " + a.saw {
	case "ask ok":
		s.begun, s.most = s.begun+1, s.most+a.reserved
		if a.overLimit { // perhaps nobody counted it
			s.doubt++
			return true
		}
		s.admitted, s.least = s.admitted+1, s.least+a.reserved
		return before.begun < concurrent && before.admitted < perMinute && before.least < perDay
	case "ask concurrent":
		return s.begun+s.doubt >= concurrent || a.overLimit
	case "ask in a minute":
		return s.admitted+s.doubt >= perMinute || a.overLimit
	case "ask reserved":
		return s.most >= perDay || a.overLimit
	case "ask used up":
		return s.most-spare*s.begun >= perDay || a.overLimit
	case "ask failed", "ask ":
		s.doubt, s.most = s.doubt+1, s.most+a.reserved
		return a.saw == "" || a.fails
	case "release ":
		s.begun, s.most = s.begun-1, s.most-a.reserved+a.usedMost
		s.least -= a.reserved
		if a.allowed == (allowed{}) { // otherwise a replica may have died before it counted this
			s.least += a.usedLeast
		}
		return before.begun > 0
	case "lose ":
		if a.losesCounts {
			s.admitted, s.doubt, s.least = 0, s.doubt+s.admitted, min(s.least, 0)
		}
		return true
	}
	return false
}

// A limited is the history of one account with limits.
type limited struct {
	history
	limits.Limits
	cluster *cluster
	account string
}

func newLimited(c *cluster, name string, random *rand.Rand) *limited {
	l := &limited{history: history{began: time.Now()}, cluster: c, Limits: limits.Limits{
		ConcurrentChats: 1 + random.Int64N(4), ChatsPerMinute: 5 + random.Int64N(20), TokensPerDay: 40 + random.Int64N(300),
	}}
	l.account = fmt.Sprintf("concurrent=%d,per-minute=%d,per-day=%d,%s", l.ConcurrentChats, l.ChatsPerMinute, l.TokensPerDay, name)
	return l
}

// run has more clients ask than may, on all replicas.
func (l *limited) run(ctx context.Context, seed uint64) {
	var all sync.WaitGroup
	for client := range 6 {
		random := rand.New(rand.NewPCG(seed, uint64(client)))
		all.Go(func() {
			for range 2 + random.IntN(5) {
				time.Sleep(time.Duration(random.IntN(200)) * time.Millisecond)
				l.ask(ctx, client, random)
			}
		})
	}
	all.Wait()
}

// afterwards asks for some more chats, which shows what was counted meanwhile.
func (l *limited) afterwards(ctx context.Context, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 99))
	for range 2 * len(l.cluster.replicas) {
		l.ask(ctx, 0, random)
	}
}

func (l *limited) ask(ctx context.Context, client int, random *rand.Rand) {
	p := prompt{name: l.account, words: 1 + random.IntN(20), pace: time.Duration(random.IntN(100)) * time.Millisecond}
	if random.IntN(8) == 0 {
		p.words = 50 // usually longer than a lease
	}
	asked := act{does: "ask", reserved: p.words + spare}
	from := l.now()
	s, saw, detail := ask(ctx, l.cluster.replicas[random.IntN(3)].url, l.account, "", p.String())
	to := l.now()
	l.inTime("a chat", from, to)
	switch saw {
	case "ok":
		defer s.disconnect()
		asked.saw, asked.call = "ok", s.call
		l.add(client, asked, from, to)
		most := 1000
		if random.IntN(4) == 0 {
			most = random.IntN(p.words)
		}
		l.release(client, p, s, s.read(most), to)
	case "429":
		reason := reasonOf(detail)
		if seconds, err := strconv.Atoi(s.retry); err != nil || seconds < 1 || reason != "used up" && seconds > 60 {
			l.fail("%q for %q seconds", detail, s.retry)
		}
		l.add(client, act{does: "ask", saw: reason}, from, to)
	case "":
		l.add(client, asked, from, forever)
	case "wrong":
		l.fail("an answer begins with %q", detail)
	default:
		asked.saw = "failed"
		l.add(client, asked, from, to)
	}
}

// reasonOf is the limit that a chat exceeds.
func reasonOf(detail string) string {
	for _, reason := range []string{"in a minute", "used up", "reserved"} {
		if strings.Contains(detail, reason) {
			return reason
		}
	}
	return "concurrent"
}

// release records when a slot is released: within half a lease after the model
// has finished, and at some time after the client has disconnected.
func (l *limited) release(client int, p prompt, s *stream, end string, from int64) {
	now := l.now()
	released := act{does: "release", call: s.call, reserved: p.words + spare, usedLeast: s.words, usedMost: p.words}
	switch {
	case end == "complete":
		l.add(client, released, int64(l.cluster.runtime.saidAll(s.call).Sub(l.began)), now+int64(lease/2))
		return
	case end == "":
		from = now // the client disconnects
	case strings.HasPrefix(end, "wrong"):
		l.fail("call %d: %s", s.call, end)
	}
	l.add(client, released, from, forever)
}
