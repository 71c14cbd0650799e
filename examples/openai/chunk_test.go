package openai

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/matryer/is"
)

func TestReadChunk(t *testing.T) {
	for event, want := range map[string]string{
		`{}`: "",
		` {"choices" : [ {"delta" : {"content" : "a b"} , "index":0 } ] } ` + "\n":                                                                       "a b",
		`{"choices":[{"delta":{"role":"assistant","content":null}}]}`:                                                                                    "",
		`{"choices":[{"delta":{"refusal":"no"}},{"delta":{"content":"y","refusal":"z"}}]}`:                                                               "noyz",
		`{"choices":[{"delta":{"content":"\u00fc\ud83d\udc4b\"\\\/\b\f\n\r\t"}}]}`:                                                                       "ü👋\"\\/\b\f\n\r\t",
		`{"choices":[{"delta":{"content":"|\udc4b\ud83d|\ud83d\u0041"}}]}`:                                                                               "|\ufffd\ufffd|\ufffdA",
		"{\"choices\":[{\"delta\":{\"content\":\"caf\xc3\"}}]}":                                                                                          "caf\xc3", // split inside a character
		"{\"choices\":[{\"delta\":{\"content\":\"\xa9\\n\"}}]}":                                                                                          "\xa9\n",
		`{"choices":[{"delta":{"content":"a","content":"b"}}]}`:                                                                                          "b",
		`{"choices":[{"delta":{"content":"a"}}],"choices":[]}`:                                                                                           "",
		`{"choices":[{"delta":{"Content":"a"}}],"Choices":7}`:                                                                                            "",
		`{"choices":[{"\u0064elta":{"content":"a"}}]}`:                                                                                                   "a",
		`{"choices":[7,null,{"delta":"a"},{"delta":{"content":{"content":"a"}}}]}`:                                                                       "",
		`{"x":[0,-1.5e+3,true,false,null,{"y":[[],{}]}],"choices":{"delta":1}}`:                                                                          "",
		`{"choices":[{"delta":{"content":[{"type":"thinking","thinking":[{"type":"text","text":"hm"}]},{"type":"text","text":"a"},{"text":"b"},"c"]}}]}`: "abc",
		`{"choices":[{"delta":{"content":[{"text":"a","type":"reasoning"},{"type":"image_url"},null,7,[]],"refusal":"r"}}]}`:                             "r",
		`{"choices":[{"message":{"content":"a"}},{"message":{"content":[{"type":"text","text":"\u0062"}]}},{"text":"c"}]}`:                               "abc",
		`{"choices":[{"delta":null,"message":{"content":"a"},"text":"b"},{"delta":[],"message":{"content":""},"text":"c"}]}`:                             "ac",
		`{"choices":[{"message":{"content":"so far"},"delta":{"content":"a"}}]}`:                                                                         "a",
		`{"choices":[{"delta":{"role":"assistant","content":null},"message":{"content":"a"},"text":"b"},{"delta":{},"text":"c"}]}`:                       "ac",
	} {
		t.Run(event[:min(len(event), 60)], func(t *testing.T) {
			is := is.New(t)
			c, err := readChunk(event)
			is.NoErr(err)
			is.Equal(c.Text, want)
		})
	}
}

