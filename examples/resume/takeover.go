package resume

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
)

// A takeover serves the chats with a key. A client that comes back may find that
// the limits of botapi still count the request that it has lost, perhaps for as
// long as the answer runs: a phone without a network does not say goodbye. Then
// the new request takes the slot of the lost one, if both have the same owner and
// key.
type takeover struct {
	engine *Engine
	api    http.Handler
	owners http.Handler // finds the owner of a request
}

func (t *takeover) serve(w http.ResponseWriter, r *http.Request, keys []string) {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	chat := &request{keys: keys, cancel: cancel, done: make(chan struct{})}
	defer close(chat.done)
	isOnly := t.engine.enter(chat)
	defer t.engine.exit(chat)
	r = withRequest(r.WithContext(ctx), chat)
	if isOnly {
		t.api.ServeHTTP(tellingClient(w, chat), r)
		return
	}

	body := &recordedBody{ReadCloser: r.Body}
	r.Body = body
	held := &heldWriter{ResponseWriter: w, header: w.Header().Clone(), chat: chat}
	t.api.ServeHTTP(tellingClient(held, chat), r)
	switch {
	case held.status == 0:
		return
	case body.isComplete() && held.isLimit() && t.endOlder(r, chat):
		r.Body = io.NopCloser(bytes.NewReader(body.read))
		t.api.ServeHTTP(tellingClient(w, chat), r)
	default:
		held.send()
	}
}

// endOlder ends the oldest other request of the same owner and key, and reports
// whether there was one.
func (t *takeover) endOlder(r *http.Request, chat *request) bool {
	asking := &request{}
	list := asList(r, http.MethodGet)
	list.Body, list.ContentLength = http.NoBody, 0
	t.owners.ServeHTTP(&heldWriter{header: make(http.Header), chat: asking, holdsAll: true}, withRequest(list, asking))
	if !asking.reached {
		return false
	}
	older := t.engine.olderThan(chat, asking.owner)
	if older == nil {
		return false
	}
	older.cancel(context.Canceled) // as if its client had disconnected
	select {
	case <-older.done:
	case <-time.After(t.engine.rules.Wait):
	case <-r.Context().Done():
	}
	return true
}

// enter notes that a chat is being served. It reports whether it is the only one
// of its key.
func (e *Engine) enter(chat *request) (isOnly bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := chat.keys[0]
	e.chats[key] = append(e.chats[key], chat)
	return len(e.chats[key]) == 1
}

func (e *Engine) exit(chat *request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := chat.keys[0]
	e.chats[key] = slices.DeleteFunc(e.chats[key], func(other *request) bool { return other == chat })
	if len(e.chats[key]) == 0 {
		delete(e.chats, key)
	}
}

func (e *Engine) olderThan(chat *request, owner string) *request {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, other := range e.chats[chat.keys[0]] {
		other.mu.Lock()
		isSame := other.reached && other.owner == owner
		other.mu.Unlock()
		switch {
		case other == chat:
			return nil
		case isSame:
			return other
		}
	}
	return nil
}

// maxRecorded bounds the body that can be sent again.
const maxRecorded = 4 << 20

// A recordedBody keeps what is read of it.
type recordedBody struct {
	io.ReadCloser
	read []byte
	end  bool
}

func (b *recordedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if len(b.read) <= maxRecorded {
		b.read = append(b.read, p[:n]...)
	}
	b.end = b.end || err == io.EOF
	return n, err
}

func (b *recordedBody) isComplete() bool { return b.end && len(b.read) <= maxRecorded }

// A heldWriter holds a response back that rejects a chat before the Engine has
// seen it.
type heldWriter struct {
	http.ResponseWriter
	header   http.Header
	chat     *request
	holdsAll bool
	status   int // of the response that is held back
	body     []byte
}

func (w *heldWriter) Header() http.Header { return w.header }

func (w *heldWriter) WriteHeader(status int) {
	w.chat.mu.Lock()
	reached := w.chat.reached
	w.chat.mu.Unlock()
	if w.holdsAll || !reached && (status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable) {
		w.status = status
		return
	}
	w.sendHeader(status)
}

func (w *heldWriter) sendHeader(status int) {
	header := w.ResponseWriter.Header()
	clear(header)
	maps.Copy(header, w.header)
	w.ResponseWriter.WriteHeader(status)
}

func (w *heldWriter) Write(body []byte) (int, error) {
	if w.status == 0 {
		return w.ResponseWriter.Write(body)
	}
	w.body = append(w.body, body...)
	return len(body), nil
}

func (w *heldWriter) FlushError() error {
	if w.status != 0 {
		return nil
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}

func (w *heldWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// isLimit reports whether the limits of botapi have rejected the chat.
func (w *heldWriter) isLimit() bool {
	return strings.Contains(string(w.body), "Too many chats in progress")
}

func (w *heldWriter) send() {
	w.sendHeader(w.status)
	_, _ = w.ResponseWriter.Write(w.body) // a disconnected client needs no response
}
