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
		"aborted inside an event":  {"data: a\r\rdata: b\r", []string{"a"}},
		"aborted inside a line":    {"data: {}\n\ndata: {\"a\"", []string{"{}"}},
		"aborted inside a name":    {"data: {}\n\nda", []string{"{}"}},

		"the last without its blank line": {"data: a\n\ndata: {\"b\":1}\n", []string{"a", `{"b":1}`}},
		"the last without its line break": {"data: a\n\ndata: {\"b\":1}", []string{"a", `{"b":1}`}},
		"the end without its line break":  {"data: a\n\ndata: [DONE]", []string{"a", "[DONE]"}},
		"separated by a line break":       {"data: {\"a\":1}\ndata:{\"b\":2} \ndata: [DONE]\ndata: {\"c\":3}\n\n", []string{`{"a":1}`, `{"b":2} `, "[DONE]", `{"c":3}`}},
		"the same with names":             {"event: x\ndata: {\"a\":1}\nevent: y\ndata: {\"b\":2}\n", []string{`{"a":1}`, `{"b":2}`}},
		"one of them of several lines":    {"data: {}\ndata: {\"a\":\ndata: [{}\ndata: ,{}]}\ndata: {}", []string{"{}", "{\"a\":\n[{}\n,{}]}", "{}"}},
		"objects in an event of JSON":     {"data: [{}\ndata: ,{}\ndata: ]\n\n", []string{"[{}\n,{}\n]"}},
		"signs of life":                   {": a\n\ndata: b\n: c\n\ndata\n\nevent: x\n\n:\n", []string{"", "b", "", "", ""}},
		"events without data":             {"event: error\n\nretry: 1\n\nid: 2\r\n\r\ndata: b\nid: 3\n\n\n\n", []string{"", "", "", "b"}},
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
					events := NewEvents(reader)
					for events.Next() {
						got = append(got, string(events.Data()))
					}
					is.Equal(got, c.want)
					is.Equal(events.End(), errIncomplete)
				})
			}
		})
	}
}

func TestNamesOfEvents(t *testing.T) {
	is := is.New(t)
	events := NewEvents(strings.NewReader("event: a\ndata: 1\n\ndata: 2\n\nevent: b\nevent:c\n\nerror: 3\n\nevent\ndata: {}\nevent: d\ndata: {}\n\n"))
	var got []string
	for events.Next() {
		got = append(got, string(events.Name())+" "+string(events.Data()))
	}
	is.Equal(got, []string{"a 1", " 2", "c ", "error 3", " {}", "d {}"})
}

// Events that only a line break separates are not delayed until the next one comes, except
// for the first.
func TestNoEventOfOneLineIsDelayed(t *testing.T) {
	is := is.New(t)
	read, write := io.Pipe()
	events := NewEvents(read)
	go io.WriteString(write, "data: {}\ndata: {\"a\":1}\n")
	is.True(events.Next())
	is.True(events.Next())
	is.Equal(string(events.Data()), `{"a":1}`)
	go io.WriteString(write, "data: {\"b\":1}\n")
	is.True(events.Next())
	is.Equal(string(events.Data()), `{"b":1}`)
	is.NoErr(write.Close())
	is.True(!events.Next())
}

// A CR ends a line immediately, although an LF may follow.
func TestNoEventIsDelayed(t *testing.T) {
	is := is.New(t)
	read, write := io.Pipe()
	events := NewEvents(read)
	for _, chunk := range []string{"data: a\r\r", "\ndata: b\r\n\r", "\ndata: c\n\n"} {
		go io.WriteString(write, chunk) // returns when all of it has been read
		is.True(events.Next())
	}
	is.Equal(string(events.Data()), "c")
	is.NoErr(write.Close())
	is.True(!events.Next())
}
