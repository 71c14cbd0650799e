package botapi

import (
	"cmp"
	"context"
	"fmt"
	"hash/crc32"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"example.com/botapi/internal/connection"
	"example.com/botapi/internal/jsontext"
)

// This file has the list of bots, and how every response that is no stream is sent: the list
// is the first Reply.

// listBots is GET /v1/bots.
func (x *exchange) listBots() (Response, error) {
	bots, fixed, err := x.publishedBots()
	if err != nil {
		return nil, err
	}
	list, check := x.handler.listed.encode(bots, fixed)
	if check {
		x.warnOfUnreachable(bots)
	}
	if matchesETag(x.r.Header["If-None-Match"], list.etag) {
		return list.notModified, nil
	}
	return list.reply, nil
}

// matchesETag is the weak comparison that RFC 9110 prescribes for If-None-Match.
// Searching the header for the tag is enough, since the quotes around a tag
// cannot be part of another.
func matchesETag(ifNoneMatch []string, etag string) bool {
	return slices.ContainsFunc(ifNoneMatch, func(list string) bool {
		return strings.Contains(list, etag) || strings.TrimSpace(list) == "*"
	})
}

// publishedBots avoids the copy that MemoryStore.Bots makes: of a long list, it would cost
// more than the rest of the request. If fixed, the slice is never modified.
func (x *exchange) publishedBots() (bots []Bot, fixed bool, err error) {
	if store, ok := x.handler.options.Bots.(*MemoryStore); ok {
		return store.set().listed, true, nil
	}
	bots, err = x.handler.options.Bots.Bots(x.ctx)
	return bots, false, err
}

// FindBot finds a bot as a chat does: by its UID, by its slug, or by both, which must agree.
// The error is the store's, or a 404. The store is not asked for what no bot can have, which
// may come from a client.
func FindBot(ctx context.Context, bots BotStore, uid, slug string) (Bot, error) {
	switch {
	case uid == "" && slug == "", !isIdentifier(uid), !isIdentifier(slug):
		return Bot{}, errNoSuchBot
	case uid == "":
		return bots.BotBySlug(ctx, slug)
	}
	bot, err := bots.BotByUID(ctx, uid)
	if err != nil || slug == "" {
		return bot, err
	}
	same, err := bots.BotBySlug(ctx, slug)
	if err == nil && same.UID != bot.UID {
		err = errNoSuchBot
	}
	return bot, err
}

// A listing caches the encoding of a list once it has been encoded twice in a row: as long
// as the store returns the same bots, comparing them is all it costs.
type listing struct {
	repeated atomic.Pointer[encodedBots]
	lastETag atomic.Pointer[string] // of the last list that was encoded
	warned   atomic.Bool            // of a bot that requests cannot reach
}

// An encodedBots is not modified any longer once it is cached, when it is shared with other
// requests.
type encodedBots struct {
	bots []Bot // not modified by anybody: a copy, if the store may reuse its slice; nil unless cached
	body []byte
	etag string

	reply, notModified Response
}

// encode also says whether to check the bots: those of the first list, and of a list that is
// about to be cached. Checking each of many lists would cost more than encoding them.
func (l *listing) encode(bots []Bot, fixed bool) (list *encodedBots, check bool) {
	if known := l.repeated.Load(); known != nil && equalBots(known.bots, bots) {
		return known, false
	}
	list = encodedLists.Get().(*encodedBots)
	list.body = appendBots(list.body[:0], bots)
	etag := newETag(list.body)
	list.etag = etag
	last := l.lastETag.Swap(&etag)
	if last == nil || *last != etag {
		list.setReplies(list.free)
		return list, last == nil
	}
	list.setReplies(nil)
	list.bots = bots
	if !fixed {
		list.bots = slices.Clone(bots)
	}
	l.repeated.Store(list)
	return list, true
}

func (list *encodedBots) setReplies(free func(sent bool)) {
	header := http.Header{"Etag": {list.etag}, "Cache-Control": {"private, no-cache"}}
	list.reply = Reply{Header: header, Body: list.body, free: free}
	list.notModified = Reply{Status: http.StatusNotModified, Header: header, free: free}
}

// warnOfUnreachable logs, once for each handler, that a request for a listed bot cannot
// reach it.
func (x *exchange) warnOfUnreachable(bots []Bot) {
	problem := unreachable(bots)
	if problem != "" && x.handler.listed.warned.CompareAndSwap(false, true) {
		x.handler.log(x.ctx, slog.LevelWarn, "the store lists a bot that requests cannot reach", slog.String("error", problem))
	}
}

