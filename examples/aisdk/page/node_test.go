package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"

	"example.com/botapi"
	"example.com/botapi/examples/aisdk"
	"example.com/botapi/examples/resume"
	"github.com/matryer/is"
)

// A chat is a Chat of @ai-sdk/react in a process of Node.js.
type chat struct {
	t     *testing.T
	in    io.Writer
	lines *json.Decoder
}

// A shown is what a chat shows.
type shown struct {
	Done     string // the command that is done; empty while an answer arrives
	Status   string
	Error    string
	Messages []message
	Finished struct {
		FinishReason                   string
		IsAbort, IsDisconnect, IsError bool
	}
	Requests []struct {
		Method, RetryAfter string
		Status             int
	}
}

type message struct {
	ID, Role, Text string
	Metadata       any
}

func (s shown) last() message { return s.Messages[len(s.Messages)-1] }

// newChat starts a chat with AI SDK 7.
func newChat(t *testing.T, url, key, id string) *chat {
	t.Helper()
	return newChatOf(t, "7", url, key, id)
}

func newChatOf(t *testing.T, version, url, key, id string) *chat {
	t.Helper()
	is := is.New(t)
	node := exec.CommandContext(t.Context(), "node", "chats.js", url, key, id, version)
	node.Stderr = t.Output()
	in, err := node.StdinPipe()
	is.NoErr(err)
	out, err := node.StdoutPipe()
	is.NoErr(err)
	is.NoErr(node.Start())
	t.Cleanup(func() {
		in.Close()
		_ = node.Wait()
	})
	return &chat{t, in, json.NewDecoder(bufio.NewReader(out))}
}

func (c *chat) begin(command any) {
	c.t.Helper()
	is.New(c.t).NoErr(json.NewEncoder(c.in).Encode(command))
}

func (c *chat) send(text string) { c.t.Helper(); c.begin(map[string]any{"do": "send", "text": text}) }

// done returns what the chat shows when a command is done.
func (c *chat) done(command string) shown {
	c.t.Helper()
	for {
		if s := c.next(); s.Done == command {
			return s
		}
	}
}

// arrives returns what the chat shows when its last message is a text that has not
// arrived completely.
func (c *chat) arrives(text string) shown {
	c.t.Helper()
	for {
		s := c.next()
		if s.Done != "" {
			c.t.Fatalf("%+v", s)
		}
		if s.last().Text == text {
			return s
		}
	}
}

func (c *chat) next() (s shown) {
	c.t.Helper()
	is.New(c.t).NoErr(c.lines.Decode(&s))
	return s
}

func (c *chat) ask(text string) shown {
	c.t.Helper()
	c.send(text)
	return c.done("send")
}

// A newChatFunc starts a chat with a version of the AI SDK.
type newChatFunc func(t *testing.T, url, key, id string) *chat

// forVersions runs a test with each version of the AI SDK.
func forVersions(t *testing.T, test func(t *testing.T, newChat newChatFunc)) {
	install(t)
	for _, version := range []string{"5", "6", "7"} {
		t.Run("AI SDK "+version, func(t *testing.T) {
			test(t, func(t *testing.T, url, key, id string) *chat {
				t.Helper()
				return newChatOf(t, version, url, key, id)
			})
		})
	}
}

// forServices also runs it with a service whose answers end with their connections, and
// one whose answers outlive them.
func forServices(t *testing.T, test func(t *testing.T, newChat newChatFunc, engine *obedient, server *httptest.Server)) {
	forVersions(t, func(t *testing.T, newChat newChatFunc) {
		t.Run("plain", func(t *testing.T) {
			engine := newObedient()
			bots, err := botapi.NewMemoryStore(botapi.Bot{UID: "1", Slug: "mira", Name: "Mira", Model: "m"})
			is.New(t).NoErr(err)
			api := botapi.New(botapi.Options{Bots: bots, Keys: botapi.StaticKeys(map[string]string{key: "me"}), Engine: engine, MaxChatsPerAccount: 2,
				Routes: aisdk.Routes(aisdk.Options{Metadata: metadata})})
			test(t, newChat, engine, serve(t, api, nil))
		})
		t.Run("answers that outlive their connections", func(t *testing.T) {
			engine := newObedient()
			h, answers := newService(engine, key)
			test(t, newChat, engine, serve(t, h, answers))
		})
	})
}

