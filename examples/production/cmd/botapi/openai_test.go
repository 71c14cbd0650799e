package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/matryer/is"
)

// TestOpenAIClients serves them with a flag, with the same keys, limits, errors
// and usage.
func TestOpenAIClients(t *testing.T) {
	is := is.New(t)
	env, key := withOneBot(t)
	runtime := saysCounted(t, "Hello")
	const chat = `{"model":"helper","messages":[{"role":"user","content":"Hi"}],"max_tokens":5,"stop":["."]}`
	p := serve(t, env, "--runtime", "local="+runtime.URL, "--openai")

	status, answer := ask(t, key, "GET", p.url+"/v1/models", "")
	is.Equal(status, http.StatusOK)
	is.True(strings.HasPrefix(answer, `{"object":"list","data":[{"id":"helper",`))

	status, answer = ask(t, key, "POST", p.url+"/v1/chat/completions", chat)
	is.Equal(status, http.StatusOK)
	var completion struct {
		Choices []struct{ Message struct{ Content string } }
		Usage   struct {
			Total int `json:"total_tokens"`
		}
	}
	is.NoErr(json.Unmarshal([]byte(answer), &completion))
	is.Equal(completion.Choices[0].Message.Content, "Hello")
	is.Equal(completion.Usage.Total, 16)
	is.True(strings.Contains(runtime.Requests()[0].Body, `"max_tokens":5`))
	is.True(strings.Contains(runtime.Requests()[0].Body, `"stop":["."]`))

	status, answer = ask(t, key, "POST", p.url+"/v1/responses", `{"model":"helper","input":"Hi","max_output_tokens":6}`)
	is.Equal(status, http.StatusOK)
	is.True(strings.Contains(answer, `"text":"Hello"`))
	is.True(strings.Contains(answer, `"usage":{"input_tokens":9,`))
	is.True(strings.Contains(runtime.Requests()[1].Body, `"max_tokens":6`))

	// Runtimes do not get the format, so a client that asks for one is told.
	status, answer = ask(t, key, "POST", p.url+"/v1/chat/completions", strings.Replace(chat, `"stop"`, `"response_format":{"type":"json_object"},"stop"`, 1))
	is.Equal(status, http.StatusBadRequest)
	is.True(strings.Contains(answer, `"param":"response_format","code":"unsupported_value"`))

	status, answer = ask(t, "wrong", "POST", p.url+"/v1/chat/completions", chat)
	is.Equal(status, http.StatusUnauthorized)
	is.True(strings.Contains(answer, `"code":"invalid_api_key"`))

	eventually(t, "it is measured", func() bool {
		return p.measures(t, `.*http_route="/v1/chat/completions"`, `.*http_route="/v1/responses"`, `.*reason="Invalid API key"`) // the same reason as for all clients
	})

	p.end(t)
	is.True(strings.Contains(p.log.String(), `"error":"400 response_format: bots cannot honour this value`))
	is.True(strings.Contains(command(t, "", env, "usage", "--csv").stdout, ",acme,2,2,10,2,18,14")) // twice 5 bytes; 9 and 7 tokens

	p = serve(t, env, "--runtime", "local="+runtime.URL)
	status, answer = ask(t, key, "POST", p.url+"/v1/chat/completions", chat)
	is.Equal(status, http.StatusNotFound) // not without the flag
	is.Equal(answer, `{"detail":"Not Found"}`)
}

// TestLimitsOfBothAPIs has a stream of one API take the only slot of its
// account, so that there is none in the other at another replica.
func TestLimitsOfBothAPIs(t *testing.T) {
	const (
		openAI = `{"model":"helper","messages":[{"role":"user","content":"Hi"}],"stream":true}`
		why    = "Too many chats in progress for this account"
	)
	is := is.New(t)
	ours := chatBody("Hi", true)
	s := share(t, saysOne(t).URL, "--openai")
	is.Equal(command(t, "", s.env, "limits", "set", "--concurrent-chats", "1").code, 0)
	first, other := s.replicas[0].url, s.replicas[1].url
	for path, body := range map[string]string{"/v1/chat": ours, "/v1/chat/completions": openAI} {
		var stream *http.Response
		eventually(t, "there is a slot", func() bool {
			stream = send(t, s.key, "POST", first+path, body)
			return stream.StatusCode == http.StatusOK
		})
		status, answer := ask(t, s.key, "POST", other+"/v1/chat", ours)
		is.Equal(status, http.StatusTooManyRequests)
		is.Equal(answer, `{"detail":"`+why+`"}`)
		rejected := send(t, s.key, "POST", other+"/v1/chat/completions", openAI)
		is.Equal(rejected.StatusCode, http.StatusTooManyRequests)
		is.Equal(rejected.Header.Get("Retry-After"), "1")
		is.Equal(strings.TrimSpace(bodyOf(rejected, nil)), `{"error":{"message":"`+why+`","type":"rate_limit_error","param":null,"code":"rate_limit_exceeded"}}`)
		stream.Body.Close()
	}
}
