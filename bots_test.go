package botapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

func TestAListToTheByte(t *testing.T) {
	is := is.New(t)
	h := New(testOptions(t, t.Output()))
	for range 2 { // four times: as it is made, as it comes again, and as it is kept
		for _, path := range []string{"/v1/bots", "/bots"} {
			got := do(t, h, "GET", path, "")
			is.Equal(got.status, 200)
			is.Equal(got.header.Get("Content-Type"), "application/json")
			is.Equal(got.header.Get("Content-Length"), fmt.Sprint(len(listedBots)))
			is.Equal(got.body, listedBots)

			head := do(t, h, "HEAD", path, "")
			is.Equal(head.status, 200)
			is.Equal(head.header.Get("Content-Type"), "application/json")
			is.Equal(head.header.Get("Content-Length"), fmt.Sprint(len(listedBots)))
			is.Equal(head.body, "")
		}
	}
}

// net/http would drop a body that answers HEAD; middleware may not.
func TestHEADIsAnsweredWithoutABody(t *testing.T) {
	is := is.New(t)
	recorder := httptest.NewRecorder()
	request := httptest.NewRequest("HEAD", "/v1/bots", nil)
	request.Header.Set("Authorization", "Bearer "+testKey)
	New(testOptions(t, t.Output())).ServeHTTP(recorder, request)
	is.Equal(recorder.Code, 200)
	is.Equal(recorder.Body.Len(), 0)
}

// net/http would drop what is written twice, or behind a 304; middleware may not.
func TestAListIsWrittenOnce(t *testing.T) {
	is := is.New(t)
	h := New(testOptions(t, t.Output()))
	ask := func(ifNoneMatch string) *httptest.ResponseRecorder {
		recorder := httptest.NewRecorder()
		request := httptest.NewRequest("GET", "/v1/bots", nil)
		request.Header.Set("Authorization", "Bearer "+testKey)
		request.Header.Set("If-None-Match", ifNoneMatch)
		h.ServeHTTP(recorder, request)
		return recorder
	}
	list := ask("")
	is.Equal(list.Body.String(), listedBots)
	is.Equal(ask(list.Header().Get("ETag")).Body.Len(), 0)
}

// A client that has the list already is told so.
func TestAListThatHasNotChanged(t *testing.T) {
	o := testOptions(t, t.Output())
	server := httptest.NewServer(New(o))
	defer server.Close()
	ask := func(method, ifNoneMatch string) answered {
		return doAt(t, server.Client(), server.URL, method, "/v1/bots", "", "If-None-Match", ifNoneMatch)
	}
	etag := ask("GET", "-").header.Get("ETag")
	for _, c := range []struct {
		name, ifNoneMatch string
		status            int
	}{
		{"its tag", etag, 304},
		{"its tag as a weak one", "W/" + etag, 304},
		{"one of a list", `"a,b" , W/"c",` + etag, 304},
		{"one of a list, as a weak one", `"a", W/` + etag + `, "b"`, 304},
		{"any", "*", 304},
		{"any, with spaces", " * ", 304},
		{"no header", "-", 200},
		{"an empty header", "", 200},
		{"another tag", `"a"`, 200},
		{"the tag without its quotes", strings.Trim(etag, `"`), 200},
		{"the start of a longer tag", strings.TrimSuffix(etag, `"`) + `0"`, 200},
		{"the end of a longer tag", `"0` + strings.TrimPrefix(etag, `"`), 200},
		{"a star in a tag", `"*"`, 200},
	} {
		for _, method := range []string{"GET", "HEAD"} {
			t.Run(c.name+", "+method, func(t *testing.T) {
				is := is.New(t)
				got := ask(method, c.ifNoneMatch)
				is.NoErr(got.err)
				is.Equal(got.status, c.status)
				is.Equal(got.header.Get("ETag"), etag)
				is.Equal(got.header.Get("Cache-Control"), "private, no-cache")
				is.True(got.header.Get("X-Request-Id") != "")
				if c.status == 304 {
					is.Equal(got.body, "")
					is.Equal(got.header.Get("Content-Type"), "")
					is.Equal(got.header.Get("Content-Length"), "")
				} else {
					is.Equal(got.body != "", method == "GET")
				}
			})
		}
	}
	t.Run("without a key", func(t *testing.T) {
		is := is.New(t)
		got := doAt(t, server.Client(), server.URL, "GET", "/v1/bots", "", "If-None-Match", etag, "Authorization", "-")
		is.Equal(got.status, 401)
		is.Equal(got.header.Get("ETag"), "")
	})
	t.Run("which another process lists", func(t *testing.T) {
		is := is.New(t)
		is.Equal(do(t, New(testOptions(t, t.Output())), "GET", "/v1/bots", "", "If-None-Match", etag).status, 304)
	})
	t.Run("until it has", func(t *testing.T) {
		is := is.New(t)
		is.NoErr(o.Bots.(*MemoryStore).Replace(otherBot, echoBot))
		got := ask("GET", etag)
		is.Equal(got.status, 200)
		is.True(strings.HasPrefix(got.body, "["))
		is.True(strings.HasPrefix(got.header.Get("ETag"), `"`)) // a strong one
		is.True(got.header.Get("ETag") != etag)
		is.NoErr(o.Bots.(*MemoryStore).Replace(echoBot, otherBot))
		is.Equal(ask("GET", etag).status, 304)
	})
}

