package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/botapi/examples/production/internal/postgrestest"
	"github.com/matryer/is"
)

// binary is the program, built once for all tests: they run what runs in
// production, under the race detector if they are.
var binary string

func TestMain(m *testing.M) {
	if serves := beside[os.Getenv(besideVariable)]; serves != nil {
		os.Exit(serveBeside(serves(os.Getenv(besideRuntimeVariable))))
	}
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "botapi-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "botapi")
	info, _ := debug.ReadBuildInfo()
	race := slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
	if out, err := exec.Command("go", "build", fmt.Sprintf("-race=%t", race), "-o", binary, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building the program: %v\n%s", err, out)
		return 1
	}
	raceReports := filepath.Join(dir, "race")
	os.Setenv("GORACE", "atexit_sleep_ms=0 log_path="+raceReports) // otherwise each command takes a second
	code := m.Run()
	reports, _ := filepath.Glob(raceReports + ".*") // also of programs that were killed
	for _, report := range reports {
		text, _ := os.ReadFile(report)
		fmt.Fprintf(os.Stderr, "%s\n", text)
		code = 1
	}
	return code
}

// only returns this environment, with where the race detector reports.
func only(env []string) []string {
	return append([]string{"GORACE=" + os.Getenv("GORACE")}, env...)
}

// result is the result of a run of the program.
type result struct {
	code           int
	stdout, stderr string
}

