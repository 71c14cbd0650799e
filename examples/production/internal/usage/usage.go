// Package usage records who used which bot how much, for billing and for finding
// abuse.
package usage

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"example.com/botapi"
	"golang.org/x/sync/semaphore"
)

const (
	// FlushInterval is the longest that a record waits for others, to be stored
	// in one batch.
	FlushInterval = time.Second
	// QueueBytes bounds the memory of all records that are not stored yet.
	QueueBytes = 16 << 20

	batchSize   = 500
	retryPeriod = time.Second

	// maxUserID bounds the stored user_id, in bytes. botapi bounds a request id;
	// the other texts come from those who create bots and keys.
	maxUserID = 256
	// recordBytes is the size of a record without its texts.
	recordBytes = 512
)

// Record is one chat that has asked a model or, of one account, several that were
// rejected, or have joined an answer, for the same reason.
type Record struct {
	ID        string // generated here: request ids may come from clients, and repeat
	EndedAt   time.Time
	RequestID string
	Account   string
	UserID    string
	BotUID    string
	Model     string
	Stream    bool
	Status    int
	Complete  bool // the model has answered completely
	Fragments int
	Bytes     int64
	Tokens    *Tokens // nil if no model was at work
	Chats     int64   // 1 if a model was asked; otherwise, the other fields are those of the last of them
	Rejected  string  // why no model was asked; empty if one was
	Joins     int64   // requests that joined an answer: they are no chats

	FirstFragment, Duration time.Duration
}

func newRecord(requestID, account, userID string, bot botapi.Bot, stream bool) *Record {
	return &Record{
		ID:        rand.Text(),
		RequestID: requestID,
		Account:   account,
		UserID:    shortUserID(userID),
		BotUID:    bot.UID,
		Model:     bot.Model,
		Stream:    stream,
	}
}

func newRecordOf(r botapi.ChatReport) *Record {
	record := newRecord(r.RequestID, r.Account, r.UserID, r.Bot, r.Stream)
	record.EndedAt, record.Status, record.Duration = time.Now(), r.Status, r.Duration
	return record
}

// NewRejection returns the record of some chats that were rejected for the same
// reason before a model was asked. The report is that of the last.
func NewRejection(r botapi.ChatReport, why string, chats int64) *Record {
	record := newRecordOf(r)
	record.Rejected, record.Chats = why, chats
	return record
}

// NewJoins returns the record of some requests that have joined answers. The report is
// that of the last. The answers are those of chats, whose records have what they cost.
func NewJoins(r botapi.ChatReport, joins int64) *Record {
	record := newRecordOf(r)
	record.Joins = joins
	return record
}

// Recorded adds a record of each chat that asks a model in an engine, when the engine has
// returned: its tokens are final then. The engine is Metered, and the context is from
// With. The record says what the model has done, whoever has read it: its client may
// have disconnected, and another may have joined the answer.
func (w *Writer) Recorded(engine botapi.ChatEngine) botapi.ChatEngine {
	return botapi.ChatEngineFunc(func(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			w.recording.Add(1)
			defer w.recording.Add(-1)
			r := newRecord(botapi.RequestIDFrom(ctx), botapi.AccountFrom(ctx), req.UserID, req.Bot, req.Stream) // the engine may change the request
			began, err := time.Now(), errExited
			defer func() {
				if wasAsked(ctx) {
					r.end(ctx, began, err)
					w.Add(r)
				}
			}()
			err = r.play(engine.Chat(ctx, req), began, yield)
			err = cmp.Or(err, context.Cause(ctx))
		}
	})
}

var errExited = errors.New("usage: the engine panicked, or ended its goroutine")

// play returns why an answer is incomplete, as far as its engine knows.
func (r *Record) play(answer iter.Seq2[string, error], began time.Time, yield func(string, error) bool) (failed error) {
	answer(func(text string, err error) bool {
		switch {
		case err != nil:
			failed = err
		case text != "" && r.FirstFragment == 0:
			r.FirstFragment = time.Since(began)
		}
		if err == nil {
			r.Fragments++
			r.Bytes += int64(len(text))
		}
		goesOn := yield(text, err)
		if !goesOn {
			failed = cmp.Or[error](failed, botapi.ErrClientLeft)
		}
		return goesOn
	})
	return failed
}