// bots returns options with a store that lists what list returns.
func bots(t testing.TB, list func(context.Context) ([]Bot, error)) Options {
	o := testOptions(t, t.Output())
	o.Bots = &fakeStore{bots: list}
	return o
}

func TestAListWithoutBots(t *testing.T) {
	for _, none := range [][]Bot{nil, {}} {
		is := is.New(t)
		h := New(bots(t, func(context.Context) ([]Bot, error) { return none, nil }))
		for range 2 {
			is.Equal(do(t, h, "GET", "/v1/bots", "").body, "[]")
		}
	}
}

func TestTextThatJSONEscapes(t *testing.T) {
	is := is.New(t)
	listed := []Bot{{UID: "a\xffb", Name: "\"\\/\b\f\n\r\t\x00\x1f\x7f", Description: "<b>&amp;</b>", WelcomeMessage: "\u0085\u2028\u2029[DONE]😀\xf0\x9f\x98"}}
	got := do(t, New(bots(t, func(context.Context) ([]Bot, error) { return listed, nil })), "GET", "/v1/bots", "")
	var decoded []Bot
	is.NoErr(json.Unmarshal([]byte(got.body), &decoded))
	listed[0].UID, listed[0].WelcomeMessage = "a\uFFFDb", "\u0085\u2028\u2029[DONE]😀\uFFFD\uFFFD\uFFFD"
	is.Equal(decoded, listed)
	is.True(!strings.ContainsAny(got.body, "\u0085\u2028\u2029"))
}

// A store may reuse its slice: what was sent of it before must not come again.
func TestAListIsNeverStale(t *testing.T) {
	is := is.New(t)
	reused := []Bot{echoBot, otherBot}
	h := New(bots(t, func(context.Context) ([]Bot, error) { return reused, nil }))
	is.Equal(do(t, h, "GET", "/v1/bots", "").body, listedBots)
	for _, change := range []func(){
		func() { reused[1].Description = "changed in place" },
		func() { reused[0].AvatarURL = "" },
		func() { reused[0], reused[1] = reused[1], reused[0] },
		func() { reused = reused[:1] },
		func() { reused = append(reused, Bot{UID: "new"}) },
		func() { reused = nil },
	} {
		change()
		want, err := json.Marshal(append([]Bot{}, reused...))
		is.NoErr(err)
		for range 3 { // as it is made, as it comes again, and as it is kept
			is.Equal(decodedJSON(t, do(t, h, "GET", "/v1/bots", "").body), decodedJSON(t, string(want)))
		}
	}
}

