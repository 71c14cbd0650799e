package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"

	"example.com/botapi/examples/openai"
)

// The servers that a replica is compared with, each in its own process: this
// test program, started with the name of one of them and the URL of the runtime
// in its environment. Both use the replica's transport.
const (
	besideVariable        = "BOTAPI_BESIDE"
	besideRuntimeVariable = "BOTAPI_BESIDE_RUNTIME"
)

var beside = map[string]func(runtime string) http.Handler{
	"proxy":   newProxy,
	"gateway": newGateway,
}

// serveBeside prints its address and serves until its standard input is closed.
func serveBeside(handler http.Handler) int {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(listener.Addr())
	go http.Serve(listener, handler)
	io.Copy(io.Discard, os.Stdin)
	return 0
}

// newProxy is the minimum: a reverse proxy that does not parse what it passes
// on.
func newProxy(runtime string) http.Handler {
	target, err := url.Parse(runtime)
	if err != nil {
		panic(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     openai.NewTransport(),
		FlushInterval: -1,
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Otherwise an answer that begins before the transport has read the
		// request body to its end would be aborted.
		http.NewResponseController(w).EnableFullDuplex()
		defer r.Body.Close() // otherwise net/http panics if the runtime cannot be reached
		proxy.ServeHTTP(w, r)
	})
}

// A gateway is what one writes by hand in an afternoon: the formats of the two
// operations, one bot, keys in a map, and no validation.
type gateway struct {
	runtime string
	client  *http.Client
	keys    map[string]string
}

func newGateway(runtime string) http.Handler {
	return &gateway{
		runtime: runtime,
		client:  &http.Client{Transport: openai.NewTransport()},
		keys:    map[string]string{"key": "acme"},
	}
}

type gatewayMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

type gatewayAnswer struct {
	Content string `json:"content"`
}

func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if _, ok := g.keys[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")]; !ok {
		http.Error(w, "unauthorized", http.StatusUnauthorized)
		return
	}
	var chat struct {
		Prompt string
		Stream bool
	}
	if err := json.NewDecoder(r.Body).Decode(&chat); err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	answer, err := g.ask(r, chat.Prompt)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer answer.Close()
	if chat.Stream {
		err = g.stream(w, answer)
	} else {
		err = g.jsonResponse(w, answer)
	}
	if err != nil {
		panic(http.ErrAbortHandler)
	}
}

func (g *gateway) ask(r *http.Request, prompt string) (io.ReadCloser, error) {
	body, err := json.Marshal(map[string]any{
		"model": "m1", "stream": true,
		"messages": []gatewayMessage{{"system", "SECRET"}, {"user", prompt}},
	})
	if err != nil {
		return nil, err
	}
	upstream, err := http.NewRequestWithContext(r.Context(), "POST", g.runtime+"/chat/completions", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	upstream.Header.Set("Content-Type", "application/json")
	response, err := g.client.Do(upstream)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		response.Body.Close()
		return nil, errors.New(response.Status)
	}
	return response.Body, nil
}

func (g *gateway) stream(w http.ResponseWriter, answer io.Reader) error {
	w.Header().Set("Content-Type", "text/event-stream")
	flusher := w.(http.Flusher)
	err := fragments(answer, func(text string) error {
		event, err := json.Marshal(gatewayAnswer{text})
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "data: %s\n\n", event); err != nil {
			return err
		}
		flusher.Flush()
		return nil
	})
	if err == nil {
		_, err = io.WriteString(w, "data: [DONE]\n\n")
	}
	return err
}

func (g *gateway) jsonResponse(w http.ResponseWriter, answer io.Reader) error {
	var content strings.Builder
	if err := fragments(answer, func(text string) error { content.WriteString(text); return nil }); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(gatewayAnswer{content.String()})
}

// fragments passes the text of each chunk of a stream on.
func fragments(answer io.Reader, pass func(string) error) error {
	lines := bufio.NewScanner(answer)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok || string(data) == "[DONE]" {
			continue
		}
		var chunk struct {
			Choices []struct{ Delta struct{ Content string } }
		}
		if err := json.Unmarshal(data, &chunk); err != nil {
			return err
		}
		if len(chunk.Choices) == 0 || chunk.Choices[0].Delta.Content == "" {
			continue
		}
		if err := pass(chunk.Choices[0].Delta.Content); err != nil {
			return err
		}
	}
	return lines.Err()
}
