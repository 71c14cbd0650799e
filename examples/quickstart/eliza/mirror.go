package eliza

import "strings"

// mirror swaps the first and second person: "my own" becomes "your own", "you
// trust me" becomes "I trust you". Other words stay the same.
func mirror(words []string) string {
	var mirrored []string
	for i := 0; i < len(words); i++ {
		if pair, ok := mirroredPair(words[i:]); ok {
			mirrored = append(mirrored, pair)
			i++
			continue
		}
		mirrored = append(mirrored, mirroredWord(words, i))
	}
	return strings.Join(mirrored, " ")
}

// mirroredPair mirrors a pronoun together with its verb, since the verb changes
// with the pronoun.
func mirroredPair(words []string) (pair string, ok bool) {
	if len(words) < 2 {
		return "", false
	}
	pair, ok = mirroredPairs[strings.ToLower(words[0]+" "+words[1])]
	return pair, ok
}

func mirroredWord(words []string, i int) string {
	word := strings.ToLower(words[i])
	if word == "you" {
		return mirroredYou(words, i)
	}
	if mirrored, ok := mirroredWords[word]; ok {
		return mirrored
	}
	return words[i]
}

// mirroredYou decides from the words around it whether "you" is a subject or an
// object: "you know" becomes "I know", but "with you" becomes "with me".
func mirroredYou(words []string, i int) string {
	last := i == len(words)-1
	if last || i > 0 && beforeObject[strings.ToLower(words[i-1])] || afterObject[strings.ToLower(words[i+1])] {
		return "me"
	}
	return "I"
}

var mirroredPairs = map[string]string{
	"i am": "you are", "am i": "are you", "i was": "you were", "was i": "were you",
	"you are": "I am", "are you": "am I", "you were": "I was", "were you": "was I",
}

var mirroredWords = map[string]string{
	"i": "you", "me": "you", "my": "your", "mine": "yours", "myself": "yourself", "am": "are",
	"your": "my", "yours": "mine", "yourself": "myself",
}

var (
	beforeObject = wordSet("about after at before behind between by for from in like of on than to with without")
	afterObject  = wordSet("about and at because but by for from if in like more now of on or so than then to " +
		"today too very when while with without")
)

func wordSet(words string) map[string]bool {
	set := make(map[string]bool)
	for word := range strings.FieldsSeq(words) {
		set[word] = true
	}
	return set
}
