package aisdk_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"example.com/botapi"
	"example.com/botapi/examples/aisdk"
	"example.com/botapi/examples/resume"
	"github.com/matryer/is"
)

// A storyteller says "Once ", and the rest when the test tells it to.
type storyteller struct {
	beginning string
	asked     atomic.Int32
	begun     chan struct{} // receives when an answer has begun
	goOn      chan struct{} // closed when answers may go on
	ended     chan error    // the cause, if the context of an answer ends first
}

func newStoryteller() *storyteller {
	return &storyteller{beginning: "Once ", begun: make(chan struct{}, 10), goOn: make(chan struct{}), ended: make(chan error, 10)}
}

func (s *storyteller) Chat(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		s.asked.Add(1)
		if s.beginning != "" && !yield(s.beginning, nil) {
			return
		}
		s.begun <- struct{}{}
		select {
		case <-s.goOn:
			yield("upon a time", nil)
		case <-ctx.Done():
			s.ended <- context.Cause(ctx)
		}
	}
}

// A log is what was logged so far.
type log struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *log) contains(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), text)
}

func (l *log) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func chatBody(id, text string) string {
	return `{"id":"` + id + `","bot":"mira","messages":[{"id":"m1","role":"user","parts":[{"type":"text","text":"` + text + `"}]}],"trigger":"submit-message"}`
}

// begin sends a chat, waits until its answer has begun, and returns the id of its message.
func begin(t *testing.T, url, id string, headers ...string) (messageID string, disconnect func()) {
	t.Helper()
	is := is.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	response, err := http.DefaultClient.Do(request(t, "POST", url+"/api/chat", chatBody(id, "Hi"), headers...).WithContext(ctx))
	is.NoErr(err)
	is.Equal(response.StatusCode, 200)
	is.Equal(response.Header.Get(resume.OutcomeHeader), "kept")
	line, err := bufio.NewReader(response.Body).ReadString('\n')
	is.NoErr(err)
	disconnect = func() {
		cancel()
		response.Body.Close()
	}
	t.Cleanup(disconnect)
	return readAnswer(t, line).messageID, disconnect
}

// resumed comes back for the answer of a chat.
func resumed(t *testing.T, url, id string, headers ...string) (int, answer) {
	t.Helper()
	response, text, err := call(t, "GET", url+"/api/chat/"+id+"/stream", "", headers...)
	is.New(t).NoErr(err)
	if response.StatusCode != 200 {
		return response.StatusCode, answer{failure: text}
	}
	is.New(t).Equal(response.Header.Get(resume.OutcomeHeader), "joined")
	is.New(t).Equal(response.Header.Get("X-Vercel-Ai-Ui-Message-Stream"), "v1")
	return response.StatusCode, readAnswer(t, text)
}

func statusOf(t *testing.T, method, url string, headers ...string) int {
	t.Helper()
	response, _, err := call(t, method, url, "", headers...)
	is.New(t).NoErr(err)
	return response.StatusCode
}

// A page that was reloaded finds its answer by the id of the chat: from the beginning,
// under the same message id, still running or complete.
func TestReloadedPageResumes(t *testing.T) {
	for _, id := range []string{"chat-1", "a/b ../ü?#%", "a/../b", "//"} {
		t.Run(id, func(t *testing.T) {
			is := is.New(t)
			teller := newStoryteller()
			base := serveAnswers(t, resume.Options{Engine: teller})
			messageID, disconnect := begin(t, base, id)
			<-teller.begun
			disconnect()
			stream, err := http.DefaultClient.Do(request(t, "GET", base+"/api/chat/"+url.PathEscape(id)+"/stream", ""))
			is.NoErr(err)
			defer stream.Body.Close()
			close(teller.goOn)
			text, err := io.ReadAll(stream.Body)
			is.NoErr(err)
			want := answer{messageID: messageID, text: "Once upon a time", finish: "stop", done: true}
			is.Equal(readAnswer(t, string(text)), want)
			_, again := resumed(t, base, url.PathEscape(id))
			is.Equal(again, want)
			is.Equal(teller.asked.Load(), int32(1))
		})
	}
}

