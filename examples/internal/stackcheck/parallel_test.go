package stackcheck

import (
	"flag"
	"testing"
)

// TestMain has more tests run in parallel than there are processors: they mostly wait. With all of
// them at the same time, fragments would be late.
func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "32") // unless the command line has -parallel
	m.Run()
}
