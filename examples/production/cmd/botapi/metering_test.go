package main

import (
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/botapi/examples/openai/runtimetest"
	"example.com/botapi/examples/production/internal/redistest"
	"example.com/botapi/examples/production/internal/telemetry"
	"github.com/matryer/is"
)

// meteredRuntime does what the prompt says.
func meteredRuntime(t *testing.T) *runtimetest.Server {
	return runtimetest.New(t, func(s *runtimetest.Stream, r *runtimetest.Request) {
		prompt := lastOf(r)
		says := func(word string) bool { return strings.Contains(prompt, word) }
		if says("refuse") {
			s.Refuse(http.StatusInternalServerError, `{}`)
			return
		}
		for range 5 {
			if says("words") {
				s.Text("word ")
			}
		}
		switch {
		case says("break"):
			s.Break()
		case says("stall"):
			<-r.Context().Done()
		case says("absurd"):
			s.Stop()
			s.Usage(1, 0)
			s.Done()
		default:
			s.Stop()
			s.Usage(20, 7)
			s.Done()
		}
	})
}

// A way is one way in which a tenant has chats.
type way struct {
	prompt      string
	path        string
	json        bool
	idempotency string
	disconnects int // after so many events; 0 for never, -1 before the response
	want        int64
}

// send has one chat, and returns when the client has its end or has disconnected.
func (w way) send(t *testing.T, key, url string) {
	ctx, disconnect := context.WithTimeout(t.Context(), patience)
	defer disconnect()
	body := chatBody(w.prompt, !w.json)
	switch w.path {
	case "/v1/chat/completions":
		body = fmt.Sprintf(`{"model":"helper","messages":[{"role":"user","content":%q}],"stream":%t}`, w.prompt, !w.json)
	case "/v1/responses":
		body = fmt.Sprintf(`{"model":"helper","input":%q,"stream":%t}`, w.prompt, !w.json)
	}
	if w.disconnects < 0 {
		time.AfterFunc(time.Duration(-w.disconnects)*time.Millisecond, disconnect)
	}
	response, err := request(ctx, http.DefaultClient, key, "POST", url+w.path, body, "Idempotency-Key", w.idempotency)
	if err != nil {
		return // disconnected
	}
	defer response.Body.Close()
	events := eventsOf(response)
	for range w.disconnects {
		events.next()
	}
	if w.disconnects <= 0 {
		_, _ = io.Copy(io.Discard, response.Body)
	}
}

