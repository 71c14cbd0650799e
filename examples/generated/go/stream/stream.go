// Package stream parses the stream of an answer. The generators for Go do not
// generate a parser for events: their clients return the response body.
package stream

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// An Error is an error event: why the answer is incomplete. Status and RetryAfter say
// whether to try again, as those of an error response do.
type Error struct {
	Detail     string
	Status     int
	RetryAfter int `json:"retry_after"` // seconds; 0 if the event does not say
}

func (e *Error) Error() string { return fmt.Sprintf("%d %s", e.Status, e.Detail) }

// Text returns the text of a stream. If the answer is incomplete, it returns the text
// received so far and an error: an *Error if the stream has an error event.
func Text(body io.Reader) (string, error) {
	var text strings.Builder
	failed := false
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		data, isData := strings.CutPrefix(lines.Text(), "data: ")
		var event struct {
			Content string
			Error
		}
		switch {
		case lines.Text() == "event: error":
			failed = true
		case data == "[DONE]":
			return text.String(), nil
		case !isData: // a blank line or a comment
		case json.Unmarshal([]byte(data), &event) != nil:
			return text.String(), errors.New("not an event: " + data)
		case failed:
			return text.String(), &event.Error
		default:
			text.WriteString(event.Content)
		}
	}
	return text.String(), cmp.Or(lines.Err(), io.ErrUnexpectedEOF)
}