// noObjects are events that are not a JSON object.
var noObjects = []string{
	``, `oops`, `null`, `"text"`, `{"choices":[]}}`, `{"choices":[]} x`, `{"choices":[{"ind`, `{"a":1,}`, `{"a":[1,]}`, `{"a":[,1]}`, `{,"a":1}`, `{"a" 1}`,
	`{"a":01}`, `{"a":1.}`, `{"a":+1}`, `{"a":1e}`, `{"a":-}`, `{"a":nul}`, `{"a":"\x"}`, `{"a":"\u12g4"}`, `{"a":"\`, `{"a":"\"}`, "{\"a\":\"\n\"}", `{"a":[1}`,
	`{"a":` + strings.Repeat("[", 20000),
}

func TestReadChunkRejects(t *testing.T) {
	is := is.New(t)
	for _, event := range noObjects {
		_, err := readChunk(event)
		is.Equal(err, errNoChunk)
	}
}

func TestReadChunkOtherFields(t *testing.T) {
	is := is.New(t)
	c, err := readChunk(`{"id":"c1","model":"m\u0031","choices":[{"finish_reason":null},{"finish_reason":"stop"},{"finish_reason":null}],` +
		`"usage":{"prompt_tokens":9,"completion_tokens":7,"total_tokens":16,"prompt_tokens_details":{"cached_tokens":3}},"error":null}`)
	is.NoErr(err)
	is.Equal(c.ID, "c1")
	is.Equal(c.Model, "m1")
	is.Equal(c.Finish, "stop")
	is.Equal(c.Tokens, Tokens{Prompt: 9, Completion: 7})
	is.True(c.Counted)
	is.True(!c.failed)

	c, err = readChunk(`{"choices":[{"finish_reason":"abort"},{"finish_reason":"stop"}]}`)
	is.NoErr(err)
	is.Equal(c.Finish, "abort")

	for usage, absurd := range map[string]bool{
		`null`:                false,
		`{}`:                  false,
		`{"prompt_tokens":1}`: false,
		`{"prompt_tokens":1,"completion_tokens":null}`:                false,
		`{"prompt_tokens":1.5,"completion_tokens":2}`:                 false,
		`{"prompt_tokens":-1,"completion_tokens":2}`:                  true,
		`{"prompt_tokens":1,"completion_tokens":9223372036854775807}`: true,
	} {
		c, err := readChunk(`{"usage":` + usage + `}`)
		is.NoErr(err)
		is.True(!c.Counted)
		is.Equal(c.Absurd, absurd)
	}
	for message, unreadable := range map[string]bool{
		`{}`:                                    false,
		`""`:                                    false,
		`"a"`:                                   true,
		`[{"content":"a"}]`:                     true,
		`{"content":"","tool_calls":null}`:      false,
		`{"tool_calls":[ ],"function_call":{}}`: false,
		`{"content":null,"audio":null}`:         false,
		`{"content":[]}`:                        false,
		`{"content":[{"type":"thinking"}]}`:     false,
		`{"tool_calls":[{"index":0}]}`:          true,
		`{"function_call":{"name":"f"}}`:        true,
		`{"content":{"text":"a"}}`:              true,
		`{"content":[{"type":"image_url"}]}`:    true,
	} {
		for _, name := range []string{"delta", "message"} {
			c, err := readChunk(`{"choices":[{"` + name + `":` + message + `}]}`)
			is.NoErr(err)
			is.Equal(c.unreadable, unreadable)
		}
	}
	for _, none := range []string{`null`, `""`, `{}`, `[ ]`, `false`} {
		c, err := readChunk(`{"error":` + none + `,"choices":[]}`)
		is.NoErr(err)
		is.True(!c.failed)
	}
	for _, failure := range []string{`{"error":{"message":"m"}}`, `{"error":"m"}`, `{"choices":[],"error":[7]}`, `{"object":"error","message":"m"}`} {
		c, err := readChunk(failure)
		is.NoErr(err)
		is.True(c.failed)
	}
}

func TestReadChunkAllocatesNothing(t *testing.T) {
	is := is.New(t)
	event := `{"id":"c1","model":"m1","choices":[{"index":0,"delta":{"content":"Grüße"},"logprobs":null,"finish_reason":null}],"usage":null}`
	is.Equal(testing.AllocsPerRun(100, func() { readChunk(event) }), 0.0)
}

// The texts of many choices are not copied again for each choice.
func TestManyChoices(t *testing.T) {
	is := is.New(t)
	event := `{"choices":[` + strings.Repeat(`{"delta":{"content":"x","refusal":"y"}},`, 1000) + `{}]}`
	c, err := readChunk(event)
	is.NoErr(err)
	is.Equal(c.Text, strings.Repeat("xy", 1000))
	event = strings.ReplaceAll(event, `"y"`, `""`)
	is.True(testing.AllocsPerRun(1, func() { readChunk(event) }) < 100)
}

// FuzzReadChunk compares readChunk with encoding/json: which events are valid, and, if
// they are UTF-8, their fields.
func FuzzReadChunk(f *testing.F) {
	recorded, _ := filepath.Glob("testdata/*.sse")
	for _, file := range recorded {
		stream, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for line := range strings.Lines(string(stream)) {
			if event, ok := strings.CutPrefix(line, "data: "); ok {
				f.Add([]byte(event))
			}
		}
	}
	for _, event := range []string{
		`{"choices":[{"delta":{"content":"\ud83d\udc4b\ud83d\n\u0000"},"finish_reason":"length"}]}`,
		`{"choices":[{"delta":{"content":1}},{"delta":[]},null],"x":[-0.5E-2,true,false,null,{"a":{}}]}`,
		`{"id":"c1","created":1e999,"choices":[{"delta":{"content":"a"}}]}`,
		`{"usage":{"prompt_tokens":9,"completion_tokens":7},"usage":null,"error":{"message":"m"}}`,
		"{\"choices\":[{\"delta\":{\"content\":\"caf\xc3\",\"refusal\":\"r\"}}]}",
		`{"choices":[{"delta":{"content":[{"type":"thinking","thinking":[{"type":"text","text":"hm"}]},{"type":"text","text":"a"},"b",7]}}]}`,
		`{"choices":[{"message":{"content":"a","tool_calls":[{}]},"text":"b"},{"text":"c","delta":null}]}`,
		`{"choices":[{"message":{"content":"a"},"delta":{"role":"b"},"finish_reason":"abort"},{"finish_reason":"stop"}]}`,
	} {
		f.Add([]byte(event))
	}
	f.Fuzz(func(t *testing.T, event []byte) {
		c, err := readChunk(string(event))
		event = bytes.TrimPrefix(event, byteOrderMark)
		var want map[string]any
		_ = json.Unmarshal(event, &want) // it fails for 1e999, which is valid, and reads the rest
		isObject := json.Valid(event) && want != nil
		if isObject != (err == nil) {
			t.Fatalf("an object: %v; readChunk: %v", isObject, err)
		}
		if err != nil || !utf8.Valid(event) {
			return
		}
		text, finish := textOf(want)
		var joiner Joiner
		if got := joiner.join(c.Text) + joiner.Rest(); got != text || c.Finish != finish {
			t.Fatalf("%q and %q, not %q and %q", got, c.Finish, text, finish)
		}
		if id, _ := want["id"].(string); c.ID != id {
			t.Fatalf("id %q, not %q", c.ID, id)
		}
		if c.failed != (want["error"] != nil || want["object"] == "error") {
			t.Fatalf("failed: %v", c.failed)
		}
	})
}

// textOf returns the text and the finish_reason of a decoded chunk.
func textOf(chunk map[string]any) (text, finish string) {
	choices, _ := chunk["choices"].([]any)
	for _, choice := range choices {
		fields, _ := choice.(map[string]any)
		if delta := textOfMessage(fields["delta"]); delta != "" {
			text += delta
		} else if message := textOfMessage(fields["message"]); message != "" {
			text += message
		} else {
			old, _ := fields["text"].(string)
			text += old
		}
		if reason, _ := fields["finish_reason"].(string); reason != "" && !isAborted(finish) {
			finish = reason
		}
	}
	return text, finish
}

func textOfMessage(v any) (text string) {
	message, _ := v.(map[string]any)
	text, _ = message["content"].(string)
	parts, _ := message["content"].([]any)
	for _, part := range parts {
		fields, _ := part.(map[string]any)
		if kind, _ := fields["type"].(string); kind != "" && kind != "text" {
			continue
		}
		old, _ := part.(string)
		said, _ := fields["text"].(string)
		text += old + said
	}
	refusal, _ := message["refusal"].(string)
	return text + refusal
}
