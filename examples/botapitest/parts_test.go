package botapitest

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.com/botapi"
	"github.com/matryer/is"
)

// brokenLimit is how long the tests wait for parts that never return.
const brokenLimit = 2 * time.Second

// mustFail checks that exactly one subtest fails, with a phrase in its message, and that the
// message says everything that it should.
func mustFail(t *testing.T, checks []partCheck, subtest, phrase string) {
	t.Helper()
	failed := map[string]string{}
	for _, check := range checks {
		if check.skipped() != "" {
			continue
		}
		if problems := check.run(); len(problems) > 0 {
			failed[check.name] = fmt.Sprint(problems[0])
		}
	}
	message := failed[subtest]
	if len(failed) != 1 || message == "" {
		t.Fatalf("%s should fail alone; these did: %v", subtest, failed)
	}
	if !strings.Contains(message, phrase) {
		t.Errorf("the message lacks %q:\n%s", phrase, message)
	}
	for _, part := range []string{"the contract says: ", "\ncalled: ", "\ncame back: ", "\nthe client: "} {
		_, after, found := strings.Cut(message, part)
		first, _, _ := strings.Cut(after, "\n")
		if !found || strings.TrimSpace(first) == "" {
			t.Errorf("the message does not say %q:\n%s", part, message)
		}
	}
	t.Log("\n" + message)
}

// TestRulesAreInTheContracts finds each sentence that a message may quote in the
// documentation of package botapi.
func TestRulesAreInTheContracts(t *testing.T) {
	is := is.New(t)
	var contracts strings.Builder
	for _, file := range []string{"store.go", "auth.go", "engine.go", "handler.go"} {
		text, err := os.ReadFile(filepath.Join("../..", file))
		is.NoErr(err)
		contracts.Write(text)
	}
	plain := func(text string) string {
		text = strings.NewReplacer("//", " ", "[", "", "]", "").Replace(text)
		return strings.Join(strings.Fields(text), " ")
	}
	documented := plain(contracts.String())
	rules := 0
	files, err := filepath.Glob("*.go")
	is.NoErr(err)
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		is.NoErr(err)
		ast.Inspect(parsed, func(n ast.Node) bool {
			spec, isSpec := n.(*ast.ValueSpec)
			if isSpec && fmt.Sprint(spec.Type) == "rule" {
				rules++
				text, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
				is.NoErr(err)
				if !strings.Contains(documented, plain(text)) {
					t.Errorf("%s is in no doc comment: %q", spec.Names[0], text)
				}
			}
			return true
		})
	}
	is.True(rules > 20)
}

// wrong is an error whose nil pointer is returned by mistake.
type wrong struct{}

func (*wrong) Error() string { return "something went wrong" }

func nilWrong() error {
	var err *wrong
	return err
}

var errBackend = errors.New("the backend is down")

// keptError keeps the error of the first call that was cancelled, for the five that the subtest
// Cancellation then makes, and one more.
type keptError struct{ cancelled, failed atomic.Int64 }

func (k *keptError) failure(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		k.cancelled.Add(1)
		return err
	}
	if k.cancelled.Load() > 0 && k.failed.Add(1) <= 6 {
		return context.Canceled
	}
	return nil
}

// TestBrokenPartsInGoTest runs the exported functions with broken parts, in a process of its
// own: go test must fail, and print the messages. With the race detector, data races count.
func TestBrokenPartsInGoTest(t *testing.T) {
	if os.Getenv(brokenPart) != "" {
		testBrokenPart(t)
		return
	}
	t.Parallel()
	for part, output := range map[string][]string{
		"store":  {"--- FAIL: TestBrokenPartsInGoTest/NotFound", `BotByUID(ctx, "botapitest-no-such-bot")`, "the client: 200 ", "--- SKIP: TestBrokenPartsInGoTest/Failing"},
		"keys":   {"--- FAIL: TestBrokenPartsInGoTest/Bad", "VerifyKey(ctx, ", "the client: 200 []"},
		"engine": {"--- FAIL: TestBrokenPartsInGoTest/YieldFalse", "another call of yield", "has disconnected"},
		"race":   {"DATA RACE", "--- FAIL: TestBrokenPartsInGoTest/Cancellation"},
		"cache":  {"DATA RACE", "--- FAIL: TestBrokenPartsInGoTest/Cancellation"},
	} {
		t.Run(part, func(t *testing.T) {
			t.Parallel()
			if output[0] == "DATA RACE" && !raceDetector {
				t.Skip("only the race detector sees this one: go test -race")
			}
			run := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestBrokenPartsInGoTest$", "-test.v")
			run.Env = append(os.Environ(), brokenPart+"="+part)
			printed, err := run.CombinedOutput()
			if _, hasFailed := errors.AsType[*exec.ExitError](err); !hasFailed {
				t.Fatalf("go test should fail: %v\n%s", err, printed)
			}
			for _, text := range output {
				if !strings.Contains(string(printed), text) {
					t.Errorf("%q is not in\n%s", text, printed)
				}
			}
			isRace := output[0] == "DATA RACE" // which the detector may report again in a later subtest
			if failures := strings.Count(string(printed), "    --- FAIL: "); failures != 1 && !isRace {
				t.Errorf("%d subtests have failed:\n%s", failures, printed)
			}
		})
	}
}

const brokenPart = "BOTAPITEST_BROKEN_PART"

var raceDetector bool // whether the test runs with it

func testBrokenPart(t *testing.T) {
	switch os.Getenv(brokenPart) {
	case "store":
		TestStore(t, Store{Bots: zeroForUnknown{storeOf(t, twoBots...)}, Published: twoBots})
	case "keys":
		accepting := botapi.KeyVerifierFunc(func(context.Context, string) (string, error) { return "acme", nil })
		TestKeys(t, Keys{Verifier: accepting, Good: "good-key", Account: "acme", Bad: "bad-key"})
	case "engine":
		TestEngine(t, Engine{Engine: botapi.ChatEngineFunc(ignoresFalse)})
	case "race":
		TestStore(t, Store{Bots: &sharedBuffer{bots: twoBots, MemoryStore: storeOf(t, twoBots...)}, Published: twoBots})
	case "cache":
		TestStore(t, Store{Bots: &unlockedCache{MemoryStore: storeOf(t, twoBots...)}, Published: twoBots})
	}
}

// unlockedCache keeps a list when the first call has found it.
type unlockedCache struct {
	*botapi.MemoryStore
	list []botapi.Bot
}

func (s *unlockedCache) Bots(ctx context.Context) ([]botapi.Bot, error) {
	if s.list != nil || ctx.Err() != nil {
		return s.list, ctx.Err()
	}
	list, err := s.MemoryStore.Bots(ctx)
	s.list = list
	return list, err
}

// sharedBuffer fills one slice again and again, always with the same bots.
type sharedBuffer struct {
	*botapi.MemoryStore
	bots, buffer []botapi.Bot
}

func (s *sharedBuffer) Bots(context.Context) ([]botapi.Bot, error) {
	s.buffer = append(s.buffer[:0], s.bots...)
	return slices.Clone(s.buffer), nil
}