func (r *Record) end(ctx context.Context, began time.Time, err error) {
	r.EndedAt, r.Duration = time.Now(), time.Since(began)
	r.Tokens, r.Chats, r.Complete = TokensOf(ctx), 1, err == nil
	r.Status = statusOf(err)
	if r.Fragments > 0 {
		r.Status = http.StatusOK
	}
}

// statusOf is the status of a response before the first fragment, 0 for none.
func statusOf(err error) int {
	response, isResponse := errors.AsType[*botapi.StatusError](err)
	_, isInvalid := errors.AsType[*botapi.HTTPValidationError](err)
	switch {
	case err == nil:
		return http.StatusOK
	case isResponse:
		return response.Status
	case isInvalid:
		return http.StatusUnprocessableEntity
	case errors.Is(err, context.DeadlineExceeded):
		return http.StatusGatewayTimeout
	case errors.Is(err, context.Canceled):
		return 0
	}
	return http.StatusInternalServerError
}

// wasAsked reports whether the model of a chat was asked: see Asks.
func wasAsked(ctx context.Context) bool {
	m := meterOf(ctx)
	if m == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.asking != nil
}

// shortUserID is a user_id as it is stored: unchanged, or "sha256:" and its
// SHA-256 in hexadecimal if it is longer than maxUserID. It is a copy, so it
// does not retain the memory of the request.
func shortUserID(id string) string {
	if len(id) <= maxUserID {
		return strings.Clone(id)
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(id)))
}

// size is the record's share of QueueBytes.
func (r *Record) size() int64 {
	return recordBytes + int64(len(r.ID)+len(r.RequestID)+len(r.Account)+len(r.UserID)+len(r.BotUID)+len(r.Model)+len(r.Rejected))
}

// Columns are the columns of the record in the database, except for those that are null.
func (r *Record) Columns() []slog.Attr {
	columns := []slog.Attr{
		slog.String("id", r.ID),
		slog.Time("ended_at", r.EndedAt),
		slog.String("request_id", r.RequestID),
		slog.String("account", r.Account),
		slog.String("user_id", r.UserID),
		slog.String("bot_uid", r.BotUID),
		slog.String("model", r.Model),
		slog.Bool("stream", r.Stream),
		slog.Int("status", r.Status),
		slog.Bool("complete", r.Complete),
		slog.Int("fragments", r.Fragments),
		slog.Int64("bytes", r.Bytes),
		slog.Int64("chats", r.Chats),
		slog.Int64("joins", r.Joins),
		slog.String("rejected", r.Rejected),
		slog.Float64("duration_ms", milliseconds(r.Duration)),
		slog.Bool("tokens_estimated", r.Tokens != nil && r.Tokens.Estimated),
	}
	if r.FirstFragment > 0 {
		columns = append(columns, slog.Float64("first_fragment_ms", milliseconds(r.FirstFragment)))
	}
	if r.Tokens != nil {
		columns = append(columns, slog.Int64("prompt_tokens", r.Tokens.Prompt), slog.Int64("completion_tokens", r.Tokens.Completion))
	}
	return columns
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// LogValue is the record as it is logged when it cannot be stored.
func (r *Record) LogValue() slog.Value { return slog.GroupValue(r.Columns()...) }

// Store keeps records. InsertUsage stores all of them or none. After an error,
// the same records may be given to it again, and must then be stored once. A
// botapi.StatusError means that it may succeed later.
type Store interface {
	InsertUsage(ctx context.Context, records []*Record) error
}

// Writer stores records in batches, in a goroutine of its own.
//
// A chat never waits for it. While the store is unavailable, records wait in
// QueueBytes of memory; those that do not fit are written to the log in full
// instead. So is a record that the store rejects, without affecting others. So a
// clean shutdown loses nothing. A crash loses the records of the last
// FlushInterval or, while the store is unavailable, all waiting records.
type Writer struct {
	store  Store
	logger *slog.Logger

	mu     sync.RWMutex // held for writing to close the queue
	closed bool
	queue  chan *Record        // has capacity for as many as fit into QueueBytes
	room   *semaphore.Weighted // of QueueBytes

	recording                        atomic.Int64 // chats whose engine has not returned
	waiting, waitingBytes, notStored atomic.Int64

	ctx    context.Context // ends when Close has waited long enough
	cancel context.CancelFunc
	done   chan struct{}
}

// NewWriter starts a writer, which runs until it is closed.
func NewWriter(store Store, logger *slog.Logger) *Writer {
	ctx, cancel := context.WithCancel(context.Background())
	w := &Writer{
		store:  store,
		logger: logger,
		queue:  make(chan *Record, QueueBytes/recordBytes),
		room:   semaphore.NewWeighted(QueueBytes),
		ctx:    ctx,
		cancel: cancel,
		done:   make(chan struct{}),
	}
	go w.run()
	return w
}

// Add has a record stored.
func (w *Writer) Add(r *Record) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	switch {
	case w.closed:
		w.spill("the writer is closed", r)
	case !w.room.TryAcquire(r.size()):
		w.spill("too many records wait", r)
	default:
		w.waiting.Add(1)
		w.waitingBytes.Add(r.size())
		w.queue <- r
	}
}

