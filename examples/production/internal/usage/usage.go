// Package usage records who used which bot how much, for billing and for finding
// abuse.
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

// Record is one chat that reached its engine, or several that an account has had
// rejected for the same reason.
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
	Complete  bool // the client was sent the complete answer
	Fragments int
	Bytes     int64
	Tokens    *Tokens // nil if no model was at work
	Chats     int64   // more than 1 only if rejected; the other fields are those of the last of them
	Rejected  string  // why no model was asked; empty if one was

	FirstFragment, Duration time.Duration
}

// NewRecord returns the record of a chat that ends now, with the tokens of its
// context. Call it when the engine has returned: see TokensOf.
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
		Chats:         1,
		FirstFragment: r.FirstFragment,
		Duration:      r.Duration,
	}
}

// NewRejection returns the record of some chats that were rejected for the same
// reason before a model was asked. The report is that of the last.
func NewRejection(r botapi.ChatReport, why string, chats int64) *Record {
	record := NewRecord(context.Background(), r)
	record.Rejected, record.Chats = why, chats
	return record
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

// LogValue is the record as it is logged when it cannot be stored.
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
		slog.Int64("chats", r.Chats),
		slog.String("rejected", r.Rejected),
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
