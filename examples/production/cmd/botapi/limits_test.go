package main

import (
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"example.com/botapi/examples/openai/runtimetest"
	"github.com/matryer/is"
)

func TestLimitsCommands(t *testing.T) {
	is := is.New(t)
	env := migrated(t)
	is.Equal(command(t, "", env, "limits", "set", "--chats-per-minute", "60", "--concurrent-chats", "5"), result{
		stdout: "(everybody else): now 60 chats per minute, unlimited tokens per day, 5 concurrent chats\n"})
	is.Equal(command(t, "", env, "limits", "set", "--account", "acme", "--tokens-per-day", "1"), result{
		stdout: "acme: now 60 chats per minute, 1 tokens per day, 5 concurrent chats\n",
		stderr: "botapi: note: the account \"acme\" has no keys\n"})
	createKey(t, env, "acme")
	is.Equal(command(t, "", env, "limits", "set", "--account", "acme", "--tokens-per-day", "0"), result{
		stdout: "acme: now 60 chats per minute, unlimited tokens per day, 5 concurrent chats\n"})
	is.Equal(command(t, "", env, "limits", "list").stdout, ""+
		"ACCOUNT           CHATS PER MINUTE  TOKENS PER DAY  CONCURRENT CHATS\n"+
		"(everybody else)  60                -               5\n"+
		"acme              -                 0               -\n")
	is.Equal(command(t, "", env, "limits", "set", "--account", "acme", "--concurrent-chats", "7").code, 0)
	is.Equal(command(t, "", env, "limits", "set", "--chats-per-minute", "90").code, 0)
	is.Equal(command(t, "", env, "limits", "list").stdout, ""+ // those that are not given are kept
		"ACCOUNT           CHATS PER MINUTE  TOKENS PER DAY  CONCURRENT CHATS\n"+
		"(everybody else)  90                -               5\n"+
		"acme              -                 0               7\n")
	is.Equal(command(t, "", env, "limits", "remove", "--account", "acme", "--concurrent-chats"), result{
		stdout: "acme: removed 7 concurrent chats; now 90 chats per minute, unlimited tokens per day, 5 concurrent chats\n"})
	is.Equal(command(t, "", env, "limits", "list").stdout, ""+
		"ACCOUNT           CHATS PER MINUTE  TOKENS PER DAY  CONCURRENT CHATS\n"+
		"(everybody else)  90                -               5\n"+
		"acme              -                 0               -\n")
	is.Equal(command(t, "", env, "limits", "remove", "--account", "acme", "--concurrent-chats"), result{
		code: 2, stderr: "botapi: there are no limits to remove\n"})
	is.Equal(command(t, "", env, "limits", "remove", "--account", "acme", "--concurrent-chats=false"), result{
		code: 2, stderr: "botapi: limits remove: to keep a limit, do not name it (see botapi --help)\n"})
	is.Equal(command(t, "", env, "limits", "remove", "--account", "").code, 2)
	is.Equal(command(t, "", env, "limits", "remove", "--account", "acme"), result{
		stdout: "acme: removed unlimited tokens per day; now 90 chats per minute, unlimited tokens per day, 5 concurrent chats\n"})
	is.Equal(command(t, "", env, "limits", "remove", "--chats-per-minute", "--concurrent-chats"), result{
		stdout: "(everybody else): removed 90 chats per minute, 5 concurrent chats; now unlimited chats per minute, unlimited tokens per day, unlimited concurrent chats\n"})
	is.Equal(command(t, "", env, "limits", "remove"), result{code: 2, stderr: "botapi: there are no limits to remove\n"})
	is.Equal(command(t, "", env, "limits", "set", "--concurrent-chats=-1").code, 2)
	is.Equal(command(t, "", env, "limits", "set", "--account", "acme\nother", "--concurrent-chats", "1").code, 2)
	is.Equal(command(t, "", env, "limits", "list").stdout, "ACCOUNT  CHATS PER MINUTE  TOKENS PER DAY  CONCURRENT CHATS\n")
}

// TestShowLimits has an account with a chat that is over, one in progress on each
// of two replicas, and one that is rejected; another account uses nothing.
func TestShowLimits(t *testing.T) {
	is := is.New(t)
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, r *runtimetest.Request) {
		s.Text("one")
		if lastOf(r) == "Hi" {
			<-r.Context().Done()
			return
		}
		s.Stop()
		s.Usage(60, 40)
		s.Done()
	})
	s := share(t, runtime.URL, "--answer-tokens", "100")
	createKey(t, s.env, "idle")
	env := append(s.env, "BOTAPI_REDIS="+s.redis.URL)
	is.Equal(command(t, "", env, "limits", "set", "--concurrent-chats", "2", "--chats-per-minute", "60").code, 0)
	is.Equal(command(t, "", env, "limits", "set", "--account", "acme", "--tokens-per-day", "5000").code, 0)
	const header = "ACCOUNT  IN PROGRESS  LAST MINUTE  TOKENS TODAY  RESERVED  CHATS TODAY  BILLED TODAY  KEPT BYTES\n"
	is.Equal(command(t, "", env, "limits", "show"), result{stdout: header})

	way{prompt: "Hello", path: "/v1/chat"}.send(t, s.key, s.replicas[2].url)
	shows := func(account, line string) func() bool {
		return func() bool {
			endChatsToday(t, env)
			r := command(t, "", env, append([]string{"limits", "show"}, strings.Fields(account)...)...)
			is.Equal(r.stderr, "")
			return r.stdout == header+line
		}
	}
	eventually(t, "a chat is over", shows("", "acme     0/2          1/60         100/5000      0         1            100           0\n"))
	first, disconnect := s.connect(t, 0, "k1")
	is.Equal(first.next(), `{"content":"one"}`)
	second, _ := s.connect(t, 1, "")
	is.Equal(second.next(), `{"content":"one"}`)
	disconnect() // it may return
	is.Equal(s.status(t, 2, ""), http.StatusTooManyRequests)
	// Each reserves 6 bytes of instructions, 2 of a prompt, 4 for each message, and 100.
	// When a lease is renewed, every ten seconds, what its chat has used is counted.
	goOn := regexp.MustCompile(`^acme +2/2 +\d/60 +(\d+)/5000 +(\d+) +2 +100 +16384\n$`)
	showsBoth := func(account ...string) bool {
		endChatsToday(t, env)
		_, line, _ := strings.Cut(command(t, "", env, append([]string{"limits", "show"}, account...)...).stdout, "\n")
		cells := goOn.FindStringSubmatch(line)
		if cells == nil {
			return false
		}
		used, _ := strconv.Atoi(cells[1])
		reserved, _ := strconv.Atoi(cells[2])
		return used+reserved == 100+2*116
	}
	eventually(t, "two go on", func() bool { return showsBoth() })
	eventually(t, "they go on", func() bool { return showsBoth("--account", "acme") })
	is.True(shows("--account idle", "idle     0/2          0/60         0/-           0         0            0             0\n")())
	is.Equal(command(t, "", s.env, "limits", "show").code, 2) // without --redis
}
