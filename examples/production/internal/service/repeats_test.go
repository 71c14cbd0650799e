package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/production/internal/logtest"
	"example.com/botapi/examples/production/internal/telemetry"
	"github.com/matryer/is"
	"go.opentelemetry.io/otel/metric/noop"
)

// A failing replica has lost its database.
type failing struct {
	*replica
	handler http.Handler
	log     logtest.Log // a timer writes to it
	read    int         // bytes of it
	lost    error       // what listing bots says
	port    int         // of the last connection to the database, which is in its errors
}

func (f *failing) Bots(context.Context) ([]botapi.Bot, error) { return nil, f.lost }

func (f *failing) BotByUID(context.Context, string) (botapi.Bot, error) {
	return botapi.Bot{}, f.lost
}

func (f *failing) BotBySlug(context.Context, string) (botapi.Bot, error) {
	return botapi.Bot{}, f.lost
}

func away(doing string) error {
	return &botapi.StatusError{Status: http.StatusServiceUnavailable, Detail: "Away", Err: errors.New(doing)}
}

func newFailing() *failing {
	f := &failing{lost: away("listing bots")}
	logger := telemetry.NewLogger(&f.log, slog.LevelInfo, ClientFrom)
	f.replica = &replica{logger: logger, errorResponses: noop.Int64Counter{}, failures: newThrottle()}
	api := botapi.New(botapi.Options{
		Bots: f,
		Keys: botapi.KeyVerifierFunc(func(_ context.Context, key string) (string, error) {
			if key == "known" {
				return "acme", nil
			}
			f.port++
			return "", away(fmt.Sprintf("verifying a key: 127.0.0.1:%d", f.port))
		}),
		Engine: botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] { panic("not reached") }),
		Logger: f.notedLogger(), OnRequest: f.onRequest,
	})
	f.handler = f.identified(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		api.ServeHTTP(&head{w, w, turnOf(req.Context()), req.Header.Get(tryElsewhere) == "425"}, req)
	}))
	return f
}

// ask lists bots with a key, through the proxy if elsewhere is set.
func (f *failing) ask(key, elsewhere string) (status int) {
	r := httptest.NewRequest("GET", "/v1/bots", nil)
	r.Header.Set("Authorization", "Bearer "+key)
	r.Header.Set(tryElsewhere, elsewhere)
	w := httptest.NewRecorder()
	f.handler.ServeHTTP(w, r)
	return w.Code
}

// said returns the new lines of the log.
func (f *failing) said(t *testing.T) (lines []string) {
	t.Helper()
	text := f.log.String()[f.read:]
	f.read += len(text)
	for decoder := json.NewDecoder(strings.NewReader(text)); decoder.More(); {
		var line struct {
			Level, Msg, Error string
			Times             int
		}
		if err := decoder.Decode(&line); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, fmt.Sprintf("%s %s: %s ×%d", line.Level, line.Msg, line.Error, line.Times))
	}
	return lines
}

func TestFailuresAreLoggedAtABoundedRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		f := newFailing()
		for range 600 {
			is.Equal(f.ask("stranger", ""), http.StatusServiceUnavailable)
		}
		is.Equal(f.said(t), []string{"ERROR request failed: 503 Away: verifying a key: 127.0.0.1:1 ×1"})

		is.Equal(f.ask("known", ""), http.StatusServiceUnavailable) // requests without a valid key do not hide it
		f.lost = errors.New("listing bots: no such table")          // nor does it hide another failure
		is.Equal(f.ask("known", ""), http.StatusInternalServerError)
		is.Equal(f.said(t), []string{
			"ERROR request failed: 503 Away: listing bots ×1",
			"ERROR request failed: listing bots: no such table ×1",
		})

		time.Sleep(telemetry.LogPeriod)
		synctest.Wait()
		is.Equal(f.said(t), []string{"ERROR request failed: 503 Away: verifying a key: 127.0.0.1:600 ×599"})
		f.ask("known", "") // the last one was a period ago
		is.Equal(f.said(t), []string{"ERROR request failed: listing bots: no such table ×1"})
		f.ask("stranger", "")
		f.ask("stranger", "")
		is.Equal(f.said(t), nil)
		f.repeats.Flush()
		f.repeats.Flush()
		is.Equal(f.said(t), []string{"ERROR request failed: 503 Away: verifying a key: 127.0.0.1:602 ×2"}) // nothing is lost or logged twice
	})
}

// TestHandedBackIsNoError has the proxy offer to retry requests on another
// replica. What no replica can answer remains an error.
func TestHandedBackIsNoError(t *testing.T) {
	is := is.New(t)
	f := newFailing()
	is.Equal(f.ask("known", "425"), http.StatusTooEarly)
	is.Equal(f.ask("known", "425"), http.StatusTooEarly)
	is.Equal(f.ask("known", ""), http.StatusServiceUnavailable) // nobody can retry it
	f.lost = errors.New("listing bots: no such table")
	is.Equal(f.ask("known", "425"), http.StatusInternalServerError)
	f.lost = &botapi.StatusError{Status: http.StatusServiceUnavailable, Detail: "Full", RetryAfter: time.Second}
	is.Equal(f.ask("known", "425"), http.StatusTooEarly)
	f.repeats.Flush()
	is.Equal(f.said(t), []string{
		"WARN request handed back to the proxy: 503 Away: listing bots ×1",
		"ERROR request failed: 503 Away: listing bots ×1",
		"ERROR request failed: listing bots: no such table ×1",
		"WARN request handed back to the proxy: 503 Full ×1",
		"WARN request handed back to the proxy: 503 Away: listing bots ×1",
	})
}

// TestLinesNameTheAccount has requests that start no chat, with a valid key and without.
func TestLinesNameTheAccount(t *testing.T) {
	is := is.New(t)
	f := newFailing()
	f.ask("known", "")
	is.Equal(strings.Count(f.log.String(), `"account":"acme"`), 1)
	f.ask("stranger", "")
	is.Equal(strings.Count(f.log.String(), `"account":""`), 1)
}
