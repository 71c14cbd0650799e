package histories

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// A history is what the clients of one account saw.
type history struct {
	began time.Time

	mu         sync.Mutex
	operations []porcupine.Operation
	wrong      []string // what no model is needed for
}

// forever is the end of what nobody saw end.
const forever = math.MaxInt64

func (h *history) now() int64 { return int64(time.Since(h.began)) }

// An act is what a client does, and what it saw. The zero call is one that it did
// not see.
type act struct {
	does string // what a model makes of it
	saw  string
	call int
	own  bool // the client has begun that call

	reserved            int // tokens
	usedLeast, usedMost int
	allowed
}

// add records an act from its beginning to its end. Whether it is in a fault is
// known later.
func (h *history) add(client int, a act, from, to int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.operations = append(h.operations, porcupine.Operation{ClientId: client, Input: a, Call: from, Output: a, Return: to})
}

func (h *history) fail(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wrong = append(h.wrong, fmt.Sprintf(format, args...))
}

// inTime fails if somebody has waited for a first word for as long as a client
// here waits at all.
func (h *history) inTime(what string, from, to int64) {
	if waited := time.Duration(to - from); waited >= patience {
		h.fail("%s waited for %v", what, waited)
	}
}

// during adds what is allowed to acts that overlap a fault, and the fault itself:
// it may have lost something at any moment, more than once.
func (h *history) during(a allowed, began, ended time.Time) {
	if a == (allowed{}) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	from, to := int64(began.Sub(h.began)), int64(ended.Sub(h.began))
	for i, o := range h.operations {
		if o.Call <= to && o.Return >= from {
			in := o.Input.(act)
			in.allowed = in.and(a)
			h.operations[i].Input = in
		}
	}
	for range 2 {
		h.operations = append(h.operations, porcupine.Operation{ClientId: 99, Input: act{does: "lose", allowed: a}, Output: act{}, Call: from, Return: to})
		from++
	}
}

// A stream is an answer that is read word by word.
type stream struct {
	outcome string // X-Botapi-Answer
	call    int    // that is heard
	words   int
	retry   string // Retry-After of a refusal
	lines   *bufio.Scanner
	leave   func()
}

// ask sends a chat and waits for its first word. saw is empty where the client
// left or was cut off before; else it is the status, or "ok" with a stream.
func ask(ctx context.Context, url, account, key, text string) (s *stream, saw, detail string) {
	ctx, leave := context.WithTimeout(ctx, patience)
	body, _ := json.Marshal(map[string]any{"bot_slug": "helper", "prompt": text, "stream": true})
	request, err := http.NewRequestWithContext(ctx, "POST", url+"/v1/chat", strings.NewReader(string(body)))
	if err != nil {
		panic(err)
	}
	request.Header.Set("Authorization", "Bearer "+account)
	if key != "" {
		request.Header.Set("Idempotency-Key", key)
	}
	response, err := client.Do(request)
	if err != nil {
		leave()
		return nil, "", ""
	}
	s = &stream{outcome: response.Header.Get("X-Botapi-Answer"), lines: bufio.NewScanner(response.Body), leave: leave}
	if response.StatusCode != http.StatusOK {
		defer leave()
		defer response.Body.Close()
		var refusal struct{ Detail string }
		_ = json.NewDecoder(response.Body).Decode(&refusal)
		return &stream{retry: response.Header.Get("Retry-After")}, fmt.Sprint(response.StatusCode), refusal.Detail
	}
	text, end := s.next()
	if end != "" {
		leave()
		return nil, "broken", end
	}
	if _, err := fmt.Sscanf(text, "%d/0 ", &s.call); err != nil {
		leave()
		return nil, "wrong", text
	}
	s.words = strings.Count(text, " ")
	if text != textOf(s.call, s.words) {
		leave()
		return nil, "wrong", text
	}
	return s, "ok", ""
}

// client makes a connection for each request: none is sent twice.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// next returns the text of the next event, or how the stream ends: "whole",
// "stopped", "failed" or "cut".
func (s *stream) next() (text, end string) {
	for s.lines.Scan() {
		data, isData := strings.CutPrefix(s.lines.Text(), "data: ")
		if !isData {
			continue
		}
		var event struct{ Content, Detail string }
		switch {
		case data == "[DONE]":
			return "", "whole"
		case json.Unmarshal([]byte(data), &event) != nil:
			return "", "cut"
		case event.Detail == "The answer was stopped":
			return "", "stopped"
		case event.Detail != "":
			return "", "failed"
		}
		return event.Content, ""
	}
	return "", "cut"
}

// read reads until there are so many words, or to the end, which it returns; it
// is empty for who leaves. Other words than those of the call are wrong.
func (s *stream) read(most int) (end string) {
	for s.words < most {
		text, end := s.next()
		if end != "" {
			return end
		}
		for part := range strings.SplitAfterSeq(text, " ") {
			if part == "" {
				continue
			}
			if part != word(s.call, s.words)+" " {
				return "wrong: " + part + " after " + fmt.Sprint(s.words) + " words"
			}
			s.words++
		}
	}
	return ""
}
