package resume_test

import (
	"testing"

	"example.com/botapi/examples/resume"
	"example.com/botapi/examples/resume/resumetest"
)

func TestMemory(t *testing.T) {
	resumetest.Run(t, func(_ *testing.T, s resume.Settings) func() resume.Store {
		store := resume.NewMemory(s)
		return func() resume.Store { return store }
	})
}
