// Command mutate breaks the package in one small way after the other and sees
// whether its tests notice. Run it at the top of the repository:
//
//	go run ./.ci/mutate
//
// All mutants are in one test binary, each behind a switch, so that it is built
// once. What it runs for a mutant is the tests that reach it, quick ones first,
// until one fails. Constants cannot have a switch: each costs a build of its own.
//
// A mutant that survives is a hole in the tests, or makes no difference that
// anyone can see. Those of the second kind stand in equivalent.txt with the
// reason. Others fail the run.
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
	file := flag.String("file", "", "only the mutants of this file, or of these, with commas between them")
	line := flag.String("line", "", "only those of this line, or of these")
	sample := flag.Int("sample", 0, "only so many of them, at random; 0 means all")
	seed := flag.Uint64("seed", 1, "seed of the sample")
	run := flag.String("run", ".", "only tests that match this")
	skip := flag.String("skip", "READMEMounting|DocumentedCommands|DocumentedGo|Proxies|TooManyStreams|FaultCampaign", "no tests that match this: by default slow ones that build the package anew or load the machine")
	jobs := flag.Int("jobs", runtime.NumCPU(), "how many mutants are tried at once")
	list := flag.Bool("list", false, "list the mutants and do not try them")
	verbose := flag.Bool("v", false, "say of each mutant what killed it")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	dir, err := os.MkdirTemp("", "mutate")
	check(err)
	defer os.RemoveAll(dir)
	sources, mutants, err := findMutants(".")
	check(err)
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
		return
	}
	b := &bench{dir: dir, sources: sources}
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
	if !report(mutants) {
		os.RemoveAll(dir)
		os.Exit(1)
	}
}

// chosen is whether one of a list with commas is this one; an empty list is all.
func chosen(list, one string) bool {
	return list == "" || slices.Contains(strings.Split(list, ","), one)
}

// report prints the survivors, and reports whether all of them are known.
func report(mutants []*mutant) bool {
	known := knownEquivalents()
	killed, late, unknown := 0, 0, 0
	survives := map[string]bool{} // by key; several mutants may share one
	for _, m := range mutants {
		_, isKnown := known[m.key()]
		survives[m.key()] = survives[m.key()] || m.killedBy == ""
		switch {
		case m.killedBy != "":
			killed++
			if m.killedBy == tooLate {
				late++
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
	fmt.Printf("%d mutants, %d killed (%d of them by running out of time), %d survived, %d of those without a reason: %.1f %% killed\n",
		len(mutants), killed, late, len(mutants)-killed, unknown, 100*float64(killed)/float64(max(len(mutants), 1)))
	return unknown == 0
}

// knownEquivalents reads the list: the key of a mutant on one line, the reason
// behind it on lines that begin with a tab.
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