// TestBillAndLimitAgree has tenants who want to pay less: they disconnect, stall
// the model, and repeat. What the usage table says of each account is what its
// limit has counted, and what both commands of the operator print.
func TestBillAndLimitAgree(t *testing.T) {
	is := is.New(t)
	redis := redistest.NewServerAtNoon(t)
	env := migrated(t)
	importBots(t, env, oneBot)
	is.Equal(command(t, "", env, "limits", "set", "--tokens-per-day", "1000000").code, 0)
	p := serve(t, env, "--runtime", "local="+meteredRuntime(t).URL, "--redis", redis.URL, "--answers", "--redis-prefix", "t:", "--openai",
		"--stall-timeout", "1s", "--resume", "1s", "--keep", "1m")
	estimated := func(text string, completion int64) int64 {
		return (6+int64(len(text))+3)/4 + 2*4 + completion
	}
	ways := map[string]way{
		"complete":              {prompt: "words", want: 27},
		"absurd":                {prompt: "words absurd", want: estimated("words absurd", 7)},
		"refused":               {prompt: "refuse", want: 0},
		"silent":                {prompt: "stall", want: estimated("stall", 0)},
		"stalls":                {prompt: "words stall", want: estimated("words stall", 7)},
		"breaks":                {prompt: "words break", want: estimated("words break", 7)},
		"disconnects":           {prompt: "words stall", disconnects: 3, want: -1},
		"disconnects early":     {prompt: "words stall", disconnects: -1, want: -1},
		"disconnects in time":   {prompt: "stall", disconnects: -100, want: -1},
		"a huge prompt":         {prompt: "stall" + strings.Repeat(" x", 96<<10), want: estimated("stall"+strings.Repeat(" x", 96<<10), 0)},
		"huge, and disconnects": {prompt: "stall" + strings.Repeat(" x", 96<<10), disconnects: -30, want: -1},
	}
	keys := make(map[string]string)
	var all sync.WaitGroup
	for name, w := range ways {
		for _, path := range []string{"/v1/chat", "/v1/chat/completions", "/v1/responses"} {
			for _, json := range []bool{false, true} {
				for _, keyed := range []bool{false, true} {
					w, account := w, fmt.Sprintf("%s %s %t %t", name, path, json, keyed)
					if json && w.disconnects > 0 {
						continue // it has no events
					}
					w.path, w.json = path, json
					if keyed {
						w.idempotency = "k"
					}
					keys[account] = createKey(t, env, account)
					all.Go(func() {
						w.send(t, keys[account], p.url)
						w.send(t, keys[account], p.url) // with the same Idempotency-Key
					})
				}
			}
		}
	}
	all.Wait()
	p.end(t)
	client := redis.Client(t)
	shown, printed := make(map[string]string), make(map[string]string)
	onOneDay(func() {
		endChatsToday(t, env)
		for line := range strings.Lines(command(t, "", env, "limits", "show", "--redis", redis.URL, "--redis-prefix", "t:").stdout) {
			cells := strings.Fields(line)
			n := len(cells) - 7 // words of the account
			shown[strings.Join(cells[:n], " ")] = cells[n+2] + " " + cells[n+5]
		}
	})
	days, err := csv.NewReader(strings.NewReader(command(t, "", env, "usage", "--csv").stdout)).ReadAll()
	is.NoErr(err)
	for _, day := range days {
		printed[day[1]] = day[6] + "+" + day[7]
	}
	for account := range keys {
		var billed, chats, prompt int64
		query(t, env, `SELECT coalesce(sum(prompt_tokens + completion_tokens), 0), count(prompt_tokens), coalesce(sum(prompt_tokens), 0) FROM usage WHERE account = '`+account+`'`, &billed, &chats, &prompt)
		limited, _ := strconv.ParseInt(client.Get(t.Context(), "t:limits:tokens:"+account).Val(), 10, 64)
		if billed != limited {
			t.Errorf("%s: %d tokens are billed, and %d limited", account, billed, limited)
		}
		if chats > 0 {
			is.Equal(shown[account], fmt.Sprintf("%d/1000000 %d", limited, billed))
			is.Equal(printed[account], fmt.Sprintf("%d+%d", prompt, billed-prompt))
		}
		name, _, _ := strings.Cut(account, " /")
		if want := ways[name].want; want >= 0 && billed != want*chats || want > 0 && chats == 0 {
			t.Errorf("%s: %d tokens for %d chats, not %d each", account, billed, chats, want)
		}
	}
	is.Equal(len(p.logged(t, "usage not stored")), 0)
}

// endChatsToday has the chats so far end now: what is shown and printed is added
// up by day, and the test may run across midnight.
func endChatsToday(t *testing.T, env []string) {
	t.Helper()
	query(t, env, `UPDATE usage SET ended_at = now()`)
}

// onOneDay calls show, and again if midnight has passed meanwhile.
func onOneDay(show func()) {
	for day := (time.Time{}); day != today(); {
		day = today()
		show()
	}
}

// TestStallingChatsUseTheBudget has a budget of 100 tokens, and a model that never
// answers long prompts.
func TestStallingChatsUseTheBudget(t *testing.T) {
	is := is.New(t)
	runtime := meteredRuntime(t)
	env, key := withOneBot(t)
	is.Equal(command(t, "", env, "limits", "set", "--tokens-per-day", "100").code, 0)
	p := serve(t, env, "--runtime", "local="+runtime.URL, "--redis", redistest.NewServerAtNoon(t).URL, "--stall-timeout", "200ms")
	is.Equal(askStatus(t, key, "POST", p.url+"/v1/chat", chatBody("stall"+strings.Repeat(" x", 96<<10), true)), http.StatusGatewayTimeout)
	for range 3 {
		is.Equal(askStatus(t, key, "POST", p.url+"/v1/chat", chatBody("words", true)), http.StatusTooManyRequests)
	}
	is.Equal(len(runtime.Requests()), 1)
}

