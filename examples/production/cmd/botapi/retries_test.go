package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"example.com/botapi/examples/openai/runtimetest"
	"github.com/matryer/is"
)

// wordsOf is the answer of the runtime of TestRetriesPayOnce to a prompt.
func wordsOf(prompt string) (words []string) {
	for i := range 40 {
		words = append(words, fmt.Sprintf("%s/%d ", prompt, i))
	}
	return words
}

// TestRetriesPayOnce has 200 clients disconnect from their streams at random
// points, and return to any replica. Each gets its complete answer once, and the
// runtime is asked once for each.
func TestRetriesPayOnce(t *testing.T) {
	is := is.New(t)
	const clients = 200
	gates := make(map[string]chan struct{})
	for i := range clients {
		gates[fmt.Sprint("p", i)] = make(chan struct{})
	}
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, r *runtimetest.Request) {
		prompt := r.Messages[len(r.Messages)-1].Content
		for i, word := range wordsOf(prompt) {
			if i == 20 {
				select {
				case <-gates[prompt]:
				case <-r.Context().Done():
					return
				}
			}
			s.Text(word)
		}
		s.Stop()
		s.Usage(9, 40)
		s.Done()
	})
	s := share(t, runtime.URL)
	var all sync.WaitGroup
	for prompt, gate := range gates {
		all.Go(func() {
			if err := s.dropAndReturn(t.Context(), prompt, gate); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	is.Equal(len(runtime.Requests()), clients)

	// Each answer is recorded once, though most clients disconnected.
	for _, p := range s.replicas {
		p.end(t)
	}
	var records, completion int
	query(t, s.env, `SELECT count(completion_tokens), sum(completion_tokens) FROM usage`, &records, &completion)
	is.Equal(records, clients)
	is.Equal(completion, clients*40)
}

func (s sharing) dropAndReturn(ctx context.Context, prompt string, gate chan struct{}) error {
	drops := 1 + rand.IntN(3)
	opens := rand.IntN(drops + 1) // the connection on which the runtime may continue
	complete := strings.Join(wordsOf(prompt), "")
	for drop := range drops + 1 {
		if drop == opens {
			close(gate)
		}
		most := 20
		if drop >= opens {
			most = 40
		}
		if drop == drops {
			most = 1000 // to the end
		} else {
			most = rand.IntN(most)
		}
		text, end, err := s.read(ctx, prompt, most)
		if err != nil {
			return err
		}
		if drop < drops && !strings.HasPrefix(complete, text) {
			return fmt.Errorf("the answer to %s began as %q", prompt, text)
		}
		if drop == drops && (text != complete || end != "[DONE]") {
			return fmt.Errorf("the answer to %s is incomplete: %q, then %s", prompt, text, end)
		}
	}
	return nil
}

// read reads some events of an answer, and disconnects.
func (s sharing) read(ctx context.Context, prompt string, most int) (text, end string, err error) {
	ctx, disconnect := context.WithTimeout(ctx, patience)
	defer disconnect()
	response, err := s.send(ctx, rand.IntN(replicas), "key-"+prompt, prompt)
	if err != nil {
		return "", "", err
	}
	defer response.Body.Close()
	events := eventsOf(response)
	for range most {
		data := events.next()
		var fragment struct{ Content string }
		if json.Unmarshal([]byte(data), &fragment) != nil {
			return text, data, nil
		}
		text += fragment.Content
	}
	return text, "", nil
}
