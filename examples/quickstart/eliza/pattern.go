package eliza

import "strings"

// A pattern is the shape of a clause, written as elements between spaces:
//
//	word     this word, in upper or lower case
//	a|b|c    one of these words
//	?        any one word
//	*        zero or more words
//	+        one or more words
//
// All elements but the plain word are parts: the answer can use the words that
// they match as $1, $2 and so on, from left to right.
type pattern []element

type element struct {
	words []string // matches one of these; empty for a gap and for "?"
	any   bool     // "?"
	least int      // the minimum number of words in a gap
}

func parsePattern(form string) pattern {
	var p pattern
	for text := range strings.FieldsSeq(form) {
		switch text {
		case "*":
			p = append(p, element{least: 0})
		case "+":
			p = append(p, element{least: 1})
		case "?":
			p = append(p, element{any: true})
		default:
			p = append(p, element{words: strings.Split(text, "|")})
		}
	}
	return p
}

func (e element) isGap() bool { return len(e.words) == 0 && !e.any }

func (e element) isPart() bool { return len(e.words) != 1 }

// find returns the element's own spelling of a word, if the element matches it.
func (e element) find(word string) (own string, ok bool) {
	if e.any {
		return word, true
	}
	for _, own := range e.words {
		if strings.EqualFold(own, word) {
			return own, true
		}
	}
	return "", false
}

func (e element) accepts(word string) bool {
	_, ok := e.find(word)
	return ok
}

// match splits words into the parts of the pattern. Each gap takes as few words
// as possible, from left to right. If an element after a gap does not fit, only
// the last gap before it grows: growing an earlier gap cannot help. So the time
// is at most len(words) times len(p).
func (p pattern) match(words []string) (parts [][]string, ok bool) {
	starts := make([]int, len(p)+1) // where each element's words begin
	at, gap, gapEnd := 0, -1, 0
	for e := 0; e < len(p) || at < len(words); {
		switch {
		case e < len(p) && p[e].isGap() && at+p[e].least <= len(words):
			starts[e] = at
			gap, gapEnd = e, at+p[e].least
			at, e = gapEnd, e+1
		case e < len(p) && at < len(words) && p[e].accepts(words[at]):
			starts[e] = at
			at, e = at+1, e+1
		case gap >= 0 && gapEnd < len(words):
			gapEnd++
			at, e = gapEnd, gap+1
		default:
			return nil, false
		}
	}
	starts[len(p)] = len(words)
	return p.parts(words, starts), true
}

func (p pattern) parts(words []string, starts []int) [][]string {
	var parts [][]string
	for e := range p {
		part := words[starts[e]:starts[e+1]]
		switch {
		case p[e].isGap():
			parts = append(parts, part)
		case p[e].isPart():
			own, _ := p[e].find(part[0])
			parts = append(parts, []string{own})
		}
	}
	return parts
}