func metadata(context.Context) any { return map[string]int{"outputTokens": 7} }

func TestChat(t *testing.T) {
	forServices(t, func(t *testing.T, newChat newChatFunc, engine *obedient, server *httptest.Server) {
		is := is.New(t)
		c := newChat(t, server.URL, key, "chat-1")
		s := c.ask("say Hello")
		is.Equal(s.Status, "ready")
		is.Equal(s.Finished.FinishReason, "stop")
		is.True(!s.Finished.IsError && !s.Finished.IsAbort)
		is.Equal(len(s.Messages), 2)
		is.Equal(s.last().Role, "assistant")
		is.Equal(s.last().Text, "Hello")
		is.Equal(s.last().Metadata != nil, strings.HasSuffix(t.Name(), "plain"))

		c.send("tell") // the conversation is sent, and the answer is streamed
		s = c.arrives("Once ")
		is.Equal(s.Status, "streaming")
		engine.goOn <- struct{}{}
		s = c.done("send")
		is.Equal(s.last().Text, "Once upon a time, 3")

		first := s.last().ID
		c.begin(map[string]any{"do": "regenerate"})
		is.True(c.arrives("Once ").last().ID != first)
		engine.goOn <- struct{}{}
		s = c.done("regenerate")
		is.Equal(s.last().Text, "Once upon a time, 3")
		is.Equal(len(s.Messages), 4)

		s = c.ask("nothing") // an empty answer
		is.Equal([]string{s.Status, s.Finished.FinishReason, s.last().Role, s.last().Text}, []string{"ready", "stop", "assistant", ""})
		s = c.ask("say Bye") // and the chat goes on after it
		is.Equal(s.last().Text, "Bye")
	})
}

func TestTexts(t *testing.T) {
	forServices(t, func(t *testing.T, newChat newChatFunc, _ *obedient, server *httptest.Server) {
		is := is.New(t)
		c := newChat(t, server.URL, key, "chat-1")
		is.Equal(c.ask("hostile").last().Text, hostile)
		s := c.ask("count 10000")
		is.Equal(len(strings.Fields(s.last().Text)), 10_000)
		is.Equal(s.Finished.FinishReason, "stop")
		c.begin(json.RawMessage(`{"do":"send","text":"say \ud83d\ud83d 👋"}`)) // lone surrogates
		is.Equal(c.done("send").last().Text, "\ufffd\ufffd 👋")
		is.Equal(c.ask("say "+hostile).last().Text, hostile)
	})
}

// Whatever fails before the first token, the page shows what the service says.
func TestRejected(t *testing.T) {
	forServices(t, func(t *testing.T, newChat newChatFunc, _ *obedient, server *httptest.Server) {
		c := newChat(t, server.URL, key, "chat-1")
		for order, status := range map[string]int{"fail 403": 403, "fail 422": 422, "fail 429": 429, "fail 500": 500, "fail 502": 502, "fail 503": 503} {
			is := is.New(t)
			s := c.ask(order)
			is.Equal([]string{s.Status, s.Error}, []string{"error", "This is a " + order[len("fail "):]})
			is.Equal(s.Requests[0].Status, status)
			is.Equal(s.Requests[0].RetryAfter, "3")
			is.Equal(s.last().Text, order) // what the user said
		}
		is := is.New(t)
		s := newChat(t, server.URL, "nonsense", "chat-1").ask("say Hello")
		is.Equal([]string{s.Status, s.Error}, []string{"error", "Invalid API key"})
		is.Equal(s.Requests[0].Status, 401)

		c.begin(map[string]any{"do": "send", "text": "What is this?", "files": []any{map[string]string{"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,AA=="}}})
		s = c.done("send")
		is.Equal([]string{s.Status, s.Error}, []string{"error", "Bots read text only: please remove the file"})
	})
}

// An answer that fails in the middle is an error, and what has arrived stays. The page
// may ask again.
func TestIncomplete(t *testing.T) {
	forServices(t, func(t *testing.T, newChat newChatFunc, _ *obedient, server *httptest.Server) {
		for order, text := range map[string]string{"break": "The answer is incomplete", "panic": "Internal Server Error"} {
			is := is.New(t)
			c := newChat(t, server.URL, key, "chat-1")
			s := c.ask(order)
			is.Equal([]string{s.Status, s.Error, s.last().Text}, []string{"error", text, "Once "})
			is.True(s.Finished.IsError && s.Finished.FinishReason == "")
			is.Equal(c.ask("say Hello").last().Text, "Hello")
		}
	})
}

