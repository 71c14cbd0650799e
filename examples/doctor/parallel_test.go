package main

import (
	"flag"
	"os"
	"testing"
)

// TestMain has more tests run in parallel than there are processors: they mostly wait.
func TestMain(m *testing.M) {
	flag.Parse()
	_ = flag.Set("test.parallel", "10")
	os.Exit(m.Run())
}
