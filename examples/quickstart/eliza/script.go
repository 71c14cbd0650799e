package eliza

import (
	"slices"
	"strings"
)

// A script is the character of a bot: what it listens for, and what it says.
type script struct {
	opening   lines // there is no user message yet
	silence   lines // the user message is empty, or the bot spoke last
	questions lines // a question without a known keyword
	unknown   lines // any other clause without a known keyword
	steering  lines // the same, if a system message has set a $topic

	// memories turn clauses into sentences that the bot says later, when it finds
	// no keyword. The first rule that fits a clause is used; a rule without
	// answers keeps nothing.
	memories []rule
	keywords []keyword

	index map[string]*keyword // by each word of the keyword
}

// lines are said in turn; after the last comes the first again. In a line, $1,
// $2 and so on are the parts of the pattern, mirrored. $bot is the bot's name.
// $name is a comma and the user's name, or empty if the name is unknown.
type lines []string

// A keyword is a group of words that mean the same to the bot. Of all keywords
// in a message, the one with the highest rank is used; of equals, the first.
type keyword struct {
	words string // separated by spaces
	rank  int
	rules []rule // the first that fits is used; if none fits, the next keyword is tried
}

// A rule has the answers to clauses that fit its pattern.
type rule struct {
	pattern pattern
	answers lines
}

// firstFit returns the first rule that fits and the parts of its match, or nil.
func firstFit(rules []rule, words []string) (*rule, [][]string) {
	for i := range rules {
		if parts, ok := rules[i].pattern.match(words); ok {
			return &rules[i], parts
		}
	}
	return nil, nil
}

// on makes a rule: answers to a clause of this form.
func on(form string, answers ...string) rule {
	return rule{parsePattern(form), answers}
}

// newScript builds the index of s.
func newScript(s script) *script {
	s.index = make(map[string]*keyword)
	for i := range s.keywords {
		for word := range strings.FieldsSeq(s.keywords[i].words) {
			s.index[word] = &s.keywords[i]
		}
	}
	return &s
}

// heard is a keyword and the words of the clause in which it occurs.
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
