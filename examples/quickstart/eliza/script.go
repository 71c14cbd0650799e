package eliza

import (
	"slices"
	"strings"
)

// A script is the character of a bot: what it listens for, and what it says.
type script struct {
	opening   lines // there is no message of the user yet
	silence   lines // the user said nothing, or the bot spoke last
	questions lines // a question in which nothing is known
	unknown   lines // anything else in which nothing is known
	steering  lines // the same, when a system message has given a $topic

	// memories are what the bot keeps of what it hears, to come back to it
	// later, when it knows nothing better to say. The first rule that fits a
	// clause counts; one without answers keeps nothing.
	memories []rule
	keywords []keyword

	index map[string]*keyword // by each of the keyword's words
}

// lines are said in turn, from the first again after the last. In a line, $1,
// $2 and so on stand for the parts of the pattern, mirrored; $bot for the bot's
// name; $name for a comma and the user's name, or for nothing while the name is
// not known.
type lines []string

// A keyword is a group of words that mean the same to the bot. Of all keywords
// in a message the one with the highest rank counts, and of equals the first.
type keyword struct {
	words string // between spaces
	rank  int
	rules []rule // the first that fits is used; when none does, the next keyword has its turn
}

// A rule says what to answer to a clause of one shape.
type rule struct {
	pattern pattern
	answers lines
}

// firstFit returns the first rule that fits, with the parts it cuts, or nil.
func firstFit(rules []rule, words []string) (*rule, [][]string) {
	for i := range rules {
		if parts, ok := rules[i].pattern.match(words); ok {
			return &rules[i], parts
		}
	}
	return nil, nil
}

// on says what to answer to a clause of this form.
func on(form string, answers ...string) rule {
	return rule{parsePattern(form), answers}
}

// newScript makes s ready for use.
func newScript(s script) *script {
	s.index = make(map[string]*keyword)
	for i := range s.keywords {
		for word := range strings.FieldsSeq(s.keywords[i].words) {
			s.index[word] = &s.keywords[i]
		}
	}
	return &s
}

// heard is a keyword and the clause it stands in.
type heard struct {
	keyword *keyword
	words   []string
}

// listen returns the keywords in the clauses, the most important first.
func (s *script) listen(clauses []clause) []heard {
	var found []heard
	for _, clause := range clauses {
		for _, word := range clause.words {
			if k := s.index[strings.ToLower(word)]; k != nil {
				found = append(found, heard{k, clause.words})
			}
		}
	}
	slices.SortStableFunc(found, func(a, b heard) int { return b.keyword.rank - a.keyword.rank })
	return found
}
