package botapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"

	"example.com/botapi/internal/connection"
)

const listedBots = `[{"uid":"11111111-1111-4111-8111-111111111111","slug":"echo","name":"Echo","description":"Says what it hears",` +
	`"welcome_message":"Hello!\nSay something.","model":"echo-1","avatar_url":"https://bots.example.com/echo.png"},` +
	`{"uid":"2b22c2d2-2222-4222-8222-22222222abcd","slug":"Other","name":"Other","description":"",` +
	`"welcome_message":"","model":"echo-1","avatar_url":null}]`

// bots returns options with a store that lists what list returns.
func bots(t testing.TB, list func(context.Context) ([]Bot, error)) Options {
	o := testOptions(t, t.Output())
	o.Bots = &fakeStore{bots: list}
	return o
}

// listOf requests the list without a network.
func listOf(h http.Handler, header ...string) *httptest.ResponseRecorder {
	return record(h, newRequest("GET", "/v1/bots", nil, header...))
}

// A response to HEAD and a 304 have no body, and a list is written once. net/http would
// drop the excess; middleware may not.
func TestListIsOneWrite(t *testing.T) {
	for _, c := range []struct {
		method, ifNoneMatch string
		body                string
	}{
		{"GET", "-", listedBots}, {"HEAD", "-", ""}, {"GET", "*", ""}, {"HEAD", "*", ""},
	} {
		is := is.New(t)
		got := record(New(testOptions(t, t.Output())), newRequest(c.method, "/v1/bots", nil, "If-None-Match", c.ifNoneMatch))
		is.Equal(got.Body.String(), c.body)
		is.Equal(got.Flushed, c.body != "")
	}
}

// A client that already has the list gets a 304, from any replica.
func TestListETag(t *testing.T) {
	o := testOptions(t, t.Output())
	h := New(o)
	etag := listOf(New(testOptions(t, t.Output()))).Header().Get("ETag")
	for status, headers := range map[int][][]string{
		304: {
			{etag}, {"W/" + etag}, {`"a,b" , W/"c",` + etag}, {`"a", W/` + etag + `, "b"`}, {`"other"`, etag}, {"*"}, {" * "},
		},
		200: {
			nil, {""}, {`"a"`}, {strings.Trim(etag, `"`)}, {strings.TrimSuffix(etag, `"`) + `0"`}, {`"0` + strings.TrimPrefix(etag, `"`)}, {`"*"`},
		},
	} {
		for _, header := range headers {
			for _, method := range []string{"GET", "HEAD"} {
				t.Run(fmt.Sprintf("%s, If-None-Match: %s", method, header), func(t *testing.T) {
					is := is.New(t)
					r := newRequest(method, "/v1/bots", nil)
					r.Header["If-None-Match"] = header
					got := record(h, r)
					is.Equal(got.Code, status)
					is.Equal(got.Header().Get("ETag"), etag)
					is.Equal(got.Header().Get("Cache-Control"), "private, no-cache")
					is.Equal(got.Header().Get("Content-Type") != "", status == 200)
					is.Equal(got.Header().Get("Content-Length") != "", status == 200)
				})
			}
		}
	}
	is := is.New(t)
	unauthorized := listOf(h, "If-None-Match", etag, "Authorization", "-")
	is.Equal(unauthorized.Code, 401)
	is.Equal(unauthorized.Header().Get("ETag"), "")
	is.NoErr(o.Bots.(*MemoryStore).Replace(otherBot, echoBot))
	changed := listOf(h, "If-None-Match", etag)
	is.Equal(changed.Code, 200)
	is.True(strings.HasPrefix(changed.Header().Get("ETag"), `"`)) // a strong one
	is.True(changed.Header().Get("ETag") != etag)
	is.NoErr(o.Bots.(*MemoryStore).Replace(echoBot, otherBot))
	is.Equal(listOf(h, "If-None-Match", etag).Code, 304)
}