// What is kept of one list is not what another is encoded into.
func TestAListThatIsKeptIsNotReused(t *testing.T) {
	is := is.New(t)
	var list []Bot
	h := New(bots(t, func(context.Context) ([]Bot, error) { return list, nil }))
	one, other := []Bot{echoBot, otherBot}, []Bot{otherBot}
	for range 20 { // a pool does not return each buffer to the next who asks
		for _, list = range [][]Bot{one, one, one, other} { // the third is what was kept
			do(t, h, "GET", "/v1/bots", "")
		}
		list = one
		is.Equal(do(t, h, "GET", "/v1/bots", "").body, listedBots)
	}
}

// A list that cannot be sent is cut, as every answer is, and so is the answer
// that it has not changed.
func TestAListThatCannotBeSentIsCut(t *testing.T) {
	fail := func() error { return errBroken }
	for name, c := range map[string]struct {
		method, ifNoneMatch string
	}{
		"written":                 {"Write", ""},
		"flushed":                 {"Flush", ""},
		"flushed without changes": {"Flush", "*"},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			r := httptest.NewRequest("GET", "/v1/bots", nil)
			r.Header.Set("Authorization", "Bearer "+testKey)
			r.Header.Set("If-None-Match", c.ifNoneMatch)
			is.True(serveRequest(&faultyWriter{ResponseRecorder: httptest.NewRecorder(), method: c.method, fault: fail}, New(testOptions(t, io.Discard)), r))
		})
	}
}

func TestReplacedBotsAreListed(t *testing.T) {
	is := is.New(t)
	o := testOptions(t, t.Output())
	h := New(o)
	is.Equal(do(t, h, "GET", "/v1/bots", "").body, listedBots)
	is.NoErr(o.Bots.(*MemoryStore).Replace(botWith(func(b *Bot) { b.Name = "Renamed" })))
	is.True(strings.Contains(do(t, h, "GET", "/v1/bots", "").body, `"name":"Renamed"`))
}

func TestTheStoresSliceIsNotChanged(t *testing.T) {
	is := is.New(t)
	backing := []Bot{echoBot, otherBot}
	h := New(bots(t, func(context.Context) ([]Bot, error) { return backing[:1], nil }))
	do(t, h, "GET", "/v1/bots", "")
	is.Equal(backing, []Bot{echoBot, otherBot})
}

