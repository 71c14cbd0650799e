package guide

import (
	"context"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"example.com/botapi"
	"example.com/botapi/docs"
	"example.com/botapi/examples/botapitest"
	"github.com/matryer/is"
)

// pages is a library whose answers a test knows.
var pages = newLibrary("# Home\n\nWhere we [live](docs/garden.md).\n\n## Cats\n\nTwo.\n", fstest.MapFS{
	"garden.md": {Data: []byte("# The garden\n\nRoses, beans and a gate.\n\n## Watering roses\n\nIn the morning, with a can.\n\n## Slugs\n\nThey eat beans. See the [pond](pond.md#fish).\n")},
	"pond.md":   {Data: []byte("# The pond\n\n- [Fish](#fish)\n- [Frogs](#frogs)\n\n## Fish\n\nGoldfish eat what falls in.\n\n### Frogs\n\nThey are loud at night, and eat slugs, slugs, slugs.\n")},
})

func TestAnswers(t *testing.T) {
	quoted := func(heading, document string) string {
		return "*From “" + heading + "” in [" + document + "](documents:" + document + "#"
	}
	tests := []struct {
		question string
		begins   string
		contains string
	}{
		{"How do I water my roses?", "### Watering roses\n\nIn the morning", quoted("Watering roses", "garden.md")},
		{"WATERED ROSE?", "### Watering roses", quoted("Watering roses", "garden.md")},
		{"slugs", "### Slugs", "[pond](documents:pond.md#fish)"}, // a heading counts more than a text
		{"What is loud?", "### Frogs", quoted("Frogs", "pond.md")},
		{"Hi, what about goldfish?", "### Fish", quoted("Fish", "pond.md")},
		{"“Fish”: what do the documents say?", "### Fish", quoted("Fish", "pond.md")},
		{"What are cats?", "### Cats\n\nTwo.", quoted("Cats", "README.md")},
		{whatItIs, "Where we [live](documents:garden.md).", quoted("Home", "README.md")},
		{"Tell me more.", "Where we", quoted("Home", "README.md")},
		{"?", "Where we", quoted("Home", "README.md")},
		{"Are you a real person?", "I am **no language model**", ")\n- [The garden](documents:garden.md#the-garden)\n- [The pond](documents:pond.md#the-pond)"},
		{"Hi, who are you?", "I am **no language model**", "- [The garden]"},
		{"Hello, world!", "Hello! I am **no language model**", "- [The garden]"},
		{"good morning :)", "Hello! I am **no language model**", "- [The garden]"},
		{"Thank you very much", "You are welcome.", ""},
		{"xyzzy plugh", "I have found nothing about this", "- [The garden]"},
	}
	for _, test := range tests {
		t.Run(test.question, func(t *testing.T) {
			is := is.New(t)
			text := pages.answer(test.question)
			is.True(strings.HasPrefix(text, test.begins))
			is.True(strings.Contains(text, test.contains))
			is.True(strings.Count(text, "](") <= len(pages.names)) // a list of headings would hide what it says
		})
	}
}

// TestNewcomers asks what newcomers ask, in their words. What an answer must have are names
// of the API and the like, which outlive the headings.
func TestNewcomers(t *testing.T) {
	for question, want := range map[string]string{
		"How do I install it?":            "go mod edit -require",
		"How do I run it?":                `go run \./examples/quickstart`,
		"How do I get started?":           `go run \./examples/quickstart`,
		"What licence is it?":             `\bMIT\b`,
		"license":                         `\bMIT\b`,
		"How do I use my own model?":      `openai\.NewEngine|openai\.Config|--runtime`,
		"How do I stop an answer?":        "close the connection|DELETE",
		"how do I add a bot":              "NewMemoryStore",
		"how do I change the API key":     "StaticKeys|CacheKeys",
		"error 429":                       `\| 429`,
		"How do I mount it in my server?": `mux\.Handle\(`,
		"Can I use it with gin?":          "gin",
		"stream tokens to a React app":    "useChat|async function",
		"What does idempotency key do":    "Idempotency-Key",
		"How do I retry a request?":       "Retry-After",
		"how do I log requests":           "request_id",
		"Does it support tool calls?":     "tool calls",
		"Can I use LangChain?":            "LangChain",
		"Does it work with vLLM?":         "vLLM",
		"How do I use it behind nginx?":   "X-Accel-Buffering",
		"nginx":                           "X-Accel-Buffering",
		"Python":                          "(?m)^import .*json",
		"rate limit":                      "x/time/rate",
		"protocols":                       "Routes",
		"MaxConcurrentChats":              "\\| `MaxConcurrentChats` \\|",
		"How do I count tokens?":          "CountTokens|UsageFrom",
		"How secure is it?":               "SHA-256|TLS",
		"graceful shutdown":               `graceful\.`,
		"How do I connect Ollama?":        `openai\.NewEngine|openai\.Config|--runtime`,
		"How do I authenticate?":          "Authorization|KeyVerifier",
		whatItIs:                          "Go package",
	} {
		t.Run(question, func(t *testing.T) {
			answer := own.answer(question)
			if !regexp.MustCompile(want).MatchString(answer) {
				t.Errorf("the answer has no %s: %.100s", want, answer)
			}
		})
	}
}

