package openai_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"example.com/botapi"
	"example.com/botapi/examples/openai"
	"example.com/botapi/examples/resume"
	"github.com/matryer/is"
)

// A storyteller says "Once ", and the rest when the test tells it to.
type storyteller struct {
	asked atomic.Int32
	begun chan struct{} // receives when an answer has begun
	goOn  chan struct{} // closed when answers may go on
	ended chan error    // the cause, if an answer ends before its end
}

func newStoryteller() *storyteller {
	return &storyteller{begun: make(chan struct{}, 10), goOn: make(chan struct{}), ended: make(chan error, 10)}
}

func (s *storyteller) Chat(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		s.asked.Add(1)
		s.begun <- struct{}{}
		if !yield("Once ", nil) {
			s.ended <- context.Cause(ctx)
			return
		}
		select {
		case <-s.goOn:
			yield("upon a time", nil)
		case <-ctx.Done():
			s.ended <- context.Cause(ctx)
		}
	}
}

// serveKept serves OpenAI's clients with an engine that keeps its answers.
func serveKept(t *testing.T, kept resume.Options, options ...func(*botapi.Options)) (url string, answers *resume.Engine) {
	answers = resume.New(kept)
	server := httptest.NewServer(handlerFor(t, answers, append(options, func(o *botapi.Options) {
		o.Routes, o.OnLimit = answers.Routes(), answers.OnLimit
	})...))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		is.New(t).NoErr(answers.Close(ctx))
	})
	return server.URL, answers
}

const idempotencyKey = "an-answer-of-acme"

// startAnswer sends a chat with an Idempotency-Key. ended is closed when its response has
// ended.
func startAnswer(t *testing.T, url, body string) (disconnect func(), ended <-chan struct{}) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := newRequest(t, ctx, "POST", url, body, "Idempotency-Key", idempotencyKey)
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		if response, err := http.DefaultClient.Do(r); err == nil {
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
		}
	}()
	disconnect = func() {
		cancel()
		<-returned
	}
	t.Cleanup(disconnect)
	return disconnect, returned
}

// A client that loses its connection and sends the same request again gets the answer
// that was started for it, from its beginning.
func TestRetryJoins(t *testing.T) {
	const completions, responses = "/v1/chat/completions", "/v1/responses"
	for name, c := range map[string]struct{ path, body string }{
		"JSON": {completions, ask}, "stream": {completions, askStream}, "stream of a response": {responses, respondStream},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			teller := newStoryteller()
			url, _ := serveKept(t, resume.Options{Engine: teller})
			disconnect, _ := startAnswer(t, url+c.path, c.body)
			<-teller.begun
			disconnect()
			close(teller.goOn)
			response, answer, err := call(t, "POST", url+c.path, c.body, "Idempotency-Key", idempotencyKey)
			is.NoErr(err)
			is.Equal(response.StatusCode, 200)
			is.Equal(response.Header.Get("X-Botapi-Answer"), "joined")
			switch name {
			case "JSON":
				is.True(strings.Contains(answer, `"content":"Once upon a time"`))
			case "stream":
				text, _ := textOfChunks(t, answer)
				is.Equal(text, "Once upon a time")
				is.True(strings.HasSuffix(answer, "data: [DONE]\n\n"))
			default:
				text, kinds, last := eventsOfResponse(t, answer)
				is.Equal(text, "Once upon a time")
				is.Equal(kinds[len(kinds)-1], "completed")
				is.Equal(textOfResponse(t, encode(t, last["response"])), "Once upon a time")
			}
			is.Equal(teller.asked.Load(), int32(1))
		})
	}
}

// The first response says that the answer is kept; without a key, nothing changes.
func TestAnswersAreKept(t *testing.T) {
	is := is.New(t)
	url, _ := serveKept(t, resume.Options{Engine: speaks(nil, "Hello")})
	for _, c := range []struct{ key, want string }{{idempotencyKey, "kept"}, {idempotencyKey, "joined"}, {"", ""}} {
		var headers []string
		if c.key != "" {
			headers = []string{"Idempotency-Key", c.key}
		}
		response, answer, err := call(t, "POST", url+"/v1/chat/completions", ask, headers...)
		is.NoErr(err)
		is.True(strings.Contains(answer, `"content":"Hello"`))
		is.Equal(response.Header.Get("X-Botapi-Answer"), c.want)
	}
}

// A client may come back before the service has noticed that its connection is lost.
// The slot of the lost request is then still in use: the retry shares it.
func TestRetrySharesTheSlot(t *testing.T) {
	is := is.New(t)
	teller := newStoryteller()
	url, _ := serveKept(t, resume.Options{Engine: teller}, func(o *botapi.Options) { o.MaxChatsPerAccount = 1 })
	_, ended := startAnswer(t, url+"/v1/chat/completions", askStream)
	<-teller.begun
	r := newRequest(t, t.Context(), "POST", url+"/v1/chat/completions", askStream, "Idempotency-Key", idempotencyKey)
	response, err := http.DefaultClient.Do(r)
	is.NoErr(err)
	defer response.Body.Close()
	is.Equal(response.StatusCode, 200)
	is.Equal(response.Header.Get("X-Botapi-Answer"), "joined")
	other, _, err := call(t, "POST", url+"/v1/chat/completions", ask)
	is.NoErr(err)
	is.Equal(other.StatusCode, 429) // another chat cannot
	select {
	case <-ended:
		t.Error("the first client was disconnected")
	default:
	}
	close(teller.goOn)
	answer, err := io.ReadAll(response.Body)
	is.NoErr(err)
	text, _ := textOfChunks(t, string(answer))
	is.Equal(text, "Once upon a time")
	is.Equal(teller.asked.Load(), int32(1))
}

