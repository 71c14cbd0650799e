package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/matryer/is"
)

// TestDoctor has botapi's doctor check three replicas behind HAProxy, with TLS as the first
// lines of its configuration say: it can make each check, finds nothing but what they say of
// HTTP/2, and asks no model.
func TestDoctor(t *testing.T) {
	is := is.New(t)
	const secret = "the-secret-of-the-doctor"
	doctor := filepath.Join(t.TempDir(), "doctor")
	out, err := exec.Command("go", "build", "-o", doctor, "example.com/botapi/examples/doctor").CombinedOutput()
	is.Equal(string(out), "")
	is.NoErr(err)
	runtime := says(t, "from a model")
	s := share(t, runtime.URL, "--openai", "--doctor-secret", secret)
	certificate := certificate(t)
	t.Run("behind HAProxy", func(t *testing.T) {
		for _, c := range []struct{ alpn, proto, mayFind string }{
			{"http/1.1", "HTTP/1.1", ""},
			{"h2,http/1.1", "HTTP/2.0", "an incomplete answer looks incomplete"}, // as HAProxy 2.6 does
		} {
			t.Run(c.proto, func(t *testing.T) {
				t.Parallel() // it mostly waits
				is := is.New(t)
				proxy := startProxyAt(t, " ssl crt "+certificate+" alpn "+c.alpn, s.replicas)
				report := diagnose(t, doctor, strings.Replace(proxy.url, "http:", "https:", 1),
					"BOTAPI_KEY="+s.key, "DOCTOR_SECRET="+secret, "SSL_CERT_FILE="+certificate)
				is.True(report.Probed)
				var notes []string
				for _, r := range report.Results {
					notes = append(notes, r.Notes...)
					if r.Skipped+r.Problem != "" || len(r.Findings) > 0 && r.Check != c.mayFind {
						t.Errorf("%s: %s%s %s", r.Check, r.Skipped, r.Problem, r.Findings)
					}
				}
				t.Log(strings.Join(notes, "\n"))
				is.True(slices.Contains(notes, "the response is "+c.proto))
			})
		}
	})
	for _, p := range s.replicas {
		p.end(t)
		is.True(len(p.logged(t, "chat")) > 0)
		is.True(!strings.Contains(p.log.String(), secret))
	}
	is.Equal(len(runtime.Requests()), 0)
	for _, row := range usageOf(t, s.env) {
		is.Equal(row.Status, 0) // rejected: an order whose client left before the probe had it
	}
}

// A diagnosis is what the doctor prints with --json.
type diagnosis struct {
	Probed  bool
	Results []struct {
		Check            string
		Findings         []json.RawMessage
		Skipped, Problem string
		Notes            []string
	}
}

func diagnose(t *testing.T, doctor, url string, env ...string) (d diagnosis) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), doctor, url, "--json")
	cmd.Env, cmd.Stdout, cmd.Stderr = only(env), &stdout, &stderr
	err := cmd.Run()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		t.Fatal(err)
	}
	if err := json.Unmarshal(stdout.Bytes(), &d); err != nil || len(d.Results) == 0 {
		t.Fatalf("the doctor could not check %s: %s", url, stderr.String())
	}
	return d
}
