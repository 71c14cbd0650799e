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
	wrong      []string // mistakes that need no model to find
}

// forever is the end of an operation whose end nobody saw.
const forever = math.MaxInt64

func (h *history) now() int64 { return int64(time.Since(h.began)) }

// An act is what a client does, and what it saw. If the client did not see the
// call, that is 0.
type act struct {
	does string // the name of the operation in a model
	saw  string
	call int
	own  bool // the client has begun that call

	reserved            int // tokens
	usedLeast, usedMost int
	allowed
}

// add records an act from its beginning to its end. Whether it overlaps a fault
// is determined later.
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

// inTime fails if a client has waited for its first word for as long as clients
// wait here at all.
func (h *history) inTime(what string, from, to int64) {
	if waited := time.Duration(to - from); waited >= patience {
		h.fail("%s waited for %v", what, waited)
	}
}

// during allows acts that overlap a fault to differ, and adds the fault itself:
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
	outcome    string // X-Botapi-Answer
	call       int    // the call that it is from
	words      int
	retry      string // Retry-After of a rejection
	lines      *bufio.Scanner
	disconnect func()
}

// ask sends a chat and waits for its first word. saw is the status, or "ok" with
// a stream. It is empty if the client disconnected or was disconnected before
// that.
func ask(ctx context.Context, url, account, key, text string) (s *stream, saw, detail string) {
	ctx, disconnect := context.WithTimeout(ctx, patience)
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
		disconnect()
		return nil, "", ""
	}
	s = &stream{outcome: response.Header.Get("X-Botapi-Answer"), lines: bufio.NewScanner(response.Body), disconnect: disconnect}
	if response.StatusCode != http.StatusOK {
		defer disconnect()
		defer response.Body.Close()
		var failure struct{ Detail string }
		_ = json.NewDecoder(response.Body).Decode(&failure)
		return &stream{retry: response.Header.Get("Retry-After")}, fmt.Sprint(response.StatusCode), failure.Detail
	}
	text, end := s.next()
	if end != "" {
		disconnect()
		return nil, "broken", end
	}
	if _, err := fmt.Sscanf(text, "%d/0 ", &s.call); err != nil {
		disconnect()
		return nil, "wrong", text
	}
	s.words = strings.Count(text, " ")
	if text != textOf(s.call, s.words) {
		disconnect()
		return nil, "wrong", text
	}
	return s, "ok", ""
}

// client uses a new connection for each request, so that none is sent twice.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// next returns the text of the next event, or how the stream ends: "complete",
// "stopped", "failed" or "aborted".
func (s *stream) next() (text, end string) {
	for s.lines.Scan() {
		data, isData := strings.CutPrefix(s.lines.Text(), "data: ")
		if !isData {
			continue
		}
		var event struct{ Content, Detail string }
		switch {
		case data == "[DONE]":
			return "", "complete"
		case json.Unmarshal([]byte(data), &event) != nil:
			return "", "aborted"
		case event.Detail == "The answer was stopped":
			return "", "stopped"
		case event.Detail != "":
			return "", "failed"
		}
		return event.Content, ""
	}
	return "", "aborted"
}

// read reads until there are most words, or to the end. It returns the end, or
// nothing if it stopped before. Words that are not from the call are wrong.
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
