package service

import (
	"bytes"
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
	"example.com/botapi/examples/production/internal/telemetry"
	"github.com/matryer/is"
)

// A failing replica has lost its database.
type failing struct {
	*replica
	handler http.Handler
	log     bytes.Buffer
	lost    error // what listing bots says
	port    int   // of the last connection to the database, which is in its errors
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
	logger := telemetry.NewLogger(&f.log, slog.LevelInfo)
	f.replica = &replica{logger: logger, refusalLog: newRefusalLog(logger)}
	api := botapi.New(botapi.Options{
		Bots: f,
		Keys: botapi.KeyVerifierFunc(func(_ context.Context, key string) (string, error) {
			if key == "known" {
				return "acme", nil
			}
			f.port++
			return "", away(fmt.Sprintf("verifying a key: 127.0.0.1:%d", f.port))
		}),
		Engine: botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] { panic("nobody gets here") }),
		Logger: f.notedLogger(),
	})
	f.handler = f.identified(f.refusalLog.logging(handingBack(api)))
	return f
}

// ask lists bots with a key, for the proxy or directly.
func (f *failing) ask(key, elsewhere string) (status int) {
	r := httptest.NewRequest("GET", "/v1/bots", nil)
	r.Header.Set("Authorization", "Bearer "+key)
	r.Header.Set(tryElsewhere, elsewhere)
	w := httptest.NewRecorder()
	f.handler.ServeHTTP(w, r)
	return w.Code
}

// said are the new lines of the log.
func (f *failing) said(t *testing.T) (lines []string) {
	t.Helper()
	for decoder := json.NewDecoder(&f.log); decoder.More(); {
		var line struct {
			Level, Msg, Of, Error string
			More                  int
		}
		if err := decoder.Decode(&line); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, fmt.Sprintf("%s %s: %s +%d", line.Level, strings.TrimSpace(line.Msg+" "+line.Of), line.Error, line.More))
	}
	return lines
}

func TestRefusalsAreLoggedAtABoundedRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		f := newFailing()
		for range 600 {
			is.Equal(f.ask("stranger", ""), http.StatusServiceUnavailable)
		}
		is.Equal(f.said(t), []string{"ERROR request failed: 503 Away: verifying a key: 127.0.0.1:1 +0"})

		is.Equal(f.ask("known", ""), http.StatusServiceUnavailable) // strangers do not hide it
		f.lost = errors.New("listing bots: no such table")          // nor does it hide another failure
		is.Equal(f.ask("known", ""), http.StatusInternalServerError)
		is.Equal(f.said(t), []string{
			"ERROR request failed: 503 Away: listing bots +0",
			"ERROR request failed: listing bots: no such table +0",
		})

		time.Sleep(telemetry.LogPeriod)
		f.ask("stranger", "")
		f.ask("stranger", "")
		is.Equal(f.said(t), []string{"ERROR request failed: 503 Away: verifying a key: 127.0.0.1:601 +599"})
		f.refusalLog.end()
		f.refusalLog.end()
		is.Equal(f.said(t), []string{"ERROR lines left out request failed: 503 Away +1"}) // nothing is lost, or said twice
	})
}

// TestHandedBackIsNoError has the proxy ask for what it can take elsewhere. What
// no replica can answer stays an error.
func TestHandedBackIsNoError(t *testing.T) {
	is := is.New(t)
	f := newFailing()
	is.Equal(f.ask("known", "425"), http.StatusTooEarly)
	is.Equal(f.ask("known", "425"), http.StatusTooEarly)
	is.Equal(f.ask("known", ""), http.StatusServiceUnavailable) // nobody can take it elsewhere
	f.lost = errors.New("listing bots: no such table")
	is.Equal(f.ask("known", "425"), http.StatusInternalServerError)
	f.refusalLog.end()
	is.Equal(f.said(t), []string{
		"WARN request handed back to the proxy: 503 Away: listing bots +0",
		"ERROR request failed: 503 Away: listing bots +0",
		"ERROR request failed: listing bots: no such table +0",
		"WARN lines left out request handed back to the proxy: 503 Away +1",
	})
}

// TestKindsOfRefusalsAreBounded has errors that no code should have.
func TestKindsOfRefusalsAreBounded(t *testing.T) {
	is := is.New(t)
	f := newFailing()
	for i := range 10 * mostKinds {
		f.lost = fmt.Errorf("%d", i)
		f.ask("known", "")
	}
	is.Equal(len(f.said(t)), mostKinds+1)
	is.Equal(len(f.refusalLog.kinds), mostKinds+1)
	f.refusalLog.end()
	is.Equal(f.said(t), []string{fmt.Sprintf("ERROR lines left out several kinds:  +%d", 9*mostKinds-1)})
}
