package eliza

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"example.com/botapi"
)

// maxMemories bounds what one conversation keeps to come back to; the newest
// stay.
const maxMemories = 16

// A conversation is what a bot knows of a chat while it reads its messages.
// It lives for one answer only: everything in it comes from the history that
// the client sent, so that the same history always gets the same answer.
type conversation struct {
	script   *script
	bot      string         // its name
	said     map[*lines]int // how often each group of lines had its turn
	memories []string
	name     string // of the user
	topic    string // to lead to
	brief    bool
}

// answer returns what the bot says to the last of the messages. It goes
// through all of them, as it would have heard them, to know whose turn it is
// among its lines and what it has to remember.
func (s *script) answer(bot string, messages []botapi.ChatMessage) string {
	c := conversation{script: s, bot: bot, said: make(map[*lines]int)}
	reply := ""
	for _, m := range messages {
		switch m.Role {
		case botapi.RoleSystem:
			c.heed(m.Content)
		case botapi.RoleUser:
			reply = c.reply(m.Content)
		}
	}
	switch {
	case reply == "":
		reply = c.say(&s.opening, nil)
	case messages[len(messages)-1].Role == botapi.RoleAssistant:
		reply = c.say(&s.silence, nil)
	}
	if c.brief {
		return firstSentence(reply)
	}
	return reply
}

func (c *conversation) reply(message string) string {
	clauses := read(message)
	c.hearName(clauses)
	reply := c.replyTo(clauses)
	c.remember(clauses)
	return reply
}

func (c *conversation) replyTo(clauses []clause) string {
	if len(clauses) == 0 {
		return c.say(&c.script.silence, nil)
	}
	for _, h := range c.script.listen(clauses) {
		if rule, parts := firstFit(h.keyword.rules, h.words); rule != nil {
			return c.say(&rule.answers, parts)
		}
	}
	return c.replyToUnknown(clauses)
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

func (c *conversation) replyToUnknown(clauses []clause) string {
	switch {
	case slices.ContainsFunc(clauses, func(c clause) bool { return c.question }):
		return c.say(&c.script.questions, nil)
	case len(c.memories) > 0:
		memory := c.memories[0]
		c.memories = c.memories[1:]
		return memory
	case c.topic != "":
		return c.say(&c.script.steering, nil)
	}
	return c.say(&c.script.unknown, nil)
}

// remember keeps what the script wants to come back to, at most one thing of
// each clause, in the words in which it will.
func (c *conversation) remember(clauses []clause) {
	for _, clause := range clauses {
		rule, parts := firstFit(c.script.memories, clause.words)
		if rule != nil && len(rule.answers) > 0 {
			c.memories = append(c.memories, c.say(&rule.answers, parts))
		}
	}
	c.memories = c.memories[max(0, len(c.memories)-maxMemories):]
}

// say returns the line whose turn it is, filled in.
func (c *conversation) say(l *lines, parts [][]string) string {
	line := (*l)[c.said[l]%len(*l)]
	c.said[l]++
	return capitalized(os.Expand(line, func(name string) string {
		switch name {
		case "bot":
			return c.bot
		case "name":
			return c.address()
		case "topic":
			return c.topic
		}
		part, _ := strconv.Atoi(name)
		return mirror(parts[part-1])
	}))
}

func (c *conversation) address() string {
	if c.name == "" {
		return ""
	}
	return ", " + c.name
}

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

func capitalized(text string) string {
	first, size := utf8.DecodeRuneInString(text)
	return string(unicode.ToUpper(first)) + text[size:]
}

// firstSentence cuts text after its first sentence. A full stop inside a word,
// as in "3.5", ends none.
func firstSentence(text string) string {
	for i := range len(text) - 1 {
		if strings.IndexByte(".?!", text[i]) >= 0 && text[i+1] == ' ' {
			return text[:i+1]
		}
	}
	return text
}