// TestEditedDocuments renames every heading of the documents, and reorders and extends
// them: the guide knows no heading, and no document but the README by name.
func TestEditedDocuments(t *testing.T) {
	is := is.New(t)
	edited := fstest.MapFS{"new.md": {Data: []byte("No heading yet.\n\n## Zebras\n\nThey are striped.\n")}}
	names, err := fs.Glob(docs.Files, "*.md")
	is.NoErr(err)
	count := 0
	renamed := func(text string) string {
		return regexp.MustCompile(`(?m)^(##+) .*$`).ReplaceAllStringFunc(text, func(heading string) string {
			count++
			return heading[:strings.Index(heading, " ")] + fmt.Sprintf(" Heading%d", count)
		})
	}
	for _, name := range names {
		text, err := docs.Files.ReadFile(name)
		is.NoErr(err)
		edited["edited-"+name] = &fstest.MapFile{Data: []byte(renamed(string(text)))}
	}
	l := newLibrary(renamed(botapi.README), edited)
	is.Equal(len(l.documents()), len(names)+2)
	is.True(strings.HasPrefix(l.answer("What is a zebra?"), "### Zebras\n\nThey are striped."))
	found := 0
	for _, s := range l.sections {
		if strings.HasPrefix(s.heading, "Heading") && !s.isContents() {
			found++
			is.True(strings.HasPrefix(l.answer("What about "+s.heading+"?"), "### "+s.heading+"\n"))
		}
	}
	is.True(found > 20)
	for _, question := range l.questions() {
		is.True(!strings.Contains(l.answer(question), "found nothing"))
	}
}

// TestSections checks that each section of the documents is found by its heading or by
// that of a section with the same words, and that no answer is too long for a chat.
func TestSections(t *testing.T) {
	documents := Documents()
	toDocument := regexp.MustCompile(`\]\(http://127.0.0.1:8080/docs/([^)#]*)([^)]*)`)
	for _, s := range own.sections {
		t.Run(s.document+" "+s.heading, func(t *testing.T) {
			is := is.New(t)
			text := linked(quote(s), "http://127.0.0.1:8080/docs/")
			for _, to := range toDocument.FindAllStringSubmatch(text, -1) {
				is.True(slices.Contains(anchorsOf(documents[to[1]]), to[2])) // the document has this heading
			}
			is.True(!regexp.MustCompile(`\]\((#|[^h)])|<img`).MatchString(text)) // no link that only the repository has
			is.True(len(quote(s)) < longestQuote+500)
			if len(termsOf(s.heading)) > 0 && !s.isContents() {
				is.True(strings.HasPrefix(own.answer(s.heading), "### "))
			}
		})
	}
}

func TestQuestions(t *testing.T) {
	is := is.New(t)
	is.Equal(Questions[0], whatItIs)
	is.True(len(Questions) > 3)
	for _, question := range Questions[1:] {
		heading := regexp.MustCompile("“(.*)”").FindStringSubmatch(question)[1]
		is.True(strings.HasPrefix(own.answer(question), "### "+heading))
	}
}

// anchorsOf returns the anchors of a document, and "" for the document itself; none of a
// document that does not exist.
func anchorsOf(text string) (anchors []string) {
	if text == "" {
		return nil
	}
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		anchors = append(anchors, anchor(heading[1]))
	}
	return append(anchors, "")
}

