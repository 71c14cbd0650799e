package runtimetest

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

// Post sends a chat to a botapi service with the key "key". It returns the response
// when its header has arrived.
func Post(t testing.TB, ctx context.Context, url, body string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, "POST", url+"/v1/chat", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer key")
	r.Header.Set("X-Request-Id", "request-1")
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	return response
}

// Chat sends a chat and returns the response and its body, which may be incomplete.
func Chat(t testing.TB, url, body string) (*http.Response, string) {
	t.Helper()
	response := Post(t, t.Context(), url, body)
	answer, _ := io.ReadAll(response.Body)
	return response, strings.TrimSpace(string(answer))
}

// Text returns the text of a stream or of a JSON response.
func Text(t testing.TB, answer string) string {
	t.Helper()
	var joined strings.Builder
	for line := range strings.Lines(answer) {
		line = strings.TrimPrefix(line, "data: ")
		if !strings.HasPrefix(line, "{") {
			continue
		}
		var fragment struct{ Content string }
		if err := json.Unmarshal([]byte(line), &fragment); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		joined.WriteString(fragment.Content)
	}
	return joined.String()
}
