package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.com/botapi"
	"github.com/matryer/is"
)

var mira = botapi.Bot{Slug: "mira"}

const answerOfMira = "What is it about your exam that makes you worried?"

func TestPrintedCommandsWork(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not installed")
	}
	is := is.New(t)
	p := start(t, []string{"BOTAPI_KEY=from-the-environment"}, "-key", "it's-$mine", "-pace", "1ms")
	is.Equal(p.key, "it's-$mine") // the flag overrides the variable

	var bots []botapi.Bot
	is.NoErr(json.Unmarshal(paste(t, p.commands[0]), &bots))
	is.Equal(len(bots), 3)
	is.Equal(bots[0].Slug, "guide")

	answer := content(t, string(paste(t, p.commands[1])))
	is.True(strings.Contains(answer, "README.md")) // it quotes the introduction

	stream := string(paste(t, p.commands[2]))
	is.True(strings.HasPrefix(stream, `data: {"content":"`))
	is.True(strings.HasSuffix(stream, "data: [DONE]\n\n"))
	is.Equal(joined(t, strings.NewReader(stream)), answer)
}

func TestPrintedURLsWork(t *testing.T) {
	t.Parallel()
	p := start(t, nil, "-pace", "1ms")
	for _, c := range []struct{ client, path, body string }{
		{"OpenAI", "/chat/completions", `{"model":"guide","messages":[{"role":"user","content":"Hi"}]}`},
		{"OpenAI", "/responses", `{"model":"guide","input":"Hi"}`},
		{"useChat", "", `{"id":"c","messages":[{"id":"m","role":"user","parts":[{"type":"text","text":"Hi"}]}]}`},
		{"Ollama", "/api/chat", `{"model":"guide","messages":[{"role":"user","content":"Hi"}]}`},
	} {
		t.Run(c.client+c.path, func(t *testing.T) {
			status, _ := ask(t, "POST", p.urls[c.client]+c.path, p.key, c.body)
			is.New(t).Equal(status, 200)
		})
	}
}

// paste runs a command line in a shell.
func paste(t *testing.T, command string) []byte {
	t.Helper()
	out, err := exec.Command("sh", "-c", command).Output()
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	return out
}

// joined reads a stream up to [DONE] and returns its text.
func joined(t *testing.T, stream io.Reader) string {
	t.Helper()
	var text strings.Builder
	for lines := bufio.NewScanner(stream); lines.Scan(); {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if data == "[DONE]" {
			return text.String()
		}
		if ok {
			text.WriteString(content(t, data))
		}
	}
	t.Fatalf("the stream ended without [DONE], after %q", text.String())
	return ""
}

func content(t *testing.T, body string) string {
	t.Helper()
	var answer struct{ Content string }
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		t.Fatalf("%q: %v", body, err)
	}
	return answer.Content
}

func TestFirstSignalLetsAStreamFinish(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := start(t, nil, "-pace", "50ms")
	stream := p.openStream()
	first, err := stream.ReadString('\n')
	is.NoErr(err)
	is.Equal(first, `data: {"content":"What "}`+"\n")

	p.signal(syscall.SIGINT)
	p.awaitClosedPort()
	is.Equal(joined(t, stream), strings.TrimPrefix(answerOfMira, "What "))
	is.Equal(p.exitCode(), 0)
}

func TestSecondSignalStopsImmediately(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := start(t, nil, "-pace", "1h")
	stream := p.openStream()
	_, err := stream.ReadString('\n')
	is.NoErr(err)

	p.signal(syscall.SIGINT)
	p.awaitLog("a second signal stops immediately")
	p.signal(syscall.SIGTERM)  // a shell's background job ignores SIGINT
	is.Equal(p.exitCode(), -1) // the signal has ended it
	rest, err := io.ReadAll(stream)
	is.True(err != nil) // the client can tell that the answer is incomplete
	is.Equal(string(rest), "\n")
}

// openStream asks Mira for a stream, on a connection without keep-alive: an
// idle connection would delay the shutdown.
func (p *process) openStream() *bufio.Reader {
	p.t.Helper()
	req, err := http.NewRequest("POST", p.base+"/v1/chat", strings.NewReader(chatBody("mira", firstQuestion(mira), true)))
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+p.key)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		p.t.Fatal(resp.Status)
	}
	return bufio.NewReader(resp.Body)
}

// awaitClosedPort returns when the process no longer accepts connections.
func (p *process) awaitClosedPort() {
	for {
		conn, err := net.Dial("tcp", strings.TrimPrefix(p.base, "http://"))
		if err != nil {
			return
		}
		conn.Close()
	}
}

