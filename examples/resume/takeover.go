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
	chat := &request{keys: keys, credentials: r.Header.Get("Authorization") + "\n" + keys[0], cancel: cancel, done: make(chan struct{})}
	defer close(chat.done)
	isOnly := t.engine.enter(chat)
	defer t.engine.exit(chat)
	r = withRequest(r.WithContext(ctx), chat)
	if isOnly || !t.hasOlder(r, chat) {
		t.api.ServeHTTP(tellingClient(w, chat), r)
		return
	}
	body := &recordedBody{ReadCloser: r.Body}
	r.Body = body
	for {
		held := &heldWriter{ResponseWriter: w, header: w.Header().Clone(), chat: chat}
		t.api.ServeHTTP(tellingClient(held, chat), r)
		if held.status == 0 {
			return
		}
		if !body.isComplete() || !held.isLimit() || ctx.Err() != nil || !t.endOlder(ctx, chat) {
			held.send()
			return
		}
		r = r.Clone(r.Context())
		r.Body = io.NopCloser(bytes.NewReader(body.read))
	}
}

// hasOlder reports whether an older request has the same owner and key. Without
// an API key, or with that of somebody else, there is none.
func (t *takeover) hasOlder(r *http.Request, chat *request) bool {
	asking := new(request)
	list := asList(withRequest(r, asking), http.MethodGet)
	list.Body, list.ContentLength = http.NoBody, 0
	t.owners.ServeHTTP(&heldWriter{header: make(http.Header), chat: asking, holdsAll: true}, list)
	if !asking.reached {
		return false
	}
	chat.mu.Lock()
	chat.identified, chat.owner = true, asking.owner
	chat.mu.Unlock()
	return t.engine.olderThan(chat) != nil
}

// endOlder ends the oldest other request of the same owner and key, and reports
// whether there was one.
func (t *takeover) endOlder(ctx context.Context, chat *request) bool {
	older := t.engine.olderThan(chat)
	if older == nil {
		return false
	}
	older.cancel(context.Canceled) // as if its client had disconnected
	select {
	case <-older.done:
		return true
	case <-time.After(t.engine.rules.Wait):
	case <-ctx.Done():
	}
	return false
}

// enter notes that a chat is being served. It reports whether it is the only one
// with its API key and Idempotency-Key.
func (e *Engine) enter(chat *request) (isOnly bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.chats[chat.credentials] = append(e.chats[chat.credentials], chat)
	return len(e.chats[chat.credentials]) == 1
}

func (e *Engine) exit(chat *request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	left := slices.DeleteFunc(e.chats[chat.credentials], func(other *request) bool { return other == chat })
	if e.chats[chat.credentials] = left; len(left) == 0 {
		delete(e.chats, chat.credentials)
	}
}

// olderThan returns the oldest request before a chat that has the same owner and
// key, or nil.
func (e *Engine) olderThan(chat *request) *request {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, other := range e.chats[chat.credentials] {
		if other == chat {
			break
		}
		other.mu.Lock()
		isSame := other.identified && other.owner == chat.owner
		other.mu.Unlock()
		if isSame {
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
