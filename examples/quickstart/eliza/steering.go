package eliza

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// hearName learns the user's name when the user says it.
func (c *conversation) hearName(clauses []clause) {
	for _, clause := range clauses {
		if words, ok := lastPart(userNames, clause.words); ok {
			c.learnName(words)
		}
	}
}

func (c *conversation) learnName(words []string) {
	if name := properName(words); name != "" {
		c.name = name
	}
}

// heed takes from a system message what a script can follow: the user's name,
// a topic to lead to, and whether to be brief. It knows a few plain wordings
// of each; a clause that forbids something is not one of them.
func (c *conversation) heed(message string) {
	for _, clause := range read(message) {
		if _, ok := lastPart(prohibitions, clause.words); ok {
			continue
		}
		if words, ok := lastPart(systemNames, clause.words); ok {
			c.learnName(words)
		}
		if topic, ok := lastPart(topics, clause.words); ok {
			c.topic = mirror(topic)
		}
		if _, ok := lastPart(brevity, clause.words); ok {
			c.brief = true
		}
	}
}

var (
	userNames    = patterns("* my name is +")
	systemNames  = patterns("* user's name is +", "* user is called|named +", "call the user +")
	topics       = patterns("* talk about +", "* speak about +", "* topic is +", "* ask about +", "* lead|bring|steer + to|towards +")
	brevity      = patterns("* brief|briefly|concise|concisely|short *")
	prohibitions = patterns("* not|never|avoid|without|no *")
)

func patterns(forms ...string) []pattern {
	var all []pattern
	for _, form := range forms {
		all = append(all, parsePattern(form))
	}
	return all
}

// lastPart returns the last part of the first pattern that fits.
func lastPart(patterns []pattern, words []string) (part []string, ok bool) {
	for _, p := range patterns {
		if parts, ok := p.match(words); ok {
			return parts[len(parts)-1], true
		}
	}
	return nil, false
}

// properName returns the name that words begin with: its words have capitals,
// or it is the only word. Names have up to three words here; "my name is
// nobody's business" holds none.
func properName(words []string) string {
	if len(words) == 1 {
		return capitalized(words[0])
	}
	end := 0
	for end < min(len(words), 3) && startsUpper(words[end]) {
		end++
	}
	return strings.Join(words[:end], " ")
}

func startsUpper(word string) bool {
	first, _ := utf8.DecodeRuneInString(word)
	return unicode.IsUpper(first)
}
