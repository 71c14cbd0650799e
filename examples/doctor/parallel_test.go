package main

import (
	"flag"
	"testing"
)

// TestMain has more tests run in parallel than there are processors: they mostly wait.
func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "40") // unless the command line has -parallel
	m.Run()
}