func TestTooManyChats(t *testing.T) {
	install(t)
	is := is.New(t)
	engine := newObedient()
	bots, err := botapi.NewMemoryStore(botapi.Bot{UID: "1", Slug: "mira", Name: "Mira", Model: "m"})
	is.NoErr(err)
	api := botapi.New(botapi.Options{Bots: bots, Keys: botapi.StaticKeys(map[string]string{key: "me"}), Engine: engine, MaxChatsPerAccount: 1,
		Routes: aisdk.Routes(aisdk.Options{})})
	server := serve(t, api, nil)
	first, second := newChat(t, server.URL, key, "chat-1"), newChat(t, server.URL, key, "chat-2")
	first.send("tell")
	first.arrives("Once ")
	s := second.ask("say Hello")
	is.Equal([]string{s.Status, s.Error}, []string{"error", "Too many chats in progress for this key"})
	is.Equal(s.Requests[0].Status, 429)
	is.Equal(s.Requests[0].RetryAfter, "1")
	engine.goOn <- struct{}{}
	is.Equal(first.done("send").last().Text, "Once upon a time, 1")
}

// Without Answers, stop() cancels the engine. With them, the answer goes on until a
// DELETE.
func TestStopCommand(t *testing.T) {
	forServices(t, func(t *testing.T, newChat newChatFunc, engine *obedient, server *httptest.Server) {
		is := is.New(t)
		c := newChat(t, server.URL, key, "chat-1")
		c.send("tell")
		messageID := c.arrives("Once ").last().ID
		c.begin(map[string]any{"do": "stop"})
		s := c.done("stop")
		is.Equal([]string{s.Status, s.last().Text}, []string{"ready", "Once "})
		if strings.HasSuffix(t.Name(), "plain") {
			is.True(errors.Is(<-engine.ended, botapi.ErrClientLeft))
		} else {
			is.Equal(len(engine.ended), 0)
			is.Equal(remove(t, server.URL+"/api/chat/chat-1/stream?messageId="+messageID), 204)
			is.True(errors.Is(<-engine.ended, resume.ErrStopped))
			c.begin(map[string]any{"do": "resume"}) // nothing to resume
			s = c.done("resume")
			is.Equal([]any{s.Status, s.last().Text, s.Requests[0].Status}, []any{"ready", "Once ", 204})
		}
		c.begin(map[string]any{"do": "regenerate"})
		c.arrives("Once ")
		engine.goOn <- struct{}{}
		is.Equal(c.done("regenerate").last().Text, "Once upon a time, 1")
	})
}

// A chat that loses its connection, and one in another tab, get the answer from its
// beginning.
func TestResume(t *testing.T) {
	forVersions(t, testResume)
}

func testResume(t *testing.T, newChat newChatFunc) {
	is := is.New(t)
	engine := newObedient()
	h, answers := newService(engine, key)
	server := serve(t, h, answers)
	c, another := newChat(t, server.URL, key, "chat-1"), newChat(t, server.URL, key, "chat-1")
	c.send("tell")
	messageID := c.arrives("Once ").last().ID
	server.CloseClientConnections()
	s := c.done("send")
	is.Equal([]string{s.Status, s.last().Text}, []string{"error", "Once "})
	is.True(s.Finished.IsError)

	c.begin(map[string]any{"do": "resume"})
	c.arrives("Once ")
	another.begin(map[string]any{"do": "resume"})
	another.arrives("Once ")
	engine.goOn <- struct{}{}
	for _, c := range []*chat{c, another} {
		s = c.done("resume")
		is.Equal([]string{s.Status, s.last().ID, s.last().Text, s.Finished.FinishReason}, []string{"ready", messageID, "Once upon a time, 1", "stop"})
	}
	is.Equal(len(s.Messages), 1) // the other tab does not know the question
	c.begin(map[string]any{"do": "resume"})
	s = c.done("resume") // a complete answer, in place of itself
	is.Equal(len(s.Messages), 2)
	is.Equal(s.last().Text, "Once upon a time, 1")
}
