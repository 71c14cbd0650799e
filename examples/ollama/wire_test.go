package ollama_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"example.com/botapi"
	"github.com/matryer/is"
)

var updateWire = flag.Bool("update", false, "rewrite the responses in testdata/wire")

// TestWire plays the conversations of testdata/wire. The first line of a file says what it
// shows; -update writes what follows "-- response --".
func TestWire(t *testing.T) {
	files, err := filepath.Glob("testdata/wire/*.txt")
	if err != nil || len(files) < 13 {
		t.Fatalf("only %d conversations: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				text, err := os.ReadFile(file)
				is.NoErr(err)
				before, want, _ := strings.Cut(string(text), "-- response --\n")
				_, before, _ = strings.Cut(before, "-- request --\n")
				request, steps, _ := strings.Cut(before, "-- engine --\n")
				h := botapi.New(options(t, played(strings.Split(steps, "\n")).chat))
				got := converse(t, h, request)
				if *updateWire {
					is.NoErr(os.WriteFile(file, []byte(strings.TrimSuffix(string(text), want)+got), 0o644))
					return
				}
				is.Equal(got, want)
			})
		})
	}
}
