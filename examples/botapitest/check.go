package botapitest

import (
	"net/http"
	"testing"

	"example.com/botapi/examples/internal/stackcheck"
)

// Check mounts a handler as the application does, and runs the checks of docs/operating.md, each
// as a subtest, over real connections: HTTP/1.1, HTTP/2 with TLS, and h2c. It brings its own bots,
// keys and engine. A subtest fails with what was sent, what arrived, what a user would notice, the
// likely cause, and the paragraph that says what to do. A check that could say nothing new, since
// another has failed, is skipped; the failure says how many are. All of them take some five seconds, or up to half a minute for
// each that fails.
//
// mount returns the application's complete handler, with api where the application has its
// botapi handler. It is called once. Until Check returns, the default loggers of log and log/slog
// also write to the check that no key is logged, so that tests with Check must not be parallel to
// others that change these loggers; a [Log] is for other loggers.
func Check(t *testing.T, mount func(api http.Handler) http.Handler, options ...Option) {
	t.Helper()
	m := stackcheck.Mounting{Mount: mount, Log: new(stackcheck.Log)}
	for _, o := range options {
		o.apply(&m)
	}
	defer m.Log.Capture()()
	_, err := stackcheck.Inspect(t.Context(), m, func(r stackcheck.Result) {
		t.Run(r.Check, func(t *testing.T) { report(t, r) })
	})
	if err != nil {
		t.Fatalf("botapitest: %v", err)
	}
}

func report(t *testing.T, r stackcheck.Result) {
	switch {
	case r.Skipped != "":
		t.Skip(r.Skipped)
	case r.Problem != "":
		t.Errorf("this could not be checked: %s", r.Problem)
	}
	for _, f := range r.Findings {
		t.Errorf("\n%s", f)
	}
}

// An Option tells Check something about the application.
type Option interface{ apply(*stackcheck.Mounting) }

type optionFunc func(*stackcheck.Mounting)

func (f optionFunc) apply(m *stackcheck.Mounting) { f(m) }

// Prefix is where the application mounts the handler with http.StripPrefix, such as
// "/assistants". The default is the root.
func Prefix(prefix string) Option {
	return optionFunc(func(m *stackcheck.Mounting) { m.Prefix = prefix })
}

// Origin is that of pages which must be able to use the service, such as
// "https://app.example.com". Without it, the headers for pages (CORS) are checked only if the
// application allows all origins.
func Origin(origin string) Option {
	return optionFunc(func(m *stackcheck.Mounting) { m.Origin = origin })
}

// A Log is a writer for an application's own loggers, which are then checked, too: create them
// with it, and pass it to Check. It keeps nothing but the first line that has a key. The zero
// value is ready for use.
type Log struct{ log stackcheck.Log }

// Write never fails.
func (l *Log) Write(line []byte) (int, error) { return l.log.Write(line) }

func (l *Log) apply(m *stackcheck.Mounting) { m.Log = &l.log }
