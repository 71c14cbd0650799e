package eliza

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/matryer/is"
)

// These tests find mistakes in scripts that would otherwise show only when a user
// says the right words.

func TestScriptsHaveALineForEverything(t *testing.T) {
	is := is.New(t)
	for _, model := range Models() {
		s := scripts[model]
		for _, l := range []lines{s.opening, s.silence, s.questions, s.unknown, s.steering} {
			is.True(len(l) > 0)
			is.True(!slices.Contains(l, ""))
		}
		for _, k := range s.keywords {
			for _, r := range k.rules {
				is.True(len(r.answers) > 0)
				is.True(!slices.Contains(r.answers, ""))
			}
		}
	}
}

func TestScriptLinesUseKnownVariables(t *testing.T) {
	for _, model := range Models() {
		s := scripts[model]
		for _, l := range []lines{s.opening, s.silence, s.questions, s.unknown} {
			checkLines(t, l, 0, "bot", "name")
		}
		checkLines(t, s.steering, 0, "bot", "name", "topic")
		for _, k := range s.keywords {
			checkRules(t, k.rules)
		}
		checkRules(t, s.memories)
	}
}

func checkRules(t *testing.T, rules []rule) {
	for _, r := range rules {
		parts := 0
		for _, e := range r.pattern {
			if e.isPart() {
				parts++
			}
		}
		checkLines(t, r.answers, parts, "bot", "name")
	}
}

func checkLines(t *testing.T, l lines, parts int, names ...string) {
	for _, line := range l {
		os.Expand(line, func(name string) string {
			n, err := strconv.Atoi(name)
			if numbered := err == nil && n >= 1 && n <= parts; !numbered && !slices.Contains(names, name) {
				t.Errorf("%q: there is no $%s", line, name)
			}
			return ""
		})
	}
}

func TestEachScriptWordHasOneKeyword(t *testing.T) {
	for _, model := range Models() {
		s := scripts[model]
		for i := range s.keywords {
			for _, word := range strings.Fields(s.keywords[i].words) {
				if s.index[word] != &s.keywords[i] {
					t.Errorf("%s: %q is a word of two keywords", model, word)
				}
			}
		}
	}
}

// For each rule, there must be a clause with its keyword that no earlier rule fits.
func TestScriptRulesAreReachable(t *testing.T) {
	for _, model := range Models() {
		for _, k := range scripts[model].keywords {
			for i := range k.rules {
				if !reachable(&k, &k.rules[i]) {
					t.Errorf("%s: keyword %q: rule %d is never used", model, k.words, i)
				}
			}
		}
	}
}

func reachable(k *keyword, r *rule) bool {
	words := strings.Fields(k.words)
	for choice := range 40 {
		for _, filling := range append(words, "", "something", "something longer than that") {
			example := exampleOf(r.pattern, choice, filling)
			keyed := slices.ContainsFunc(example, func(w string) bool { return slices.Contains(words, strings.ToLower(w)) })
			if first, _ := firstFit(k.rules, example); keyed && first == r {
				return true
			}
		}
	}
	return false
}

// exampleOf makes a clause that the pattern may fit. It takes one of the words
// where there is a choice, and puts the filling into the gaps.
func exampleOf(p pattern, choice int, filling string) []string {
	var example []string
	for _, e := range p {
		if len(e.words) > 0 {
			example = append(example, e.words[choice%len(e.words)])
		} else {
			example = append(example, strings.Fields(filling)...)
		}
	}
	return example
}
