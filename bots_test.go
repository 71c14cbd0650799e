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
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"
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

// listOf is a list without a network.
func listOf(h http.Handler, header ...string) *httptest.ResponseRecorder {
	return record(h, newRequest("GET", "/v1/bots", nil, header...))
}

// net/http would drop a body that answers HEAD, or stands behind a 304, and what
// is written twice; middleware may not.
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

// A client that has the list already is told so.
func TestListETag(t *testing.T) {
	o := testOptions(t, t.Output())
	h := New(o)
	etag := listOf(h).Header().Get("ETag")
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
	t.Run("without a key", func(t *testing.T) {
		is := is.New(t)
		got := listOf(h, "If-None-Match", etag, "Authorization", "-")
		is.Equal(got.Code, 401)
		is.Equal(got.Header().Get("ETag"), "")
	})
	t.Run("which another process lists", func(t *testing.T) {
		is.New(t).Equal(listOf(New(testOptions(t, t.Output())), "If-None-Match", etag).Code, 304)
	})
	t.Run("until it has", func(t *testing.T) {
		is := is.New(t)
		is.NoErr(o.Bots.(*MemoryStore).Replace(otherBot, echoBot))
		got := listOf(h, "If-None-Match", etag)
		is.Equal(got.Code, 200)
		is.True(strings.HasPrefix(got.Body.String(), `[{"uid":"2b22c2d2-`))
		is.True(strings.HasPrefix(got.Header().Get("ETag"), `"`)) // a strong one
		is.True(got.Header().Get("ETag") != etag)
		is.NoErr(o.Bots.(*MemoryStore).Replace(echoBot, otherBot))
		is.Equal(listOf(h, "If-None-Match", etag).Code, 304)
	})
}

func TestListEscapes(t *testing.T) {
	is := is.New(t)
	listed := []Bot{{UID: "a\xffb", Name: "\"\\/\b\f\n\r\t\x00\x1f\x7f", Description: "<b>&amp;</b>", WelcomeMessage: "\u0085\u2028\u2029[DONE]😀\xf0\x9f\x98"}}
	got := listOf(New(bots(t, func(context.Context) ([]Bot, error) { return listed, nil }))).Body.String()
	var decoded []Bot
	is.NoErr(json.Unmarshal([]byte(got), &decoded))
	listed[0].UID, listed[0].WelcomeMessage = "a\uFFFDb", "\u0085\u2028\u2029[DONE]😀\uFFFD\uFFFD\uFFFD"
	is.Equal(decoded, listed)
	is.True(!strings.ContainsAny(got, "\u0085\u2028\u2029"))
}

// A store may reuse its slice: what was sent of it before must not come again.
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
		for range 3 { // as it is made, as it comes again, and as it is kept
			is.Equal(listOf(h).Body.String(), string(want))
		}
		is.Equal(append([]Bot{}, reused[:cap(reused)]...), backing) // nor is anything else there changed
	}
}

// What is kept of one list is not what another is encoded into.
func TestListCacheIsNotReused(t *testing.T) {
	is := is.New(t)
	var list []Bot
	h := New(bots(t, func(context.Context) ([]Bot, error) { return list, nil }))
	one, other := []Bot{echoBot, otherBot}, []Bot{otherBot}
	for range 20 { // a pool does not return each buffer to the next who asks
		for _, list = range [][]Bot{one, one, one, other} { // the third is what was kept
			listOf(h)
		}
		list = one
		is.Equal(listOf(h).Body.String(), listedBots)
	}
}

// A list that cannot be sent is cut, as every answer is. A bug of the writer is
// logged; an order to cut is none.
func TestListThatCannotBeSentIsCut(t *testing.T) {
	for name, c := range map[string]struct {
		fault  func() error
		logged string
	}{
		"an error":        {func() error { return errBroken }, ""},
		"an order to cut": {func() error { panic(http.ErrAbortHandler) }, ""},
		"a panic":         {func() error { panic(errBroken) }, `level=ERROR msg="the ResponseWriter panicked"`},
	} {
		for _, method := range []string{"Write", "Flush"} {
			t.Run(method+", "+name, func(t *testing.T) {
				is := is.New(t)
				var log testLog
				w := &faultyWriter{ResponseRecorder: httptest.NewRecorder(), method: method, fault: c.fault}
				is.True(serveRequest(w, New(testOptions(t, &log)), newRequest("GET", "/v1/bots", nil)))
				is.True(strings.Contains(log.String(), c.logged))
				is.Equal(log.String() == "", c.logged == "")
			})
		}
	}
}

// Accounts with lists of their own, all asking at once, each get their own.
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

// differingLists are two lists that differ in their last bot only, and share no
// memory, as those that a database returns.
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

// What such a list costs beside its encoding is memory: it is encoded into one
// buffer over and over. The bound leaves room for buffers that a pool loses.
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
	b.Run("encode-anew", func(b *testing.B) {
		b.ReportAllocs()
		var body []byte
		for b.Loop() {
			body = appendBots(body[:0], lists[0])
		}
	})
}

