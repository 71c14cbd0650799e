// Package guide is a chat engine that explains botapi from the documents of package
// docs. It uses no model: it quotes the section that fits the words of the question
// best, above all the words of its heading.
package guide

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"
	"unicode"

	"example.com/botapi"
	"example.com/botapi/docs"
	"example.com/botapi/examples/quickstart/speech"
)

// Model is the Bot.Model of bots that use this engine.
const Model = "no-model"

var own = newLibrary(docs.Files)

// Questions are suggestions for newcomers.
var Questions = own.questions()

// Documents returns the documents in Markdown, each by the name under which a program
// serves it, in one folder: "wire.md", for example. They link to each other. A link to
// another file of the repository is replaced with its name.
func Documents() map[string]string {
	return own.documents()
}

// Contents lists the documents with their headings, in Markdown. address is where they are
// served, with a slash at its end.
func Contents(address string) string {
	return linked(own.contents(), address)
}

// Where returns a link to the first section of the documents with this text, in Markdown, or
// "" if none has it. address is as for Contents.
func Where(text, address string) string {
	for _, s := range own.sections {
		if slices.ContainsFunc(s.blocks, func(block string) bool { return strings.Contains(block, text) }) {
			return linked(linkTo(s), address)
		}
	}
	return ""
}

// Engine is a [botapi.ChatEngine] that answers the last message of a
// conversation from the documents. The zero value streams without delay.
type Engine struct {
	// Pace is the delay before each word of a stream but the first. A JSON
	// response is not delayed.
	Pace time.Duration
	// Address returns the address at which the program serves the Documents, with a
	// slash at its end; answers link to them. If it is nil, or returns "", answers have
	// only the names of documents.
	Address func(context.Context) string
}

var _ botapi.ChatEngine = Engine{}

// Chat answers in Markdown, word by word.
func (e Engine) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		pace := e.Pace
		if !req.Stream {
			pace = 0
		}
		address := ""
		if e.Address != nil {
			address = e.Address(ctx)
		}
		text := linked(own.answer(req.Messages[len(req.Messages)-1].Content), address)
		speech.Speak(ctx, words(text), pace, yield)
	}
}

// words splits a text after each run of white space.
func words(text string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for text != "" {
			end := strings.IndexFunc(text, unicode.IsSpace)
			if end >= 0 {
				end = strings.IndexFunc(text[end:], func(r rune) bool { return !unicode.IsSpace(r) }) + end
			}
			if end <= 0 {
				end = len(text)
			}
			if !yield(text[:end]) {
				return
			}
			text = text[end:]
		}
	}
}

const (
	whatItIs     = "What is botapi?"
	aboutBotapi  = "botapi is a Go package: an `http.Handler` that lists chat bots and answers chats, as one JSON response or as a stream, in front of any model."
	aboutItself  = "I am **no language model**, and I do not use one. I search botapi's own documents for the words of your question and quote the section that fits best. I know only what the documents say."
	theDocuments = "\n\nThe documents:\n\n"
)

// questions returns what newcomers may ask: about botapi, and about some sections.
func (l *library) questions() []string {
	questions := []string{whatItIs}
	var headings []string
	for _, s := range l.sections {
		if s.level == 2 {
			headings = append(headings, s.heading)
		}
	}
	const some = 5
	for i := range min(some, len(headings)) {
		questions = append(questions, fmt.Sprintf("What do the documents say about “%s”?", headings[i*len(headings)/some]))
	}
	return questions
}

// maxQuestion limits how much of a question is read, in bytes: a request body
// may be long.
const maxQuestion = 1000

// answer quotes the section that fits the question best. Its links to documents have
// the linkMark.
func (l *library) answer(question string) string {
	question = strings.ToLower(question[:min(len(question), maxQuestion)])
	asked := " " + strings.Join(strings.FieldsFunc(question, isNoLetter), " ") + " "
	for _, phrase := range []string{" are you ", " who you ", " what you ", " can you do ", " your name "} {
		if strings.Contains(asked, phrase) {
			return aboutItself + theDocuments + l.contents()
		}
	}
	terms := termsOf(question)
	polite := slices.ContainsFunc(strings.Fields(asked), func(word string) bool { return slices.Contains(greetings, word) })
	if len(terms) == 0 && polite {
		return "Hello! " + aboutItself + theDocuments + l.contents()
	}
	if len(terms) == 0 {
		return aboutBotapi + theDocuments + l.contents() // as for "what is all this?"
	}
	best, found := l.search(terms)
	if !found {
		return "I have found nothing about this in botapi's documents. " + aboutItself + theDocuments + l.contents()
	}
	return quote(best)
}

// contents lists the documents with their headings.
func (l *library) contents() string {
	var list []string
	for i, s := range l.sections {
		link := linkTo(s)
		switch isFirst := i == 0 || l.sections[i-1].document != s.document; {
		case isFirst:
			list = append(list, "- "+link)
		case s.level == 2:
			list = append(list, "  - "+link)
		}
	}
	return strings.Join(list, "\n")
}

func linkTo(s section) string {
	return fmt.Sprintf("[%s](%s)", s.heading, linkMark+s.document+anchor(s.heading))
}

// longestQuote limits an answer, in bytes: it is part of a chat.
const longestQuote = 5000

func quote(s section) string {
	source := fmt.Sprintf("*From “%s” in [%s](%s)*", s.heading, s.document, linkMark+s.document+anchor(s.heading))
	text := "### " + s.heading
	for _, block := range s.blocks {
		if len(text)+len(block) > longestQuote {
			text += "\n\nThere is more."
			break
		}
		text += "\n\n" + block
	}
	return text + "\n\n" + source
}
