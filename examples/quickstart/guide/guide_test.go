package guide

import (
	"context"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"example.com/botapi"
	"example.com/botapi/docs"
	"github.com/matryer/is"
)

func TestCopiesAreCurrent(t *testing.T) {
	for original, copied := range map[string]string{"../../../README.md": project, "../README.md": quickstart} {
		current, err := os.ReadFile(original)
		is.New(t).NoErr(err)
		if copied != string(current) {
			t.Errorf("the copy of %s is not current: run go generate ./examples/quickstart/guide", original)
		}
	}
}

// TestQuestions checks that a newcomer's question leads to the right section.
func TestQuestions(t *testing.T) {
	tests := []struct{ question, heading, document string }{
		{"What is botapi?", "botapi", "README.md"},
		{"what is all this", "botapi", "README.md"},
		{"How do I connect a model?", "Your model", "README.md"},
		{"Can I use OpenAI or Claude?", "Your model", "README.md"},
		{"Does it work with Ollama?", "Your model", "README.md"},
		{"What does it cost?", "Performance", "docs/performance.md"},
		{"How fast is it?", "Performance", "docs/performance.md"},
		{"How many users can it handle?", "Performance", "docs/performance.md"},
		{"Is it free? Which licence does it have?", "Versions", "README.md"},
		{"Is it production ready?", "When to use something else", "README.md"},
		{"How do I install it?", "Try it", "README.md"},
		{"What are the requirements?", "Try it", "README.md"},
		{"How do I write my own bot?", "Your own bot", "README.md"},
		{"How do I add a second bot?", "The bots file", "examples/quickstart/README.md"},
		{"Is there a list of the bots?", "The list of bots", "docs/wire.md"},
		{"How do I get an API key?", "The three interfaces", "README.md"},
		{"How do I verify keys in a database?", "The three interfaces", "README.md"},
		{"Where are conversations stored?", "Store conversations", "docs/operating.md"},
		{"How do I store conversations?", "Store conversations", "docs/operating.md"},
		{"Can I keep a chat history in my database?", "Store conversations", "docs/operating.md"},
		{"How do I test it?", "Test your application", "docs/operating.md"},
		{"How can I write unit tests?", "Test your application", "docs/operating.md"},
		{"What are the gotchas?", "Rough edges of servers and middleware", "docs/rough-edges.md"},
		{"How do I limit each of my users?", "Many users behind one key", "docs/operating.md"},
		{"Does the bot remember what I said?", "A chat", "docs/wire.md"},
		{"How do I chat with curl?", "A chat", "docs/wire.md"},
		{"How do I stop an answer?", "A chat", "docs/wire.md"},
		{"How do I read the stream in Python?", "Readers in Python, Go and JavaScript", "docs/wire.md"},
		{"How do I call it from JavaScript?", "Readers in Python, Go and JavaScript", "docs/wire.md"},
		{"What if my connection is lost?", "A connection is lost", "docs/wire.md"},
		{"How do I resume an answer?", "A connection is lost", "docs/wire.md"},
		{"What does a stream look like?", "The stream", "docs/wire.md"},
		{"How do I know that an answer is complete?", "The stream", "docs/wire.md"},
		{"What is a fragment?", "The stream", "docs/wire.md"},
		{"Which errors are there?", "Answers", "docs/wire.md"},
		{"Why do I get a 401?", "Answers", "docs/wire.md"},
		{"What does 503 mean?", "Answers", "docs/wire.md"},
		{"Should I retry?", "Retrying", "docs/wire.md"},
		{"Which timeout should I set?", "Timeouts", "docs/wire.md"},
		{"Can my web page call it from another origin?", "CORS: pages of other origins", "docs/wire.md"},
		{"half-closed connections", "The details", "docs/wire.md"},
		{"What is aBLT?", "aBLT's clients", "docs/wire.md"},
		{"How do I set a rate limit?", "Limits and bounds", "docs/operating.md"},
		{"How do I deploy it?", "The server", "docs/operating.md"},
		{"go get does not work", "Depend on it", "docs/operating.md"},
		{"How do I rename the module?", "Depend on it", "docs/operating.md"},
		{"How do I shut it down without cutting streams?", "Shutdown", "docs/operating.md"},
		{"What happens when a client disconnects?", "Engines", "docs/operating.md"},
		{"WHAT ABOUT NGINX?", "Proxies", "docs/operating.md"},
		{"Where are the logs?", "Logs", "docs/operating.md"},
		{"How do I count tokens?", "Token counts", "docs/operating.md"},
		{"How do I bill my customers?", "Metering", "docs/operating.md"},
		{"Is it secure?", "Security", "docs/operating.md"},
		{"Can I have it with chi or gin?", "Mount it", "README.md"},
		{"How do I embed the chat page?", "Mount it", "README.md"},
		{"What options are there?", "Options", "docs/operating.md"},
		{"Does it support tool calls and images?", "When to use something else", "README.md"},
		{"Does it work with Docker?", "When to use something else", "README.md"},
		{"Why not write the handler myself?", "Why not 60 lines of your own?", "README.md"},
		{"How do I change the port?", "Flags", "examples/quickstart/README.md"},
	}
	for _, test := range tests {
		t.Run(test.question, func(t *testing.T) {
			is := is.New(t)
			text := answer(test.question)
			first, _, _ := strings.Cut(text, "\n")
			is.Equal(first, "### "+test.heading)
			is.True(strings.Contains(text, "*From “"+test.heading+"” in ["+test.document+"]("+linkMark+served[test.document]+"#"))
		})
	}
	for _, question := range Questions {
		is.New(t).True(slices.ContainsFunc(tests, func(test struct{ question, heading, document string }) bool { return test.question == question }))
	}
}

