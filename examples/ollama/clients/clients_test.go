package clients

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/ollama"
	"example.com/botapi/examples/openai"
	"github.com/matryer/is"
	"github.com/ollama/ollama/api"
)

const key = "sk-bots"

// hostile is text that readers of lines get wrong. It is sent byte by byte, which splits its
// characters.
const hostile = "{\"done\":true}\n\n\r\nGrüße, 世界 👋🏽\u2028\u2029\u0085\x00\"\\</script>"

// keepAlive is how long the service's streams are silent before a keep-alive.
const keepAlive = 5 * time.Millisecond

// A service is the server that the clients talk to, over HTTP/1.1. Its API is below /ollama.
type service struct {
	url   string
	ended chan error // the context's cause when a "wait" has ended
}

// newService starts a service whose bot obeys its prompt.
func newService(t *testing.T) *service {
	t.Helper()
	s := &service{ended: make(chan error, 1)}
	bots, err := botapi.NewMemoryStore(botapi.Bot{UID: "u1", Slug: "helper", Name: "Helper", Model: "llama"},
		botapi.Bot{UID: "u2", Slug: "pirate", Name: "Pirate", Model: "llama"})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(botapi.New(botapi.Options{
		Bots:      bots,
		Keys:      botapi.StaticKeys(map[string]string{key: "acme"}),
		Engine:    botapi.CallbackEngine(s.obey),
		KeepAlive: keepAlive,
		Routes:    ollama.Routes(ollama.Options{Bots: bots, Prefix: "/ollama"}),
		Logger:    slog.New(slog.NewTextHandler(t.Output(), nil)),
	}))
	t.Cleanup(server.Close)
	s.url = server.URL + "/ollama"
	return s
}

func (s *service) obey(ctx context.Context, req *botapi.ChatRequest, emit func(string) error) error {
	order, rest, _ := strings.Cut(req.Messages[len(req.Messages)-1].Content, " ")
	switch order {
	case "say":
		openai.UsageFrom(ctx).Report(openai.Tokens{Prompt: 12, Completion: 4})
		for _, word := range strings.SplitAfter(rest, " ") {
			if err := emit(word); err != nil {
				return err
			}
		}
	case "options":
		settings, err := openai.ReadExtra(req.Extra)
		if err != nil {
			return err
		}
		return emit(fmt.Sprint(*settings.Temperature, *settings.MaxTokens))
	case "hostile":
		for i := range len(hostile) {
			if err := emit(hostile[i : i+1]); err != nil {
				return err
			}
		}
	case "slow": // with keep-alives before, within and after the text
		for _, text := range []string{"Once ", "upon ", "a time"} {
			time.Sleep(10 * keepAlive)
			if err := emit(text); err != nil {
				return err
			}
		}
		time.Sleep(10 * keepAlive)
	case "late": // fails after a keep-alive, before the first fragment
		time.Sleep(10 * keepAlive)
		return failure("503")
	case "fail":
		return failure(rest)
	case "break":
		_ = emit("Once upon")
		return failure("502")
	case "abort": // as if the process had died
		_ = emit("Once upon")
		return http.ErrAbortHandler
	case "wait":
		_ = emit("Once upon")
		<-ctx.Done()
		s.ended <- context.Cause(ctx)
	}
	return nil
}

func failure(status string) error {
	n, _ := strconv.Atoi(status)
	return &botapi.StatusError{Status: n, Detail: "This is a " + status}
}

// An outcome is what a client has received.
type outcome struct {
	text   string
	last   api.ChatResponse
	status int // of an error, if the library says it
	err    string
}

// A client asks with a stream, or without.
type client func(t *testing.T, url, key string, stream bool, prompt string) outcome

func clients(t *testing.T) map[string]client {
	return map[string]client{"go": goClient, "node": nodeClient}
}

// withKey adds the key to each request: Ollama's client for Go has no option for it.
type withKey string

func (k withKey) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(k))
	return http.DefaultTransport.RoundTrip(r)
}

func goAPI(t *testing.T, base, key string) *api.Client {
	t.Helper()
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	return api.NewClient(u, &http.Client{Transport: withKey(key)})
}

func request(prompt string) *api.ChatRequest {
	return &api.ChatRequest{
		Model:     "helper",
		Messages:  []api.Message{{Role: "user", Content: prompt}},
		Options:   map[string]any{"temperature": 0.5, "num_predict": 100},
		KeepAlive: &api.Duration{Duration: 5 * time.Minute},
	}
}