// Accounts with lists of their own, all asking at once, each get their own.
func TestEachAccountGetsItsOwnList(t *testing.T) {
	o := bots(t, func(ctx context.Context) ([]Bot, error) {
		return []Bot{{UID: "bot of " + AccountFrom(ctx)}}, nil
	})
	o.Keys = KeyVerifierFunc(func(_ context.Context, key string) (string, error) { return "account-" + key, nil })
	h := New(o)
	var group sync.WaitGroup
	for _, key := range []string{"a", "b", "c"} {
		group.Go(func() {
			for range 50 {
				recorder := httptest.NewRecorder()
				request := httptest.NewRequest("GET", "/v1/bots", nil)
				request.Header.Set("Authorization", "Bearer "+key)
				h.ServeHTTP(recorder, request)
				if !strings.HasPrefix(recorder.Body.String(), `[{"uid":"bot of account-`+key+`"`) {
					t.Errorf("%s got %s", key, recorder.Body)
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
func TestListsThatDifferShareABuffer(t *testing.T) {
	is := is.New(t)
	const rounds = 100
	lists := differingLists()
	body := len(appendBots(nil, lists[0]))
	var l listing
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range rounds {
		l.encode(lists[i%2]).free(nil)
	}
	runtime.ReadMemStats(&after)
	is.True(after.TotalAlloc-before.TotalAlloc < rounds*5/2*uint64(body))
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
// which has no buffer, a client that does not read is felt at once.
func TestAClientThatDoesNotTakeItsList(t *testing.T) {
	list := manyBots(1000)
	size := len(appendBots(nil, list))
	for _, c := range []struct {
		name    string
		timeout time.Duration
		waits   time.Duration // before it reads
		whole   bool
		unless  string // a header
	}{
		{"reads in time", 0, DefaultWriteTimeout - time.Second, true, ""},
		{"does not read", 0, time.Hour, false, ""},
		{"does not read that it has not changed", 0, time.Hour, false, "If-None-Match: *\r\n"},
		{"reads at last, where nothing bounds a write", -1, time.Hour, true, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				o := bots(t, func(context.Context) ([]Bot, error) { return list, nil })
				o.WriteTimeout, o.ChatTimeout = c.timeout, -1
				h, start := New(o), time.Now()
				returned := make(chan time.Duration, 1)
				server := serveInMemory(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					defer func() { returned <- time.Since(start) }()
					h.ServeHTTP(w, r)
				}))
				conn := server.dial()
				defer conn.Close()
				_, err := io.WriteString(conn, lines(listLine, host, c.unless+key, closing))
				is.NoErr(err)
				time.Sleep(c.waits)
				read, err := io.ReadAll(conn)
				took := <-returned
				is.Equal(len(read) > size, c.whole)
				if c.whole {
					is.NoErr(err)
					is.Equal(took, c.waits)
				} else {
					is.True(took >= DefaultWriteTimeout && took <= DefaultWriteTimeout+time.Second)
				}
			})
		})
	}
}

// On HTTP/2 a client opens a window of bytes for each answer. What is larger by
// less than the server's buffer is sent when the handler has returned, if
// nothing flushes it before. No deadline would bound that.
func TestAClientThatDoesNotTakeItsAnswerOnHTTP2(t *testing.T) {
	const window = 16 << 10
	for name, answer := range map[string]func() ([]Bot, error){
		"1000 bots": func() ([]Bot, error) { return manyBots(1000), nil },
		"80 bots":   func() ([]Bot, error) { return manyBots(80), nil },
		"a refusal": func() ([]Bot, error) { return nil, StatusError{Status: 503, Detail: strings.Repeat("x", window)} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				if list, err := answer(); err == nil {
					is.True(len(appendBots(nil, list)) > window)
				}
				o := bots(t, func(context.Context) ([]Bot, error) { return answer() })
				server := serveInMemory(t, New(o), func(s *http.Server) { s.Protocols = clearTextHTTP2() })
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

// The server's own WriteTimeout is meant for answers of one size; a list goes
// on as long as its client reads.
func TestAListOutlivesTheServersWriteTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		server := serveInMemory(t, New(testOptions(t, t.Output())), func(s *http.Server) { s.WriteTimeout = time.Second })
		conn := server.dial()
		defer conn.Close()
		_, err := conn.Write([]byte(lines(listLine, host, key, closing)))
		is.NoErr(err)
		time.Sleep(DefaultWriteTimeout - time.Second)
		read, err := io.ReadAll(conn)
		is.NoErr(err)
		is.True(strings.HasSuffix(string(read), listedBots))
	})
}

// Nor is a body that does not come waited for longer than the server's
// ReadTimeout: a list lifts none that it does not need lifted.
func TestAListWhoseBodyDoesNotCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		server := serveInMemory(t, New(testOptions(t, t.Output())), func(s *http.Server) { s.ReadTimeout = time.Second })
		conn := server.dial()
		defer conn.Close()
		start := time.Now()
		_, err := conn.Write([]byte(lines(listLine, host, key, "Content-Length: 10")))
		is.NoErr(err)
		read, err := io.ReadAll(conn)
		is.NoErr(err)
		is.True(strings.HasSuffix(string(read), listedBots))
		is.Equal(time.Since(start), time.Second)
	})
}

