// Command mutate makes one small change to the code after the other, and checks whether the
// tests notice it. Run it at the top of the repository:
//
//	go run ./.ci/mutate
//
// It mutates the package at the top level and every package below internal/. The test binary
// of each package contains all mutants of all packages, each behind a switch, so that it is
// built once. For each mutant, the tests of all packages that reach it run, quick ones
// first, until one fails. A constant cannot have a switch: its mutant needs a build of its
// own, and all tests of the packages whose tests import its package.
//
// A mutant that survives is a gap in the tests, or nobody can observe it. Those of the
// second kind are listed in equivalent.txt with the reason. The others fail the run.
package main

import (
	"context"
	_ "embed"
	"flag"
	"fmt"
	"log"
	"maps"
	"math/rand/v2"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
)

//go:embed equivalent.txt
var equivalent string

func main() {
	log.SetFlags(0)
	file := flag.String("file", "", "only the mutants of these files, such as chat.go,internal/name/file.go")
	line := flag.String("line", "", "only the mutants of these lines, such as 10,12")
	sample := flag.Int("sample", 0, "only so many of the mutants, at random; 0 means all")
	seed := flag.Uint64("seed", 1, "seed of the sample")
	run := flag.String("run", ".", "only tests that match this regular expression")
	skip := flag.String("skip", "READMEMounting|DocumentedCommands|DocumentedGo|Proxies|TooManyStreams|FaultCampaign", "no tests that match this regular expression: by default slow ones that rebuild the package or load the machine")
	jobs := flag.Int("jobs", runtime.NumCPU(), "how many mutants are tried concurrently")
	list := flag.Bool("list", false, "list the mutants without trying them")
	verbose := flag.Bool("v", false, "log what killed each mutant")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	dir, err := os.MkdirTemp("", "mutate")
	check(err)
	defer os.RemoveAll(dir)
	packages, err := listPackages()
	check(err)
	mutants, err := findMutants(packages)
	check(err)
	findStale(mutants)
	mutants = slices.DeleteFunc(mutants, func(m *mutant) bool {
		return !chosen(*file, m.file) || !chosen(*line, strconv.Itoa(m.line))
	})
	if *sample > 0 {
		r := rand.New(rand.NewPCG(*seed, 0))
		r.Shuffle(len(mutants), func(i, j int) { mutants[i], mutants[j] = mutants[j], mutants[i] })
		mutants = mutants[:min(*sample, len(mutants))]
	}
	if *list {
		for _, m := range mutants {
			fmt.Println(m)
		}
		for _, p := range packages {
			log.Print(countOf(p, mutants))
		}
		return
	}
	b := &bench{dir: dir, packages: packages}
	check(b.build(ctx))
	check(b.measure(ctx, *run, *skip))

	tried := make(chan *mutant)
	var trying sync.WaitGroup
	for range *jobs {
		trying.Go(func() {
			for m := range tried {
				b.try(ctx, m)
				if *verbose && ctx.Err() == nil {
					log.Printf("%s:%d:%d %s: %s", m.file, m.line, m.column, m.change(), m.killedBy)
				}
			}
		})
	}
	for _, m := range mutants {
		if ctx.Err() == nil {
			tried <- m
		}
	}
	close(tried)
	trying.Wait()
	check(ctx.Err())
	known := report(mutants)
	for _, p := range packages {
		fmt.Println(countOf(p, mutants))
	}
	if !known {
		os.RemoveAll(dir)
		os.Exit(1)
	}
}

// findStale logs the entries of equivalent.txt that match no mutant, because their code has
// changed or moved to another file.
func findStale(mutants []*mutant) {
	stale := knownEquivalents()
	for _, m := range mutants {
		delete(stale, m.key())
	}
	for _, key := range slices.Sorted(maps.Keys(stale)) {
		log.Printf("no mutant, though equivalent.txt has it: %s", key)
	}
}

// countOf returns a line with the number of mutants in this package.
func countOf(p *pkg, mutants []*mutant) string {
	count := 0
	for _, m := range mutants {
		if m.pkg == p {
			count++
		}
	}
	return fmt.Sprintf("%s: %d mutants", p.path, count)
}

// chosen reports whether a list with commas is empty or contains this one.
func chosen(list, one string) bool {
	return list == "" || slices.Contains(strings.Split(list, ","), one)
}

// report prints the survivors, and returns whether all of them are in equivalent.txt.
func report(mutants []*mutant) bool {
	known := knownEquivalents()
	killed, slow, unknown := 0, 0, 0
	survives := map[string]bool{} // by key; several mutants may share one
	for _, m := range mutants {
		_, isKnown := known[m.key()]
		survives[m.key()] = survives[m.key()] || m.killedBy == ""
		switch {
		case m.killedBy != "":
			killed++
			if m.killedBy == timedOut {
				slow++
			}
		case !isKnown:
			unknown++
			fmt.Printf("%s%s\n\n", m, m.key())
		}
	}
	for _, key := range slices.Sorted(maps.Keys(survives)) {
		if _, isKnown := known[key]; isKnown && !survives[key] {
			fmt.Printf("killed, though equivalent.txt has it: %s\n", key)
		}
	}
	fmt.Printf("%d mutants, %d killed (%d of them by timing out), %d survived, %d of those without a reason: %.1f %% killed\n",
		len(mutants), killed, slow, len(mutants)-killed, unknown, 100*float64(killed)/float64(max(len(mutants), 1)))
	return unknown == 0
}

// knownEquivalents reads equivalent.txt: the keys of mutants, each on one line, followed by
// their reason on lines that begin with a tab.
func knownEquivalents() map[string]string {
	known := map[string]string{}
	keys := []string{}
	for line := range strings.Lines(equivalent) {
		line = strings.TrimRight(line, "\n")
		switch reason, indented := strings.CutPrefix(line, "\t"); {
		case indented:
			for _, key := range keys {
				known[key] += reason + " "
			}
		case line == "":
			keys = nil
		case !strings.HasPrefix(line, "#"):
			keys = append(keys, line)
			known[line] = ""
		}
	}
	for key, reason := range known {
		if reason == "" {
			log.Fatalf("equivalent.txt: no reason for %s", key)
		}
	}
	return known
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