// A connection that is lost before the first fragment can be resumed, too.
func TestResumeBeforeTheFirstFragment(t *testing.T) {
	is := is.New(t)
	teller := newStoryteller()
	teller.beginning = ""
	url := serveAnswers(t, resume.Options{Engine: teller})
	ctx, disconnect := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, err := http.DefaultClient.Do(request(t, "POST", url+"/api/chat", chatBody("c", "Hi")).WithContext(ctx))
		is.True(err != nil)
	}()
	<-teller.begun
	disconnect()
	<-ended
	close(teller.goOn)
	status, a := resumed(t, url, "c")
	is.Equal(status, 200)
	is.Equal(a.text, "upon a time")
}

// "Regenerate" and the next turn are new answers, whatever key the client sends, and the page
// finds the one that began last.
func TestEachPostIsANewAnswer(t *testing.T) {
	is := is.New(t)
	var n atomic.Int32
	url := serveAnswers(t, resume.Options{Engine: botapi.ChatEngineFunc(func(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
		return says(nil, strings.Repeat("I", int(n.Add(1)))).Chat(ctx, req)
	})})
	ids := map[string]bool{}
	for i, want := range []string{"I", "II", "III"} {
		_, text, err := call(t, "POST", url+"/api/chat", chatBody("c", "Hi"), resume.Header, "the-same-key-for-each")
		is.NoErr(err)
		a := readAnswer(t, text)
		is.Equal(a.text, want)
		ids[a.messageID] = true
		is.Equal(len(ids), i+1)
		_, again := resumed(t, url, "c")
		is.Equal(again, a)
	}
}

// An owner cannot come back for the chat of another, even under an id that both use.
func TestChatsHaveOwners(t *testing.T) {
	is := is.New(t)
	teller := newStoryteller()
	url := serveAnswers(t, resume.Options{Engine: teller})
	other := []string{"Authorization", "Bearer other"}
	messageID, _ := begin(t, url, "c")
	is.Equal(statusOf(t, "GET", url+"/api/chat/c/stream", other...), 204)
	is.Equal(statusOf(t, "DELETE", url+"/api/chat/c/stream", other...), 404)
	theirs, _ := begin(t, url, "c", other...)
	is.True(theirs != messageID)
	close(teller.goOn)
	_, mine := resumed(t, url, "c")
	is.Equal(mine.messageID, messageID)
	_, other2 := resumed(t, url, "c", other...)
	is.Equal(other2.messageID, theirs)
	for _, method := range []string{"GET", "DELETE"} {
		response, text, err := call(t, method, url+"/api/chat/c/stream", "", "Authorization", "Bearer nonsense")
		is.NoErr(err)
		is.Equal(response.StatusCode, 401)
		is.Equal(response.Header.Get("WWW-Authenticate"), `Bearer error="invalid_token"`)
		is.Equal(text, "Invalid API key")
	}
}

// The people that one API key serves may be distinguished by the application's login.
func TestOwnerOfTheApplication(t *testing.T) {
	is := is.New(t)
	type personKey struct{}
	h, answers := answersHandler(t, resume.Options{Engine: says(nil, "Hi"), Owner: func(ctx context.Context) string { return ctx.Value(personKey{}).(string) }})
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), personKey{}, r.Header.Get("Person"))))
	}))
	closeAfter(t, answers)
	_, _, err := call(t, "POST", url+"/api/chat", chatBody("c", "Hi"), "Person", "ada")
	is.NoErr(err)
	is.Equal(statusOf(t, "GET", url+"/api/chat/c/stream", "Person", "ada"), 200)
	is.Equal(statusOf(t, "GET", url+"/api/chat/c/stream", "Person", "bob"), 204)
}

