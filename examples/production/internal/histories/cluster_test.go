package histories

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"testing"
	"time"

	"example.com/botapi/examples/production/internal/faulttest"
	"example.com/botapi/examples/production/internal/postgrestest"
	"example.com/botapi/examples/production/internal/redistest"
	"github.com/redis/go-redis/v9"
)

const patience = time.Minute

// A cluster is three replicas, each a process with its own link to one Redis.
type cluster struct {
	redis    *redistest.Server
	operator *redis.Client
	runtime  *runtime
	replicas [3]*replica
}

type replica struct {
	url  string
	link *faulttest.Link
	env  string
	cmd  *exec.Cmd
}

func newCluster(t testing.TB) *cluster {
	t.Helper()
	c := &cluster{redis: redisFor(t), runtime: newRuntime(t)}
	options, err := redis.ParseURL(c.redis.URL)
	if err != nil {
		t.Fatal(err)
	}
	c.operator = redis.NewClient(options)
	t.Cleanup(func() { c.operator.Close() })
	for i := range c.replicas {
		link := faulttest.NewLink(t, options.Addr)
		c.replicas[i] = newReplica(t, replicaSettings{Redis: "redis://" + link.Address + "/0", Runtime: c.runtime.URL})
		c.replicas[i].link = link
	}
	c.settle(t)
	return c
}

// newProcess is a cluster of one process, which keeps its answers in memory and is
// all three replicas. It has no limits.
func newProcess(t testing.TB) *cluster {
	t.Helper()
	c := &cluster{runtime: newRuntime(t)}
	r := newReplica(t, replicaSettings{Runtime: c.runtime.URL})
	c.replicas = [3]*replica{r, r, r}
	c.settle(t)
	return c
}

// newReplica starts a replica at a free address.
func newReplica(t testing.TB, s replicaSettings) *replica {
	t.Helper()
	s.Address = fmt.Sprintf("127.0.0.1:%d", postgrestest.FreePort(t))
	settings, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	r := &replica{url: "http://" + s.Address, env: replicaVariable + "=" + string(settings)}
	r.start(t)
	t.Cleanup(r.kill)
	return r
}

// redisFor starts a Redis, with a clock that can be moved if possible.
func redisFor(t testing.TB) *redistest.Server {
	t.Helper()
	if redistest.CanMoveClock() {
		return redistest.NewServerWithClock(t)
	}
	t.Log("no C compiler: the clock of Redis is not moved")
	return redistest.NewServer(t)
}

