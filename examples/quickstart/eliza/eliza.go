// Package eliza is a chat engine in the tradition of Joseph Weizenbaum's ELIZA of 1966: it
// uses no model, and turns the user's words into questions by the rules of a script. It
// keeps no state: what it remembers comes from the messages of the request.
package eliza

import (
	"cmp"
	"context"
	"embed"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"example.com/botapi"
	"example.com/botapi/examples/quickstart/speech"
)

// A script has, after "= " and a name, the lines for a situation; after "? " and a
// regular expression, the answers to clauses that match it, of which the first counts;
// after "~ " and an expression, what to say of such a clause later. "% " gives words a
// name, for expressions. In an answer, $1 and $2 are what the groups matched, mirrored.
//
//go:embed *.txt
var files embed.FS

type rule struct {
	kind, name string
	pattern    *regexp.Regexp
	lines      []string // said in turn
}

var scripts = readScripts()

func readScripts() map[string][]*rule {
	all := map[string][]*rule{}
	danger, _ := fs.ReadFile(files, "danger.txt") // embedded: cannot fail
	for _, name := range []string{"listener", "gardener"} {
		text, _ := fs.ReadFile(files, name+".txt")
		var words []string
		for line := range strings.Lines(string(danger) + string(text)) {
			kind, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
			switch kind {
			case "%":
				name, group, _ := strings.Cut(rest, " ")
				words = append(words, "<"+name+">", group)
			case "=":
				all["eliza-"+name] = append(all["eliza-"+name], &rule{kind: kind, name: rest})
			case "?", "~":
				expression := "(?i)(?:^| )(?:" + strings.NewReplacer(words...).Replace(rest) + ")(?:$| )"
				all["eliza-"+name] = append(all["eliza-"+name], &rule{kind: kind, pattern: regexp.MustCompile(expression)})
			case "":
			default:
				last := all["eliza-"+name][len(all["eliza-"+name])-1]
				last.lines = append(last.lines, strings.TrimSpace(line))
			}
		}
	}
	return all
}

// Models returns the model names that the engine supports, sorted.
func Models() []string {
	return slices.Sorted(maps.Keys(scripts))
}

// Engine is a [botapi.ChatEngine] for bots whose Model is one of [Models]. It
// fails for any other bot. The zero value streams without delay.
type Engine struct {
	// Pace is the delay before each word of a stream but the first. A JSON
	// response is not delayed.
	Pace time.Duration
	// Again is how many answers the same messages have got before: each is another line.
	Again int
}

// Chat answers the last message of the conversation, word by word.
func (e Engine) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		script, ok := scripts[req.Bot.Model]
		if !ok {
			yield("", fmt.Errorf("bot %q: there is no script for the model %q", req.Bot.Slug, req.Bot.Model))
			return
		}
		c := conversation{script: script, bot: req.Bot.Name, said: map[*rule]int{}, again: e.Again}
		speech.Speak(ctx, req, strings.SplitAfterSeq(c.answer(req.Messages), " "), e.Pace, yield)
	}
}

// A conversation is what the bot knows while it reads the messages of a request.
type conversation struct {
	script           []*rule
	bot, name, topic string
	brief            bool
	said             map[*rule]int
	memories         []string
	again, skipped   int // lines to skip in the last reply, and now
}

// answer replays the messages, to find out which lines are next.
func (c *conversation) answer(messages []botapi.ChatMessage) (reply string) {
	for i, m := range messages {
		clauses := read(m.Content)
		if i == len(messages)-1 {
			c.skipped = c.again
		}
		switch m.Role {
		case botapi.RoleSystem:
			c.follow(clauses)
		case botapi.RoleUser:
			reply = c.reply(clauses, strings.ContainsAny(m.Content, "?？"))
		}
	}
	if reply == "" {
		reply = c.situation("opening")
	} else if messages[len(messages)-1].Role == botapi.RoleAssistant {
		reply = c.situation("silence")
	}
	if end := sentence.FindStringIndex(reply); c.brief && end != nil {
		return reply[:end[0]+1]
	}
	return reply
}

var (
	sentence = regexp.MustCompile(`[.?!] `)
	called   = regexp.MustCompile(`(?i:(?:user is (?:called|named)|name is)) (\p{Lu}\S*(?: \p{Lu}\S*)?|\S+$)`)
	about    = regexp.MustCompile(`(?i)(?:talk|speak|ask) about (.+)`)
	brief    = regexp.MustCompile(`(?i)\b(?:brief|concise|short)`)
	not      = regexp.MustCompile(`(?i)\b(?:not|never|avoid|without|no)\b`)
)

// follow takes the user's name, a topic and brevity from a system message.
func (c *conversation) follow(clauses []string) {
	for _, clause := range slices.DeleteFunc(clauses, not.MatchString) {
		if found := about.FindStringSubmatch(clause); found != nil {
			c.topic = mirror(found[1])
		}
		c.brief = c.brief || brief.MatchString(clause)
		c.learnName(clause)
	}
}

func (c *conversation) learnName(clause string) {
	if found := called.FindStringSubmatch(clause); found != nil {
		c.name = capitalized(found[1])
	}
}

const mostMemories = 16 // the newest are kept