// TestRejectedChatsAreWrittenTogether has an account ask 500 times for more than
// it may.
func TestRejectedChatsAreWrittenTogether(t *testing.T) {
	is := is.New(t)
	const rejected = 500
	env, key := withOneBot(t)
	is.Equal(command(t, "", env, "limits", "set", "--tokens-per-day", "1").code, 0)
	p := serve(t, env, "--runtime", "local="+meteredRuntime(t).URL, "--redis", redistest.NewServerAtNoon(t).URL)
	way{prompt: "words", path: "/v1/chat"}.send(t, key, p.url)
	began := time.Now()
	for range rejected {
		is.Equal(askStatus(t, key, "POST", p.url+"/v1/chat", chatBody("Hi", true)), http.StatusTooManyRequests)
	}
	p.end(t)
	most := int(time.Since(began)/telemetry.LogPeriod) + 2

	lines, sum := p.logged(t, "chat rejected"), 0.0
	for _, line := range lines {
		is.Equal(line["account"], "acme")
		is.Equal(line["error"], "429 The tokens of this account for today are used up")
		sum += line["times"].(float64)
	}
	is.True(len(lines) <= most)
	is.Equal(sum, float64(rejected))
	is.Equal(len(p.logged(t, "chat")), 1)
	var rows, chats int
	query(t, env, `SELECT count(*), sum(chats) FROM usage WHERE rejected = '429 The tokens of this account for today are used up' AND account = 'acme' AND status = 429`, &rows, &chats)
	is.True(rows <= most)
	is.Equal(chats, rejected)
	endChatsToday(t, env)
	_, line, _ := strings.Cut(command(t, "", env, "usage", "--csv").stdout, "\n")
	_, line, _ = strings.Cut(line, ",") // the day
	is.Equal(line, "acme,501,1,25,1,20,7,0,500,0\n")
}

// TestChatsThatAskNoModelAreWrittenTogether has an account repeat chats with an
// invalid field and then, while Redis is away, chats over its limit that have an
// Idempotency-Key.
func TestChatsThatAskNoModelAreWrittenTogether(t *testing.T) {
	is := is.New(t)
	const rejected = 100
	runtime, redis := meteredRuntime(t), redistest.NewServer(t)
	env, key := withOneBot(t)
	is.Equal(command(t, "", env, "limits", "set", "--concurrent-chats", "1").code, 0)
	p := serve(t, env, "--runtime", "local="+runtime.URL, "--redis", redis.URL, "--answers")
	began := time.Now()
	for range rejected {
		is.Equal(askStatus(t, key, "POST", p.url+"/v1/chat", strings.Replace(chatBody("Hi", true), "{", `{"max_words":0,`, 1)), http.StatusUnprocessableEntity)
	}
	is.Equal(len(runtime.Requests()), 0)

	redis.Stop(t)
	eventually(t, "redis is away", func() bool { return len(p.logged(t, "redis is away")) > 0 })
	s := sharing{key: key, replicas: []*process{p}}
	response, err := s.send(t.Context(), 0, "", "stall words")
	is.NoErr(err)
	defer response.Body.Close()
	for i := range rejected {
		is.Equal(s.status(t, 0, fmt.Sprint("k", i)), http.StatusTooManyRequests)
	}
	response.Body.Close()
	p.end(t)
	most := 2 * (int(time.Since(began)/telemetry.LogPeriod) + 2)
	is.True(len(p.logged(t, "chat rejected")) <= most)
	is.Equal(len(p.logged(t, "chat")), 1)
	for status, reason := range map[int]string{422: "invalid request", 429: "429 Too many chats in progress for this account"} {
		var rows, chats, charged int
		query(t, env, fmt.Sprintf(`SELECT count(*), sum(chats), count(prompt_tokens) FROM usage WHERE status = %d AND starts_with(rejected, '%s')`, status, reason), &rows, &chats, &charged)
		is.True(rows <= most)
		is.Equal(chats, rejected)
		is.Equal(charged, 0)
	}
}
