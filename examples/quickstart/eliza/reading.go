package eliza

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits on what is read of one message. People stay far below them. The answer
// repeats words of the message, and must not become as long as a huge one.
const (
	maxClauses  = 100 // in a message
	maxWords    = 40  // in a clause
	maxWordSize = 60  // bytes
)

// A clause is a run of words between two stops.
type clause struct {
	words    []string
	question bool // whether a question mark ends it
}

// read splits a message into clauses: at punctuation, at line ends, and at the
// word "but", after which people say what they really mean. Contractions are
// expanded ("I'm" becomes "I am"), so that scripts need only one spelling.
func read(message string) []clause {
	var r reader
	for line := range strings.Lines(lowerShouting(message)) {
		for field := range strings.FieldsSeq(apostrophes.Replace(line)) {
			r.field(field)
		}
		r.stop(false)
	}
	return r.clauses
}

var apostrophes = strings.NewReplacer("’", "'", "‘", "'", "´", "'", "`", "'")

// lowerShouting converts a message in capitals to lower case: the answer repeats
// its words, and should not shout.
func lowerShouting(message string) string {
	if !strings.ContainsFunc(message, unicode.IsLower) && len(strings.Fields(message)) > 1 {
		return strings.ToLower(message)
	}
	return message
}

type reader struct {
	clauses []clause
	words   []string
}

// field reads the text between two spaces: a word and the punctuation around it,
// each of which may be missing.
func (r *reader) field(field string) {
	start := strings.TrimLeftFunc(field, isEdge)
	word := strings.TrimRightFunc(start, isEdge)
	after := start[len(word):]
	if word == "" {
		after = field
	}
	r.word(printable(word))
	if strings.ContainsAny(after, stops) || word == "" && strings.ContainsAny(after, dashes) {
		r.stop(strings.ContainsAny(after, questionMarks))
	}
}

const (
	stops         = ".!?;:,…。！？，" // only at the end of a word, not inside "3.5" or "example.com"
	dashes        = "-–—"         // only between spaces
	questionMarks = "?？"
)

// isEdge reports whether r is punctuation that is not part of the word beside it.
func isEdge(r rune) bool {
	return unicode.IsPunct(r) && !strings.ContainsRune("#%&@", r)
}

func (r *reader) word(word string) {
	if word == "" {
		return
	}
	lower := strings.ToLower(word)
	if lower == "but" {
		r.stop(false)
		return
	}
	opened, ok := contractions[lower]
	if !ok {
		opened = []string{word}
	}
	for _, w := range opened {
		if len(r.words) < maxWords {
			r.words = append(r.words, w)
		}
	}
}

// printable returns the word as the bot may repeat it: valid UTF-8, without
// control characters, and not longer than maxWordSize.
func printable(word string) string {
	word = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, word)
	if len(word) <= maxWordSize {
		return word
	}
	cut := maxWordSize
	for !utf8.RuneStart(word[cut]) {
		cut--
	}
	return word[:cut] + "…"
}

func (r *reader) stop(question bool) {
	if len(r.words) > 0 && len(r.clauses) < maxClauses {
		r.clauses = append(r.clauses, clause{r.words, question})
	}
	r.words = nil
}

var contractions = map[string][]string{
	"i'm": {"I", "am"}, "im": {"I", "am"}, "i've": {"I", "have"}, "ive": {"I", "have"},
	"i'd": {"I", "would"}, "i'll": {"I", "will"},
	"you're": {"you", "are"}, "youre": {"you", "are"}, "you've": {"you", "have"},
	"you'd": {"you", "would"}, "you'll": {"you", "will"},
	"we're": {"we", "are"}, "we've": {"we", "have"}, "we'll": {"we", "will"},
	"they're": {"they", "are"}, "they've": {"they", "have"}, "they'll": {"they", "will"},
	"it's": {"it", "is"}, "that's": {"that", "is"}, "there's": {"there", "is"},
	"what's": {"what", "is"}, "who's": {"who", "is"}, "how's": {"how", "is"}, "where's": {"where", "is"},
	"don't": {"do", "not"}, "dont": {"do", "not"}, "doesn't": {"does", "not"}, "didn't": {"did", "not"},
	"isn't": {"is", "not"}, "aren't": {"are", "not"}, "wasn't": {"was", "not"}, "weren't": {"were", "not"},
	"haven't": {"have", "not"}, "hasn't": {"has", "not"}, "hadn't": {"had", "not"},
	"can't": {"cannot"}, "cant": {"cannot"}, "couldn't": {"could", "not"},
	"won't": {"will", "not"}, "wouldn't": {"would", "not"}, "shouldn't": {"should", "not"},
	"wanna": {"want", "to"}, "gonna": {"going", "to"},
}