func (r *replica) start(t testing.TB) {
	t.Helper()
	r.cmd = exec.Command(os.Args[0])
	r.cmd.Env = append(os.Environ(), r.env)
	r.cmd.Stdout, r.cmd.Stderr = os.Stdout, os.Stderr
	if _, err := r.cmd.StdinPipe(); err != nil { // open as long as this process lives
		t.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
}

func (r *replica) kill() {
	_ = r.cmd.Process.Kill()
	_ = r.cmd.Wait() // it was killed
}

// reaches reports whether the replica serves, and reaches its Redis.
func (r *replica) reaches() bool {
	response, err := http.Get(r.url + "/away")
	if err != nil {
		return false
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	return string(text) == "false"
}

// A span is a period of time.
type span struct{ from, to time.Time }

// awaySpans checks the replicas until end is closed. It returns when one did not
// reach its Redis, or when the machine stopped for so long that one may not
// have: that is a fault, too, whatever its cause.
func (c *cluster) awaySpans(end <-chan struct{}) (spans []span) {
	for {
		began := time.Now()
		well := true
		for _, r := range c.replicas {
			well = r.reaches() && well
		}
		if took := time.Since(began); !well || took > timeout/4 {
			one := span{began.Add(-timeout), time.Now().Add(lease)}
			if last := len(spans) - 1; last >= 0 && one.from.Before(spans[last].to) {
				spans[last].to = one.to
			} else {
				spans = append(spans, one)
			}
		}
		select {
		case <-end:
			return spans
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// settle waits until all replicas reach Redis.
func (c *cluster) settle(t testing.TB) {
	t.Helper()
	faulttest.Eventually(t, "the replicas come back", func() bool {
		return c.replicas[0].reaches() && c.replicas[1].reaches() && c.replicas[2].reaches()
	})
}

// A fault is what is done to a cluster, and which histories the documentation
// allows from its beginning until everything works again.
type fault struct {
	name string
	does func(t testing.TB, c *cluster, random *rand.Rand)
	allowed
}

// allowed is how a history may differ during a fault.
type allowed struct {
	fails         bool // answers in progress fail, and requests fail
	notKept       bool // requests with a key are answered as without one
	overLimit     bool // each replica enforces limits on its own
	losesBegun    bool // answers in progress are forgotten
	losesComplete bool // complete answers are forgotten
	losesCounts   bool // chats of the minute are forgotten
}

func (a allowed) and(b allowed) allowed {
	return allowed{
		a.fails || b.fails, a.notKept || b.notKept, a.overLimit || b.overLimit,
		a.losesBegun || b.losesBegun, a.losesComplete || b.losesComplete, a.losesCounts || b.losesCounts,
	}
}

var (
	redisAway = allowed{fails: true, notKept: true, overLimit: true, losesBegun: true}
	redisLost = allowed{fails: true, notKept: true, overLimit: true, losesBegun: true, losesComplete: true, losesCounts: true}
)

var faults = []fault{
	{"nothing", func(testing.TB, *cluster, *rand.Rand) {}, allowed{}},
	{"scripts are flushed", func(t testing.TB, c *cluster, _ *rand.Rand) {
		must(t, c.operator.ScriptFlush(t.Context()).Err())
	}, allowed{}},
	{"Redis is frozen for a moment", func(t testing.TB, c *cluster, _ *rand.Rand) {
		c.redis.Hang(t)
		time.Sleep(200 * time.Millisecond)
		c.redis.GoOn(t)
	}, allowed{}},
	{"a replica is killed", func(t testing.TB, c *cluster, random *rand.Rand) {
		r := c.replicas[random.IntN(3)]
		r.kill()
		moment(random)
		r.start(t)
	}, allowed{fails: true, losesBegun: true}},
	{"Redis is restarted", func(t testing.TB, c *cluster, random *rand.Rand) {
		c.redis.Stop(t)
		moment(random)
		c.redis.Start(t)
	}, redisLost},
	{"Redis is emptied", func(t testing.TB, c *cluster, _ *rand.Rand) {
		must(t, c.operator.FlushAll(t.Context()).Err())
	}, redisLost},
	{"Redis is frozen", func(t testing.TB, c *cluster, _ *rand.Rand) {
		c.redis.Hang(t)
		time.Sleep(2 * timeout)
		c.redis.GoOn(t)
	}, redisAway},
	{"Redis is demoted", func(t testing.TB, c *cluster, random *rand.Rand) {
		must(t, c.operator.Do(t.Context(), "REPLICAOF", "127.0.0.1", "1").Err())
		moment(random)
		must(t, c.operator.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err())
	}, redisAway},
	{"a replica is disconnected", linkIs(faulttest.Resetting), redisAway},
	{"a replica's connections hang", linkIs(faulttest.Swallowing), redisAway},
	{"a replica does not hear Redis", linkIs(faulttest.Deaf), redisAway},
}

// linkIs has the link of a replica in a mode for a moment.
func linkIs(mode faulttest.Mode) func(testing.TB, *cluster, *rand.Rand) {
	return func(_ testing.TB, c *cluster, random *rand.Rand) {
		link := c.replicas[random.IntN(3)].link
		link.Set(mode)
		if mode == faulttest.Deaf && random.IntN(2) == 0 { // otherwise its connections end before the replica gives up
			time.Sleep(timeout)
		}
		moment(random)
		link.Set(faulttest.Passing)
	}
}

func init() {
	if redistest.CanMoveClock() {
		faults = append(faults, movedClocks...)
	}
}

var movedClocks = []fault{
	{"the clock of Redis is set back", func(t testing.TB, c *cluster, _ *rand.Rand) {
		for range 12 { // an hour in all, in 12 steps
			c.redis.MoveClock(t, -5*time.Minute)
			time.Sleep(50 * time.Millisecond)
		}
	}, allowed{}},
	{"the clock of Redis is set forward", func(t testing.TB, c *cluster, _ *rand.Rand) {
		c.redis.MoveClock(t, time.Hour)
	}, allowed{fails: true, overLimit: true, losesBegun: true, losesComplete: true, losesCounts: true}},
}

func moment(random *rand.Rand) { time.Sleep(time.Duration(random.Int64N(int64(2 * time.Second)))) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