func goClient(t *testing.T, url, key string, stream bool, prompt string) (o outcome) {
	r := request(prompt)
	if !stream {
		r.Stream = &stream
	} // absent, it means true
	return goChat(t, url, key, r)
}

func goChat(t *testing.T, url, key string, r *api.ChatRequest) (o outcome) {
	err := goAPI(t, url, key).Chat(t.Context(), r, func(part api.ChatResponse) error {
		o.text += part.Message.Content
		o.last = part
		return nil
	})
	if err != nil {
		o.err = err.Error()
	}
	if e, ok := errors.AsType[api.StatusError](err); ok {
		o.status, o.err = e.StatusCode, e.ErrorMessage
	}
	if e, ok := errors.AsType[api.AuthorizationError](err); ok {
		o.status = e.StatusCode
	}
	return o
}

// installNode installs the library at the version in package-lock.json, once.
func installNode(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("npm is not installed")
	}
	if err := installed(); err != nil {
		t.Fatal(err)
	}
}

var installed = sync.OnceValue(func() error {
	install := exec.Command("npm", "ci", "--no-audit", "--no-fund")
	install.Dir = "node"
	if output, err := install.CombinedOutput(); err != nil {
		return fmt.Errorf("npm ci: %w\n%s", err, output)
	}
	return nil
})

func nodeClient(t *testing.T, url, key string, stream bool, prompt string) (o outcome) {
	command := map[bool]string{true: "stream", false: "ask"}[stream]
	for _, line := range node(t, command, url, key, prompt) {
		var part struct {
			api.ChatResponse
			Error  string
			Status int
		}
		if err := json.Unmarshal([]byte(line), &part); err != nil {
			t.Fatal(err)
		}
		if part.Error != "" {
			o.err, o.status = part.Error, part.Status
			continue
		}
		o.text += part.Message.Content
		o.last = part.ChatResponse
	}
	return o
}

// node runs a command of node/main.js, and returns the lines that it prints.
func node(t *testing.T, arguments ...string) (lines []string) {
	t.Helper()
	installNode(t)
	run := exec.CommandContext(t.Context(), "node", append([]string{"main.js"}, arguments...)...)
	run.Dir, run.Stderr = "node", t.Output()
	output, err := run.Output()
	if err != nil {
		t.Fatal(err)
	}
	scanner := bufio.NewScanner(strings.NewReader(string(output)))
	for scanner.Scan() {
		lines = append(lines, scanner.Text())
	}
	return lines
}

func TestChats(t *testing.T) {
	s := newService(t)
	for name, ask := range clients(t) {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprint(name, " stream ", stream), func(t *testing.T) {
				is := is.New(t)
				got := ask(t, s.url, key, stream, "say Once upon a time")
				is.Equal(got.err, "")
				is.Equal(got.text, "Once upon a time")
				is.True(got.last.Done)
				is.Equal(got.last.DoneReason, "stop")
				is.Equal(got.last.Model, "helper")
				is.Equal(got.last.PromptEvalCount, 12)
				is.Equal(got.last.EvalCount, 4)
				is.True(got.last.TotalDuration > 0)
				is.True(time.Since(got.last.CreatedAt) < time.Hour)

				is.Equal(ask(t, s.url, key, stream, "options").text, "0.5 100")
				is.Equal(ask(t, s.url, key, stream, "hostile").text, hostile)

				empty := ask(t, s.url, key, stream, "nothing")
				is.Equal(empty.text, "")
				is.True(empty.last.Done)
			})
		}
	}
}

// Keep-alives do not disturb a client: before the first line, between lines, before the last.
func TestKeepAlives(t *testing.T) {
	s := newService(t)
	for name, ask := range clients(t) {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			got := ask(t, s.url, key, true, "slow")
			is.Equal(got.err, "")
			is.Equal(got.text, "Once upon a time")
			is.True(got.last.Done)
			got = ask(t, s.url, key, true, "late")
			is.Equal(got.err, "This is a 503")
			is.True(!got.last.Done)
		})
	}
}

// An aborted answer does not look complete.
func TestAbortedAnswers(t *testing.T) {
	s := newService(t)
	for name, ask := range clients(t) {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			got := ask(t, s.url, key, true, "break")
			is.Equal(got.text, "Once upon")
			is.True(!got.last.Done)
			is.Equal(got.err, "This is a 502")
			got = ask(t, s.url, key, true, "abort")
			is.True(!got.last.Done) // the client for Go returns no error for a lost connection, so this is the only sign
			is.True(name == "go" || got.err != "")
			got = ask(t, s.url, key, false, "break")
			is.Equal(got.text, "")
			is.Equal(got.status, 502)
		})
	}
}