// command runs the program with only this environment.
func command(t testing.TB, stdin string, env []string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = only(env)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	err := cmd.Run()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// migrated returns the environment of a fresh database with its schema.
func migrated(t testing.TB) []string {
	t.Helper()
	return migratedAt(t, postgrestest.Database(t))
}

func migratedAt(t testing.TB, url string) []string {
	t.Helper()
	env := []string{"DATABASE_URL=" + url}
	if r := command(t, "", env, "migrate"); r.code != 0 {
		t.Fatal(r.stderr)
	}
	return env
}

const oneBot = `[{"uid":"u1","slug":"helper","name":"Helper","model":"m1","published":true,"instructions":"SECRET"}]`

func withRuntime(name string) string {
	return strings.Replace(oneBot, `"published"`, fmt.Sprintf(`"runtime":%q,"published"`, name), 1)
}

func TestRuntimesThatBotsMayName(t *testing.T) {
	is := is.New(t)
	env := migrated(t)
	for _, args := range []string{"--runtime big", "--runtime small,big", "--runtime small --runtime big=http://127.0.0.1:1/v1"} {
		r := command(t, withRuntime("big"), env, strings.Fields("bots import "+args+" -")...)
		is.Equal(r, result{stdout: "imported 1 bots\n"})
	}
	env = append(env, "BOTAPI_RUNTIMES=big=http://127.0.0.1:1/v1") // as for serve
	is.Equal(command(t, withRuntime("big"), env, "bots", "import", "-"), result{stdout: "imported 1 bots\n"})

	without := env[:len(env)-1]
	is.Equal(command(t, "", without, "bots", "unpublish", "helper"), result{stdout: "helper is hidden\n"})
	is.Equal(command(t, "", without, "bots", "publish", "helper"), result{
		stderr: "botapi: slug \"helper\": its runtime \"big\" is not among those of --runtime or BOTAPI_RUNTIMES\n", code: 2})
	is.True(strings.Contains(command(t, "", without, "bots", "list").stdout, "false"))
	is.Equal(command(t, "", without, "bots", "publish", "--runtime", "big", "helper"), result{stdout: "helper is published\n"})
	is.Equal(command(t, "", env, "bots", "publish", "helper"), result{stdout: "helper is published\n"})
}

// TestImportNamesHiddenBots imports two bots that clients do not see, one of them
// because it was hidden before.
func TestImportNamesHiddenBots(t *testing.T) {
	is := is.New(t)
	env := migrated(t)
	const bots = `[{"uid":"u1","slug":"helper","name":"Helper","model":"m1","published":true},
		{"uid":"u2","slug":"draft","name":"Draft","model":"m1"},
		{"uid":"u3","slug":"secret","name":"Secret","model":"m1","published":false}]`
	is.Equal(command(t, bots, env, "bots", "import", "-"), result{stdout: "imported 3 bots\nhidden until bots publish: draft, secret\n"})
	is.Equal(command(t, "", env, "bots", "publish", "draft"), result{stdout: "draft is published\n"})
	is.Equal(command(t, "", env, "bots", "publish", "draft"), result{stdout: "draft is published\n"})
	is.Equal(command(t, oneBot, env, "bots", "import", "-"), result{stdout: "imported 1 bots\n"}) // secret is not of this import
	is.Equal(command(t, bots, env, "bots", "import", "-"), result{stdout: "imported 3 bots\nhidden until bots publish: secret\n"})
}

func TestTablesHaveALineForEach(t *testing.T) {
	is := is.New(t)
	env := migrated(t)
	importBots(t, env, strings.Replace(oneBot, "Helper", `Helper\n\tin two lines`, 1))
	is.Equal(command(t, "", env, "bots", "list").stdout, ""+
		"SLUG    UID  PUBLISHED  MODEL  RUNTIME  NAME\n"+
		"helper  u1   true       m1              Helper in two lines\n")
}

func TestVersion(t *testing.T) {
	is := is.New(t)
	r := command(t, "", nil, "--version")
	is.Equal(r.code, 0)
	is.Equal(r.stderr, "")
	is.True(regexp.MustCompile(`^botapi \S+ go\d\S+ [a-z0-9]+/[a-z0-9]+\n$`).MatchString(r.stdout))
}

func TestFirstSteps(t *testing.T) {
	is := is.New(t)
	url := postgrestest.Database(t)
	env := []string{"DATABASE_URL=" + url}

	r := command(t, "", env, "migrate", "--dry-run")
	is.Equal(r.code, 0)
	is.True(strings.HasPrefix(r.stdout, "the schema has version 0\nwould apply 00001_bots.sql:\n-- +goose Up\nCREATE TABLE bots ("))
	r = command(t, "", env, "migrate")
	is.Equal(r, result{stdout: "the schema has version 0\napplied 00001_bots.sql\napplied 00002_api_keys.sql\napplied 00003_usage.sql\napplied 00004_tokens.sql\napplied 00005_account_limits.sql\napplied 00006_estimates.sql\napplied 00007_key_expiry.sql\napplied 00008_rejected_chats.sql\napplied 00009_replaced_keys.sql\napplied 00010_joins.sql\n"})
	is.Equal(command(t, "", nil, "--database", url, "migrate"), result{stdout: "the schema has version 10\nnothing to do\n"}) // a flag works, too
	is.Equal(command(t, "", env, "migrate", "--dry-run"), result{stdout: "the schema has version 10\nnothing to do\n"})

	file := filepath.Join(t.TempDir(), "bots.json")
	is.NoErr(os.WriteFile(file, []byte(oneBot), 0o600))
	is.Equal(command(t, "", env, "bots", "import", file), result{stdout: "imported 1 bots\n"})
	is.Equal(command(t, oneBot, env, "bots", "import", "-"), result{stdout: "imported 1 bots\n"})
	is.Equal(command(t, "", env, "bots", "unpublish", "helper"), result{stdout: "helper is hidden\n"})
	is.Equal(command(t, "", env, "bots", "list").stdout, ""+
		"SLUG    UID  PUBLISHED  MODEL  RUNTIME  NAME\n"+
		"helper  u1   false      m1              Helper\n")
	is.Equal(command(t, "", env, "bots", "publish", "helper"), result{stdout: "helper is published\n"})

	r = command(t, "", env, "keys", "create", "--account", "acme", "--label", "laptop")
	is.Equal(r.code, 0)
	key := strings.TrimSpace(r.stdout) // nothing else, for KEY=$(botapi keys create ...)
	is.True(strings.HasPrefix(key, "bot_"))
	is.True(!strings.Contains(r.stderr, key))

	r = command(t, "", env, "keys", "list")
	is.True(strings.Contains(r.stdout, "acme     laptop"))
	is.True(!strings.Contains(r.stdout, key))
	is.Equal(command(t, "", env, "keys", "revoke", "1"), result{stdout: "key 1 of acme (laptop) has been revoked\n"})
	ended := strings.Fields(command(t, "", env, "keys", "list").stdout)
	is.Equal(command(t, "", env, "keys", "revoke", "1"), result{
		stdout: "key 1 of acme (laptop) had already been revoked, at " + strings.Join(ended[len(ended)-2:], " ") + " UTC\n",
	})
	is.Equal(command(t, "", env, "keys", "list", "--account", "other").stdout, "ID  ACCOUNT  LABEL  CREATED  LAST USED  EXPIRES  REVOKED\n")
}

func TestMistakes(t *testing.T) {
	env := migrated(t)
	duplicate := strings.Replace(oneBot, "]", ","+strings.Trim(strings.Replace(oneBot, "u1", "u2", 1), "[]")+"]", 1)
	for name, c := range map[string]struct {
		env   []string
		args  string
		stdin string
		want  string
	}{
		"no database":               {nil, "migrate", "", "missing flags: --database=URL (see botapi --help)"},
		"a bad database":            {[]string{"DATABASE_URL=postgres://:port"}, "migrate", "", "reading the database URL"},
		"a bad database, served":    {[]string{"DATABASE_URL=postgres://:port"}, "serve --runtime a=http://b", "", "reading the database URL"},
		"no command":                {env, "", "", `expected one of "serve"`},
		"unknown command":           {env, "run", "", `unexpected argument run`},
		"unknown flag":              {env, "migrate --force", "", `unknown flag --force`},
		"no runtime":                {env, "serve", "", "missing flags: --runtime"},
		"a runtime without name":    {env, "serve --runtime http://127.0.0.1/v1", "", `is not NAME=URL`},
		"an invalid runtime":        {env, "serve --runtime a=127.0.0.1:80", "", `runtime "a": openai: the base URL is not an http or https URL`},
		"a key of no runtime":       {env, "serve --runtime a=http://b --runtime-key c=sk", "", `a runtime key is for "c", but no runtime has that name`},
		"a duration":                {env, "serve --runtime a=http://b --grace 10", "", `--grace`},
		"a negative duration":       {env, "serve --runtime a=http://b --grace=-1s", "", `--grace is too small`},
		"no stall timeout":          {env, "serve --runtime a=http://b --stall-timeout 0s", "", `--stall-timeout is too small`},
		"an address":                {env, "serve --runtime a=http://b --listen nowhere", "", `--listen: address nowhere: missing port in address`},
		"a Redis":                   {env, "serve --runtime a=http://b --redis 127.0.0.1:6379", "", `reading the Redis URL`},
		"no time to return":         {env, "serve --runtime a=http://b --resume 0s", "", `--resume is too small`},
		"too little memory":         {env, "serve --runtime a=http://b --keep-answer-bytes 1000", "", `--keep-answer-bytes is too small`},
		"a short secret":            {env, "serve --runtime a=http://b --doctor-secret fifteen-letters", "", `--doctor-secret is shorter than 16 bytes`},
		"limits that do not nest":   {env, "serve --runtime a=http://b --keep-bytes 1000000", "", `each must have room for the one before`},
		"a log level":               {env, "migrate --log-level loud", "", `--log-level`},
		"no file":                   {env, "bots import missing.json", "", "open missing.json: no such file or directory"},
		"no JSON":                   {env, "bots import -", "[", "unexpected EOF"},
		"a misspelt field":          {env, "bots import -", `[{"uuid":"u1"}]`, `unknown field "uuid"`},
		"two files":                 {env, "bots import -", oneBot + oneBot, "there is data after the array of bots"},
		"a bot without a name":      {env, "bots import -", strings.Replace(oneBot, `"Helper"`, `""`, 1), `bot 1 (slug "helper"): name: cannot be blank`},
		"a hot bot":                 {env, "bots import -", strings.Replace(oneBot, `"published"`, `"temperature":3,"published"`, 1), `must be no greater than 2`},
		"one slug twice":            {env, "bots import -", duplicate, "two bots would have the same slug"},
		"an unknown bot":            {env, "bots publish nobody", "", `no bot has the slug "nobody"`},
		"no account":                {env, "keys create", "", "missing flags: --account"},
		"an empty account":          {env, "keys create --account=", "", "creating a key: account: cannot be blank"},
		"an invisible account":      {env, "keys create --account=a\u200bb", "", "account: must be one line of printable text"},
		"an unknown runtime":        {env, "bots import -", withRuntime("big"), `slug "helper": its runtime "big" is not among those of --runtime or BOTAPI_RUNTIMES`},
		"another runtime":           {append(env, "BOTAPI_RUNTIMES=small=http://b,a=http://b"), "bots import -", withRuntime("big"), `its runtime "big" is not among`},
		"a runtime by its URL":      {env, "bots import --runtime==http://b -", oneBot, `"=http://b" names no runtime`},
		"one uid twice":             {env, "bots import -", strings.Replace(oneBot, "]", ","+strings.Trim(oneBot, "[]")+"]", 1), "uid: belongs to another bot"},
		"a key by name":             {env, "keys revoke laptop", "", "laptop"},
		"days in reverse order":     {env, "usage --from 2026-02-01 --to 2026-01-31", "", "--from is after --to"},
		"a day that does not exist": {env, "usage --from 2026-02-30", "", "--from"},
		"days to keep":              {env, "usage delete", "", "missing flags: --keep-days=N"},
		"a negative number of days": {env, "usage delete --keep-days=-1", "", "--keep-days or --batch is too small"},
		"too many days":             {env, "usage delete --keep-days 213503982334501", "", "--keep-days is more than 36500"},
		"limits without a limit":    {env, "limits set --account acme", "", "no limit is given"},
		"limits of no account":      {env, "limits set --account= --concurrent-chats 1", "", "--account is empty: omit it for everybody else"},
		"no limits of no account":   {env, "limits remove --account=", "", "--account is empty: omit it for everybody else"},
		"what is used, nowhere":     {env, "limits show", "", "--redis is needed: what accounts use is counted there"},
		"what is used in no Redis":  {env, "limits show --redis 127.0.0.1:6379", "", "reading the Redis URL"},
		"an invisible limit":        {env, "limits set --account=a\x1b[2Jb --concurrent-chats 1", "", "setting limits: account: must be one line of printable text"},
		"an unknown key":            {env, "keys revoke 7", "", "no key has the number 7"},
		"no key, no account":        {env, "keys revoke", "", "either the number of a key or --account is needed"},
		"an empty name":             {env, "keys revoke --account=", "", "either the number of a key or --account is needed"},
		"a key and an account":      {env, "keys revoke 7 --account acme", "", "either the number of a key or --account is needed"},
		"a misspelt account":        {env, "keys revoke --account acne", "", `the account "acne" has no keys`},
		"unused in the future":      {env, "keys list --unused-since 3000-01-01", "", "--unused-since is in the future"},
		"no key to rotate":          {env, "keys rotate 7", "", "no valid key has the number 7"},
		"no key to expire":          {env, "keys expire 7 --after 1h", "", "no valid key has the number 7"},
		"a key that has expired":    {env, "keys create --account acme --expires-after=-1h", "", `--expires-after: "-1h" is not a duration`},
		"a rotation in the past":    {env, "keys rotate 7 --after=-1h", "", `--after: "-1h" is not a duration`},
		"a new key of the past":     {env, "keys rotate 7 --expires-after=-1h", "", `--expires-after: "-1h" is not a duration`},
		"an end in the past":        {env, "keys expire 7 --after=-1h", "", `--after: "-1h" is not a duration`},
		"no end":                    {env, "keys expire 7", "", "missing flags: --after=DURATION"},
		"a key of no time":          {env, "keys create --account acme --expires-after 0s", "", "--expires-after is too small: without it, the key works until it is revoked"},
		"a key of no days":          {env, "keys create --account acme --expires-after 0d", "", "--expires-after is too small"},
		"a key of days past":        {env, "keys create --account acme --expires-after=-1d", "", `--expires-after: "-1d" is not a duration`},
		"a new key of no time":      {env, "keys rotate 7 --expires-after 0s", "", "--expires-after is too small: without it, the key works until it is revoked"},
		"half a day":                {env, "keys create --account acme --expires-after 1.5d", "", `--expires-after: "1.5d" is not a duration like 90d, 36h or 1d12h`},
		"hours before days":         {env, "keys rotate 7 --after 12h1d", "", `--after: "12h1d" is not a duration`},
		"a day less some hours":     {env, "keys expire 7 --after 1d-12h", "", `--after: "1d-12h" is not a duration`},
		"a number of nothing":       {env, "keys expire 7 --after 30", "", `--after: "30" is not a duration`},
		"an end in 300 years":       {env, "keys expire 7 --after 109500d", "", `--after: "109500d" is not a duration`},
		"almost 300 years":          {env, "keys expire 7 --after 106751d24h", "", `--after: "106751d24h" is not a duration`},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			r := command(t, c.stdin, c.env, strings.Fields(c.args)...)
			is.Equal(r.code, 2)
			is.Equal(r.stdout, "")
			is.Equal(strings.Count(r.stderr, "\n"), 1) // one line
			is.True(strings.HasPrefix(r.stderr, "botapi: "))
			if !strings.Contains(r.stderr, c.want) {
				t.Errorf("%q does not say %q", r.stderr, c.want)
			}
		})
	}
}

func TestFailureIsNoUsageError(t *testing.T) {
	is := is.New(t)
	env := []string{fmt.Sprintf("DATABASE_URL=postgres://postgres@127.0.0.1:%d/postgres", postgrestest.FreePort(t))}
	for _, args := range []string{"migrate", "bots list", "keys create --account acme"} {
		r := command(t, "", env, strings.Fields(args)...)
		is.Equal(r.code, 1)
		is.Equal(r.stdout, "")
		is.Equal(strings.Count(r.stderr, "\n"), 1)
		is.True(strings.Contains(r.stderr, "connection refused"))
	}
}

func TestHelp(t *testing.T) {
	is := is.New(t)
	for args, want := range map[string]string{
		"--help":             "botapi keys create --account acme",
		"serve --help":       "($BOTAPI_RUNTIMES)",
		"bots import --help": `"instructions": "You are a kind assistant."`,
	} {
		r := command(t, "", nil, strings.Fields(args)...)
		is.Equal(r.code, 0)
		is.Equal(r.stderr, "")
		is.True(strings.Contains(r.stdout, want))
	}
}