func TestMistakes(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, c := range []struct {
		name string
		args []string
		code int
		says string // the first line on standard error
	}{
		{"the port is taken", []string{"-addr", taken.Addr().String()}, 1,
			"quickstart: listen tcp " + taken.Addr().String() + ": bind: address already in use; -addr chooses another address"},
		{"an invalid address", []string{"-addr", "nowhere"}, 1,
			"quickstart: listen tcp: address nowhere: missing port in address; -addr chooses another address"},
		{"no such file", []string{"-bots", "nowhere.json"}, 1,
			"quickstart: reading the bots: open nowhere.json: no such file or directory"},
		{"no such flag", []string{"-port", "1"}, 2, "flag provided but not defined: -port"},
		{"a pace that is not a duration", []string{"-pace", "fast"}, 2, `invalid value "fast" for flag -pace: parse error`},
		{"a negative pace", []string{"-pace", "-1s"}, 2, "the pace must not be negative"},
		{"a runtime without a model", []string{"-runtime", "http://127.0.0.1:9/v1"}, 2, "-runtime needs -model, the name of a model there"},
		{"a model without a runtime", []string{"-model", "llama3.2"}, 2, "-model needs -runtime, the address of the model's runtime"},
		{"a runtime that is not a URL", []string{"-runtime", "ollama", "-model", "llama3.2"}, 2,
			"-runtime: openai: the base URL is not an http or https URL, as in http://127.0.0.1:11434/v1"},
		{"an argument", []string{"bots.json"}, 2, `unexpected argument "bots.json"`},
		{"a key that cannot be sent in a header", []string{"-key", "marked key"}, 2, "the key must not contain white space or control characters"},
		{"help", []string{"-h"}, 0, "Usage of quickstart:"},
	} {
		t.Run(c.name, func(t *testing.T) {
			is := is.New(t)
			var stdout, stderr bytes.Buffer
			is.Equal(run(c.args, &stdout, &stderr), c.code)
			is.Equal(stdout.String(), "")
			first, more, _ := strings.Cut(stderr.String(), "\n")
			is.Equal(first, c.says)
			is.Equal(more == "", c.code == 1) // a wrong flag also prints the usage
			is.True(!strings.Contains(stderr.String(), "marked key"))
		})
	}
}

func TestExitCode(t *testing.T) {
	is := is.New(t)
	err := exec.Command(binary, "-bots", "nowhere.json").Run()
	is.Equal(err.(*exec.ExitError).ExitCode(), 1)
}

func TestKey(t *testing.T) {
	is := is.New(t)
	t.Setenv("BOTAPI_KEY", "from-the-environment")
	s, err := parseSettings([]string{"-key", "from-the-flag"}, io.Discard)
	is.NoErr(err)
	is.Equal(s.key, "from-the-flag")

	s, err = parseSettings(nil, io.Discard)
	is.NoErr(err)
	is.Equal(s.key, "from-the-environment")

	var usage strings.Builder
	_, err = parseSettings([]string{"-h"}, &usage)
	is.True(err != nil)
	is.True(!strings.Contains(usage.String(), "from-the-environment"))

	t.Setenv("BOTAPI_KEY", "")
	one, err := parseSettings(nil, io.Discard)
	is.NoErr(err)
	other, err := parseSettings(nil, io.Discard)
	is.NoErr(err)
	is.True(len(one.key) >= 26) // 128 bits
	is.True(one.key != other.key)
}

func TestRoutes(t *testing.T) {
	server := serveBuiltIn(t, "the-key", io.Discard)
	for _, c := range []struct {
		request, key string
		status       int
		body         string
	}{
		{"GET /health-check", "", 200, `{"status":"ok"}`},
		{"GET /v1/bots", "", 401, `{"detail":"Not authenticated"}`},
		{"POST /chat", "another-key", 401, `{"detail":"Invalid API key"}`},
		{"POST /chat", "the-key", 200, `{"content":"` + answerOfMira + `"}`},
		{"POST /v1/chat", "the-key", 200, `{"content":"` + answerOfMira + `"}`},
	} {
		t.Run(c.request+" "+c.key, func(t *testing.T) {
			is := is.New(t)
			method, path, _ := strings.Cut(c.request, " ")
			status, body := ask(t, method, server.URL+path, c.key, chatBody("mira", firstQuestion(mira), false))
			is.Equal(body, c.body)
			is.Equal(status, c.status)
		})
	}
	t.Run("GET /bots", func(t *testing.T) {
		is := is.New(t)
		_, unversioned := ask(t, "GET", server.URL+"/bots", "the-key", "")
		_, versioned := ask(t, "GET", server.URL+"/v1/bots", "the-key", "")
		is.Equal(unversioned, versioned)
		is.True(strings.HasPrefix(versioned, `[{"uid":`))
	})
}

