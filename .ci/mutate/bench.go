package main

import (
	"bytes"
	"cmp"
	"context"
	_ "embed" // for switches
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path"
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
	dir      string
	packages []*pkg
	tests    []*test // of all packages, quick ones first
}

type test struct {
	pkg     *pkg
	name    string
	took    time.Duration
	reached map[int]bool // the mutants
}

const timedOut = "time"

// build builds the test binary of each package. All of them have the switches of
// all packages: a test may reach mutants of another package.
func (b *bench) build(ctx context.Context) error {
	replaced := map[string][]byte{}
	for _, p := range b.packages {
		if len(p.sources) > 0 {
			replaced[filepath.Join(p.folder, "mutant_switches.go")] = bytes.Replace(switches, []byte("package botapi"), []byte("package "+p.name), 1)
		}
		for _, s := range p.sources {
			replaced[s.name] = s.switched()
		}
	}
	overlay, err := writeOverlay(b.dir, replaced)
	if err != nil {
		return err
	}
	for i, p := range b.packages {
		if !p.hasTests {
			continue
		}
		p.binary = filepath.Join(b.dir, fmt.Sprintf("switched-%d.test", i))
		if err := compile(ctx, p, overlay, p.binary); err != nil {
			return err
		}
	}
	return nil
}

// writeOverlay writes the replaced files and the overlay that describes them to go test,
// both below the folder.
func writeOverlay(folder string, replaced map[string][]byte) (path string, err error) {
	top, err := os.Getwd()
	if err != nil {
		return "", err
	}
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for file, text := range replaced {
		path := filepath.Join(folder, "overlay", file) // packages may have files of the same name
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return "", err
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			return "", err
		}
		overlay.Replace[filepath.Join(top, file)] = path
	}
	description, err := json.Marshal(overlay)
	if err != nil {
		return "", err
	}
	path = filepath.Join(folder, "overlay.json")
	return path, os.WriteFile(path, description, 0o600)
}

// compile builds the test binary of a package.
func compile(ctx context.Context, p *pkg, overlay, binary string) error {
	out, err := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", binary, p.path).CombinedOutput()
	if err != nil {
		return fmt.Errorf("building: %w\n%s", err, out)
	}
	return nil
}

// measure measures how long each test takes, and records which mutants it reaches.
func (b *bench) measure(ctx context.Context, run, skip string) error {
	skipped, err := regexp.Compile(skip)
	if err != nil {
		return err
	}
	for _, p := range b.packages {
		if !p.hasTests {
			continue
		}
		list := exec.CommandContext(ctx, p.binary, "-test.list", run)
		list.Dir = p.folder
		out, err := list.Output()
		if err != nil {
			return fmt.Errorf("listing the tests: %w", err)
		}
		for _, name := range strings.Fields(string(out)) {
			if strings.HasPrefix(name, "Benchmark") || skip != "" && skipped.MatchString(name) {
				continue
			}
			if err := b.measureOne(ctx, &test{pkg: p, name: name, reached: map[int]bool{}}); err != nil {
				return err
			}
		}
	}
	slices.SortFunc(b.tests, func(a, b *test) int { return cmp.Compare(a.took, b.took) })
	return nil
}

// measureOne measures one test, and adds it to the tests unless it fails.
func (b *bench) measureOne(ctx context.Context, t *test) error {
	seen := filepath.Join(b.dir, "reached")
	if err := os.RemoveAll(seen); err != nil {
		return err
	}
	began := time.Now()
	if out, err := start(ctx, t.pkg.binary, 5*time.Minute, []*test{t}, "MUTANTS_REACHED="+seen); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		log.Printf("%s is not used, since it fails without any mutant: %v\n%s", t, err, out)
		return nil
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
	return nil
}

// String returns the folder of the package, unless it is the top level, and the name.
func (t *test) String() string { return path.Join(filepath.ToSlash(t.pkg.folder), t.name) }

// start runs tests of one package. After the limit, it kills them and all processes that
// they have started.
func start(ctx context.Context, binary string, limit time.Duration, tests []*test, environment ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	names := make([]string, len(tests))
	for i, t := range tests {
		names[i] = t.name
	}
	c := exec.CommandContext(ctx, binary, "-test.failfast", "-test.run", "^("+strings.Join(names, "|")+")$")
	c.Dir = tests[0].pkg.folder
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

// try runs tests against a mutant until one fails: in rounds, quick tests first, and in each
// round the tests of the mutant's own package first. The time limit is generous, since tests
// are slower on a busy machine.
func (b *bench) try(ctx context.Context, m *mutant) {
	var tests []*test
	for _, t := range b.tests {
		if t.reached[m.number] || m.number == 0 && t.pkg.needs[m.pkg.path] {
			tests = append(tests, t)
		}
	}
	binary := func(p *pkg) (string, error) { return p.binary, nil }
	if m.number == 0 {
		dir, err := os.MkdirTemp(b.dir, "constant")
		check(err)
		defer os.RemoveAll(dir)
		overlay, err := writeOverlay(dir, map[string][]byte{m.file: m.mutated()})
		check(err)
		built := map[*pkg]string{}
		binary = func(p *pkg) (string, error) {
			if built[p] != "" {
				return built[p], nil
			}
			built[p] = filepath.Join(dir, fmt.Sprintf("%d.test", len(built)))
			return built[p], compile(ctx, p, overlay, built[p])
		}
	}
	for room := time.Second; len(tests) > 0 && ctx.Err() == nil; room *= 4 {
		count, sum := 0, time.Duration(0)
		for count < len(tests) && (count == 0 || sum+tests[count].took < room) {
			sum += tests[count].took
			count++
		}
		for _, some := range b.byPackage(tests[:count], m.pkg) {
			path, err := binary(some[0].pkg)
			if err != nil {
				if ctx.Err() == nil {
					log.Printf("%s does not build, which no test has noticed: %v", m.key(), err)
				}
				return
			}
			out, err := start(ctx, path, 30*time.Second+10*sum, some, fmt.Sprintf("MUTANT=%d", m.number))
			switch {
			case errors.Is(err, context.DeadlineExceeded):
				m.killedBy = timedOut
				return
			case err != nil:
				m.killedBy = failed(out, some[0].pkg)
				return
			}
		}
		tests = tests[count:]
	}
}

// byPackage groups the tests by package, those of one package first.
func (b *bench) byPackage(tests []*test, first *pkg) (groups [][]*test) {
	for _, p := range append([]*pkg{first}, b.packages...) {
		some := slices.DeleteFunc(slices.Clone(tests), func(t *test) bool { return t.pkg != p })
		if len(some) > 0 && (p != first || len(groups) == 0) {
			groups = append(groups, some)
		}
	}
	return groups
}

// failed returns the name of the test that failed, or how the process ended.
func failed(out []byte, p *pkg) string {
	if found := regexp.MustCompile(`--- FAIL: (\S+)`).FindSubmatch(out); found != nil {
		return (&test{pkg: p, name: string(found[1])}).String()
	}
	if found := regexp.MustCompile(`(?m)^(panic|fatal error): .*`).Find(out); found != nil {
		return string(found)
	}
	return "an exit"
}
