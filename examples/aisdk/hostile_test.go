package aisdk_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/aisdk"
	"example.com/botapi/examples/resume"
	"github.com/matryer/is"
)

// forProtocols runs a test with a server of answers that outlive their connections, over
// HTTP/1 and HTTP/2.
func forProtocols(t *testing.T, o resume.Options, change func(*botapi.Options), test func(t *testing.T, url string, client *http.Client)) {
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("HTTP/2 %t", http2), func(t *testing.T) {
			h, answers := answersHandler(t, o, change)
			server := httptest.NewUnstartedServer(h)
			server.EnableHTTP2 = http2
			server.StartTLS()
			t.Cleanup(func() {
				server.CloseClientConnections()
				server.Close()
				ended, cancel := context.WithCancel(context.Background())
				cancel()
				is.New(t).NoErr(answers.Close(ended))
			})
			test(t, server.URL, server.Client())
		})
	}
}

// TestCampaign lets clients of two owners send, resume, stop and abandon the same few
// chats in random order, with an engine that fails and panics. An answer that counts as
// complete is complete, and is its owner's.
func TestCampaign(t *testing.T) {
	const words = 40
	var running atomic.Int64
	engine := botapi.ChatEngineFunc(func(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			running.Add(1)
			defer running.Add(-1)
			how := req.Messages[0].Content
			for i := range words {
				switch {
				case how == "panic" && i == words/2:
					panic("a panic of the test")
				case how == "fail" && i == words/2, how == "reject":
					yield("", &botapi.StatusError{Status: 502, Detail: "broken"})
					return
				case ctx.Err() != nil || !yield(botapi.AccountFrom(ctx)+" ", nil):
					return
				}
				time.Sleep(time.Duration(rand.IntN(200)) * time.Microsecond)
			}
		}
	})
	limits := func(o *botapi.Options) { o.MaxConcurrentChats, o.MaxChatsPerAccount = 12, 8 }
	forProtocols(t, resume.Options{Engine: engine}, limits, func(t *testing.T, url string, client *http.Client) {
		var clients sync.WaitGroup
		var complete, statuses [600]atomic.Int64
		for i := range 16 {
			clients.Go(func() {
				owner := []string{"key", "other"}[i%2]
				account := map[string]string{"key": "acme", "other": "other"}[owner]
				random := rand.New(rand.NewPCG(uint64(i), 1))
				for range 20 {
					status, text, err := play(t.Context(), client, url, owner, random)
					switch {
					case status == 0: // disconnected
					case status == 200 && err == nil:
						a := readAnswer(t, text)
						if a.done && a.text != strings.Repeat(account+" ", words) || strings.Contains(text, other(account)) {
							t.Errorf("%s got %+v", account, a)
						}
						complete[status].Add(1)
					case status == 500 || strings.HasPrefix(text, "{"):
						t.Errorf("%d %s", status, text)
					}
					statuses[status].Add(1)
				}
			})
		}
		clients.Wait()
		is := is.New(t)
		is.True(complete[200].Load() > 0)
		is.True(statuses[204].Load() > 0)
		is.True(statuses[400].Load() > 0)
		for running.Load() > 0 { // nobody follows the rest: stop it
			for _, owner := range []string{"key", "other"} {
				for id := range 3 {
					_, _, _ = do(t.Context(), client, "DELETE", fmt.Sprintf("%s/api/chat/%d/stream", url, id), owner, "")
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
}

func other(account string) string {
	return map[string]string{"acme": "other", "other": "acme"}[account]
}

// play sends one random request, and may disconnect; the status is 0 then.
func play(ctx context.Context, client *http.Client, url, owner string, random *rand.Rand) (status int, text string, err error) {
	if random.IntN(3) == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(random.IntN(8000))*time.Microsecond)
		defer cancel()
	}
	id := fmt.Sprint(random.IntN(3))
	stream := url + "/api/chat/" + id + "/stream"
	switch random.IntN(6) {
	case 0, 1:
		how := []string{"say", "say", "fail", "panic", "reject"}[random.IntN(5)]
		status, text, err = do(ctx, client, "POST", url+"/api/chat", owner, chatBody(id, how))
	case 2:
		status, text, err = do(ctx, client, "POST", url+"/api/chat", owner, strings.Replace(chatBody(id, "say"), `"text"`, `"file"`, 1))
	case 3:
		status, text, err = do(ctx, client, "DELETE", stream, owner, "")
	default:
		status, text, err = do(ctx, client, "GET", stream, owner, "")
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return 0, "", err
	}
	return status, text, err
}

func do(ctx context.Context, client *http.Client, method, url, key, body string) (status int, text string, err error) {
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Authorization", "Bearer "+key)
	response, err := client.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	all, err := io.ReadAll(response.Body)
	return response.StatusCode, string(all), err
}

// A body that is too large is rejected before it has been read, also without a length
// and without a key.
func TestHugeBodies(t *testing.T) {
	forProtocols(t, resume.Options{Engine: says(nil, "Hi")}, func(*botapi.Options) {}, func(t *testing.T, url string, client *http.Client) {
		for key, want := range map[string]int{"key": 413, "nonsense": 401} {
			is := is.New(t)
			r, err := http.NewRequestWithContext(t.Context(), "POST", url+"/api/chat", io.LimitReader(zeros{}, 3<<20))
			is.NoErr(err)
			r.Header.Set("Authorization", "Bearer "+key)
			response, err := client.Do(r)
			is.NoErr(err)
			text, err := io.ReadAll(response.Body)
			is.NoErr(err)
			response.Body.Close()
			is.Equal(response.StatusCode, want)
			is.True(len(text) > 0 && text[0] != '{')
		}
	})
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// A page that does not read delays neither the model nor another page of its chat.
func TestSlowReader(t *testing.T) {
	long := make([]string, 2_000)
	for i := range long {
		long[i] = strings.Repeat("a", 300)
	}
	change := func(o *botapi.Options) { o.WriteTimeout = time.Second }
	forProtocols(t, resume.Options{Engine: says(nil, long...)}, change, func(t *testing.T, url string, client *http.Client) {
		is := is.New(t)
		r := request(t, "POST", url+"/api/chat", chatBody("c", "Hi"))
		silent, err := client.Do(r) // its body is not read
		is.NoErr(err)
		defer silent.Body.Close()
		is.Equal(silent.StatusCode, 200)
		status, text, err := do(t.Context(), client, "GET", url+"/api/chat/c/stream", "key", "")
		is.NoErr(err)
		is.Equal(status, 200)
		a := readAnswer(t, text)
		is.Equal(len(a.text), 2_000*300)
		is.True(a.done)
	})
}

// A pipes is a listener of connections in memory.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.conns <- server
	return client
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p pipes) Close() error   { close(p.closed); return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{Name: "memory"} }

// Requests that announce a body and never send it hold no slot: a page of another owner
// gets its answer, and so do they, when their time is over.
func TestBodiesThatNeverCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		h, answers := answersHandler(t, resume.Options{Engine: says(nil, "Hi")}, func(o *botapi.Options) { o.MaxConcurrentChats = 2 })
		listener := pipes{make(chan net.Conn), make(chan struct{})}
		server := &http.Server{Handler: h}
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = server.Serve(listener)
		}()
		client := &http.Client{Transport: &http.Transport{
			DialContext:       func(context.Context, string, string) (net.Conn, error) { return listener.dial(), nil },
			DisableKeepAlives: true,
		}}
		for _, key := range []string{"key", "other"} {
			status, _, err := do(t.Context(), client, "POST", "http://memory/api/chat", key, chatBody("c", "Hi"))
			is.NoErr(err)
			is.Equal(status, 200)
		}
		var silent [4]net.Conn
		for i := range silent {
			silent[i] = listener.dial()
			_, err := fmt.Fprintf(silent[i], "GET /api/chat/c/stream HTTP/1.1\r\nHost: memory\r\nAuthorization: Bearer key\r\nContent-Length: 10\r\n\r\n")
			is.NoErr(err)
		}
		synctest.Wait()
		status, text, err := do(t.Context(), client, "GET", "http://memory/api/chat/c/stream", "other", "")
		is.NoErr(err)
		is.Equal([]any{status, readAnswer(t, text).text}, []any{200, "Hi"})
		for _, conn := range silent {
			response, err := http.ReadResponse(bufio.NewReader(conn), nil)
			is.NoErr(err)
			_, err = io.Copy(io.Discard, response.Body)
			is.NoErr(err)
			is.True(response.Close)
			is.NoErr(conn.Close())
		}
		is.NoErr(server.Shutdown(t.Context()))
		<-served
		is.NoErr(answers.Close(t.Context()))
	})
}

