package histories

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// An answerState is the state of one key of an account.
type answerState struct {
	phase string // "" for nothing, "begun", "complete" or "stopped"
	call  int    // of the answer; 0 if nobody has seen that yet
}

// keyedModel is what the documentation says of a key: a request begins an
// answer, or joins the one that exists, until that has failed or was stopped.
var keyedModel = porcupine.NondeterministicModel{
	Init: func() []any { return []any{answerState{}} },
	Step: func(state, in, _ any) []any {
		s, a := state.(answerState), in.(act)
		return s.step(a, a.call != 0 && (s.call == a.call || s.call == 0))
	},
	DescribeOperation: func(in, _ any) string { return in.(act).String() },
	DescribeState:     func(state any) string { return fmt.Sprintf("%+v", state) },
}

// step returns the states that a key may have after an act. its means that the
// client heard the call of that key's answer.
func (s answerState) step(a act, its bool) (next []any) {
	may := func(so bool, then answerState) {
		if so {
			next = append(next, then)
		}
	}
	nothing, begun := answerState{}, s.phase == "begun"
	switch a.does + " " + a.saw {
	case "ask kept":
		may(s.phase == "", answerState{"begun", a.call})
	case "ask joined":
		may((begun || s.phase == "complete") && its, answerState{s.phase, a.call})
	case "ask not-kept":
		may(a.notKept || a.fails, s) // also a request that joins an answer whose replica then dies
	case "ask 410":
		may(s.phase == "stopped", s)
	case "ask failed": // before the first word, its own or one that it has joined
		may(s.phase == "" || begun, nothing)
		may(a.fails, s)
	case "ask ", "stop ": // its effect is unknown
		may(true, s)
		may(a.does == "ask" && s.phase == "", answerState{"begun", 0})
		may(a.does == "stop" && begun, answerState{"stopped", s.call})
	case "end complete":
		may((begun || s.phase == "complete") && its, answerState{"complete", a.call})
		may(a.losesBegun || a.own && its && s.phase != "", s) // the client has all of it before the others know
	case "end stopped":
		may(s.phase == "stopped" && its, s)
	case "end failed":
		may(begun && its, nothing)
		may(s.call != a.call || a.fails, s)          // it has failed before
		may(a.own && its && s.phase == "stopped", s) // it failed before its replica knew that it was stopped
	case "end broken": // although its model has not failed
		may(a.fails && begun && its, nothing)
		may(a.fails, s)
	case "model complete":
		may(begun && its, answerState{"complete", a.call})
		may(true, s) // another call's, or it was stopped before
	case "model failed":
		may(begun && its, nothing)
		may(true, s)
	case "stop 204":
		may(begun, answerState{"stopped", s.call})
		may(s.phase == "complete" || s.phase == "stopped", s)
	case "stop 404":
		may(s.phase == "", s)
	case "stop 503":
		may(a.fails || a.notKept, s)
		may((a.fails || a.notKept) && begun, answerState{"stopped", s.call})
	case "lose ":
		may(true, s)
		may(a.losesBegun && begun || a.losesComplete, nothing)
	}
	return next
}

func (a act) String() string {
	if a.allowed != (allowed{}) {
		return fmt.Sprintf("%s (in the fault): %s %d", a.does, a.saw, a.call)
	}
	return fmt.Sprintf("%s: %s %d", a.does, a.saw, a.call)
}

// A keyed is the history of one key.
type keyed struct {
	history
	cluster *cluster
	account string
	prompt  prompt
}

func newKeyed(c *cluster, name string, random *rand.Rand) *keyed {
	slowest := 40
	if random.IntN(5) == 0 {
		slowest = 120 // longer than a lease
	}
	return &keyed{
		history: history{began: time.Now()},
		cluster: c,
		account: name,
		prompt: prompt{
			name: name, words: 5 + random.IntN(60), fails: random.IntN(5) == 0,
			pace: time.Duration(random.IntN(slowest)) * time.Millisecond,
		},
	}
}

const clients = 4

// run has some clients ask, disconnect, return to other replicas and stop.
func (k *keyed) run(ctx context.Context, seed uint64) {
	var all sync.WaitGroup
	for client := range clients {
		random := rand.New(rand.NewPCG(seed, uint64(client)))
		all.Go(func() {
			for range 2 + random.IntN(4) {
				time.Sleep(time.Duration(random.IntN(500)) * time.Millisecond)
				if random.IntN(12) == 0 {
					k.stop(ctx, client, random.IntN(3))
				} else {
					k.ask(ctx, client, random)
				}
			}
		})
	}
	all.Wait()
}

