package engines

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"

	"example.com/botapi"
)

// Guard holds back the text of an engine until it has been checked. Text is checked and
// yielded in complete units, such as words, however the engine splits its fragments. Text
// that is held back when the engine fails is never yielded.
//
// Nothing is yielded until a unit is complete: an empty fragment would commit the response,
// and a rejected answer could no longer have a status of its own. So StallTimeout counts
// that time.
type Guard struct {
	Engine botapi.ChatEngine
	// Whole returns the length of the prefix of text that consists of complete units:
	// [Words], [Sentences], or a function of your own. The text before and after that
	// point is checked separately.
	Whole func(text string) (n int)
	// Check is called with each part. Its error ends the answer, as an engine's does.
	// Return a botapi.StatusError, with a 4xx status if a Fallback wraps the guard: any
	// other error makes it call the next engine, which is not checked. Check may block
	// until ctx is cancelled; the engine waits meanwhile and keeps its slot in a Line.
	// A Line that wraps the guard counts that time against Stall; a Line inside the
	// guard does not.
	Check func(ctx context.Context, part string) error
}

// maxHeld is how much text may be held back, in bytes. An answer with a longer unit is
// rejected.
const maxHeld = 4 << 10

// Chat yields the text that passes the check.
func (g Guard) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		answer := g.Engine.Chat(ctx, req)
		if answer == nil {
			yield("", errors.New("the engine returned no iterator"))
			return
		}
		h := holding{guard: g, ctx: ctx, yield: yield}
		answer(func(text string, err error) bool {
			if !h.ended {
				h.take(text, err)
			}
			if h.ended {
				cancel() // the engine may wait for this before it returns
			}
			return !h.ended
		})
		h.finish()
	}
}

// A holding is the text of one answer that is held back.
type holding struct {
	guard     Guard
	ctx       context.Context
	yield     func(string, error) bool
	held      strings.Builder // its String does not copy
	ended     bool            // nothing more may be yielded
	unchecked bool            // Check is running, or has panicked
}

// take adds a fragment, and releases the units that it completes.
func (h *holding) take(text string, err error) {
	if err != nil {
		h.fail(err)
		return
	}
	h.held.WriteString(text)
	if h.release(h.guard.Whole(h.held.String())); !h.ended && h.held.Len() > maxHeld {
		h.fail(&botapi.StatusError{Status: http.StatusBadGateway, Detail: "The model failed", Err: errLongUnit})
	}
}

// release checks the first n bytes and yields them. Meanwhile ended is true, in case
// Check or yield panics and the engine recovers.
func (h *holding) release(n int) {
	if n == 0 {
		return
	}
	part, rest := h.held.String()[:n], h.held.String()[n:]
	h.held.Reset()
	h.held.WriteString(rest)
	h.ended, h.unchecked = true, true
	err := h.guard.Check(h.ctx, part)
	if h.unchecked = false; err != nil {
		h.fail(err)
		return
	}
	h.ended = !h.yield(part, nil)
}

func (h *holding) fail(err error) {
	h.ended = true
	h.yield("", err)
}

// finish releases the rest when the engine has returned.
func (h *holding) finish() {
	switch {
	case h.unchecked:
		h.fail(errors.New("the check of the answer panicked"))
	case !h.ended:
		h.release(h.held.Len())
	}
}

var errLongUnit = errors.New("the answer has a unit that is too long to check")

// Words returns the length of the text up to and including its last white space, so that
// a word is never split.
func Words(text string) int {
	i := strings.LastIndexFunc(text, unicode.IsSpace)
	if i < 0 {
		return 0
	}
	_, size := utf8.DecodeRuneInString(text[i:])
	return i + size
}

// Sentences returns the length of the text up to the end of its last complete line or
// sentence.
func Sentences(text string) int {
	for end := len(text); end > 0; {
		r, size := utf8.DecodeLastRuneInString(text[:end])
		before := end - size
		switch {
		case r == '\n', r == '。', r == '！', r == '？':
			return end
		case unicode.IsSpace(r):
			if mark, _ := utf8.DecodeLastRuneInString(text[:before]); mark == '.' || mark == '!' || mark == '?' || mark == '…' {
				return end
			}
		}
		end = before
	}
	return 0
}