// A store may reuse its slice: the response must not be an earlier content of it.
func TestListIsNeverStale(t *testing.T) {
	is := is.New(t)
	reused := []Bot{echoBot, otherBot}
	h := New(bots(t, func(context.Context) ([]Bot, error) { return reused, nil }))
	for _, change := range []func(){
		func() {},
		func() { reused[1].Description = "changed in place" },
		func() { reused[0].AvatarURL = "" },
		func() { reused[0], reused[1] = reused[1], reused[0] },
		func() { reused = reused[:1] },
		func() { reused = append(reused, Bot{UID: "new"}) },
		func() { reused = reused[:0] },
		func() { reused = nil },
	} {
		change()
		backing := append([]Bot{}, reused[:cap(reused)]...)
		want, err := json.Marshal(append([]Bot{}, reused...))
		is.NoErr(err)
		for range 3 { // encoded, encoded again and cached, from the cache
			is.Equal(listOf(h).Body.String(), string(want))
		}
		is.Equal(append([]Bot{}, reused[:cap(reused)]...), backing) // the handler modifies nothing
	}
}

// A list is never encoded into the buffer of a cached one.
func TestListCacheIsNotReused(t *testing.T) {
	is := is.New(t)
	var list []Bot
	h := New(bots(t, func(context.Context) ([]Bot, error) { return list, nil }))
	one, other := []Bot{echoBot, otherBot}, []Bot{otherBot}
	for range 20 { // a pool does not always return what was put into it last
		for _, list = range [][]Bot{one, one, one, other} { // the third is from the cache
			listOf(h)
		}
		list = one
		is.Equal(listOf(h).Body.String(), listedBots)
	}
}

// A list that cannot be sent is aborted, as every response is, and reported with the reason. A
// panic of the writer is logged, unless it is http.ErrAbortHandler.
func TestListThatCannotBeSentIsAborted(t *testing.T) {
	for _, c := range []struct {
		name   string
		fault  func() error
		logged bool
	}{
		{"fails", faultFails, false},
		{"panics", faultPanics, true},
		{"aborts", func() error { panic(http.ErrAbortHandler) }, false},
	} {
		for _, method := range []string{"Write", "Flush"} {
			t.Run(method+" "+c.name, func(t *testing.T) {
				is := is.New(t)
				var log testLog
				var reports []RequestReport
				o := testOptions(t, &log)
				o.OnRequest = func(_ context.Context, r RequestReport) { reports = append(reports, r) }
				is.True(serveRequest(faulty(method, 0, c.fault), New(o), newRequest("GET", "/v1/bots", nil)))
				is.Equal(len(reports), 1)
				is.True(errors.Is(reports[0].Err, ErrClientLeft))
				is.Equal(reports[0].Status, 0)
				is.Equal(strings.Contains(log.String(), `level=ERROR msg="the ResponseWriter panicked"`), c.logged)
				is.Equal(log.String() != "", c.logged)
			})
		}
	}
}

// If each account has its own list, concurrent requests get the right ones.
func TestListPerAccount(t *testing.T) {
	o := bots(t, func(ctx context.Context) ([]Bot, error) {
		return []Bot{{UID: "bot of " + AccountFrom(ctx)}}, nil
	})
	o.Keys = KeyVerifierFunc(func(_ context.Context, key string) (string, error) { return "account-" + key, nil })
	h := New(o)
	var group sync.WaitGroup
	for _, key := range []string{"a", "b", "c"} {
		group.Go(func() {
			for range 50 {
				got := listOf(h, "Authorization", "Bearer "+key).Body.String()
				if !strings.HasPrefix(got, `[{"uid":"bot of account-`+key+`"`) {
					t.Errorf("%s got %s", key, got)
				}
			}
		})
	}
	group.Wait()
}

