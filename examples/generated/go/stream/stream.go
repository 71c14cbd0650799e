// Package stream parses the stream of an answer. The generators for Go do not
// generate a parser for events: their clients return the response body.
package stream

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"strings"
)

// Text returns the text of a stream. If the answer is incomplete, it returns the text
// received so far and an error.
func Text(body io.Reader) (string, error) {
	var text strings.Builder
	failed := false
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		data, isData := strings.CutPrefix(lines.Text(), "data: ")
		var event struct{ Content, Detail string }
		switch {
		case lines.Text() == "event: error":
			failed = true
		case data == "[DONE]":
			return text.String(), nil
		case !isData: // a blank line or a comment
		case json.Unmarshal([]byte(data), &event) != nil:
			return text.String(), errors.New("not an event: " + data)
		case failed:
			return text.String(), errors.New(event.Detail)
		default:
			text.WriteString(event.Content)
		}
	}
	return text.String(), cmp.Or(lines.Err(), io.ErrUnexpectedEOF)
}
