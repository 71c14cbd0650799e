package eliza

import "strings"

// mirror turns the words of a speaker into those of the listener: "my own"
// into "your own", "you trust me" into "I trust you". Other words stay as they
// are.
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

// mirroredPair looks at a pronoun and its verb together, since the verb has to
// change with the pronoun.
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

// mirroredYou tells the two kinds of "you" apart: "you know" is "I know", and
// "with you" or "trust you to" is "me". What stands around it decides.
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