// Backlog counts the records that are not stored.
type Backlog struct {
	Records, Bytes int64 // waiting; Bytes is at most QueueBytes
	NotStored      int64 // records that went to the log instead, since the start
}

// Backlog returns how many records are not stored now.
func (w *Writer) Backlog() Backlog {
	return Backlog{Records: w.waiting.Load(), Bytes: w.waitingBytes.Load(), NotStored: w.notStored.Load()}
}

// AwaitEngines waits for engines that have not returned although their clients' answers
// have ended: only then are their chats Recorded. Chats of those that still have not
// returned have no record.
func (w *Writer) AwaitEngines(most time.Duration) {
	for began := time.Now(); w.recording.Load() > 0 && time.Since(began) < most; {
		time.Sleep(10 * time.Millisecond)
	}
	if chats := w.recording.Load(); chats > 0 {
		w.logger.Warn("draining: some engines have not returned, so their chats are not recorded", slog.Int64("chats", chats))
	}
}

// Close stores the waiting records. Once ctx has ended, it writes those that are
// left to the log.
func (w *Writer) Close(ctx context.Context) {
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		close(w.queue)
	}
	w.mu.Unlock()
	stop := context.AfterFunc(ctx, w.cancel)
	defer stop()
	<-w.done
}

func (w *Writer) run() {
	defer close(w.done)
	defer w.cancel()
	for first := range w.queue {
		batch := w.gather(first)
		w.insert(batch)
		for _, r := range batch {
			w.waiting.Add(-1)
			w.waitingBytes.Add(-r.size())
			w.room.Release(r.size())
		}
	}
}

// gather returns a batch: the first record and those that arrive within
// FlushInterval, or until the batch is full or the queue closed.
func (w *Writer) gather(first *Record) []*Record {
	batch := []*Record{first}
	full := time.NewTimer(FlushInterval)
	defer full.Stop()
	for len(batch) < batchSize {
		select {
		case r, open := <-w.queue:
			if !open {
				return batch
			}
			batch = append(batch, r)
		case <-full.C:
			return batch
		}
	}
	return batch
}

// insert stores a batch. A rejected batch is divided until only the rejected
// records are left, which are logged.
func (w *Writer) insert(batch []*Record) {
	err := w.try(batch)
	half := len(batch) / 2
	switch {
	case err == nil:
	case half == 0 || w.ctx.Err() != nil:
		w.spill(err.Error(), batch...)
	default:
		w.insert(batch[:half])
		w.insert(batch[half:])
	}
}

// try returns when the batch is stored, or with an error when the store rejects
// it permanently or the writer is out of time.
func (w *Writer) try(batch []*Record) error {
	for {
		err := w.store.InsertUsage(w.ctx, batch)
		if _, later := errors.AsType[*botapi.StatusError](err); !later || w.ctx.Err() != nil {
			return err
		}
		w.logger.Warn("usage waits for its store", slog.Int("records", len(batch)+len(w.queue)), slog.Any("error", err))
		select {
		case <-time.After(retryPeriod):
		case <-w.ctx.Done():
		}
	}
}

// spill writes records to the log, so that they can be stored by hand.
func (w *Writer) spill(reason string, records ...*Record) {
	w.notStored.Add(int64(len(records)))
	for _, r := range records {
		w.logger.Error("usage not stored", slog.String("reason", reason), slog.Any("usage", r))
	}
}
