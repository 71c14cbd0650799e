package resumetest_test

import (
	"testing"

	"example.com/botapi/examples/resume"
	"example.com/botapi/examples/resume/resumetest"
)

// In a test of the package with the store. The memory store, which the suite passes too, is for
// one process, so each Backend has one store.
func ExampleRun() {
	var t *testing.T // that of the test
	resumetest.Run(t, func(_ *testing.T, s resume.Settings) func() resume.Store {
		store := resume.NewMemory(s)                // or an empty database
		return func() resume.Store { return store } // or a store for one more process
	})
}
