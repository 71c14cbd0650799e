package main

import (
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"example.com/botapi/examples/production/internal/postgrestest"
	"example.com/botapi/examples/production/internal/redistest"
	"github.com/matryer/is"
)

// TestBackUpAndRestore runs the commands of the runbook, the first of them while a
// replica serves. It only replaces the addresses and the paths of this machine.
func TestBackUpAndRestore(t *testing.T) {
	is := is.New(t)
	for _, program := range []string{"pg_dump", "pg_restore", "createdb"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s was not found (Debian: apt-get install postgresql-client)", program)
		}
	}
	from := postgrestest.Database(t)
	env, key := withOneBotAt(t, from)
	revoked := createKey(t, env, "globex")
	is.Equal(command(t, "", env, "limits", "set", "--account", "acme", "--concurrent-chats", "7").code, 0)
	runtime := says(t, "Hello")
	redis := redistest.NewServer(t)
	args := []string{"--runtime", "local=" + runtime.URL, "--redis", redis.URL, "--answers", "--redis-prefix", "shop"}
	p := serve(t, env, args...)
	is.Equal(askStatus(t, key, "POST", p.url+"/v1/chat", chatBody("Hi", false)), http.StatusOK)
	eventually(t, "its usage and its key's use are stored", func() bool {
		return strings.Contains(command(t, "", env, "usage", "--csv").stdout, ",acme,1,") &&
			strings.Count(command(t, "", env, "keys", "list", "--account", "acme").stdout, "never") == 0
	})

	_, section, _ := strings.Cut(documents(t)["docs/runbook.md"], "## Back up and restore\n")
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(section, -1)
	is.Equal(len(blocks), 2)
	to, err := url.Parse(from)
	is.NoErr(err)
	name := strings.TrimPrefix(to.Path, "/") + "_restored"
	to.Path = "/" + name
	t.Cleanup(func() {
		exec.Command("dropdb", "--force", "--if-exists", "--maintenance-db="+from, name).Run()
	})
	dir := t.TempDir()
	run := func(block string) {
		t.Helper()
		shell := exec.CommandContext(t.Context(), "bash", "-eu")
		shell.Dir = dir
		shell.Stdin = strings.NewReader(strings.NewReplacer(
			"postgres://postgres@127.0.0.1:5432/botapi_restored", to.String(), "botapi_restored", name).Replace(block))
		shell.Env = append(os.Environ(), "DATABASE_URL="+from, "PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"))
		output, err := shell.CombinedOutput()
		if err != nil {
			t.Fatalf("%s\n%v\n%s", block, err, output)
		}
	}
	state := func(env []string) (all string) {
		for _, list := range []string{"bots list", "keys list", "limits list", "usage --csv"} {
			r := command(t, "", env, strings.Fields(list)...)
			is.Equal(r.code, 0)
			all += r.stdout
		}
		return all
	}
	before := state(env)
	run(blocks[0][1])
	later := createKey(t, env, "acme")
	is.Equal(command(t, "", env, "keys", "revoke", "--account", "globex").code, 0)
	run(blocks[1][1])

	restored := []string{"DATABASE_URL=" + to.String()}
	is.Equal(state(restored), before)
	foreign := serveTo(t, nil, restored, args...) // under the prefix of the old database
	is.Equal((<-foreign.exit).Error(), "exit status 2")
	_, owner, _ := strings.Cut(foreign.log.String(), "prefix: ")
	owner, _, _ = strings.Cut(owner, " is ")
	is.Equal(owner, "shop:owner")
	p.end(t)
	is.NoErr(redis.Client(t).Del(t.Context(), owner).Err())

	is.Equal(command(t, "", restored, "keys", "revoke", "--account", "globex").code, 0) // again, before it is valid for clients
	p = serve(t, restored, args...)
	for _, c := range []struct {
		key  string
		want int
	}{{key, http.StatusOK}, {revoked, http.StatusUnauthorized}, {later, http.StatusUnauthorized}} {
		is.Equal(askStatus(t, c.key, "POST", p.url+"/v1/chat", chatBody("Hi", false)), c.want)
	}
}