// afterwards stops the answer, and counts the calls of the model.
func (k *keyed) afterwards(ctx context.Context, seed uint64) {
	k.stop(ctx, clients, int(seed%3))
	k.settle()
}

func (k *keyed) ask(ctx context.Context, client int, random *rand.Rand) {
	most := 1000 // including the end
	if random.IntN(2) == 0 {
		most = random.IntN(k.prompt.words)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if random.IntN(10) == 0 {
		time.AfterFunc(time.Duration(random.IntN(50))*time.Millisecond, cancel)
	}
	from := k.now()
	s, saw, detail := ask(ctx, k.cluster.replicas[random.IntN(3)].url, k.account, "key", k.prompt.String())
	to := k.now()
	k.inTime("a chat", from, to)
	switch saw {
	case "ok":
		defer s.disconnect()
		k.add(client, act{does: "ask", saw: s.outcome, call: s.call}, from, to)
		end := s.read(most)
		if s.outcome != "not-kept" {
			k.ended(client, s, end, to)
		}
	case "410": // after it has begun an answer, or not
		k.add(client, act{does: "ask"}, from, to)
		k.add(client, act{does: "ask", saw: saw}, from, to)
	case "":
		k.add(client, act{does: "ask"}, from, forever)
	case "wrong":
		k.fail("an answer begins with %q", detail)
	case "429": // it was joined too often
	default:
		k.add(client, act{does: "ask"}, from, to)
		k.add(client, act{does: "ask", saw: "failed"}, from, to)
	}
}

// ended records how the answer ended that a client followed.
func (k *keyed) ended(client int, s *stream, end string, from int64) {
	if end == "failed" && !k.prompt.fails {
		end = "broken"
	}
	switch {
	case end == "" || end == "aborted": // the client has disconnected, or was disconnected
	case strings.HasPrefix(end, "wrong"):
		k.fail("call %d: %s", s.call, end)
	case end == "complete" && s.words != k.prompt.words:
		k.fail("call %d: complete after %d of %d words", s.call, s.words, k.prompt.words)
	case end == "complete" && k.prompt.fails:
		k.fail("call %d: complete, and its model has failed", s.call)
	default:
		k.add(client, act{does: "end", saw: end, call: s.call, own: s.outcome == "kept"}, from, k.now())
	}
}

func (k *keyed) stop(ctx context.Context, client, replica int) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, "DELETE", k.cluster.replicas[replica].url+"/v1/answers", nil)
	if err != nil {
		panic(err)
	}
	request.Header.Set("Authorization", "Bearer "+k.account)
	request.Header.Set("Idempotency-Key", "key")
	from := k.now()
	response, err := http.DefaultTransport.(*http.Transport).Clone().RoundTrip(request)
	if err != nil {
		k.add(client, act{does: "stop"}, from, forever)
		return
	}
	response.Body.Close()
	k.add(client, act{does: "stop", saw: fmt.Sprint(response.StatusCode)}, from, k.now())
}

// settle waits until no model works for the key any more, and checks how often
// it was called.
func (k *keyed) settle() {
	stopped := make(map[int]int64)
	for _, o := range k.operations {
		if a := o.Input.(act); a.does+a.saw == "endstopped" {
			stopped[a.call] = o.Return
		}
	}
	calls := k.cluster.runtime.callsFor(k.prompt.name)
	timeout := time.After(patience)
	for _, c := range calls {
		select {
		case <-c.over:
		case <-timeout:
			k.fail("call %d continues although its answer was stopped", c.number)
			continue
		}
		if !c.said.IsZero() { // the answer is over at some time after that, even if no client sees it
			at := int64(c.said.Sub(k.began))
			if when, ok := stopped[c.number]; ok && at > when+int64(lease/2) {
				k.fail("call %d continued after it was stopped", c.number)
			}
			said := "complete"
			if k.prompt.fails {
				said = "failed"
			}
			k.add(clients, act{does: "model", saw: said, call: c.number}, at, forever)
		}
	}
	asked := 0
	for _, o := range k.operations {
		if a := o.Input.(act); a.does == "ask" && (a.saw == "" || a.saw == "kept" || a.saw == "not-kept") {
			asked++
		}
	}
	if len(calls) > asked {
		k.fail("the model was called %d times for %d requests that began an answer", len(calls), asked)
	}
}
