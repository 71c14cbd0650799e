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
	p := serve(t, env, "--runtime", "local=http://127.0.0.1:1/v1")
	p.ready(t)
	is.Equal(cellOf(t, env, "laptop", "LAST USED"), "-")

	status, _ := ask(t, laptop, "GET", p.url+"/v1/bots", "")
	is.Equal(status, http.StatusOK)
	eventually(t, "the use is listed", func() bool { return cellOf(t, env, "laptop", "LAST USED") != "-" })

	status, _ = ask(t, phone, "GET", p.url+"/v1/bots", "")
	is.Equal(status, http.StatusOK)
	p.terminate(t)
	p.wait(t)
	is.True(cellOf(t, env, "phone", "LAST USED") != "-")
}