// A bot that requests cannot reach is a warning, once for each handler.
func TestListWarnsOfUnreachableBots(t *testing.T) {
	const warning = `level=WARN msg="the store lists a bot that requests cannot reach" request_id=1 error=`
	const invalid = "is empty, not UTF-8, or contains white space or control characters"
	for _, c := range []struct {
		name  string
		lists [][]Bot
		log   string
	}{
		{"good", [][]Bot{{echoBot, otherBot}, {otherBot}, nil}, ""},
		{"a uid that is a slug", [][]Bot{{{UID: "a", Slug: "b"}, {UID: "b", Slug: "a"}}}, ""},
		{"white space", [][]Bot{{echoBot, {UID: "1", Slug: "two words"}}}, `bot 1: slug \"two words\" ` + invalid},
		{"a control character", [][]Bot{{{UID: "a\x00", Slug: "a"}}}, `bot 0: uid \"a\\x00\" ` + invalid},
		{"not UTF-8", [][]Bot{{{UID: "a\xff", Slug: "a"}}}, `bot 0: uid \"a\\xff\" ` + invalid},
		{"empty", [][]Bot{{{UID: "1"}, {UID: "2"}}}, `bot 0: slug \"\" ` + invalid},
		{"a uid twice", [][]Bot{{{UID: "1", Slug: "a"}, {UID: "1", Slug: "b"}}}, `bot 1: uid \"1\" belongs to an earlier bot, too`},
		{"a slug twice", [][]Bot{{{UID: "1", Slug: "a"}, {UID: "2", Slug: "a"}}}, `bot 1: slug \"a\" belongs to an earlier bot, too`},
		{"a later list", [][]Bot{{echoBot}, {echoBot, echoBot}, {otherBot, otherBot}}, `bot 1: uid \"` + echoBot.UID + `\" belongs to an earlier bot, too`},
		{"long", [][]Bot{{{UID: "1", Slug: strings.Repeat(" ", 500)}}}, `bot 0: slug \"` + strings.Repeat(" ", 80) + `\" ` + invalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			is := is.New(t)
			var log testLog
			o := testOptions(t, &log)
			var list []Bot
			o.Bots = &fakeStore{bots: func(context.Context) ([]Bot, error) { return list, nil }}
			h := New(o)
			for _, list = range slices.Repeat(c.lists, 2) {
				for range 4 {
					is.Equal(listOf(h, "X-Request-Id", "1").Code, 200)
				}
			}
			if c.log == "" {
				is.Equal(log.String(), "")
				return
			}
			is.Equal(strings.Count(log.String(), "\n"), 1)
			is.True(strings.Contains(log.String(), warning+`"`+c.log+`"`))
		})
	}
}

// The first list is checked immediately, so that one request shows a mistake. Lists that
// alternate, as those of several accounts do, are not checked each time.
func TestFirstListIsChecked(t *testing.T) {
	is := is.New(t)
	var log testLog
	o := testOptions(t, &log)
	lists, next := [][]Bot{{{UID: "1", Slug: "first list"}}, {{UID: "1", Slug: "second list"}}, {echoBot}}, 0
	o.Bots = &fakeStore{bots: func(context.Context) ([]Bot, error) {
		next++
		return lists[(next-1)%len(lists)], nil
	}}
	h := New(o)
	is.Equal(listOf(h).Code, 200)
	is.True(strings.Contains(log.String(), "first list"))
	for range 10 {
		is.Equal(listOf(h).Code, 200)
	}
	is.Equal(strings.Count(log.String(), "WARN"), 1)
}

// differingLists returns two lists that differ only in their last bot, and share no
// memory, as lists from a database.
func differingLists() [2][]Bot {
	lists := [2][]Bot{manyBots(1000), manyBots(1000)}
	for _, list := range lists {
		for i := range list {
			list[i].Description = strings.Clone(list[i].Description)
		}
	}
	lists[1][999].Name = "Ohce"
	return lists
}

// A list that changes all the time is encoded into the same buffer again and again. The
// bound leaves room for buffers that the pool loses.
func TestListBufferIsReused(t *testing.T) {
	const rounds = 100
	lists, round := differingLists(), 0
	h := New(bots(t, func(context.Context) ([]Bot, error) {
		round++
		return lists[round%2], nil
	}))
	size := listOf(h).Body.Len()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range rounds {
		h.ServeHTTP(&discarded{header: http.Header{}}, newRequest("GET", "/v1/bots", nil))
	}
	runtime.ReadMemStats(&after)
	is.New(t).True(after.TotalAlloc-before.TotalAlloc < rounds*5/2*uint64(size))
}

func BenchmarkListsThatDiffer(b *testing.B) {
	lists := differingLists()
	for name, of := range map[string]int{"alternating": 2, "the same": 1} {
		b.Run(name, func(b *testing.B) {
			i := 0
			h := New(bots(b, func(context.Context) ([]Bot, error) {
				i++
				return lists[i%of], nil
			}))
			benchmarkRequest(b, h, "GET", "/v1/bots", "")
		})
	}
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		var body []byte
		for b.Loop() {
			body = appendBots(body[:0], lists[0])
		}
	})
}