// DELETE stops the model. A page that follows the answer gets an error; a page that is
// loaded later gets nothing.
func TestStop(t *testing.T) {
	is := is.New(t)
	teller := newStoryteller()
	url := serveAnswers(t, resume.Options{Engine: teller})
	stream, err := http.DefaultClient.Do(request(t, "POST", url+"/api/chat", chatBody("c", "Hi")))
	is.NoErr(err)
	defer stream.Body.Close()
	<-teller.begun
	is.Equal(statusOf(t, "DELETE", url+"/api/chat/c/stream"), 204)
	is.True(errors.Is(<-teller.ended, resume.ErrStopped))
	text, err := io.ReadAll(stream.Body)
	is.True(err != nil) // the connection was aborted
	a := readAnswer(t, string(text))
	is.Equal([]string{a.text, a.failure, a.finish}, []string{"Once ", "The answer was stopped", ""})
	response, nothing, err := call(t, "GET", url+"/api/chat/c/stream", "")
	is.NoErr(err)
	is.Equal([]any{response.StatusCode, nothing, response.Header.Get("X-Vercel-Ai-Ui-Message-Stream"), response.Header.Get("Content-Type")}, []any{204, "", "", ""})
	is.Equal(statusOf(t, "DELETE", url+"/api/chat/c/stream", "If-None-Match", "*", resume.Header, "k"), 204) // still
	is.Equal(statusOf(t, "DELETE", url+"/api/chat/d/stream"), 404)
}

// A DELETE that names a message does not stop the answer that was generated after it.
func TestLateStop(t *testing.T) {
	is := is.New(t)
	teller := newStoryteller()
	url := serveAnswers(t, resume.Options{Engine: teller})
	first, _ := begin(t, url, "c")
	second, _ := begin(t, url, "c")
	is.Equal(statusOf(t, "DELETE", url+"/api/chat/c/stream?messageId="+first), 404)
	is.Equal(statusOf(t, "DELETE", url+"/api/chat/c/stream?messageId="+second), 204)
	is.True(errors.Is(<-teller.ended, resume.ErrStopped))
	is.Equal(len(teller.ended), 0) // the first one runs
}

// A chat that is rejected leaves the chat's latest answer alone.
func TestRejectedChatChangesNothing(t *testing.T) {
	is := is.New(t)
	teller := newStoryteller()
	url := serveAnswers(t, resume.Options{Engine: teller, Store: resume.NewMemory(resume.Settings{RunningPerOwner: 1})})
	messageID, _ := begin(t, url, "c")
	for body, status := range map[string]int{
		chatBody("c", "Hi"): 429,
		strings.Replace(chatBody("c", "Hi"), "mira", "parrot", 1):                 404,
		strings.Replace(chatBody("c", "Hi"), `"type":"text"`, `"type":"file"`, 1): 400,
		strings.Replace(chatBody("c", "Hi"), `"id":"c",`, "", 1):                  400,
	} {
		response, _, err := call(t, "POST", url+"/api/chat", body)
		is.NoErr(err)
		is.Equal(response.StatusCode, status)
	}
	close(teller.goOn)
	_, a := resumed(t, url, "c")
	is.Equal(a.messageID, messageID)
}

// An answer that failed is not kept: those who follow it get its text and its error.
func TestFailedAnswer(t *testing.T) {
	is := is.New(t)
	url := serveAnswers(t, resume.Options{Engine: says(&botapi.StatusError{Status: 502, Detail: "The answer is incomplete"}, "Once ")})
	_, text, err := call(t, "POST", url+"/api/chat", chatBody("c", "Hi"))
	is.True(err != nil)
	a := readAnswer(t, text)
	is.Equal([]string{a.text, a.failure}, []string{"Once ", "The answer is incomplete"})
	is.Equal(statusOf(t, "GET", url+"/api/chat/c/stream"), 204)
}

