package answers_test

import (
	"testing"

	"example.com/botapi/examples/production/internal/answers"
	"example.com/botapi/examples/production/internal/redistest"
	"example.com/botapi/examples/resume"
	"example.com/botapi/examples/resume/resumetest"
	"go.opentelemetry.io/otel/metric/noop"
)

// TestContract has three replicas, each with its own connections to one Redis.
func TestContract(t *testing.T) {
	resumetest.Run(t, func(t *testing.T, s resume.Settings) func() resume.Store {
		server := redistest.NewServer(t)
		return func() resume.Store { return open(t, server, s) }
	})
}

func open(t *testing.T, server *redistest.Server, s resume.Settings) *answers.Store {
	t.Helper()
	store, err := answers.New(server.Client(t), s, noop.Meter{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	return store
}
