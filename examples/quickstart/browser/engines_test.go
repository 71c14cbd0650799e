package browser

import (
	"context"
	"iter"
	"strings"

	"example.com/botapi"
)

// explain answers word by word, with every kind of Markdown that the page shows.
func explain(_ context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for word := range strings.SplitAfterSeq(explanation, " ") {
			if !yield(word, nil) {
				return
			}
		}
	}
}

const explanation = "Use a **`bufio.Scanner`**: it reads one line at a time, so the file may be *any* size.\n\n" +
	"```go\nscanner := bufio.NewScanner(file)\nfor scanner.Scan() {\n\tfmt.Println(scanner.Text())\n}\nif err := scanner.Err(); err != nil {\n\treturn fmt.Errorf(\"reading the log: %w\", err)\n}\n```\n\n" +
	"Which one when?\n\n" +
	"| you have | use | longest line |\n|---|---|--:|\n| lines of text | `bufio.Scanner` | 64 KiB |\n| long lines | `bufio.Reader` | any |\n\n" +
	"1. Open the file with [os.Open](https://pkg.go.dev/os#Open).\n2. Scan it, and **check the error** at the end.\n\n" +
	"> Close the file when you are done.\n"