func (c *conversation) reply(clauses []string, isQuestion bool) string {
	for _, clause := range clauses {
		c.learnName(clause)
	}
	reply := c.match("?", clauses)
	switch {
	case reply != "":
	case len(clauses) == 0:
		reply = c.situation("silence")
	case isQuestion:
		reply = c.situation("question")
	case len(c.memories) > c.skipped:
		reply, c.memories = c.memories[c.skipped], c.memories[1:]
	case c.topic != "":
		reply = c.situation("topic")
	default:
		reply = c.situation("unknown")
	}
	if memory := c.match("~", clauses); memory != "" {
		c.memories = append(c.memories, memory)
		c.memories = c.memories[max(0, len(c.memories)-mostMemories):]
	}
	return reply
}

// match answers with the first rule of a kind that matches a clause.
func (c *conversation) match(kind string, clauses []string) string {
	for _, rule := range c.script {
		for _, clause := range clauses {
			if rule.kind != kind {
				continue
			}
			if parts := rule.pattern.FindStringSubmatch(clause); parts != nil {
				return c.say(rule, parts)
			}
		}
	}
	return ""
}

func (c *conversation) situation(name string) string {
	return c.say(c.script[slices.IndexFunc(c.script, func(r *rule) bool { return r.name == name })], nil)
}

func (c *conversation) say(r *rule, parts []string) string {
	line := r.lines[(c.said[r]+c.skipped)%len(r.lines)]
	c.said[r]++
	return capitalized(os.Expand(line, func(variable string) string {
		switch variable {
		case "bot":
			return c.bot
		case "topic":
			return c.topic
		case "name":
			return strings.TrimSuffix(", "+c.name, ", ")
		}
		i, _ := strconv.Atoi(variable)
		return mirror(parts[i])
	}))
}

func capitalized(text string) string {
	first, size := utf8.DecodeRuneInString(text)
	return string(unicode.ToUpper(first)) + text[size:]
}

// Limits on what is read of one message: the answer repeats words of it.
const (
	mostBytes     = 4000
	mostWords     = 40  // in a clause
	longestClause = 400 // bytes
)

var (
	stop    = regexp.MustCompile(`[.!?;:,…。！？，]+(?:\s|$)|\s[-–—]+\s|\n|(?i:\sbut\s)`)
	edge    = regexp.MustCompile(`^[\p{P}]+|[\p{P}]+$`)
	written = strings.NewReplacer("’", "'", "‘", "'", "´", "'")
	opened  = regexp.MustCompile(`(?i)\b(?:(won't|can't)|(\w+)n't|(i)'?m|(\w+)'(re|ve|ll|d|m)|(it|that|there|what|who|how|where)'s)\b`)
	endings = map[string]string{"won't": "will not", "can't": "cannot", "re": " are", "ve": " have", "ll": " will", "d": " would", "m": " am"}
)

// read splits a message into clauses, expands contractions, and writes a message in
// capitals in small letters: the answer should not shout.
func read(message string) (clauses []string) {
	message = strings.ToValidUTF8(message[:min(len(message), mostBytes)], "")
	if strings.ToUpper(message) == message && strings.Contains(message, " ") {
		message = strings.ToLower(message)
	}
	message = opened.ReplaceAllStringFunc(written.Replace(message), func(word string) string {
		m := opened.FindStringSubmatch(word)
		switch {
		case m[1] != "":
			return endings[strings.ToLower(m[1])]
		case m[2] != "":
			return m[2] + " not"
		case m[6] != "":
			return m[6] + " is"
		}
		return cmp.Or(m[3], m[4]) + cmp.Or(endings[strings.ToLower(m[5])], " am")
	})
	for _, clause := range stop.Split(message, -1) {
		var words []string
		for word := range strings.FieldsFuncSeq(clause, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }) {
			if word = edge.ReplaceAllString(word, ""); word != "" && len(words) < mostWords {
				words = append(words, word)
			}
		}
		if clause = strings.Join(words, " "); clause != "" {
			clauses = append(clauses, strings.ToValidUTF8(clause[:min(len(clause), longestClause)], ""))
		}
	}
	return clauses
}

var mirrored = map[string]string{
	"i am": "you are", "am i": "are you", "i was": "you were", "was i": "were you", "you are": "I am", "are you": "am I", "you were": "I was",
	"i": "you", "me": "you", "my": "your", "mine": "yours", "myself": "yourself", "am": "are", "your": "my", "yours": "mine", "yourself": "myself",
}

// object matches what is around an "I" that should be "me".
var object = regexp.MustCompile(`(?i)I$|^(?:about|at|by|for|from|in|like|of|on|than|to|with|without) |I (?:about|and|at|because|but|for|if|in|so|to|too|very|when|with)$`)

// mirror swaps the first and second person.
func mirror(text string) string {
	words := strings.Fields(text)
	for i := 0; i < len(words); i++ {
		pair := strings.ToLower(words[i] + " " + strings.Join(words[min(i+1, len(words)):min(i+2, len(words))], ""))
		if both, ok := mirrored[pair]; ok {
			words = slices.Replace(words, i, i+2, strings.Fields(both)...)
			i++
		} else if strings.EqualFold(words[i], "you") {
			words[i] = "I"
			if object.MatchString(strings.Join(words[max(0, i-1):min(len(words), i+2)], " ")) {
				words[i] = "me"
			}
		} else {
			words[i] = cmp.Or(mirrored[strings.ToLower(words[i])], words[i])
		}
	}
	return strings.Join(words, " ")
}
