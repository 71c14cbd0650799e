package guide

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"
)

// Questions are suggestions for newcomers.
var Questions = []string{
	"What is botapi?",
	"How do I connect a model?",
	"How do I chat with curl?",
	"What does a stream look like?",
	"Which errors are there?",
	"Why not write the handler myself?",
}

const aboutItself = `I am **no language model**, and I do not use one. I search botapi's own documents for the words of your question and quote the section that fits best. I know only what the documents say.`

// maxQuestion limits how much of a question is read, in bytes: a request body
// may be long.
const maxQuestion = 1000

// answer quotes the section that fits the question best. Its links to documents have
// the linkMark.
func answer(question string) string {
	question = question[:min(len(question), maxQuestion)]
	rest, greeting := withoutGreeting(question)
	terms := termsOf(rest)
	switch {
	case isAboutItself(rest):
		return aboutItself + "\n\n" + suggest(Questions)
	case greeting != "" && len(terms) == 0:
		return greeting + " " + aboutItself + "\n\n" + suggest(Questions)
	case len(terms) == 0:
		return quote(sections[0]) + "\n\n" + suggest(Questions[1:]) // as for "what is all this?"
	}
	best, found := search(terms)
	switch {
	case !found && greeting != "":
		return greeting + " " + aboutItself + "\n\n" + suggest(Questions)
	case !found:
		return "I have found nothing about this in botapi's documents. " + aboutItself + "\n\n" + suggest(Questions)
	}
	return quote(best)
}

// withoutGreeting removes what is only polite from the beginning of a question, and
// returns what to reply to it.
func withoutGreeting(question string) (rest, greeting string) {
	words := strings.FieldsFunc(strings.ToLower(question), isNoLetter)
	for len(words) > 0 {
		reply, known := greetings[words[0]]
		if !known {
			break
		}
		words, greeting = words[1:], cmp.Or(greeting, reply)
	}
	if greeting == "" {
		return question, ""
	}
	return strings.Join(words, " "), greeting
}

// greetings has the reply to each greeting; an empty one leaves it to the other words.
var greetings = map[string]string{
	"hello": "Hello!", "hi": "Hello!", "hey": "Hello!", "moin": "Hello!", "greetings": "Hello!",
	"good": "", "morning": "Hello!", "afternoon": "Hello!", "evening": "Hello!", "day": "Hello!", "there": "",
	"thanks": "You are welcome.", "thank": "You are welcome.", "you": "", "very": "", "much": "", "a": "", "lot": "",
	"ok": "", "okay": "", "bye": "Goodbye!", "goodbye": "Goodbye!",
}

// isAboutItself reports whether a question is about the guide.
func isAboutItself(question string) bool {
	asked := " " + strings.Join(strings.FieldsFunc(strings.ToLower(question), isNoLetter), " ") + " "
	return slices.ContainsFunc([]string{" are you ", " who you ", " what you ", " can you do ", " you know ", " your name "},
		func(phrase string) bool { return strings.Contains(asked, phrase) })
}

func suggest(questions []string) string {
	var list strings.Builder
	list.WriteString("You could ask:\n\n")
	for _, question := range questions {
		fmt.Fprintf(&list, "- %s\n", question)
	}
	return list.String()
}

func quote(s section) string {
	source := fmt.Sprintf("[%s](%s)", s.document, linkMark+served[s.document]+anchor(s.heading))
	return fmt.Sprintf("### %s\n\n%s\n\n*From “%s” in %s*", s.heading, strings.Join(s.blocks, "\n\n"), s.heading, source)
}

// search returns the section with the highest score. Rare terms count more than
// frequent ones, and terms in the heading more than terms in the text.
func search(terms []string) (best section, found bool) {
	highest := 0.0
	for i, s := range sections {
		score := 0.0
		for _, term := range terms {
			score += rarity(term) * indexed[i].weight(term)
		}
		if score > highest {
			best, highest = s, score
		}
	}
	return best, highest > 0
}

// A bag counts the terms of a section.
type bag struct {
	heading map[string]int
	text    map[string]int
	length  int
}

var indexed = index()

func index() (bags []bag) {
	for _, s := range sections {
		text := link.ReplaceAllString(strings.Join(s.blocks, " "), "$1")
		b := bag{heading: map[string]int{}, text: map[string]int{}}
		for _, term := range termsOf(s.heading + " " + alsoAsked[s.heading]) {
			b.heading[term]++
		}
		for _, term := range termsOf(text) {
			b.text[term]++
			b.length++
		}
		bags = append(bags, b)
	}
	return bags
}

