package browser

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/matryer/is"
)

// TestEventStream gives streams to the page's parser: in one chunk, in two chunks
// split at every byte, and in chunks of one byte.
func TestEventStream(t *testing.T) {
	type event struct{ Event, Data string }
	tests := []struct {
		name, stream string
		events       []event
	}{
		{"one event", "data: a\n\n", []event{{"message", "a"}}},
		{"CRLF", "data: a\r\n\r\ndata: b\r\n\r\n", []event{{"message", "a"}, {"message", "b"}}},
		{"CR", "data: a\r\rdata: b\r\r", []event{{"message", "a"}, {"message", "b"}}},
		{"several lines of data", "data: a\ndata\ndata: b\n\n", []event{{"message", "a\n\nb"}}},
		{"no space, and two", "data:a\n\ndata:  b\n\n", []event{{"message", "a"}, {"message", " b"}}},
		{"colons", "data: a: b:c\n\n", []event{{"message", "a: b:c"}}},
		{"comment between events", "data: a\n\n: keep-alive\ndata: b\n\n", []event{{"message", "a"}, {"message", "b"}}},
		{"comment with a blank line", ": ping\n\ndata: a\n\n", []event{{"message", "a"}}},
		{"named event", "event: error\ndata: a\n\ndata: b\n\n", []event{{"error", "a"}, {"message", "b"}}},
		{"name without data", "event: error\n\ndata: a\n\n", []event{{"message", "a"}}},
		{"other fields", "id: 1\nretry: 5\ndata: a\nnonsense\n\n", []event{{"message", "a"}}},
		{"text beyond ASCII", "data: Grüße, 世界 🌍 \u2028\n\n", []event{{"message", "Grüße, 世界 🌍 \u2028"}}},
		{"byte order mark", "\ufeffdata: a\n\n", []event{{"message", "a"}}},
		{"event without an end", "data: a\n\ndata: b\n", []event{{"message", "a"}}},
		{"nothing", "", []event{}},
	}
	q := startQuickstart(t)
	tab := newTab(t)
	tab.open(q.address)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			is := is.New(t)
			stream, err := json.Marshal(test.stream)
			is.NoErr(err)
			var seen map[string][]event
			text := evaluate[string](tab, fmt.Sprintf(parseInChunks, stream))
			is.NoErr(json.Unmarshal([]byte(text), &seen))
			is.True(len(seen) > 1)
			for split, events := range seen {
				if fmt.Sprint(events) != fmt.Sprint(test.events) {
					t.Errorf("split at %s: %q, want %q", split, events, test.events)
				}
			}
		})
	}
}

const parseInChunks = `(async () => {
	const { serverSentEvents } = await import("/page/client.js");
	const bytes = new TextEncoder().encode(%s);
	const parse = async (chunks) => {
		const stream = new ReadableStream({
			start(controller) {
				chunks.forEach((chunk) => controller.enqueue(chunk));
				controller.close();
			},
		});
		const events = [];
		for await (const event of serverSentEvents(stream)) events.push(event);
		return events;
	};
	const seen = { nowhere: await parse([bytes]), everywhere: await parse(Array.from(bytes, (byte) => Uint8Array.of(byte))) };
	for (let i = 1; i < bytes.length; i++) seen[i] = await parse([bytes.slice(0, i), bytes.slice(i)]);
	return JSON.stringify(seen);
})()`
