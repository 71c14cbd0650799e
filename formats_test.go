package botapi

import (
	"context"
	"strings"
	"testing"

	"example.com/botapi/internal/connection"
	"github.com/matryer/is"
)

// The text before and after that of a JSON response is the application's: however long the
// answer, its memory is not used for other responses.
func TestJSONAroundTheTextIsNotReused(t *testing.T) {
	is := is.New(t)
	const start = `{"model":"one","created":1700000000,"content":"`
	before, after := append(make([]byte, 0, 1<<10), start...), append(make([]byte, 0, 1<<10), `"}`...)
	o := testOptions(t, t.Output())
	o.Routes = []Route{chatRoute(func(c *Chat) {
		c.JSON = func(context.Context) ([]byte, []byte, error) { return before, after, nil }
	})}
	h := New(o)
	for _, size := range []int{1, 1 << 10, connection.MaxChunk - 20, connection.MaxChunk, 3 * connection.MaxChunk} {
		text := strings.Repeat("x", size)
		got := record(h, newRequest("POST", routePath, strings.NewReader(chatBodyJSON(text, false)))).Body.String()
		is.Equal(got, start+text+`"}`)
		postChat(h, chatBodyJSON("another account's text", false))
		is.Equal(string(before[:cap(before)]), start+strings.Repeat("\x00", cap(before)-len(before)))
		is.Equal(string(after[:cap(after)]), `"}`+strings.Repeat("\x00", cap(after)-len(after)))
	}
}
