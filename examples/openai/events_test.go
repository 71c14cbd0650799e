package openai

import (
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/matryer/is"
)

func TestEvents(t *testing.T) {
	for name, c := range map[string]struct {
		stream string
		want   []string
	}{
		"LF":                       {"data: a\n\ndata: b\n\n", []string{"a", "b"}},
		"CR LF":                    {"data: a\r\n\r\ndata: b\r\n\r\n", []string{"a", "b"}},
		"CR":                       {"data: a\r\rdata: b\r\r", []string{"a", "b"}},
		"a mixture":                {"data: a\r\n\rdata: b\r\ndata: c\n\r\n\n\r", []string{"a", "b\nc"}},
		"two LF after a CR":        {"data: a\r\n\ndata: b\n\r\n", []string{"a", "b"}},
		"a byte order mark":        {"\ufeffdata: a\n\ndata: b\n\n", []string{"a", "b"}},
		"alone in its line":        {"\ufeff\r\rdata: a\n\n", []string{"a"}},
		"only one, and only first": {"\ufeff\ufeffdata: a\n\n\ufeffdata: b\n\ndata: \ufeffc\n\n", []string{"\ufeffc"}},
		"only CR and LF":           {"\r\n\r\r\n\n", nil},
		"without a blank line":     {"data: a\r\rdata: b\r", []string{"a"}},
	} {
		t.Run(name, func(t *testing.T) {
			for splitting, reader := range map[string]io.Reader{
				"complete":         strings.NewReader(c.stream),
				"in bytes":         iotest.OneByteReader(strings.NewReader(c.stream)),
				"with EOF at once": iotest.DataErrReader(iotest.OneByteReader(strings.NewReader(c.stream))),
			} {
				t.Run(splitting, func(t *testing.T) {
					is := is.New(t)
					var got []string
					events := newEvents(reader)
					for events.next() {
						got = append(got, string(events.data))
					}
					is.Equal(got, c.want)
					is.Equal(events.end(), errIncomplete)
				})
			}
		})
	}
}

// A CR ends a line immediately, although an LF may follow.
func TestNoEventIsDelayed(t *testing.T) {
	is := is.New(t)
	read, write := io.Pipe()
	events := newEvents(read)
	for _, chunk := range []string{"data: a\r\r", "\ndata: b\r\n\r", "\ndata: c\n\n"} {
		go io.WriteString(write, chunk) // returns when all of it has been read
		is.True(events.next())
	}
	is.Equal(string(events.data), "c")
	is.NoErr(write.Close())
	is.True(!events.next())
}
