package guide

import (
	"math"
	"slices"
	"strings"
	"unicode"
)

// search returns the section with the highest score. Rare terms count more than
// frequent ones, and terms in the heading more than terms in the text.
func (l *library) search(terms []string) (best section, found bool) {
	highest := 0.0
	for _, s := range l.sections {
		if s.isContents() {
			continue
		}
		score := 0.0
		for _, term := range terms {
			score += l.rarity(term) * s.weight(term)
		}
		if score > highest {
			best, highest = s, score
		}
	}
	return best, highest > 0
}

// count counts the terms of a section.
func (s *section) count() {
	s.terms = map[string]int{}
	for _, term := range termsOf(link.ReplaceAllString(strings.Join(s.blocks, " "), "$1")) {
		s.terms[term]++
		s.length++
	}
	s.inHeading = termsOf(s.heading)
}

// isContents reports whether a section is mostly links to others.
func (s *section) isContents() bool {
	text := strings.Join(s.blocks, " ")
	links := 0
	for _, match := range link.FindAllStringSubmatch(text, -1) {
		links += len(match[1])
	}
	return 2*links > len(link.ReplaceAllString(text, "$1"))
}

// weight grows with each occurrence of a term, but less each time, and more
// slowly in a long section.
func (s *section) weight(term string) float64 {
	n, typical := float64(s.terms[term]), 200.0
	weight := n / (n + 0.5 + float64(s.length)/typical)
	if slices.Contains(s.inHeading, term) {
		weight += 2
	}
	return weight
}

func (l *library) rarity(term string) float64 {
	having := 0
	for _, s := range l.sections {
		if s.terms[term] > 0 || slices.Contains(s.inHeading, term) {
			having++
		}
	}
	return math.Log(float64(len(l.sections)+1) / float64(having+1))
}

// termsOf returns the search terms of a text: its words without common ones,
// stemmed.
func termsOf(text string) (terms []string) {
	for word := range strings.FieldsFuncSeq(strings.ToLower(text), isNoLetter) {
		if !slices.Contains(common, word) && !slices.Contains(greetings, word) {
			terms = append(terms, stem(word))
		}
	}
	return terms
}

func isNoLetter(r rune) bool {
	return !unicode.IsLetter(r) && !unicode.IsNumber(r) && r != '\''
}

var greetings = strings.Fields("hello hi hey greetings good morning afternoon evening day thanks thank bye goodbye ok okay")

// common words do not help to find a section.
var common = strings.Fields(`a about all an and any are as at be botapi by can could did do documents does for from get gets give has have how i if in is it its
	know like look looks lot me mean much my need needs of on or own say says should more show some tell than that the their them then there these this to use used
	very want was what what's when where which who why will with work works world would you your not no`)

// stem removes common endings, so that singular and plural are the same term.
func stem(word string) string {
	for _, ending := range []string{"'s", "ing", "ies", "es", "ed", "s", "e", "y"} {
		if rest, found := strings.CutSuffix(word, ending); found && len(rest) > 3 {
			return rest
		}
	}
	return word
}
