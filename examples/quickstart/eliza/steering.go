package eliza

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// hearName learns the user's name from the user's own message.
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

// follow takes from a system message the user's name, a topic, and whether to be
// brief. It understands a few plain wordings of each, and ignores a clause that
// forbids something.
func (c *conversation) follow(message string) {
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

// properName returns the name at the beginning of words: up to three words with
// capital letters, or any word that stands alone. There is no name in "my name
// is nobody's business".
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