// weight grows with each occurrence of a term, but less each time, and more
// slowly in a long section.
func (b bag) weight(term string) float64 {
	n, typical := float64(b.text[term]), 200.0
	weight := n / (n + 0.5 + float64(b.length)/typical)
	if b.heading[term] > 0 {
		weight += 2
	}
	return weight
}

func rarity(term string) float64 {
	having := 0
	for _, b := range indexed {
		if b.text[term]+b.heading[term] > 0 {
			having++
		}
	}
	return math.Log(float64(len(indexed)+1) / float64(having+1))
}

// termsOf returns the search terms of a text: its words without common ones,
// stemmed.
func termsOf(text string) (terms []string) {
	for word := range strings.FieldsFuncSeq(strings.ToLower(text), isNoLetter) {
		if !slices.Contains(common, word) {
			terms = append(terms, stem(word))
		}
	}
	return terms
}

// alsoAsked maps a heading to other words that people use for its topic. They
// count as words of the heading.
var alsoAsked = map[string]string{
	"botapi":                                "project library framework package purpose",
	"Try it":                                "start begin install golang requirement prerequisite",
	"Why not 60 lines of your own?":         "why handler myself advantage benefit instead scratch reliable robust better",
	"Your own bot":                          "write create build hello example install import module own code",
	"The three interfaces":                  "interface implement database postgres sql api key auth account user callback",
	"Your model":                            "connect plug ai llm gpt claude gemini mistral llama ollama vllm lm studio hugging face runtime provider backend openai compatible",
	"Mount it":                              "router gin chi echo fiber gorilla embed page chat ui frontend widget prefix existing server",
	"Options":                               "setting configure configuration config concurrent parameter default",
	"When to use something else":            "tool function image vision upload file docker kubernetes container production alternative gateway litellm compare",
	"Versions":                              "licence license free open source mit stable release commercial",
	"The list of bots":                      "list bots all available etag cache",
	"A chat":                                "curl send message remember memory history conversation context stop cancel abort prompt talk http json",
	"Answers":                               "error fail failure status code detail problem 400 401 403 404 405 408 413 422 429 500 502 503 504 mean request id",
	"Retrying":                              "retry again backoff attempt",
	"A connection is lost":                  "resume reconnect reload lose interrupted idempotency",
	"The stream":                            "sse server sent events stream format protocol look complete whole finished done end fragment token",
	"Readers in Python, Go and JavaScript":  "python javascript typescript node js read parse client sdk consume fetch",
	"Timeouts":                              "timeout slow hang long wait",
	"CORS: pages of other origins":          "cors origin browser web page website frontend domain",
	"The details":                           "half closed",
	"aBLT's clients":                        "ablt",
	"Depend on it":                          "go get module path vendor fork rename copy private",
	"The server":                            "deploy host serve http2 tls production live run",
	"Shutdown":                              "shut graceful gracefully restart deploy rolling update zero downtime",
	"Engines":                               "engine disconnect leave left cancel context goroutine",
	"Proxies":                               "nginx haproxy caddy traefik proxy behind reverse load balancer cloudflare",
	"Logs":                                  "log logging debug see asked monitor observe",
	"Metering":                              "bill usage measure charge customer metric report",
	"Token counts":                          "count token usage",
	"Many users behind one key":             "user account tenant end person backend session login shared per",
	"Store conversations":                   "store save persist keep history record database conversation chat message remember",
	"Test your application":                 "test unit integration mock fake check simulate httptest",
	"Limits and bounds":                     "limit rate quota memory bound maximum size abuse",
	"Security":                              "secure safe safety attack leak privacy gdpr",
	"Performance":                           "fast speed latency performance benchmark scale many much overhead slow cost price user handle throughput",
	"Rough edges of servers and middleware": "surprise surprising gotcha pitfall caveat rough edge known problem",
	"The bots file":                         "add second another bots file json",
	"A real model":                          "quickstart runtime flag try",
	"A conversation":                        "mira juniper eliza",
	"Flags":                                 "flag port address change key default pace",
}

func isNoLetter(r rune) bool {
	return !unicode.IsLetter(r) && !unicode.IsNumber(r) && r != '\''
}

// common words do not help to find a section.
var common = strings.Fields(`a about all an and any are as at be botapi by can could did do does for from get gets give has have how i if in is it its
	know like look looks me mean my need needs of on or own say says should more show some tell than that the their them then there these this to use used want
	was what what's when where which who why will with work works would you your not no`)

// stem removes common endings, so that singular and plural are the same term.
func stem(word string) string {
	for _, ending := range []string{"'s", "ing", "es", "ed", "s", "e"} {
		if rest, found := strings.CutSuffix(word, ending); found && len(rest) > 3 {
			return rest
		}
	}
	return word
}