// TestDocuments checks that the documents link to each other and to nothing that only the
// repository has, and that their code is unchanged.
func TestDocuments(t *testing.T) {
	documents := Documents()
	files, err := docs.Files.ReadDir(".")
	is.New(t).NoErr(err)
	for _, file := range files {
		is.New(t).True(documents[file.Name()] != "") // each page of docs/ is served
	}
	links := 0
	for name, text := range documents {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			prose := regexp.MustCompile("(?ms)^```.*?^```$").ReplaceAllString(text, "")
			for _, found := range link.FindAllStringSubmatch(prose, -1) {
				if strings.HasPrefix(found[2], "https://") {
					continue
				}
				to, heading, hasHeading := strings.Cut(found[2], "#")
				links++
				is.True(documents[to] != "") // the document is served
				is.True(!hasHeading || slices.Contains(anchorsOf(documents[to]), "#"+heading))
			}
			is.True(!strings.Contains(text, "<img") && !strings.Contains(text, linkMark))
		})
	}
	is.New(t).True(links > 20)
	is.New(t).True(strings.Contains(documents["wire.md"], "async function* chat(url, key, request) {"))
}

func TestSplit(t *testing.T) {
	is := is.New(t)
	is.Equal(newLibrary("", fstest.MapFS{"wire.md": {}}).split("a.md", `# One

A [page](../b.md#part), the [wire](wire.md#a-chat), a [heading](#two), a [TestA](../a_test.go) and the [web](https://go.dev).
Still the first.

- An item
  on two lines.
- Another.

<img src="x.png">

## `+"`Two`"+`

`+"```sh\n# no heading\n\nls\n```"+`

    go build
    go test
`), []section{
		{document: "a.md", level: 1, heading: "One", links: len("pagewireheadingTestAweb"), blocks: []string{"A page (b.md), the [wire](documents:wire.md#a-chat), a heading, a TestA and the [web](https://go.dev). Still the first.", "- An item on two lines.\n- Another."}},
		{document: "a.md", level: 2, heading: "`Two`", blocks: []string{"```sh\n# no heading\n\nls\n```", "    go build\n    go test"}},
	})
}

// TestPace checks that a stream is paced word by word, and that a JSON response
// is not delayed.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		req := &botapi.ChatRequest{Messages: []botapi.ChatMessage{{Role: botapi.RoleUser, Content: "What is botapi?"}}}
		for _, stream := range []bool{true, false} {
			req.Stream = stream
			began := time.Now()
			var fragments []string
			for fragment, err := range (Engine{Pace: time.Second}).Chat(t.Context(), req) {
				is.NoErr(err)
				fragments = append(fragments, fragment)
			}
			is.True(len(fragments) > 10)
			is.Equal(strings.Join(fragments, ""), linked(own.answer("What is botapi?"), ""))
			is.Equal(time.Since(began) > 0, stream)
			for _, fragment := range fragments {
				is.True(len(strings.Fields(fragment)) == 1)
			}
		}
	})
}

func TestCancelled(t *testing.T) {
	is := is.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req := &botapi.ChatRequest{Stream: true, Messages: []botapi.ChatMessage{{Role: botapi.RoleUser, Content: "What is botapi?"}}}
	var last error
	for _, err := range (Engine{Pace: time.Hour}).Chat(ctx, req) {
		cancel()
		last = err
	}
	is.Equal(last, context.Canceled)
}

func TestContract(t *testing.T) {
	botapitest.TestEngine(t, botapitest.Engine{
		Engine:  Engine{Pace: time.Microsecond},
		Request: botapi.ChatRequest{Messages: []botapi.ChatMessage{{Role: botapi.RoleUser, Content: "What is botapi?"}}},
		Answer:  linked(own.answer("What is botapi?"), ""),
		Hanging: Engine{Pace: time.Hour},
	})
}

// TestAddress checks the links of an answer with and without an address.
func TestAddress(t *testing.T) {
	is := is.New(t)
	heading := own.sections[len(own.sections)-1].heading
	req := &botapi.ChatRequest{Messages: []botapi.ChatMessage{{Role: botapi.RoleUser, Content: heading}}}
	for address, want := range map[string]string{"": "” in wire.md*", "http://127.0.0.1:8080/docs/": "](http://127.0.0.1:8080/docs/wire.md#"} {
		var text strings.Builder
		for fragment, err := range (Engine{Address: func(context.Context) string { return address }}).Chat(t.Context(), req) {
			is.NoErr(err)
			text.WriteString(fragment)
		}
		is.True(strings.Contains(text.String(), want))
		is.True(!strings.Contains(text.String(), linkMark))
	}
}
