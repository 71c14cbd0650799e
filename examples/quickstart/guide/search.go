package guide

import (
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// search returns the section with the highest score. Rare terms count more than
// frequent ones, terms in a heading more than terms in the text, and a section with
// several of the terms more than one that repeats a few of them. Terms that no section has
// do not count.
func (l *library) search(terms []string) (best section, found bool) {
	highest := 0.0
	for _, s := range l.sections {
		if score := l.score(s, terms); score > highest && !s.isContents() {
			best, highest = s, score
		}
	}
	return best, highest > 0
}

func (l *library) score(s section, terms []string) float64 {
	sum, matched, known := 0.0, 0.0, 0.0
	for _, term := range terms {
		weight, rarity := s.weightOfAny(term), l.rarityOfAny(term)
		sum += rarity * weight
		known += rarity
		if weight > 0 {
			matched += rarity
		}
	}
	if known == 0 {
		return 0
	}
	return sum * matched / known * s.prior()
}

// prior is higher for sections that a newcomer looks for: those of the README, and those
// of the upper levels, since a subsection tells a detail of the section above it.
func (s *section) prior() float64 {
	prior := 1.0
	if s.document == readmeName {
		prior = 1.2
	}
	return prior * math.Pow(0.8, float64(max(s.level-2, 0)))
}

// count counts the terms of a section. Those of code count half: an answer begins with
// an explanation.
func (s *section) count() {
	s.terms, s.defined = map[string]float64{}, map[string]float64{}
	for _, block := range s.blocks {
		share := 1.0
		if strings.HasPrefix(block, "```") || strings.HasPrefix(block, indentedCode) {
			share = 0.5
		}
		for _, term := range parts(link.ReplaceAllString(block, "$1")) {
			s.terms[term] += share
			s.length += share
		}
		for _, row := range firstCell.FindAllStringSubmatch(block, -1) {
			cell := termsOf(row[1])
			for _, term := range cell {
				s.defined[term] = max(s.defined[term], 1/float64(len(cell)))
			}
		}
	}
	s.inHeading = parts(s.heading)
}

// isContents reports whether a section is mostly links to others.
func (s *section) isContents() bool {
	return 2*s.links > len(link.ReplaceAllString(strings.Join(s.blocks, " "), "$1"))
}

// weightOfAny is the weight of a term or, a little less, of the best of its synonyms.
func (s *section) weightOfAny(term string) float64 {
	weight := s.weight(term)
	for _, other := range synonyms[term] {
		weight = max(weight, 0.7*s.weight(other))
	}
	return weight
}

// weight grows with each occurrence of a term, but less each time, and more
// slowly in a long section. A section that is shorter than typical has no advantage. A
// term in a heading counts more the fewer others the heading has; the headings above
// count, too, and so does the first cell of a row, which the row explains.
func (s *section) weight(term string) float64 {
	const typical = 200
	n := s.terms[term]
	weight := 2*n/(n+max(s.length/typical, 1)) + s.defined[term]
	if slices.Contains(s.inHeading, term) {
		weight += 1 + 2/float64(len(s.inHeading))
	}
	if slices.Contains(s.above, term) {
		weight += 0.3
	}
	return weight
}

// countSections counts how many sections have each term, for its rarity.
func (l *library) countSections() {
	having := map[string]int{}
	for _, s := range l.sections {
		all := maps.Clone(s.terms)
		for _, term := range s.inHeading {
			all[term]++
		}
		for term := range all {
			having[term]++
		}
	}
	l.rarity = map[string]float64{}
	for term, count := range having {
		l.rarity[term] = math.Log(1 + float64(len(l.sections))/float64(count))
	}
}

// rarityOfAny is the rarity of the most frequent of a term and its synonyms. It is 0 if no
// section has any.
func (l *library) rarityOfAny(term string) float64 {
	rarity := l.rarity[term]
	for _, other := range synonyms[term] {
		if r := l.rarity[other]; r > 0 && (rarity == 0 || r < rarity) {
			rarity = r
		}
	}
	return rarity
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

// parts returns the search terms of a text, and those of the words in its names: bot and
// store of BotStore. Who asks for BotStore means just that.
func parts(text string) []string {
	terms := termsOf(text)
	for _, name := range goName.FindAllString(text, -1) {
		terms = append(terms, termsOf(wordOfName.ReplaceAllString(name, "$0 "))...)
	}
	return terms
}

var (
	goName     = regexp.MustCompile(`\b\w*[a-z][A-Z]\w*`)
	wordOfName = regexp.MustCompile(`[A-Z]*[a-z]+`)
	firstCell  = regexp.MustCompile(`(?m)^\| *([^|\]]*[^| \]]) *\|`)
)

func isNoLetter(r rune) bool {
	return !unicode.IsLetter(r) && !unicode.IsNumber(r) && r != '\''
}

var greetings = strings.Fields("hello hi hey greetings good morning afternoon evening day thanks thank bye goodbye ok okay")

// thanks need no answer about botapi, and neither do goodbyes.
var thanks = strings.Fields("thanks thank bye goodbye")

// common words do not help to find a section.
var common = strings.Fields(`a about all an and any are as at be behind botapi by can could did do documents does for from get gets give has have how i if in is it its
	know like look looks lot me mean much my need needs of on or own say says should more show some tell than that the their them then there these this to use used
	very want was what what's when where which who why will with without work works world would you your not no`)

// stem removes common endings, so that singular and plural are the same term, and so are
// retry, retries and retrying.
func stem(word string) string {
	for _, endings := range [][]string{{"'s", "ies", "es", "s"}, {"ing", "ed"}, {"e", "y"}} {
		for _, ending := range endings {
			if rest, found := strings.CutSuffix(word, ending); found && (len(rest) > 3 || ending == "s" && len(rest) == 3) {
				word = rest
				break
			}
		}
	}
	return word
}

// synonyms are other words that people use for what the documents may call differently.
var synonyms = synonymsOf(map[string]string{
	"install":      "clone depend",
	"add":          "new replace",
	"app":          "application page",
	"change":       "revoke",
	"license":      "licence",
	"run":          "try start",
	"start":        "try run",
	"abort":        "stop cancel",
	"cancel":       "stop",
	"persist":      "store",
	"save":         "store",
	"update":       "replace",
	"deploy":       "production",
	"fast":         "performance",
	"slow":         "performance",
	"secure":       "security",
	"connect":      "model",
	"authenticate": "Authorization key",
	"database":     "postgresql store",
	"react":        "useChat JavaScript",
	"node":         "JavaScript",
	"typescript":   "JavaScript",
})

func synonymsOf(words map[string]string) map[string][]string {
	stemmed := map[string][]string{}
	for word, others := range words {
		stemmed[stem(word)] = termsOf(others)
	}
	return stemmed
}
