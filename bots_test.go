package botapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
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
	for range 2 { // as it is made, and as it is remembered
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
		is.Equal(decodedJSON(t, do(t, h, "GET", "/v1/bots", "").body), decodedJSON(t, string(want)))
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
			var logged lockedBuffer
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