func TestErrors(t *testing.T) {
	s := newService(t)
	for name, ask := range clients(t) {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprint(name, " stream ", stream), func(t *testing.T) {
				is := is.New(t)
				for _, status := range []int{403, 429, 500, 503, 504} {
					got := ask(t, s.url, key, stream, fmt.Sprint("fail ", status))
					is.Equal(got.status, status)
					is.Equal(got.err, fmt.Sprint("This is a ", status))
				}
				got := ask(t, s.url, "another", stream, "say Hello")
				is.Equal(got.status, 401)
				is.True(name == "go" || got.err == "Invalid API key") // that for Go has no text of a 401
			})
		}
	}
}

// What bots do not do is rejected by its name.
func TestRejects(t *testing.T) {
	s := newService(t)
	for name, want := range map[string]string{
		"format": "format is not supported: bots write text only",
		"tools":  "tools is not supported: bots have no tools",
		"think":  "think is not supported: bots do not show what they think",
		"image":  "messages[0].images is not supported: bots read text only",
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			r := request("say Hello")
			switch name {
			case "format":
				r.Format = json.RawMessage(`"json"`)
			case "tools":
				r.Tools = api.Tools{{Type: "function"}}
			case "think":
				r.Think = &api.ThinkValue{Value: true}
			case "image":
				r.Messages[0].Images = []api.ImageData{{1, 2, 3}}
			}
			got := goChat(t, s.url, key, r)
			is.Equal(got.status, 400)
			is.Equal(got.err, want)

			lines := node(t, name, s.url, key, "say Hello")
			var said struct {
				Error  string
				Status int
			}
			is.NoErr(json.Unmarshal([]byte(lines[len(lines)-1]), &said))
			is.Equal(said.Status, 400)
			is.Equal(said.Error, want)
		})
	}
}

func TestModels(t *testing.T) {
	s := newService(t)
	t.Run("go", func(t *testing.T) {
		is := is.New(t)
		c := goAPI(t, s.url, key)
		is.NoErr(c.Heartbeat(t.Context()))
		version, err := c.Version(t.Context())
		is.NoErr(err)
		is.Equal(len(strings.Split(version, ".")), 3)
		list, err := c.List(t.Context())
		is.NoErr(err)
		is.Equal(len(list.Models), 2)
		is.Equal(list.Models[0].Name, "helper:latest")
		is.True(time.Since(list.Models[0].ModifiedAt) < time.Hour)
		running, err := c.ListRunning(t.Context())
		is.NoErr(err)
		is.Equal(len(running.Models), 0)
		for _, model := range []string{"helper", list.Models[0].Name} {
			shown, err := c.Show(t.Context(), &api.ShowRequest{Model: model})
			is.NoErr(err)
			is.Equal(shown.Details.Family, "llama")
			is.Equal(fmt.Sprint(shown.Capabilities), "[completion]")
		}
		_, err = c.Show(t.Context(), &api.ShowRequest{Model: "nobody"})
		is.Equal(err.(api.StatusError).ErrorMessage, "model 'nobody' not found")
		got := goChat(t, s.url, key, &api.ChatRequest{Model: "helper"}) // loads the model
		is.Equal(got.err, "")
		is.Equal(got.last.DoneReason, "load")
	})
	t.Run("node", func(t *testing.T) {
		is := is.New(t)
		one := func(command string) (said map[string]any) {
			is.NoErr(json.Unmarshal([]byte(node(t, command, s.url, key, "")[0]), &said))
			return said
		}
		is.Equal(one("list")["models"].([]any)[1].(map[string]any)["name"], "pirate:latest")
		is.Equal(one("ps")["models"], []any{})
		is.Equal(one("show")["capabilities"], []any{"completion"})
		is.Equal(one("version")["version"], "0.17.4")
	})
}

// A client that disconnects ends its answer.
func TestDisconnects(t *testing.T) {
	t.Run("go", func(t *testing.T) {
		is := is.New(t)
		s := newService(t)
		stop := errors.New("enough")
		err := goAPI(t, s.url, key).Chat(t.Context(), request("wait"), func(api.ChatResponse) error { return stop })
		is.Equal(err, stop)
		is.True(errors.Is(<-s.ended, botapi.ErrClientLeft))
	})
	t.Run("node", func(t *testing.T) {
		is := is.New(t)
		s := newService(t)
		lines := node(t, "abort", s.url, key, "wait")
		is.True(strings.Contains(lines[0], "Once upon"))
		is.True(errors.Is(<-s.ended, botapi.ErrClientLeft))
	})
}
