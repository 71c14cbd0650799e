package eliza

import (
	"context"
	"regexp"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"example.com/botapi"
	"github.com/matryer/is"
)

func system(text string) botapi.ChatMessage {
	return botapi.ChatMessage{Role: botapi.RoleSystem, Content: text}
}

func user(text string) botapi.ChatMessage {
	return botapi.ChatMessage{Role: botapi.RoleUser, Content: text}
}

func assistant(text string) botapi.ChatMessage {
	return botapi.ChatMessage{Role: botapi.RoleAssistant, Content: text}
}

// Each case is a request's history and the answer to it.
var conversations = []struct {
	name    string
	model   string
	history []botapi.ChatMessage
	answer  string
}{
	{
		"the user's words are mirrored", "eliza-listener",
		[]botapi.ChatMessage{user("I'm worried about my exam.")},
		"What is it about your exam that makes you worried?",
	},
	{
		"another script has another answer", "eliza-gardener",
		[]botapi.ChatMessage{user("I'm worried about my exam.")},
		"I used to lie awake over late frost. What would be the worst that your exam could do?",
	},
	{
		"a gardener knows something of plants", "eliza-gardener",
		[]botapi.ChatMessage{user("My tomatoes have brown spots")},
		"Brown spots on tomatoes are blight more often than not: off with the leaves, and keep the rest dry. Do they stand under a roof?",
	},
	{
		"the most important keyword counts, not the first", "eliza-listener",
		[]botapi.ChatMessage{user("Hello! I dreamt about a black dog.")},
		"What does a black dog stand for in your waking life?",
	},
	{
		"a line is not said twice in a row", "eliza-listener",
		[]botapi.ChatMessage{user("I cannot decide"), assistant("What happens when you try to decide?"), user("I cannot decide")},
		"Suppose you could decide tomorrow. What would be different?",
	},
	{
		"after the last line comes the first again", "eliza-listener",
		[]botapi.ChatMessage{user("I cannot decide"), user("I cannot decide"), user("I cannot decide"), user("I can't sing")},
		"What happens when you try to sing?",
	},
	{
		"an earlier message is remembered", "eliza-listener",
		[]botapi.ChatMessage{user("My sister is ill"), assistant("Has your sister always been like that?"), user("it rained yesterday")},
		"Earlier you mentioned your sister. Is that part of this?",
	},
	{
		"only the history is remembered", "eliza-listener",
		[]botapi.ChatMessage{user("it rained yesterday")},
		"Tell me more about that.",
	},
	{
		"each memory comes back once, the oldest first", "eliza-gardener",
		[]botapi.ChatMessage{user("My tomatoes are red"), user("I sit in my garden"), user("hm"), user("hm")},
		"You spoke of your garden before. What stands in it now?",
	},
	{
		"two memories do not come back in the same words", "eliza-listener",
		[]botapi.ChatMessage{user("My sister is ill"), user("I lost my keys"), user("hm"), user("hm")},
		"I keep thinking of what you said about your keys. How does it fit in here?",
	},
	{
		"the bot's own messages are not remembered", "eliza-listener",
		[]botapi.ChatMessage{assistant("My sister is ill"), user("it rained yesterday")},
		"Tell me more about that.",
	},
	{
		"the user's name is learned from the user", "eliza-listener",
		[]botapi.ChatMessage{user("My name is Ada Lovelace and I like numbers"), user("thanks")},
		"You did the work, Ada Lovelace; I only asked.",
	},
	{
		"a phrase that is not a name is not learned", "eliza-listener",
		[]botapi.ChatMessage{user("my name is nobody's business"), user("thanks")},
		"You did the work; I only asked.",
	},
	{
		"the user's name is learned from a system message", "eliza-gardener",
		[]botapi.ChatMessage{system("You are kind. The user's name is Ada."), user("hello")},
		"Hello, Ada. Come in by the gate, it only looks locked. What are you growing?",
	},
	{
		"a system message sets a topic", "eliza-listener",
		[]botapi.ChatMessage{system("Talk about your summer holidays."), user("hm")},
		"We have not said much about my summer holidays yet. What comes to mind?",
	},
	{
		"a system message that forbids a topic does not set it", "eliza-listener",
		[]botapi.ChatMessage{system("Never talk about politics."), user("hm")},
		"Tell me more about that.",
	},
	{
		"a system message can ask to be brief", "eliza-gardener",
		[]botapi.ChatMessage{system("Be brief, please."), user("What is your name?")},
		"Juniper, it says on my watering can.",
	},
	{
		"a later system message applies from then on", "eliza-listener",
		[]botapi.ChatMessage{user("hello"), system("The user is called Grace."), user("hello")},
		"Hello again, Grace. Where shall we go on?",
	},
	{
		"nobody has spoken yet", "eliza-gardener",
		[]botapi.ChatMessage{system("The user is called Ada.")},
		"Good day, Ada. I was just hoeing. What is growing where you are?",
	},
	{
		"the bot spoke last", "eliza-listener",
		[]botapi.ChatMessage{user("hello"), assistant("Hello. What would you like to talk about?")},
		"There is no hurry.",
	},
	{
		"the user said nothing", "eliza-listener",
		[]botapi.ChatMessage{user("... ?!")},
		"There is no hurry.",
	},
	{
		"a question without a keyword is still a question", "eliza-gardener",
		[]botapi.ChatMessage{user("Is Paris far?")},
		"I know beds better than books. What does it have to do with growing things?",
	},
	{
		"a word in another script is one word", "eliza-listener",
		[]botapi.ChatMessage{user("I love 花")},
		"How does it show that you love 花?",
	},
	{
		"shouting is answered quietly", "eliza-listener",
		[]botapi.ChatMessage{user("I HATE MY BOSS")},
		"What did your boss do to you?",
	},
	{
		"curly apostrophes are apostrophes", "eliza-listener",
		[]botapi.ChatMessage{user("I don’t know")},
		"Leave knowing aside. What would you guess?",
	},
	{
		"a variable in a message is only text", "eliza-listener",
		[]botapi.ChatMessage{user("I hate $2 and ${name}")},
		"What did $2 and ${name do to you?",
	},
	{
		"a person in danger is sent to people", "eliza-gardener",
		[]botapi.ChatMessage{user("My roses are dead and I want to kill myself")},
		"I am a small program and cannot help with this, but people can. " +
			"If you are in danger, please call your local emergency number now, or tell someone near you.",
	},
}

