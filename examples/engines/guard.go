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

// Guard holds the text of an engine back until it has been checked. Text is checked
// in whole parts, however its fragments were cut, and leaves in these parts. What is
// held back when the engine fails never leaves.
//
// StallTimeout counts until a part is whole. Nothing is yielded meanwhile: an empty
// fragment would commit the answer, and a refusal could no longer have a status.
type Guard struct {
	Engine botapi.ChatEngine
	// Whole returns how much of the text is whole: [Words], [Sentences], or one of
	// your own. What it cuts apart is checked apart.
	Whole func(text string) (n int)
	// Check is asked about each part. Its error ends the answer, as an engine's does:
	// make it a botapi.StatusError, of 4xx lest a Fallback around the guard ask another
	// engine, which nobody checks. It may take its time, within ctx: the engine waits
	// meanwhile. So Line{Guard} counts that time as the engine's, against Stall, and
	// keeps the turn; Guard{Line} keeps the turn, too, but Stall does not count it.
	Check func(ctx context.Context, part string) error
}

// maxPart is how much may be held back. An answer that has a longer part is refused.
const maxPart = 4 << 10

// Chat answers with what passes the check.
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
			if !h.over {
				h.take(text, err)
			}
			if h.over {
				cancel() // which the engine may wait for, to clean up
			}
			return !h.over
		})
		h.finish()
	}
}

// A holding is what is held back of one answer.
type holding struct {
	guard     Guard
	ctx       context.Context
	yield     func(string, error) bool
	held      strings.Builder // asked for its text with each fragment, without a copy
	over      bool            // nothing more may leave
	unchecked bool            // a part is being checked, or its check panicked
}

// take holds a fragment, and releases what is whole with it.
func (h *holding) take(text string, err error) {
	if err != nil {
		h.fail(err)
		return
	}
	h.held.WriteString(text)
	if h.release(h.guard.Whole(h.held.String())); !h.over && h.held.Len() > maxPart {
		h.fail(&botapi.StatusError{Status: http.StatusBadGateway, Detail: "The model failed", Err: errNoPart})
	}
}

// release checks the first n bytes and hands them on. The answer counts as over until
// they are taken, in case Check panics and the engine recovers.
func (h *holding) release(n int) {
	if n == 0 {
		return
	}
	part, rest := h.held.String()[:n], h.held.String()[n:]
	h.held.Reset()
	h.held.WriteString(rest)
	h.over, h.unchecked = true, true
	err := h.guard.Check(h.ctx, part)
	if h.unchecked = false; err != nil {
		h.fail(err)
		return
	}
	h.over = !h.yield(part, nil)
}

func (h *holding) fail(err error) {
	h.over = true
	h.yield("", err)
}

// finish releases the rest when the engine has returned.
func (h *holding) finish() {
	switch {
	case h.unchecked:
		h.fail(errors.New("the check of the answer panicked"))
	case !h.over:
		h.release(h.held.Len())
	}
}

var errNoPart = errors.New("the answer has no whole part to check")

// Words is the text up to the end of its last white space: a word is never checked
// in two parts.
func Words(text string) int {
	i := strings.LastIndexFunc(text, unicode.IsSpace)
	if i < 0 {
		return 0
	}
	_, size := utf8.DecodeRuneInString(text[i:])
	return i + size
}

// Sentences is the text up to the end of its last line or sentence.
func Sentences(text string) int {
	for whole := len(text); whole > 0; {
		r, size := utf8.DecodeLastRuneInString(text[:whole])
		before := whole - size
		switch {
		case r == '\n', r == '。', r == '！', r == '？':
			return whole
		case unicode.IsSpace(r):
			if mark, _ := utf8.DecodeLastRuneInString(text[:before]); mark == '.' || mark == '!' || mark == '?' || mark == '…' {
				return whole
			}
		}
		whole = before
	}
	return 0
}
