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
	bot      string          // its name
	said     map[*string]int // how many of some lines have been said, by the first of them
	memories []string
	name     string // of the user
	topic    string // to lead to
	brief    bool
}

// answer returns what the bot says to the last of the messages. It goes
// through all of them, as it would have heard them, to know whose turn it is
// among its lines and what it has to remember.
func (s *script) answer(bot string, messages []botapi.ChatMessage) string {
	c := conversation{script: s, bot: bot, said: make(map[*string]int)}
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
		reply = c.say(s.opening, nil)
	case messages[len(messages)-1].Role == botapi.RoleAssistant:
		reply = c.say(s.silence, nil)
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
		return c.say(c.script.silence, nil)
	}
	for _, h := range c.script.listen(clauses) {
		if rule, parts := firstFit(h.keyword.rules, h.words); rule != nil {
			return c.say(rule.answers, parts)
		}
	}
	return c.replyToUnknown(clauses)
}

func (c *conversation) replyToUnknown(clauses []clause) string {
	switch {
	case slices.ContainsFunc(clauses, func(c clause) bool { return c.question }):
		return c.say(c.script.questions, nil)
	case len(c.memories) > 0:
		memory := c.memories[0]
		c.memories = c.memories[1:]
		return memory
	case c.topic != "":
		return c.say(c.script.steering, nil)
	}
	return c.say(c.script.unknown, nil)
}

// remember keeps what the script wants to come back to, at most one thing of
// each clause, in the words in which it will.
func (c *conversation) remember(clauses []clause) {
	for _, clause := range clauses {
		rule, parts := firstFit(c.script.memories, clause.words)
		if rule != nil && len(rule.answers) > 0 {
			c.memories = append(c.memories, c.say(rule.answers, parts))
		}
	}
	c.memories = c.memories[max(0, len(c.memories)-maxMemories):]
}

// say returns the line whose turn it is, filled in.
func (c *conversation) say(l lines, parts [][]string) string {
	line := l[c.said[&l[0]]%len(l)]
	c.said[&l[0]]++
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