// TestUnknownRoutes requests paths and methods that neither a protocol nor the
// program serves.
func TestUnknownRoutes(t *testing.T) {
	server := serveBuiltIn(t, "the-key", io.Discard)
	for _, c := range []struct {
		request string
		status  int
		allow   string
		body    string
	}{
		{"GET /nothing", 404, "", `{"detail":"Not Found"}`},
		{"POST /nothing", 404, "", `{"detail":"Not Found"}`},
		{"GET /page/nothing.js", 404, "", `{"detail":"Not Found"}`},
		{"GET /page/", 404, "", `{"detail":"Not Found"}`},
		{"POST /health-check", 404, "", `{"detail":"Not Found"}`},
		{"POST /", 405, "GET, HEAD", `{"detail":"Method Not Allowed"}`},
		{"DELETE /docs", 405, "GET, HEAD", `{"detail":"Method Not Allowed"}`},
		{"DELETE /v1/bots", 405, "GET, HEAD", `{"detail":"Method Not Allowed"}`},
		{"GET /v1/chat", 405, "POST", `{"detail":"Method Not Allowed"}`},
	} {
		t.Run(c.request, func(t *testing.T) {
			is := is.New(t)
			method, path, _ := strings.Cut(c.request, " ")
			req, err := http.NewRequest(method, server.URL+path, nil)
			is.NoErr(err)
			resp, err := http.DefaultTransport.RoundTrip(req) // does not follow redirects
			is.NoErr(err)
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			is.NoErr(err)
			is.Equal(resp.StatusCode, c.status)
			is.Equal(string(body), c.body)
			is.Equal(resp.Header.Get("Content-Type"), "application/json")
			is.Equal(resp.Header.Get("Allow"), c.allow)
		})
	}
}

func TestLogHasALineForEachChatAndNoSecret(t *testing.T) {
	is := is.New(t)
	var log bytes.Buffer
	server := serveBuiltIn(t, "the-marked-key", &log)
	for _, stream := range []string{"true", "false"} {
		status, body := ask(t, "POST", server.URL+"/v1/chat", "the-marked-key",
			`{"bot_slug":"juniper","prompt":"I love the-marked-word","stream":`+stream+`}`)
		is.Equal(status, 200)
		is.True(strings.Contains(body, "the-marked-word"))
	}
	server.Close() // after this, nothing writes to the log
	is.Equal(strings.Count(log.String(), "msg=chat "), 2)
	is.Equal(strings.Count(log.String(), "bot=juniper"), 2)
	is.Equal(strings.Count(log.String(), "outcome=complete"), 2)
	is.True(!strings.Contains(log.String(), "the-marked"))
}

// serveBuiltIn serves the program's routes with the built-in bots.
func serveBuiltIn(t *testing.T, key string, log io.Writer) *httptest.Server {
	t.Helper()
	store := new(botapi.MemoryStore)
	if err := new(settings).loadBots(store); err != nil {
		t.Fatal(err)
	}
	s := settings{key: key}
	server := httptest.NewServer(s.handler(store, slog.New(slog.NewTextHandler(log, nil))))
	t.Cleanup(server.Close)
	return server
}

func (s settings) handler(store *botapi.MemoryStore, logger *slog.Logger) http.Handler {
	handler, _ := s.service(store, logger)
	return handler
}

func ask(t *testing.T, method, url, key, body string) (status int, answer string) {
	t.Helper()
	status, answer, err := request(method, url, key, body)
	if err != nil {
		t.Fatal(err)
	}
	return status, answer
}

// request may be called from any goroutine.
func request(method, url, key, body string) (status int, answer string, err error) {
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

func TestReachable(t *testing.T) {
	is := is.New(t)
	for address, want := range map[string]string{
		"127.0.0.1:80": "127.0.0.1:80",
		"[::1]:80":     "[::1]:80",
		"0.0.0.0:80":   "localhost:80",
		"[::]:80":      "localhost:80",
	} {
		tcp, err := net.ResolveTCPAddr("tcp", address)
		is.NoErr(err)
		is.Equal(reachable(tcp), want)
	}
}

func TestServerLimitsAreSet(t *testing.T) {
	is := is.New(t)
	server := newServer(http.NotFoundHandler(), slog.New(slog.DiscardHandler))
	for _, limit := range []time.Duration{server.ReadHeaderTimeout, server.ReadTimeout, server.WriteTimeout, server.IdleTimeout} {
		is.True(limit > 0)
	}
}