// Each write of a list has WriteTimeout, as those of a chat have: on a pipe,
// which has no buffer, a client that does not read is felt at once. The server's
// own WriteTimeout is meant for answers of one size; a list goes on as long as its
// client reads. One that leaves, or does not read, is no failure of anybody's.
func TestListClientStalls(t *testing.T) {
	list := manyBots(1000)
	size := len(appendBots(nil, list))
	const hour, timeout = time.Hour, DefaultWriteTimeout
	for name, c := range map[string]struct {
		timeout, reads time.Duration // WriteTimeout, and when the client reads
		leaves         bool          // instead
		header         string
		whole          bool
		closed         time.Duration // by the server; it may take a second more
	}{
		"it reads in time":                               {0, timeout - time.Second, false, closing, true, timeout - time.Second},
		"it does not read":                               {0, hour, false, closing, false, timeout},
		"it does not read that it has not changed":       {0, hour, false, "If-None-Match: *\r\n" + closing, false, timeout},
		"it reads at last, where nothing bounds a write": {-1, hour, false, closing, true, hour},
		"it leaves": {0, time.Second, true, closing, false, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				var log testLog
				o := testOptions(t, &log)
				o.Bots = &fakeStore{bots: func(context.Context) ([]Bot, error) { return list, nil }}
				o.WriteTimeout, o.ChatTimeout = c.timeout, -1
				start := time.Now()
				closed := make(chan time.Duration, 1)
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
				if c.leaves {
					is.NoErr(conn.Close())
				}
				read, err := io.ReadAll(conn)
				is.Equal(len(read) > size, c.whole)
				is.True(err == nil || !c.whole)
				took := <-closed
				is.True(took >= c.closed && took <= c.closed+time.Second)
				is.Equal(log.String(), "")
			})
		})
	}
}

// On HTTP/2 a client opens a window of bytes for each answer. What is larger by
// less than the server's buffer is sent when the handler has returned, if
// nothing flushes it before. The deadline is armed then, too.
func TestListClientStallsOnHTTP2(t *testing.T) {
	const window = maxPart
	little := manyBots(1)
	for len(appendBots(nil, little)) <= window {
		little = manyBots(len(little) + 1)
	}
	for name, answer := range map[string]func() ([]Bot, error){
		"a long list":                        func() ([]Bot, error) { return manyBots(1000), nil },
		"a list a little larger than a part": func() ([]Bot, error) { return little, nil },
		"a refusal":                          func() ([]Bot, error) { return nil, StatusError{Status: 503, Detail: strings.Repeat("x", window)} },
	} {
		for wrapper, middleware := range map[string]func(http.Handler) http.Handler{
			"":                           func(h http.Handler) http.Handler { return h },
			", a writer without a Flush": wrapped,
		} {
			t.Run(name+wrapper, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					is := is.New(t)
					o := bots(t, func(context.Context) ([]Bot, error) { return answer() })
					server := serveInMemory(t, middleware(New(o)), func(s *http.Server) { s.Protocols = clearTextHTTP2() })
					client := server.client()
					transport := client.Transport.(*http.Transport)
					transport.Protocols = clearTextHTTP2()
					transport.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: window}
					request, err := http.NewRequest("GET", "http://memory/v1/bots", nil)
					is.NoErr(err)
					request.Header.Set("Authorization", "Bearer "+testKey)
					response, err := client.Do(request)
					is.NoErr(err)
					defer response.Body.Close()
					time.Sleep(time.Minute)
					read, err := io.ReadAll(response.Body)
					is.True(err != nil) // reset long ago
					is.Equal(len(read), window)
				})
			})
		}
	}
}

// What errors of the host's become is tested with its other parts. The answer to
// HEAD is the same, without its body, and nothing of a list stands in either.
func TestListFails(t *testing.T) {
	is := is.New(t)
	h := New(bots(t, func(context.Context) ([]Bot, error) { return []Bot{echoBot}, errors.New("no table") }))
	got, head := do(t, h, "GET", "/v1/bots", ""), do(t, h, "HEAD", "/v1/bots", "")
	is.Equal(got.body, `{"detail":"Internal Server Error"}`)
	is.Equal(head.body, "")
	for _, got := range []answered{got, head} {
		is.Equal(got.status, 500)
		is.Equal(got.header.Get("ETag")+got.header.Get("Cache-Control"), "")
		is.Equal(got.header.Get("Content-Length"), "34")
	}
}

// A hidingStore shows less than the MemoryStore that it is made of.
type hidingStore struct{ *MemoryStore }

var _ BotStore = hidingStore{}

func (hidingStore) Bots(context.Context) ([]Bot, error) { return []Bot{otherBot}, nil }

func TestListEmbeddedMemoryStore(t *testing.T) {
	is := is.New(t)
	o := testOptions(t, t.Output())
	o.Bots = hidingStore{o.Bots.(*MemoryStore)}
	var listed []Bot
	is.NoErr(json.Unmarshal(listOf(New(o)).Body.Bytes(), &listed))
	is.Equal(listed, []Bot{otherBot})
}
