package main

import (
	"bytes"
	"cmp"
	"context"
	_ "embed" // for what goes into the package
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

//go:embed switches.go.txt
var switches []byte

// A bench is what mutants are tried on.
type bench struct {
	dir     string
	sources []*source
	binary  string // has all mutants, switched off
	tests   []*test
}

type test struct {
	name    string
	took    time.Duration
	reached map[int]bool // the mutants
}

const tooLate = "time"

// build builds the test binary with all switches.
func (b *bench) build(ctx context.Context) error {
	replaced := map[string][]byte{"mutant_switches.go": switches}
	for _, s := range b.sources {
		replaced[s.name] = s.switched()
	}
	b.binary = filepath.Join(b.dir, "switched.test")
	return b.compile(ctx, "switched", replaced)
}

// compile builds a test binary with some files replaced.
func (b *bench) compile(ctx context.Context, name string, replaced map[string][]byte) error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for file, text := range replaced {
		path := filepath.Join(b.dir, name+"-"+file)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			return err
		}
		overlay.Replace[filepath.Join(dir, file)] = path
	}
	description, err := json.Marshal(overlay)
	if err != nil {
		return err
	}
	path := filepath.Join(b.dir, name+".json")
	if err := os.WriteFile(path, description, 0o600); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-overlay", path, "-o", filepath.Join(b.dir, name+".test"), ".").CombinedOutput()
	if err != nil {
		return fmt.Errorf("building: %w\n%s", err, out)
	}
	return nil
}

// measure finds out how long each test takes, and which mutants it reaches.
func (b *bench) measure(ctx context.Context, run, skip string) error {
	out, err := exec.CommandContext(ctx, b.binary, "-test.list", run).Output()
	if err != nil {
		return fmt.Errorf("listing the tests: %w", err)
	}
	skipped, err := regexp.Compile(skip)
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(string(out)) {
		if strings.HasPrefix(name, "Benchmark") || skip != "" && skipped.MatchString(name) {
			continue
		}
		t := &test{name: name, reached: map[int]bool{}}
		seen := filepath.Join(b.dir, name)
		began := time.Now()
		if out, err := b.start(ctx, b.binary, 5*time.Minute, []*test{t}, "MUTANTS_REACHED="+seen); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			log.Printf("%s is left out, since it fails without any mutant: %v\n%s", name, err, out)
			continue
		}
		t.took = time.Since(began)
		numbers, err := os.ReadFile(seen)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		for number := range bytes.FieldsSeq(numbers) {
			n, _ := strconv.Atoi(string(number))
			t.reached[n] = true
		}
		b.tests = append(b.tests, t)
	}
	slices.SortFunc(b.tests, func(a, b *test) int { return cmp.Compare(a.took, b.took) })
	return nil
}

// start runs tests, and ends them and all that they have started in time.
func (b *bench) start(ctx context.Context, binary string, limit time.Duration, tests []*test, environment ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	names := make([]string, len(tests))
	for i, t := range tests {
		names[i] = t.name
	}
	c := exec.CommandContext(ctx, binary, "-test.failfast", "-test.run", "^("+strings.Join(names, "|")+")$")
	c.Env = append(os.Environ(), environment...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = time.Second
	out, err := c.CombinedOutput()
	if ctx.Err() != nil {
		return out, ctx.Err()
	}
	return out, err
}

// try runs tests against a mutant until one fails. A test takes longer on a busy
// machine: the limit is generous.
func (b *bench) try(ctx context.Context, m *mutant) {
	binary, tests := b.binary, b.tests
	if m.number == 0 {
		name := fmt.Sprintf("constant-%s-%d", strings.TrimSuffix(m.file, ".go"), m.start)
		if err := b.compile(ctx, name, map[string][]byte{m.file: m.mutated()}); err != nil {
			if ctx.Err() == nil {
				log.Printf("%s does not build, which no test has noticed: %v", m.key(), err)
			}
			return
		}
		binary = filepath.Join(b.dir, name+".test")
		defer os.Remove(binary)
	} else {
		tests = slices.DeleteFunc(slices.Clone(tests), func(t *test) bool { return !t.reached[m.number] })
	}
	for room := time.Second; len(tests) > 0 && ctx.Err() == nil; room *= 4 {
		count, sum := 0, time.Duration(0)
		for count < len(tests) && (count == 0 || sum+tests[count].took < room) {
			sum += tests[count].took
			count++
		}
		out, err := b.start(ctx, binary, 30*time.Second+10*sum, tests[:count], fmt.Sprintf("MUTANT=%d", m.number))
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			m.killedBy = tooLate
			return
		case err != nil:
			m.killedBy = failed(out)
			return
		}
		tests = tests[count:]
	}
}

// failed is the name of the test that failed.
func failed(out []byte) string {
	if found := regexp.MustCompile(`--- FAIL: (\S+)`).FindSubmatch(out); found != nil {
		return string(found[1])
	}
	if found := regexp.MustCompile(`(?m)^(panic|fatal error): .*`).Find(out); found != nil {
		return string(found)
	}
	return "an exit"
}
