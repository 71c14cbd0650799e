package main

import (
	"net/http"
	"strings"
	"testing"

	"github.com/matryer/is"
)

// cellOf is what keys list shows of the key with this label, in this column.
func cellOf(t *testing.T, env []string, label, column string) string {
	t.Helper()
	lines := strings.Split(command(t, "", env, "keys", "list").stdout, "\n")
	start := strings.Index(lines[0], column)
	for _, line := range lines[1:] {
		if start >= 0 && strings.Contains(line, label) {
			cell, _, _ := strings.Cut(line[start:], "  ")
			return cell
		}
	}
	t.Fatalf("keys list has no %s of %s", column, label)
	return ""
}

// createLabelled creates a key of acme, and returns it.
func createLabelled(t *testing.T, env []string, label string, flags ...string) string {
	t.Helper()
	r := command(t, "", env, append([]string{"keys", "create", "--account", "acme", "--label", label}, flags...)...)
	if r.code != 0 {
		t.Fatal(r.stderr)
	}
	return strings.TrimSpace(r.stdout)
}

// TestLastUseIsListed uses a key while a replica runs, and another one just
// before it ends.
func TestLastUseIsListed(t *testing.T) {
	is := is.New(t)
	env := migrated(t)
	laptop, phone := createLabelled(t, env, "laptop"), createLabelled(t, env, "phone")
	p := serve(t, env, "--runtime", nowhere)
	is.Equal(cellOf(t, env, "laptop", "LAST USED"), "-")

	is.Equal(askStatus(t, laptop, "GET", p.url+"/v1/bots", ""), http.StatusOK)
	eventually(t, "the use is listed", func() bool { return cellOf(t, env, "laptop", "LAST USED") != "-" })

	is.Equal(askStatus(t, phone, "GET", p.url+"/v1/bots", ""), http.StatusOK)
	p.end(t)
	is.True(cellOf(t, env, "phone", "LAST USED") != "-")
}

// TestKeyCommands rotates and ends keys while a replica without a cache of keys
// runs: each command takes effect with the next request.
func TestKeyCommands(t *testing.T) {
	is := is.New(t)
	env := migrated(t)
	p := serve(t, env, "--runtime", nowhere, "--key-cache", "0s")
	status := func(key string) int {
		return askStatus(t, key, "GET", p.url+"/v1/bots", "")
	}
	first := createLabelled(t, env, "laptop", "--expires-after", "2160h")
	is.Equal(status(first), http.StatusOK)

	r := command(t, "", env, "keys", "rotate", "1", "--after", "24h")
	is.Equal(r.code, 0)
	second := strings.TrimSpace(r.stdout) // nothing else, for KEY=$(botapi keys rotate ...)
	is.Equal(r.stderr, "key 1 of acme (laptop) expires at "+cellOf(t, env, "laptop", "EXPIRES")+" UTC; it is replaced by key 2, which is not shown again:\n")
	is.Equal(status(first), http.StatusOK)
	is.Equal(status(second), http.StatusOK)
	is.Equal(strings.Count(command(t, "", env, "keys", "list").stdout, "acme     laptop"), 2) // with the same label
	replaced := result{code: 2, stderr: "botapi: key 1 of acme (laptop) has already been replaced by key 2: rotate that one, or create a key\n"}
	is.Equal(command(t, "", env, "keys", "rotate", "1"), replaced)

	r = command(t, "", env, "keys", "expire", "1", "--after", "0s")
	is.Equal(r, result{stdout: "key 1 of acme (laptop) expires at " + cellOf(t, env, "laptop", "EXPIRES") + " UTC\n"})
	is.Equal(status(first), http.StatusUnauthorized)
	is.Equal(status(second), http.StatusOK)
	is.Equal(command(t, "", env, "keys", "rotate", "1"), replaced) // also when it has ended

	other := createKey(t, env, "other")
	is.Equal(command(t, "", env, "keys", "revoke", "--account", "acme"), result{stdout: "revoked 2 keys of acme\n"})
	is.Equal(status(second), http.StatusUnauthorized)
	is.Equal(status(other), http.StatusOK)
	is.Equal(command(t, "", env, "keys", "revoke", "--account", "acme"), result{stdout: "revoked 0 keys of acme\n"})
}

func TestUnusedKeysAreListed(t *testing.T) {
	is := is.New(t)
	env := migrated(t)
	createLabelled(t, env, "old")
	createLabelled(t, env, "new")
	createKey(t, env, "other")
	query(t, env, `UPDATE api_keys SET created_at = '2026-01-31T12:00:00Z' WHERE label <> 'new'`)

	unused := func(flags ...string) (keys int) {
		r := command(t, "", env, append([]string{"keys", "list"}, flags...)...)
		is.Equal(r.code, 0)
		return strings.Count(r.stdout, "\n") - 1
	}
	is.Equal(unused(), 3)
	is.Equal(unused("--unused-since", "2026-02-01"), 2)
	is.Equal(unused("--unused-since", "2026-02-01", "--account", "acme"), 1)
	is.Equal(unused("--unused-since", "2026-01-31"), 0)
}

// TestKeysEndAfterDays gives keys their ends in days.
func TestKeysEndAfterDays(t *testing.T) {
	is := is.New(t)
	env := migrated(t)
	createLabelled(t, env, "laptop", "--expires-after", "30d")
	createLabelled(t, env, "phone", "--expires-after", "1d12h30m")
	is.Equal(command(t, "", env, "keys", "rotate", "1", "--after", "7d", "--expires-after", "90d").code, 0)
	createLabelled(t, env, "tablet")
	is.Equal(command(t, "", env, "keys", "expire", "4", "--after", "2d").code, 0)

	var first, second, third, fourth bool
	query(t, env, `SELECT
		bool_or(id = 1 AND expires_at BETWEEN created_at + interval '7 days' AND created_at + interval '7 days 1 minute'),
		bool_or(id = 2 AND expires_at = created_at + interval '36 hours 30 minutes'),
		bool_or(id = 3 AND expires_at = created_at + interval '2160 hours'),
		bool_or(id = 4 AND expires_at BETWEEN created_at + interval '2 days' AND created_at + interval '2 days 1 minute')
		FROM api_keys`, &first, &second, &third, &fourth)
	is.Equal([]bool{first, second, third, fourth}, []bool{true, true, true, true})
}