func TestAnswers(t *testing.T) {
	tests := []struct {
		question string
		begins   string
		contains string
	}{
		{"What is botapi?", "### botapi", "](https://pkg.go.dev/"},
		{"How do I connect a model?", "### Your model", "openai.NewEngine("},
		{"How do I chat with curl?", "### A chat", "```sh\ncurl "},
		{"What does a stream look like?", "### The stream", "data: [DONE]"},
		{"Which errors are there?", "### Answers", "| 404 | `Bot not found` |"},
		{"Why not write the handler myself?", "### Why not 60 lines of your own?", "| what happens | what botapi does |"},
		{"what is botapi", "### botapi", "You could ask:\n\n- How do I connect a model?\n"},
		{"Tell me more.", "### botapi", "You could ask:\n\n- How do I connect a model?\n"},
		{"Are you a real person?", "I am **no language model**", "- What is botapi?\n"},
		{"Hello!", "Hello! I am **no language model**", "- What is botapi?\n"},
		{"Hello, world!", "Hello! I am **no language model**", "- What is botapi?\n"},
		{"good morning :)", "Hello! I am **no language model**", "- What is botapi?\n"},
		{"Thank you very much", "You are welcome. I am **no language model**", "- What is botapi?\n"},
		{"Hi, how do I connect a model?", "### Your model", "openai.NewEngine("},
		{"Hi, who are you?", "I am **no language model**", "- What is botapi?\n"},
		{"xyzzy plugh", "I have found nothing about this", "- What is botapi?\n"},
		{"?", "### botapi", "*From “botapi” in [README.md](documents:README.md#botapi)*"},
	}
	for _, test := range tests {
		t.Run(test.question, func(t *testing.T) {
			is := is.New(t)
			text := answer(test.question)
			is.True(strings.HasPrefix(text, test.begins))
			is.True(strings.Contains(text, test.contains))
		})
	}
}

// TestSectionsStandAlone checks that no section refers to the text around it.
func TestSectionsStandAlone(t *testing.T) {
	elsewhere := regexp.MustCompile(`\]\((#|[^h)])|<img|(program|section|command)s? (above|below)|on this page`)
	toDocument := regexp.MustCompile(`\]\(http://127.0.0.1:8080/docs/([^)#]*)([^)]*)`)
	headings, documents := map[string]bool{}, Documents()
	for _, s := range sections {
		headings[s.heading] = true
		t.Run(s.document+" "+s.heading, func(t *testing.T) {
			is := is.New(t)
			text := linked(quote(s), "http://127.0.0.1:8080/docs/")
			for _, to := range toDocument.FindAllStringSubmatch(text, -1) {
				is.True(slices.Contains(anchorsOf(documents[to[1]]), to[2])) // the document has this heading
			}
			is.Equal(elsewhere.FindString(text), "")
			is.True(len(linked(quote(s), "")) < 5500) // short enough for a chat
		})
	}
	for heading := range alsoAsked {
		is.New(t).True(headings[heading]) // the section exists
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
	is.New(t).Equal(len(documents), len(served))
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
	is.Equal(split("docs/a.md", `# One

A [page](b.md#part), the [wire](wire.md#a-chat), a [heading](#two), a [TestA](../a_test.go) and the [web](https://go.dev).
Still the first.

- An item
  on two lines.
- Another.

<img src="x.png">

## `+"`Two`"+`

`+"```sh\n# no heading\n\nls\n```"+`
`), []section{
		{"docs/a.md", "One", []string{"A page (docs/b.md), the [wire](documents:wire.md#a-chat), a heading, a TestA and the [web](https://go.dev). Still the first.", "- An item on two lines.\n- Another."}},
		{"docs/a.md", "`Two`", []string{"```sh\n# no heading\n\nls\n```"}},
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
			is.Equal(strings.Join(fragments, ""), linked(answer("What is botapi?"), ""))
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

// TestAddress checks the links of an answer with and without an address.
func TestAddress(t *testing.T) {
	is := is.New(t)
	req := &botapi.ChatRequest{Messages: []botapi.ChatMessage{{Role: botapi.RoleUser, Content: "What is botapi?"}}}
	for address, want := range map[string]string{
		"":                            "*From “botapi” in README.md*",
		"http://127.0.0.1:8080/docs/": "*From “botapi” in [README.md](http://127.0.0.1:8080/docs/README.md#botapi)*",
	} {
		var text strings.Builder
		for fragment, err := range (Engine{Address: func(context.Context) string { return address }}).Chat(t.Context(), req) {
			is.NoErr(err)
			text.WriteString(fragment)
		}
		is.True(strings.Contains(text.String(), want))
		is.True(!strings.Contains(text.String(), linkMark))
	}
}