// unreachable says what is wrong with the first bot that requests cannot reach, or that
// shares an identifier with another. It returns "" if there is none.
func unreachable(bots []Bot) string {
	type identifier struct{ field, value string }
	taken := make(map[identifier]bool)
	for i := range bots {
		for _, id := range [...]identifier{{"uid", bots[i].UID}, {"slug", bots[i].Slug}} {
			switch {
			case id.value == "" || !isIdentifier(id.value):
				return fmt.Sprintf("bot %d: %s %.80q is empty, not UTF-8, or contains white space or control characters", i, id.field, id.value)
			case taken[id]:
				return fmt.Sprintf("bot %d: %s %.80q belongs to an earlier bot, too", i, id.field, id.value)
			}
			taken[id] = true
		}
	}
	return ""
}

func equalBots(a, b []Bot) bool {
	same := len(a) > 0 && len(a) == len(b) && &a[0] == &b[0]
	return same || slices.Equal(a, b)
}

// Lists that are not cached are pooled: allocating the buffer would cost as much
// as encoding into it.
var encodedLists = sync.Pool{New: func() any { return new(encodedBots) }}

// free drops a list whose write has failed: on HTTP/2, net/http may still read it.
func (list *encodedBots) free(sent bool) {
	if sent {
		encodedLists.Put(list)
	}
}

// newETag depends on the body alone, so that replicas agree. Two CRCs take a tenth of the
// time of the encoding; a cryptographic hash would take longer than that.
func newETag(body []byte) string {
	return fmt.Sprintf(`"%x-%08x%08x"`, len(body), crc32.ChecksumIEEE(body), crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)))
}

func appendBots(dst []byte, bots []Bot) []byte {
	dst = append(dst, '[')
	for i := range bots {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendBot(dst, &bots[i])
	}
	return append(dst, ']')
}

func appendBot(dst []byte, bot *Bot) []byte {
	dst = jsontext.AppendString(append(dst, `{"uid":`...), bot.UID)
	dst = jsontext.AppendString(append(dst, `,"slug":`...), bot.Slug)
	dst = jsontext.AppendString(append(dst, `,"name":`...), bot.Name)
	dst = jsontext.AppendString(append(dst, `,"description":`...), bot.Description)
	dst = jsontext.AppendString(append(dst, `,"welcome_message":`...), bot.WelcomeMessage)
	dst = jsontext.AppendString(append(dst, `,"model":`...), bot.Model)
	dst = append(dst, `,"avatar_url":`...)
	if bot.AvatarURL == "" {
		dst = append(dst, "null"...)
	} else {
		dst = jsontext.AppendString(dst, bot.AvatarURL)
	}
	return append(dst, '}')
}

// reply sends the Reply of an operation. A body that was not read is not waited for: a GET may
// announce one that never comes. It returns an ending only if nothing was begun, so that an
// error response can follow. A send that fails is dealt with here, and returns nil.
func (x *exchange) reply(r Reply) *ending {
	status := cmp.Or(r.Status, http.StatusOK)
	if status < 200 || status > 599 {
		return x.misused(fmt.Errorf("a reply has the status %d", status))
	}
	x.abandonBody()
	failed := x.send(status, r.Header, [][]byte{r.Body}, noLimit)
	if r.free != nil {
		r.free(failed == nil)
	}
	if failed != nil {
		x.ending = x.realEnding(failed)
		x.abortOnReturn(x.ending)
	}
	return nil
}

// setHead commits a response that is no stream, and copies its header, except for what is not
// the application's to choose.
func (x *exchange) setHead(to, header http.Header, status, length int) {
	x.request.commit(to, status)
	needsType := length > 0
	for name, values := range header {
		name = http.CanonicalHeaderKey(name)
		switch {
		case name == "X-Request-Id", name == "Content-Length", isHopByHop(name):
			continue
		case name == "Content-Type":
			needsType = needsType && len(values) == 0
		}
		to[name] = slices.Clip(values) // middleware may append to it
	}
	if needsType {
		to["Content-Type"] = []string{"application/json"}
	}
	if hasBody(status) {
		to["Content-Length"] = []string{strconv.Itoa(length)}
	}
}

func hasBody(status int) bool {
	return status != http.StatusNoContent && status != http.StatusNotModified
}

func isHopByHop(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return true
	}
	return false
}

// send sends a response that is no stream. A body is flushed where the writer can: it is on its
// way before OnChat is called. No chunk but the first is begun after lastBegin, a moment as those of
// [connection.Connection].
func (x *exchange) send(status int, header http.Header, body [][]byte, lastBegin time.Duration) *ending {
	length := 0
	for _, piece := range body {
		length += len(piece)
	}
	failed := x.conn.Write(0, func(w http.ResponseWriter) error {
		x.setHead(w.Header(), header, status, length)
		w.WriteHeader(status)
		return nil
	})
	if failed != nil {
		return writeFailed(failed)
	}
	if !hasBody(status) || length == 0 || x.r.Method == http.MethodHead {
		x.status = status
		return nil
	}
	handed, err := x.conn.WriteBody(body, length, lastBegin)
	if handed > 0 {
		x.status, x.bytes = status, int64(handed)
	}
	if err == connection.ErrLate {
		return chatTimedOut
	}
	return writeFailed(x.conn.Failed)
}