// What host errors become is tested with the other interfaces; a list is
// refused by HEAD in the same way, without a body.
func TestAListThatFails(t *testing.T) {
	for name, list := range map[string]func(context.Context) ([]Bot, error){
		"an error": func(context.Context) ([]Bot, error) {
			return []Bot{echoBot}, errors.New("SELECT * FROM bots: no table")
		},
		"a panic": func(context.Context) ([]Bot, error) { panic("SELECT * FROM bots: no table") },
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			var logged bytes.Buffer
			o := testOptions(t, &logged)
			o.Bots = &fakeStore{bots: list}
			got := do(t, New(o), "GET", "/v1/bots", "", "X-Request-Id", "r-1")
			is.Equal(got.status, 500)
			is.Equal(got.body, `{"detail":"Internal Server Error"}`)
			is.Equal(got.header.Get("ETag"), "")
			is.Equal(got.header.Get("Cache-Control"), "")
			is.True(strings.Contains(logged.String(), "no table"))
			is.True(strings.Contains(logged.String(), "request_id=r-1"))

			head := do(t, New(o), "HEAD", "/v1/bots", "")
			is.Equal(head.status, 500)
			is.Equal(head.body, "")
			is.Equal(head.header.Get("Content-Length"), fmt.Sprint(len(got.body)))
		})
	}
	t.Run("a StatusError", func(t *testing.T) {
		is := is.New(t)
		o := bots(t, func(context.Context) ([]Bot, error) {
			return nil, &StatusError{Status: 503, Detail: "Database down", RetryAfter: time.Second}
		})
		got := do(t, New(o), "GET", "/v1/bots", "")
		is.Equal(got.status, 503)
		is.Equal(got.body, `{"detail":"Database down"}`)
		is.Equal(got.header.Get("Retry-After"), "1")
	})
	t.Run("the end of its client", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			is := is.New(t)
			var logged testLog
			o := testOptions(t, &logged)
			o.Bots = &fakeStore{bots: func(ctx context.Context) ([]Bot, error) {
				<-ctx.Done()
				return nil, fmt.Errorf("asking the database: %w", ctx.Err())
			}}
			server := serveInMemory(t, New(o))
			conn := server.dial()
			_, err := conn.Write([]byte("GET /v1/bots HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer " + testKey + "\r\n\r\n"))
			is.NoErr(err)
			synctest.Wait()
			is.NoErr(conn.Close())
			synctest.Wait()
			is.Equal(logged.String(), "") // that a client leaves is no failure
		})
	})
}

// A client that leaves, or does not read, is no failure of anybody's.
func TestAClientThatDoesNotTakeItsListIsNoFailure(t *testing.T) {
	for name, leaves := range map[string]bool{"it leaves": true, "it does not read": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				var log testLog
				o := testOptions(t, &log)
				o.Bots = &fakeStore{bots: func(context.Context) ([]Bot, error) { return manyBots(1000), nil }}
				conn := serveInMemory(t, New(o)).dial()
				defer conn.Close()
				_, err := io.WriteString(conn, lines(listLine, host, key, closing))
				is.NoErr(err)
				synctest.Wait()
				if leaves {
					conn.Close()
				}
				time.Sleep(time.Hour)
				is.Equal(log.String(), "")
			})
		})
	}
}

// A hidingStore shows less than the MemoryStore that it is made of.
type hidingStore struct{ *MemoryStore }

var _ BotStore = hidingStore{}

func (hidingStore) Bots(context.Context) ([]Bot, error) { return []Bot{otherBot}, nil }

func TestAStoreMadeOfAMemoryStoreIsAskedItself(t *testing.T) {
	is := is.New(t)
	o := testOptions(t, t.Output())
	o.Bots = hidingStore{o.Bots.(*MemoryStore)}
	var listed []Bot
	is.NoErr(json.Unmarshal([]byte(do(t, New(o), "GET", "/v1/bots", "").body), &listed))
	is.Equal(listed, []Bot{otherBot})
}

// Tags may stand in several headers as well as in one.
func TestAListThatHasNotChangedByTheSecondHeader(t *testing.T) {
	is := is.New(t)
	h := New(testOptions(t, t.Output()))
	r := httptest.NewRequest("GET", "/v1/bots", nil)
	r.Header.Set("Authorization", "Bearer "+testKey)
	r.Header["If-None-Match"] = []string{`"other"`, do(t, h, "GET", "/v1/bots", "").header.Get("ETag")}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	is.Equal(w.Code, 304)
}
