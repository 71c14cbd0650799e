// Package usage writes down who used which bot how much, for bills and for
// those who watch for abuse.
package usage

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"example.com/botapi"
	"golang.org/x/sync/semaphore"
)

const (
	// FlushInterval is how long a record may wait for others to be stored with.
	FlushInterval = time.Second
	// QueueBytes bounds the memory of all records that are not stored yet.
	QueueBytes = 16 << 20

	batchSize   = 500
	retryPeriod = time.Second

	// maxUserID bounds what is kept of a user_id, in bytes. A request id is
	// bounded by botapi, everything else by those who make bots and keys.
	maxUserID = 256
	// recordBytes is what a record takes besides its texts.
	recordBytes = 512
)

// Record is one chat that reached its engine.
type Record struct {
	ID        string // made here: request ids may come from clients, and repeat
	EndedAt   time.Time
	RequestID string
	Account   string
	UserID    string
	BotUID    string
	Model     string
	Stream    bool
	Status    int
	Complete  bool // the client was given the whole answer
	Fragments int
	Bytes     int64
	Tokens    *Tokens // nil if no model was at work

	FirstFragment, Duration time.Duration
}

// NewRecord makes the record of a chat that ends now, with the tokens that were
// counted in its context.
func NewRecord(ctx context.Context, r botapi.ChatReport) *Record {
	return &Record{
		ID:            rand.Text(),
		EndedAt:       time.Now(),
		RequestID:     r.RequestID,
		Account:       r.Account,
		UserID:        shortUserID(r.UserID),
		BotUID:        r.Bot.UID,
		Model:         r.Bot.Model,
		Stream:        r.Stream,
		Status:        r.Status,
		Complete:      r.Err == nil,
		Fragments:     r.Fragments,
		Bytes:         r.Bytes,
		Tokens:        TokensOf(ctx),
		FirstFragment: r.FirstFragment,
		Duration:      r.Duration,
	}
}

// shortUserID is a user_id as it is stored: itself, or "sha256:" and its
// SHA-256 in hexadecimal where it is longer than any that was meant as one. It
// never keeps the memory of the request that it was cut out of.
func shortUserID(id string) string {
	if len(id) <= maxUserID {
		return strings.Clone(id)
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(id)))
}

// size is how much memory the record takes, within QueueBytes.
func (r *Record) size() int64 {
	return recordBytes + int64(len(r.ID)+len(r.RequestID)+len(r.Account)+len(r.UserID)+len(r.BotUID)+len(r.Model))
}

// LogValue is the record as it stands in the log when it cannot be stored.
func (r *Record) LogValue() slog.Value {
	attributes := []slog.Attr{
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
		slog.Duration("first_fragment", r.FirstFragment),
		slog.Duration("duration", r.Duration),
	}
	if r.Tokens != nil {
		attributes = append(attributes,
			slog.Int64("prompt_tokens", r.Tokens.Prompt),
			slog.Int64("completion_tokens", r.Tokens.Completion),
			slog.Bool("tokens_estimated", r.Tokens.Estimated))
	}
	return slog.GroupValue(attributes...)
}

// Store keeps records. InsertUsage stores all of them or none; the same records
// may be given to it again when it failed, and must then be stored once. An
// error that is a botapi.StatusError means that it may work later.
type Store interface {
	InsertUsage(ctx context.Context, records []*Record) error
}

// Writer hands records to a store in batches, behind the chats' backs.
//
// A chat never waits for it. While the store is away the records wait in
// memory, in QueueBytes of it; what does not fit is written to the log in full
// instead. So is a record that the store refuses, and no other one with it. A
// clean shutdown therefore loses nothing. A crash loses the records of the last
// FlushInterval, or, while the store is away, all those that wait.
type Writer struct {
	store  Store
	logger *slog.Logger

	mu     sync.RWMutex // held for writing to close the queue
	closed bool
	queue  chan *Record        // has room for as many as fit into QueueBytes
	room   *semaphore.Weighted // of QueueBytes

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

// OnChat is for botapi.Options.OnChat.
func (w *Writer) OnChat(ctx context.Context, report botapi.ChatReport) {
	w.add(NewRecord(ctx, report))
}

func (w *Writer) add(r *Record) {
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

// Backlog is what has not come to the store.
type Backlog struct {
	Records, Bytes int64 // that wait; the bytes are within QueueBytes
	NotStored      int64 // records that went to the log instead, since the start
}

// Backlog returns what has not come to the store by now.
func (w *Writer) Backlog() Backlog {
	return Backlog{Records: w.waiting.Load(), Bytes: w.waitingBytes.Load(), NotStored: w.notStored.Load()}
}

// Close stores what waits and returns when that is done, or, once ctx has
// ended, when the rest is in the log.
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

// gather returns a batch: the first record and those that come within the
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

// insert stores a batch. One that is refused is divided until only what the
// store does not take is left, for the log.
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

// try returns when the batch is stored, with an error when the store refuses
// it for good or the writer is out of time.
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

// spill writes records to the log, from where they can be stored by hand.
func (w *Writer) spill(reason string, records ...*Record) {
	w.notStored.Add(int64(len(records)))
	for _, r := range records {
		w.logger.Error("usage not stored", slog.String("reason", reason), slog.Any("usage", r))
	}
}
