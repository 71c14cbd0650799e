package usage_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/production/internal/usage"
	"github.com/matryer/is"
)

// store is a Store whose responses a test decides. It only simulates failures of
// a database; the tests of package postgres use a real one.
type store func(ctx context.Context, records []*usage.Record) error

var _ usage.Store = store(nil)

func (s store) InsertUsage(ctx context.Context, records []*usage.Record) error {
	return s(ctx, records)
}

// kept is a store that accepts everything.
type kept struct {
	mu     sync.Mutex
	stored [][]*usage.Record
}

func (k *kept) InsertUsage(_ context.Context, records []*usage.Record) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stored = append(k.stored, records)
	return nil
}

func (k *kept) batches() [][]*usage.Record {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.stored)
}

func (k *kept) records() []*usage.Record { return slices.Concat(k.batches()...) }

func (k *kept) requests() (ids []string) {
	for _, r := range k.records() {
		ids = append(ids, r.RequestID)
	}
	return ids
}

func report(id string) botapi.ChatReport {
	return botapi.ChatReport{RequestID: id, Account: "acme", UserID: "42", Status: http.StatusOK}
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

var errAway = &botapi.StatusError{Status: http.StatusServiceUnavailable, Err: errors.New("connection refused")}

func TestChatsAreStoredInBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		kept := new(kept)
		w := usage.NewWriter(kept, discard())
		defer w.Close(t.Context())

		for i := range 3 {
			w.Add(usage.NewRejection(report(fmt.Sprint(i)), "full", 1))
		}
		synctest.Wait()
		is.Equal(len(kept.batches()), 0) // more may come

		time.Sleep(usage.FlushInterval)
		synctest.Wait()
		is.Equal(len(kept.batches()), 1)
		is.Equal(kept.requests(), []string{"0", "1", "2"})
	})
}

func TestCleanShutdownLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		kept := new(kept)
		w := usage.NewWriter(kept, discard())
		for i := range 1234 {
			w.Add(usage.NewRejection(report(fmt.Sprint(i)), "full", 1))
		}
		w.Close(t.Context())
		w.Close(t.Context()) // again
		is.Equal(len(kept.requests()), 1234)
		is.True(len(kept.batches()) < 5)
	})
}

func TestStoreIsUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		kept := new(kept)
		tries := 0
		w := usage.NewWriter(store(func(ctx context.Context, records []*usage.Record) error {
			if tries++; tries < 5 {
				return errAway
			}
			return kept.InsertUsage(ctx, records)
		}), discard())
		w.Add(usage.NewRejection(report("r1"), "full", 1))
		w.Close(t.Context()) // returns once the store is back
		is.Equal(tries, 5)
		is.Equal(kept.requests(), []string{"r1"})
	})
}

func TestRecordsThatCannotBeStoredAreInTheLog(t *testing.T) {
	for name, c := range map[string]struct {
		failure error
		reason  string
	}{
		"the store is unavailable until the end": {errAway, "connection refused"},
		"the store rejects them":                 {errors.New("no such column"), "no such column"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				var log bytes.Buffer
				w := usage.NewWriter(store(func(context.Context, []*usage.Record) error { return c.failure }),
					slog.New(slog.NewJSONHandler(&log, nil)))
				w.Add(usage.NewRejection(report("r1"), "full", 1))
				grace, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				w.Close(grace)
				w.Add(usage.NewRejection(report("r2"), "full", 1)) // a chat that lasted longer than the grace time

				lines := spilled(log.String())
				is.Equal(len(lines), 2)
				is.True(strings.Contains(lines[0], c.reason))
				is.True(strings.Contains(lines[0], `"request_id":"r1","account":"acme","user_id":"42"`))
				is.True(strings.Contains(lines[1], `"request_id":"r2"`))
			})
		})
	}
}

func TestQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var log bytes.Buffer
		release := make(chan struct{})
		stored := 0
		w := usage.NewWriter(store(func(_ context.Context, records []*usage.Record) error {
			<-release
			stored += len(records)
			return nil
		}), slog.New(slog.NewJSONHandler(&log, nil)))

		const chats = 2 * usage.QueueBytes / 1000
		for i := range chats {
			w.Add(usage.NewRejection(report(fmt.Sprint(i)), "full", 1)) // never waits for the store
		}
		lost := len(spilled(log.String()))
		backlog := w.Backlog()
		is.Equal(backlog.NotStored, int64(lost))
		is.Equal(backlog.Records, int64(chats-lost))
		is.True(backlog.Bytes > usage.QueueBytes-1000 && backlog.Bytes <= usage.QueueBytes)
		close(release)
		w.Close(t.Context())
		is.Equal(w.Backlog(), usage.Backlog{NotStored: int64(lost)})
		is.True(lost > 0)
		is.Equal(stored+len(spilled(log.String())), chats) // each is in the store or in the log
		is.Equal(len(spilled(log.String())), lost)
	})
}

// heap is the memory that is in use.
func heap() int64 {
	runtime.GC()
	runtime.GC() // what the first one finalized
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestMemoryOfTheQueueIsBounded has more records wait than fit, with user ids that are parts of
// request bodies: none of these is kept.
func TestMemoryOfTheQueueIsBounded(t *testing.T) {
	for name, userID := range map[string]int{"without users": 0, "with long ids": 256} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			release := make(chan struct{})
			before := heap()
			w := usage.NewWriter(store(func(context.Context, []*usage.Record) error {
				<-release
				return nil
			}), discard())
			for range 40_000 {
				body := strings.Repeat("u", 32<<10)
				w.Add(usage.NewRejection(botapi.ChatReport{
					RequestID: strings.Repeat("r", 128), Account: strings.Repeat("a", 200), UserID: body[:userID],
					Bot: botapi.Bot{UID: strings.Repeat("b", 200), Model: strings.Repeat("m", 50)},
				}, "", 1))
			}
			is.True(heap()-before < usage.QueueBytes*5/4)
			is.True(w.Backlog().NotStored > 20_000) // the bound was reached
			close(release)
			w.Close(t.Context())
		})
	}
}

func TestOnlyRejectedRecordsAreNotStored(t *testing.T) {
	for name, bad := range map[string][]int{
		"one":           {250},
		"the first":     {0},
		"the last":      {499},
		"some together": {100, 101, 102},
		"far apart":     {0, 7, 250, 499},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				var log bytes.Buffer
				kept, tries := new(kept), 0
				w := usage.NewWriter(store(func(ctx context.Context, records []*usage.Record) error {
					if tries++; tries%3 == 0 {
						return errAway // sometimes the store is unavailable as well
					}
					if slices.ContainsFunc(records, func(r *usage.Record) bool { return r.Account == "bad" }) {
						return errors.New("refused")
					}
					return kept.InsertUsage(ctx, records)
				}), slog.New(slog.NewJSONHandler(&log, nil)))
				for i := range 500 {
					chat := report(fmt.Sprint(i))
					if slices.Contains(bad, i) {
						chat.Account = "bad"
					}
					w.Add(usage.NewRejection(chat, "full", 1))
				}
				w.Close(t.Context())

				is.Equal(len(kept.requests()), 500-len(bad))
				lines := spilled(log.String())
				is.Equal(len(lines), len(bad))
				for i, line := range lines {
					is.True(strings.Contains(line, fmt.Sprintf(`"request_id":"%d"`, bad[i])))
				}
				is.True(tries < 40*len(bad))
			})
		})
	}
}

func TestUserIDsAreBounded(t *testing.T) {
	long := strings.Repeat("u", 1<<20)
	hashed := func(id string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(id))) }
	for name, c := range map[string]struct{ sent, kept string }{
		"none":           {"", ""},
		"an ordinary id": {"42", "42"},
		"the longest":    {long[:256], long[:256]},
		"longer":         {long[:257], hashed(long[:257])},
		"a whole body":   {long, hashed(long)},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			chat := report("r1")
			chat.UserID = c.sent
			is.Equal(usage.NewRejection(chat, "full", 1).UserID, c.kept)
		})
	}
}

func spilled(log string) (lines []string) {
	for line := range strings.Lines(log) {
		if strings.Contains(line, `"usage not stored"`) {
			lines = append(lines, line)
		}
	}
	return lines
}

func TestLogLinesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var log bytes.Buffer
		w := usage.NewWriter(store(func(context.Context, []*usage.Record) error { return errors.New("refused") }),
			slog.New(slog.NewJSONHandler(&log, nil)))
		for _, length := range []int{256, 1 << 20} {
			chat := report("r1")
			chat.UserID = strings.Repeat("\x00", length) // each is six characters of JSON
			w.Add(usage.NewRejection(chat, "full", 1))
		}
		w.Close(t.Context())
		lines := spilled(log.String())
		is.Equal(len(lines), 2)
		for _, line := range lines {
			is.True(len(line) < 3_000)
		}
	})
}

// TestRecordOfAChat has chats end in every way. The record says what the model has done,
// and is added when its engine has returned.
func TestRecordOfAChat(t *testing.T) {
	left, cancel := context.WithCancelCause(usage.With(t.Context(), new(usage.Meter)))
	cancel(botapi.ErrClientLeft)
	late, cancel := context.WithCancelCause(usage.With(t.Context(), new(usage.Meter)))
	cancel(botapi.ErrChatTimeout)
	for name, c := range map[string]struct {
		ctx      context.Context // that has ended; nil for one that has not
		words    int
		fails    error
		reads    int // words
		panics   bool
		status   int
		complete bool
	}{
		"complete":                    {words: 3, reads: 3, status: 200, complete: true},
		"empty":                       {status: 200, complete: true},
		"failed":                      {fails: errors.New("no"), status: 500},
		"failed with a status":        {fails: errAway, status: 503},
		"invalid":                     {fails: &botapi.HTTPValidationError{}, status: 422},
		"failed after the first word": {words: 1, reads: 1, fails: errAway, status: 200},
		"read in part":                {words: 3, reads: 1, status: 200},
		"without a client":            {ctx: left, status: 0},
		"too late":                    {ctx: late, status: 504},
		"panicked":                    {panics: true, status: 500},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				kept := new(kept)
				w := usage.NewWriter(kept, discard())
				engine := func(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
					return func(yield func(string, error) bool) {
						usage.Asks(ctx, usage.Asking{})
						req.UserID = "changed"
						time.Sleep(time.Second)
						for range c.words {
							if !yield("word", nil) {
								return
							}
						}
						switch {
						case c.panics:
							panic("out of order")
						case c.fails != nil:
							yield("", c.fails)
						}
					}
				}
				ctx := c.ctx
				if ctx == nil {
					ctx = usage.With(context.Background(), new(usage.Meter))
				}
				recorded := w.Recorded(usage.Metered(botapi.ChatEngineFunc(engine), func(context.Context, string, usage.Tokens, string) {}))
				read := 0
				func() {
					defer func() { is.Equal(recover() != nil, c.panics) }()
					recorded.Chat(ctx, &botapi.ChatRequest{UserID: "42", Bot: botapi.Bot{UID: "u1"}, Stream: true})(func(_ string, err error) bool {
						read++
						return err == nil && (read < c.reads || c.complete || c.fails != nil)
					})
				}()
				w.Close(t.Context())
				is.Equal(len(kept.records()), 1)
				r := kept.records()[0]
				is.Equal([]any{r.UserID, r.BotUID, r.Stream, r.Chats}, []any{"42", "u1", true, int64(1)})
				is.Equal([]any{r.Status, r.Complete}, []any{c.status, c.complete})
				is.Equal([]any{r.Fragments, r.Bytes}, []any{c.reads, int64(4 * c.reads)})
				is.Equal(r.Duration, time.Second)
				is.Equal(r.FirstFragment == time.Second, c.reads > 0)
			})
		})
	}
}

// TestChatThatAsksNoModel has no record of a model's work.
func TestChatThatAsksNoModel(t *testing.T) {
	is := is.New(t)
	kept := new(kept)
	w := usage.NewWriter(kept, discard())
	engine := func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) { yield("", errAway) }
	}
	for range w.Recorded(botapi.ChatEngineFunc(engine)).Chat(usage.With(t.Context(), new(usage.Meter)), new(botapi.ChatRequest)) {
	}
	w.Close(t.Context())
	is.Equal(len(kept.records()), 0)
}