func TestConversations(t *testing.T) {
	for _, c := range conversations {
		t.Run(c.name, func(t *testing.T) {
			is := is.New(t)
			is.Equal(answerTo(c.model, c.history), c.answer)
		})
	}
}

// TestSameHistoryGetsSameAnswer runs conversations concurrently: an engine that
// kept state between requests would mix them up.
func TestSameHistoryGetsSameAnswer(t *testing.T) {
	is := is.New(t)
	const rounds = 20
	answers := make([][]string, rounds)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() {
			for _, c := range conversations {
				answers[i] = append(answers[i], answerTo(c.model, c.history))
			}
		})
	}
	all.Wait()
	for i := range answers {
		for j, c := range conversations {
			is.Equal(answers[i][j], c.answer) // the same in every round
		}
	}
}

func TestLongMessagesAreTruncated(t *testing.T) {
	is := is.New(t)
	for _, text := range []string{"very ", "ö", "ö ", "you ", "n't "} {
		answer := answerTo("eliza-listener", []botapi.ChatMessage{user("I hate " + strings.Repeat(text, 100_000))})
		is.True(len(answer) < 2*longestClause)
		is.True(utf8.ValidString(answer))
	}
	padding := strings.Repeat("well. ", mostBytes/6+1)
	is.Equal(answerTo("eliza-listener", []botapi.ChatMessage{user(padding[:mostBytes-13] + " I hate rain.")}), "What did rain do to you?")
	is.Equal(answerTo("eliza-listener", []botapi.ChatMessage{user(padding + "I hate rain.")}), "Tell me more about that.")
}

func TestMemoriesAreLimited(t *testing.T) {
	is := is.New(t)
	history := []botapi.ChatMessage{user("I lost my keys")}
	for range mostMemories {
		history = append(history, user("I lost my hat"))
	}
	history = append(history, user("hm"))
	is.True(strings.Contains(answerTo("eliza-listener", history), "your hat")) // the keys are forgotten
}

// TestScripts checks that each script has lines for every situation, and no rule
// without another answer for who asks again, or with a variable that its expression does not set.
func TestScripts(t *testing.T) {
	is := is.New(t)
	is.Equal(Models(), []string{"eliza-gardener", "eliza-listener"})
	for _, script := range scripts {
		situations := map[string]bool{}
		for _, rule := range script {
			situations[rule.name] = true
			is.True(len(rule.lines) > 1)
			for _, line := range rule.lines {
				for _, variable := range regexp.MustCompile(`\$\d`).FindAllString(line, -1) {
					is.True(int(variable[1]-'0') <= rule.pattern.NumSubexp())
				}
			}
		}
		for _, name := range []string{"opening", "silence", "question", "unknown", "topic"} {
			is.True(situations[name])
		}
	}
}

// answerTo asks for a JSON response.
func answerTo(model string, history []botapi.ChatMessage) string {
	req := &botapi.ChatRequest{Bot: botapi.Bot{Slug: "juniper", Name: "Juniper", Model: model}, Messages: history}
	var answer strings.Builder
	for fragment, err := range (Engine{}).Chat(context.Background(), req) {
		if err != nil {
			return "error: " + err.Error()
		}
		answer.WriteString(fragment)
	}
	return answer.String()
}

func FuzzAnswer(f *testing.F) {
	for _, c := range conversations {
		history := append([]botapi.ChatMessage{system(""), user("")}, c.history...)
		f.Add(history[len(history)-1].Content, history[len(history)-2].Content, "Talk about $1.")
	}
	f.Fuzz(func(t *testing.T, last, before, steering string) {
		history := []botapi.ChatMessage{system(steering), user(before), assistant(before), user(last), user("hm")}
		for _, model := range Models() {
			for n := 1; n <= len(history); n++ {
				answer := answerTo(model, history[:n])
				switch {
				case strings.TrimSpace(answer) == "":
					t.Errorf("%s has nothing to say to %q", model, history[:n])
				case !utf8.ValidString(answer), strings.Contains(answer, "  "):
					t.Errorf("%s says %q to %q", model, answer, history[:n])
				case answerTo(model, history[:n]) != answer:
					t.Errorf("%s gives different answers to %q", model, history[:n])
				}
			}
		}
	})
}
