package botapi

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"
)

var updateWire = flag.Bool("update", false, "write the responses of testdata/wire anew")

// TestWire plays the conversations of testdata/wire, whose README says what stands
// in them, over HTTP/1.1.
func TestWire(t *testing.T) {
	files, err := filepath.Glob("testdata/wire/*.txt")
	if err != nil || len(files) < 44 {
		t.Fatal("the conversations are not there", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				text, err := os.ReadFile(file)
				is.NoErr(err)
				c, err := parseConversation(string(text))
				is.NoErr(err)
				response := c.play(t)
				if *updateWire {
					before, _, _ := strings.Cut(string(text), "-- response --\n")
					is.NoErr(os.WriteFile(file, []byte(before+"-- response --\n"+response), 0o644))
					return
				}
				is.Equal(response, c.response)
			})
		})
	}
}

// A conversation is one file of testdata/wire.
type conversation struct {
	options  []string // lines
	request  string
	engine   []string // lines
	response string
}

func parseConversation(text string) (c conversation, err error) {
	before, response, found := strings.Cut(text, "-- response --\n")
	if !found {
		return c, errors.New("no response")
	}
	c.response = response
	for _, section := range strings.Split(before, "\n-- ")[1:] {
		name, content, _ := strings.Cut(section, " --\n")
		lines := strings.Split(strings.Trim(content, "\n"), "\n")
		switch name {
		case "options":
			c.options = lines
		case "request":
			c.request = content
		case "engine":
			c.engine = lines
		default:
			return c, fmt.Errorf("section %q", name)
		}
	}
	return c, nil
}

// play returns the response as the file has it.
func (c conversation) play(t *testing.T) string {
	is := is.New(t)
	o := testOptions(t, io.Discard)
	mount, engine := func(h http.Handler) http.Handler { return h }, c.engine
	for _, line := range c.options {
		option, value, _ := strings.Cut(line, " ")
		switch option {
		case "ChatTimeout":
			o.ChatTimeout = parsed(time.ParseDuration(value))
		case "StallTimeout":
			o.StallTimeout = parsed(time.ParseDuration(value))
		case "MaxBodyBytes":
			o.MaxBodyBytes = numberIn(value)
		case "MaxConcurrentChats":
			o.MaxConcurrentChats = numberIn(value)
		case "MaxChatsPerAccount":
			o.MaxChatsPerAccount = numberIn(value)
		case "bots":
			o.Bots = new(MemoryStore)
		case "host":
			mount = endedAfter(parsed(time.ParseDuration(strings.TrimPrefix(value, "ends after "))), StatusError{Status: 503, Detail: "Shutting down", RetryAfter: 5 * time.Second})
		default:
			t.Fatalf("an option that is not known: %q", line)
		}
	}
	busy := o.MaxConcurrentChats > 0 || o.MaxChatsPerAccount > 0
	if busy {
		engine = append([]string{"wait 1h"}, engine...)
	}
	var steps []wireStep
	for _, line := range engine {
		steps = append(steps, parseStep(t, line))
	}
	o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
		for _, step := range steps {
			if !step(ctx, yield) {
				return
			}
		}
	})
	server := serveInMemory(t, mount(New(o)))
	if busy {
		other := server.dial()
		defer other.Close()
		is.NoErr(chatRequest(t, "http://memory", "hi", false).Write(other))
		synctest.Wait()
	}
	conn := server.dial()
	defer conn.Close()
	_, err := io.WriteString(conn, onWire(c.request))
	is.NoErr(err)
	method, _, _ := strings.Cut(c.request, " ")
	received, err := readResponse(conn, method)
	is.NoErr(err)
	return received
}

// parsed returns what was read of a conversation's line.
func parsed[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func numberIn(text string) int64 { return parsed(strconv.ParseInt(text, 10, 64)) }

// endedAfter is a host that ends its requests with a cause.
func endedAfter(d time.Duration, cause error) func(http.Handler) http.Handler {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeoutCause(r.Context(), d, cause)
			defer cancel()
			h.ServeHTTP(w, r.WithContext(ctx))
		})
	}
}

// A wireStep does what one line of an engine says, and reports whether the next is
// to follow.
type wireStep func(ctx context.Context, yield func(string, error) bool) bool

func parseStep(t *testing.T, line string) wireStep {
	verb, rest, _ := strings.Cut(line, " ")
	switch verb {
	case "": // between two steps, or instead of any
		return func(context.Context, func(string, error) bool) bool { return true }
	case "yield":
		return yields(parsed(strconv.Unquote(rest)), nil)
	case "repeat":
		count, text, _ := strings.Cut(rest, " ")
		return yields(strings.Repeat(parsed(strconv.Unquote(text)), int(numberIn(count))), nil)
	case "wait":
		return waits(parsed(time.ParseDuration(rest)))
	case "error":
		return yields("", errors.New(rest))
	case "status":
		status, detail, _ := strings.Cut(rest, " ")
		return yields("", StatusError{Status: int(numberIn(status)), Detail: detail})
	case "invalid":
		return yields("", HTTPValidationError{[]ValidationError{{Loc: []any{"body", rest}, Msg: "ensure this value is less than or equal to 2", Type: "value_error.number.not_le"}}})
	case "panic":
		return func(context.Context, func(string, error) bool) bool { panic(rest) }
	}
	t.Fatalf("a line of the engine that is not known: %q", line)
	return nil
}

func yields(text string, err error) wireStep {
	return func(_ context.Context, yield func(string, error) bool) bool { return yield(text, err) }
}

func waits(d time.Duration) wireStep {
	return func(ctx context.Context, _ func(string, error) bool) bool {
		select {
		case <-time.After(d):
			return true
		case <-ctx.Done():
			return false
		}
	}
}

// onWire ends the lines of a request's head as HTTP does. The body is as it is,
// without the last newline of the file's section.
func onWire(request string) string {
	head, body, _ := strings.Cut(request, "\n\n")
	body = strings.TrimSuffix(body, "\n")
	head = strings.TrimSuffix(head, "\n")
	if body != "" {
		head += fmt.Sprintf("\nContent-Length: %d", len(body))
	}
	return strings.ReplaceAll(head, "\n", "\r\n") + "\r\n\r\n" + body
}

// readResponse reads a response and writes it as the files have it: the head with
// bare newlines, the body without its chunks.
func readResponse(from io.Reader, method string) (string, error) {
	var raw strings.Builder
	res, err := http.ReadResponse(bufio.NewReader(io.TeeReader(from, &raw)), &http.Request{Method: method})
	if err != nil {
		return "", err
	}
	head, _, _ := strings.Cut(raw.String(), "\r\n\r\n")
	body, err := io.ReadAll(res.Body)
	text := strings.ReplaceAll(head, "\r\n", "\n") + "\n\n" + string(body)
	if len(body) > 0 && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return text + "-- cut --\n", nil
	}
	return text, err
}