// A body takes little memory before its chat has a slot: it is read up to its first mistake,
// and nothing is made of what is for the engine. (What is counted of a body that is read to
// its end is for the most part garbage already.)
func TestMemoryOfBody(t *testing.T) {
	const size = 1<<20 - 200
	fill := func(start, filling, end string) string {
		return start + strings.Repeat(filling, size/len(filling)) + end
	}
	for name, c := range map[string]struct {
		body   string
		status int
		most   float64 // times the body
	}{
		"objects that are no messages":  {fill(`{"messages":[`, `{"":1},`, `{}]}`), 400, 1.5},
		"numbers that are no messages":  {fill(`{"messages":[`, `1,`, `1]}`), 400, 1.5},
		"parts without a type":          {fill(`{"messages":[{"role":"user","parts":[`, `{},`, `{}]}]}`), 400, 1.5},
		"parts of the assistant only":   {fill(`{"messages":[{"parts":[`, `{"type":"x"},`, `{"type":"x"}],"role":"user"}]}`), 400, 9},
		"parts that a user cannot have": {fill(`{"messages":[{"role":"user","parts":[`, `{"type":"x"},`, `{"type":"x"}]}]}`), 400, 1.5},
		"empty messages":                {fill(`{"messages":[`, `{"role":"assistant","parts":[]},`, `{"role":"assistant","parts":[]}]}`), 400, 9},
		"small messages":                {fill(`{"messages":[`, `{"role":"user","parts":[]},`, `{"role":"user","parts":[]}]}`), 404, 16},
		"a message of small parts":      {fill(`{"messages":[{"role":"user","parts":[`, `{"type":"text","text":"a"},`, `{"type":"text","text":"a"}]}]}`), 404, 16},
		"values for the engine":         {fill(strings.TrimSuffix(ask, "}")+`,"x":[`, `{"":1},`, `1]}`), 404, 1.5},
		"fields for the engine":         {fill(strings.TrimSuffix(ask, "}"), `,"":1`, `}`), 404, 1.5},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			h := newHandler(t, says(nil, "Hi"), aisdk.Options{})
			var before, after runtime.MemStats
			for range 2 { // at first, other memory is allocated, too
				w := httptest.NewRecorder()
				r := request(t, "POST", "/api/chat?bot=nobody", c.body)
				runtime.ReadMemStats(&before)
				h.ServeHTTP(w, r)
				runtime.ReadMemStats(&after)
				is.Equal(w.Code, c.status)
			}
			is.True(float64(after.TotalAlloc-before.TotalAlloc) < c.most*(1<<20))
		})
	}
}