// Tokens are counted where the model was called, and not for the retry that joins.
func TestTokensOfAnswers(t *testing.T) {
	is := is.New(t)
	var counted []openai.Tokens
	url, answers := serveKept(t, resume.Options{
		Engine: counts(openai.Tokens{Prompt: 3, Completion: 2}, "length", "Once upon"),
		OnAnswer: func(ctx context.Context, _ resume.Report) {
			tokens, _ := openai.UsageFrom(ctx).Tokens()
			counted = append(counted, tokens)
		},
	})
	_, first, err := call(t, "POST", url+"/v1/chat/completions", ask, "Idempotency-Key", idempotencyKey)
	is.NoErr(err)
	is.True(strings.Contains(first, `"finish_reason":"length"`) && strings.Contains(first, `"usage":{"prompt_tokens":3,`))
	_, joined, err := call(t, "POST", url+"/v1/chat/completions", ask, "Idempotency-Key", idempotencyKey)
	is.NoErr(err)
	is.True(strings.Contains(joined, `"finish_reason":"stop"`) && !strings.Contains(joined, `"usage"`))
	is.NoErr(answers.Close(t.Context()))
	is.Equal(counted, []openai.Tokens{{Prompt: 3, Completion: 2}})
}

// DELETE stops the model. The reader gets an error in OpenAI's format, and no [DONE].
func TestAnswerIsStopped(t *testing.T) {
	t.Parallel()
	const stopped = `{"error":{"message":"The answer was stopped","type":"invalid_request_error","param":null,"code":null}}`
	is := is.New(t)
	teller := newStoryteller()
	url, _ := serveKept(t, resume.Options{Engine: teller})
	r := newRequest(t, t.Context(), "POST", url+"/v1/chat/completions", askStream, "Idempotency-Key", idempotencyKey)
	stream, err := http.DefaultClient.Do(r)
	is.NoErr(err)
	defer stream.Body.Close()
	reader := bufio.NewReader(stream.Body)
	_, err = reader.ReadString('\n')
	is.NoErr(err)

	response, _, err := call(t, "DELETE", url+"/v1/answers", "", "Idempotency-Key", idempotencyKey)
	is.NoErr(err)
	is.Equal(response.StatusCode, 204)
	is.True(errors.Is(<-teller.ended, resume.ErrStopped))
	rest, err := io.ReadAll(reader)
	is.True(err != nil) // the connection was aborted
	is.True(strings.Contains(string(rest), `data: {"error":{"message":"The answer was stopped",`))
	is.True(!strings.Contains(string(rest), "[DONE]"))

	response, answer, err := call(t, "POST", url+"/v1/chat/completions", askStream, "Idempotency-Key", idempotencyKey)
	is.NoErr(err)
	is.Equal(response.StatusCode, 410)
	is.Equal(answer, stopped)
	is.Equal(teller.asked.Load(), int32(1))
}

func TestErrorsOfAnswers(t *testing.T) {
	const (
		other   = `{"error":{"message":"Another chat has this Idempotency-Key","type":"invalid_request_error","param":null,"code":null}}`
		badKey  = `{"error":{"message":"There must be one Idempotency-Key, of 16 to 255 letters, digits, - and _","type":"invalid_request_error","param":null,"code":null}}`
		busy    = `{"error":{"message":"Too many answers in progress for this key","type":"rate_limit_error","param":null,"code":"rate_limit_exceeded"}}`
		noModel = `{"error":{"message":"the model does not exist","type":"invalid_request_error","param":"model","code":"model_not_found"}}`
	)
	teller := newStoryteller()
	url, _ := serveKept(t, resume.Options{Engine: teller, Store: resume.NewMemory(resume.Settings{RunningPerOwner: 1})})
	startAnswer(t, url+"/v1/chat/completions", ask)
	<-teller.begun
	for name, c := range map[string]struct {
		method, path, body, key string
		status                  int
		want, retryAfter        string
	}{
		"another body":       {"POST", "/v1/chat/completions", strings.Replace(ask, "Hi", "Ho", 1), idempotencyKey, 409, other, ""},
		"a bad key":          {"POST", "/v1/chat/completions", ask, "short", 400, badKey, ""},
		"one more":           {"POST", "/v1/chat/completions", ask, "another-answer-of-acme", 429, busy, "1"},
		"an unknown model":   {"POST", "/v1/chat/completions", strings.Replace(ask, "helper", "parrot", 1), idempotencyKey, 404, noModel, ""},
		"nothing to stop":    {"DELETE", "/v1/answers", "", "another-answer-of-acme", 404, `{"detail":"Answer not found"}`, ""},
		"not a DELETE":       {"PUT", "/v1/answers", "", idempotencyKey, 405, `{"detail":"Method Not Allowed"}`, ""},
		"stop under bad key": {"DELETE", "/v1/answers", "", "short", 400, `{"detail":"There must be one Idempotency-Key, of 16 to 255 letters, digits, - and _"}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			response, answer, err := call(t, c.method, url+c.path, c.body, "Idempotency-Key", c.key)
			is.NoErr(err)
			is.Equal(response.StatusCode, c.status)
			is.Equal(strings.TrimSpace(answer), c.want)
			is.Equal(response.Header.Get("Retry-After"), c.retryAfter)
			is.Equal(response.Header.Get("X-Botapi-Answer"), "")
		})
	}
	is.New(t).Equal(teller.asked.Load(), int32(1))
}
