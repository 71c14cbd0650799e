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

// maxMemories limits the memories of one conversation. The newest are kept.
const maxMemories = 16

// A conversation is the bot's state while it reads the messages of a chat. It is
// made for one answer, from the history that the client sent. So the same
// history always gets the same answer.
type conversation struct {
	script   *script
	bot      string          // the bot's name
	said     map[*string]int // how often something of each lines was said, keyed by the first line
	memories []string
	name     string // the user's name
	topic    string // from a system message
	brief    bool
}

// answer returns the bot's answer to the last message. It replays all messages,
// to find out which lines are next and what to remember.
func (s *script) answer(bot string, messages []botapi.ChatMessage) string {
	c := conversation{script: s, bot: bot, said: make(map[*string]int)}
	reply := ""
	for _, m := range messages {
		switch m.Role {
		case botapi.RoleSystem:
			c.follow(m.Content)
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

// remember keeps what the script wants to come back to: at most one memory of
// each clause, as the finished sentence that the bot will say.
func (c *conversation) remember(clauses []clause) {
	for _, clause := range clauses {
		rule, parts := firstFit(c.script.memories, clause.words)
		if rule != nil && len(rule.answers) > 0 {
			c.memories = append(c.memories, c.say(rule.answers, parts))
		}
	}
	c.memories = c.memories[max(0, len(c.memories)-maxMemories):]
}

// say returns the next of the lines, with its variables filled in.
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

// firstSentence returns the first sentence of text. A full stop inside a word,
// as in "3.5", does not end it.
func firstSentence(text string) string {
	for i := range len(text) - 1 {
		if strings.IndexByte(".?!", text[i]) >= 0 && text[i+1] == ' ' {
			return text[:i+1]
		}
	}
	return text
}