// Each write of a list has its own WriteTimeout, as in a chat. A list outlives the server's
// WriteTimeout as long as its client reads. A client that disconnects or stops reading is
// not logged. The connection is a pipe, which has no buffer: a client that does not read
// blocks the write immediately.
func TestListClientStalls(t *testing.T) {
	list := manyBots(1000)
	size := len(appendBots(nil, list))
	const hour, timeout = time.Hour, DefaultWriteTimeout
	for _, c := range []struct {
		name           string
		timeout, reads time.Duration // WriteTimeout, and when the client reads
		header         string
		complete       bool
		closed         time.Duration // when the server closes the connection
	}{
		{"reads in time", 0, timeout - time.Second, closing, true, timeout - time.Second},
		{"does not read", 0, hour, closing, false, timeout + time.Second}, // the actual limit can be so much longer
		{"does not read a 304", 0, hour, "If-None-Match: *\r\n" + closing, false, timeout + time.Second},
		{"reads late, without a limit", -1, hour, closing, true, hour},
		{"disconnects", 0, time.Second, closing, false, time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				var log testLog
				o := testOptions(t, &log)
				o.Bots = &fakeStore{bots: func(context.Context) ([]Bot, error) { return list, nil }}
				o.WriteTimeout, o.ChatTimeout = c.timeout, -1
				start, closed := time.Now(), make(chan time.Duration, 1)
				conn := serveInMemory(t, New(o), func(s *http.Server) {
					s.WriteTimeout = time.Second
					s.ConnState = func(_ net.Conn, state http.ConnState) {
						if state == http.StateClosed {
							closed <- time.Since(start)
						}
					}
				}).dial()
				defer conn.Close()
				_, err := io.WriteString(conn, lines(listLine, host, key, c.header))
				is.NoErr(err)
				time.Sleep(c.reads)
				if c.name == "disconnects" {
					is.NoErr(conn.Close())
				}
				read, err := io.ReadAll(conn)
				is.Equal(len(read) > size, c.complete)
				if c.complete {
					is.NoErr(err)
				}
				is.Equal(<-closed, c.closed)
				is.Equal(log.String(), "")
			})
		})
	}
}

// On HTTP/2, each response has a flow-control window. A response that is larger than it, by
// less than the server's buffer, is written after the handler has returned, unless it is
// flushed before. That write must have a deadline, too.
func TestListClientStallsOnHTTP2(t *testing.T) {
	const window = connection.MaxChunk
	little := manyBots(1)
	for len(appendBots(nil, little)) <= window {
		little = manyBots(len(little) + 1)
	}
	for name, list := range map[string]func() ([]Bot, error){
		"a long list":                         func() ([]Bot, error) { return manyBots(1000), nil },
		"a list a little larger than a chunk": func() ([]Bot, error) { return little, nil },
		"an error response":                   func() ([]Bot, error) { return nil, StatusError{Status: 503, Detail: strings.Repeat("x", window)} },
	} {
		for writer, mount := range map[string]func(http.Handler) http.Handler{"": way{}.mount, ", wrapped": wrapped} {
			t.Run(name+writer, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					is := is.New(t)
					h := New(bots(t, func(context.Context) ([]Bot, error) { return list() }))
					client := way{http2: true, middleware: mount}.serve(t, h).client()
					client.Transport.(*http.Transport).HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: window}
					r, err := http.NewRequest("GET", "http://memory/v1/bots", nil)
					is.NoErr(err)
					setHeader(r, nil)
					res, err := client.Do(r)
					is.NoErr(err)
					defer res.Body.Close()
					time.Sleep(time.Minute)
					read, err := io.ReadAll(res.Body)
					is.True(err != nil) // reset long ago
					is.Equal(len(read), window)
				})
			})
		}
	}
}

// TestErrorResponse has the errors of a store. The response to HEAD is the same without its
// body, and neither has a header of a list.
func TestListFails(t *testing.T) {
	h := New(bots(t, func(context.Context) ([]Bot, error) { return []Bot{echoBot}, errors.New("no table") }))
	for method, body := range map[string]string{"GET": `{"detail":"Internal Server Error"}`, "HEAD": ""} {
		is := is.New(t)
		got := do(t, h, method, "/v1/bots", "")
		is.Equal(got.status, 500)
		is.Equal(got.body, body)
		is.Equal(got.header.Get("Content-Length"), "34")
		is.Equal(got.header.Get("ETag")+got.header.Get("Cache-Control"), "")
	}
}

// A hidingStore lists less than the MemoryStore that it embeds.
type hidingStore struct{ *MemoryStore }

func (hidingStore) Bots(context.Context) ([]Bot, error) { return nil, nil }

func TestListEmbeddedMemoryStore(t *testing.T) {
	o := testOptions(t, t.Output())
	o.Bots = hidingStore{o.Bots.(*MemoryStore)}
	is.New(t).Equal(listOf(New(o)).Body.String(), "[]")
}