// A page that is reloaded is not rejected because of the connection that it has lost, which
// goes on: it shares its slot. The application learns which chats have joined an answer.
func TestLimitsAndReportsOfReaders(t *testing.T) {
	is := is.New(t)
	teller := newStoryteller()
	reports := make(chan botapi.ChatReport, 2)
	outcomes := make(chan resume.Outcome, 2)
	url := serveAnswers(t, resume.Options{Engine: teller}, func(o *botapi.Options) {
		o.MaxChatsPerAccount = 1
		o.OnChat = func(ctx context.Context, r botapi.ChatReport) {
			reports <- r
			outcomes <- resume.OutcomeFrom(ctx)
		}
	})
	first, _ := begin(t, url, "c") // its connection stays open
	<-teller.begun
	stream, err := http.DefaultClient.Do(request(t, "GET", url+"/api/chat/c/stream", ""))
	is.NoErr(err)
	defer stream.Body.Close()
	is.Equal(stream.StatusCode, 200)
	is.Equal(stream.Header.Get(resume.OutcomeHeader), "joined")
	response, text, err := call(t, "POST", url+"/api/chat", chatBody("d", "Hi"))
	is.NoErr(err)
	is.Equal([]any{response.StatusCode, text}, []any{429, "Too many chats in progress for this key"}) // another answer needs a slot
	close(teller.goOn)
	all, err := io.ReadAll(stream.Body)
	is.NoErr(err)
	is.Equal(readAnswer(t, string(all)), answer{messageID: first, text: "Once upon a time", finish: "stop", done: true})
	got := map[resume.Outcome]string{}
	for range 2 {
		got[<-outcomes] = (<-reports).Bot.Slug
	}
	is.Equal(got, map[resume.Outcome]string{resume.Kept: "mira", resume.Joined: ""}) // a page that comes back names no bot
}

// Replicas that share a Store and a Latest find and stop each other's answers.
func TestReplicas(t *testing.T) {
	is := is.New(t)
	teller := newStoryteller()
	store := resume.NewMemory(resume.Settings{}) // stands in for one that processes share
	var urls [2]string
	var latest aisdk.Latest
	for i := range urls {
		answers := aisdk.NewAnswers(resume.Options{Engine: teller, Store: store})
		if latest == nil {
			latest = answers.Latest
		}
		answers.Latest = latest
		urls[i] = serve(t, handlerOf(t, answers))
		closeAfter(t, answers)
	}
	messageID, _ := begin(t, urls[0], "c")
	is.Equal(statusOf(t, "DELETE", urls[1]+"/api/chat/c/stream?messageId="+messageID), 204)
	is.True(errors.Is(<-teller.ended, resume.ErrStopped))
	messageID, disconnect := begin(t, urls[0], "c")
	disconnect()
	close(teller.goOn)
	_, a := resumed(t, urls[1], "c")
	is.Equal([]string{a.messageID, a.text}, []string{messageID, "Once upon a time"})
}

// brokenLatest is a Latest that fails.
type brokenLatest struct{}

func (brokenLatest) Set(context.Context, string, string) error { return errors.New("it is down") }
func (brokenLatest) Get(context.Context, string) (string, error) {
	return "", errors.New("it is down")
}

// Chats go on while a Latest of the application fails.
func TestLatestFails(t *testing.T) {
	is := is.New(t)
	log := new(log)
	answers := aisdk.NewAnswers(resume.Options{Engine: says(nil, "Hi"), Logger: log.logger()})
	answers.Latest = brokenLatest{}
	url := serve(t, handlerOf(t, answers))
	_, text, err := call(t, "POST", url+"/api/chat", chatBody("c", "Hi"))
	is.NoErr(err)
	is.Equal(readAnswer(t, text).text, "Hi")
	is.True(log.contains(`msg="an answer cannot be found by its chat"`))
	response, text, err := call(t, "GET", url+"/api/chat/c/stream", "")
	is.NoErr(err)
	is.Equal([]any{response.StatusCode, response.Header.Get("Retry-After"), text}, []any{503, "1", "The service is unavailable for the moment"})
	is.NoErr(answers.Close(t.Context()))
}
