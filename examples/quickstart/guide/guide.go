// Package guide is a chat engine that explains botapi from its README and the documents of
// package docs. It uses no model: it quotes the section that fits the words of the question
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

var own = newLibrary(botapi.README, docs.Files)

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
		address := ""
		if e.Address != nil {
			address = e.Address(ctx)
		}
		text := linked(own.answer(req.Messages[len(req.Messages)-1].Content), address)
		speech.Speak(ctx, req, words(text), e.Pace, yield)
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
	aboutItself  = "I am **no language model**, and I do not use one. I search botapi's own documents for the words of your question and quote the section that fits best. I know only what the documents say."
	theDocuments = "\n\nThe documents:\n\n"
)

// questions returns what newcomers may ask: about botapi, and about some sections of the
// first document, which is the README.
func (l *library) questions() []string {
	questions := []string{whatItIs}
	var headings []string
	for _, s := range l.sections {
		if s.level == 2 && s.document == l.sections[0].document && !s.isContents() {
			headings = append(headings, s.heading)
		}
	}
	const some = 5
	for i := range min(some, len(headings)) {
		heading := strings.TrimRight(headings[i*len(headings)/min(some, len(headings))], "?")
		questions = append(questions, fmt.Sprintf("“%s”: what do the documents say?", heading))
	}
	return questions
}

// maxQuestion limits how much of a question is read, in bytes: a request body
// may be long.
const maxQuestion = 1000

// answer quotes the section that fits the question best. Its links to documents have
// the linkMark.
func (l *library) answer(question string) string {
	question = question[:min(len(question), maxQuestion)]
	words := strings.FieldsFunc(strings.ToLower(question), isNoLetter)
	asked := " " + strings.Join(words, " ") + " "
	for _, phrase := range []string{" are you ", " who you ", " what you ", " can you do ", " your name "} {
		if strings.Contains(asked, phrase) {
			return aboutItself + theDocuments + l.titles()
		}
	}
	terms := termsOf(question)
	isAny := func(of []string) bool {
		return slices.ContainsFunc(words, func(word string) bool { return slices.Contains(of, word) })
	}
	switch {
	case len(terms) == 0 && isAny(thanks):
		return "You are welcome."
	case len(terms) == 0 && isAny(greetings):
		return "Hello! " + aboutItself + theDocuments + l.titles()
	case len(terms) == 0:
		return introduction(l.sections[0]) // as for "what is all this?"
	}
	best, found := l.search(terms)
	if !found {
		return "I have found nothing about this in botapi's documents. " + aboutItself + theDocuments + l.titles()
	}
	return quote(best)
}

// titles lists the documents.
func (l *library) titles() string {
	var list []string
	for i, s := range l.sections {
		if i == 0 || l.sections[i-1].document != s.document {
			list = append(list, "- "+linkTo(s))
		}
	}
	return strings.Join(list, "\n")
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
	return "### " + s.heading + "\n\n" + introduction(s)
}

// introduction quotes a section without its heading, which is only a title.
func introduction(s section) string {
	source := fmt.Sprintf("*From “%s” in [%s](%s)*", s.heading, s.document, linkMark+s.document+anchor(s.heading))
	length := 0
	var text []string
	for _, block := range s.blocks {
		if length += len(block); length > longestQuote {
			text = append(text, "There is more.")
			break
		}
		text = append(text, block)
	}
	return strings.Join(append(text, source), "\n\n")
}
