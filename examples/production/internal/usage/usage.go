// Package usage writes down who used which bot how much, for bills and for
// those who watch for abuse.
package usage

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"sync"
	"time"

	"example.com/botapi"
)

const (
	// FlushInterval is how long a record may wait for others to be stored with.
	FlushInterval = time.Second
	// QueueSize bounds the records that wait: about 10 MB.
	QueueSize = 20_000

	batchSize   = 500
	retryPeriod = time.Second
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

	FirstFragment, Duration time.Duration
}

// NewRecord makes the record of a chat that ends now.
func NewRecord(r botapi.ChatReport) Record {
	return Record{
		ID:            rand.Text(),
		EndedAt:       time.Now(),
		RequestID:     r.RequestID,
		Account:       r.Account,
		UserID:        r.UserID,
		BotUID:        r.Bot.UID,
		Model:         r.Bot.Model,
		Stream:        r.Stream,
		Status:        r.Status,
		Complete:      r.Err == nil,
		Fragments:     r.Fragments,
		Bytes:         r.Bytes,
		FirstFragment: r.FirstFragment,
		Duration:      r.Duration,
	}
}

// LogValue is the record as it stands in the log when it cannot be stored.
func (r Record) LogValue() slog.Value {
	return slog.GroupValue(
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
	)
}

// Store keeps records. InsertUsage stores all of them or none; the same records
// may be given to it again when it failed, and must then be stored once. An
// error that is a botapi.StatusError means that it may work later.
type Store interface {
	InsertUsage(ctx context.Context, records []Record) error
}

// Writer hands records to a store in batches, behind the chats' backs.
//
// A chat never waits for it. While the store is away the records wait in
// memory, QueueSize of them; what does not fit, and what the store refuses, is
// written to the log in full instead. A clean shutdown therefore loses nothing.
// A crash loses the records of the last FlushInterval, or, while the store is
// away, all those that wait.
type Writer struct {
	store  Store
	logger *slog.Logger

	mu     sync.RWMutex // held for writing to close the queue
	closed bool
	queue  chan Record

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
		queue:  make(chan Record, QueueSize),
		ctx:    ctx,
		cancel: cancel,
		done:   make(chan struct{}),
	}
	go w.run()
	return w
}

// OnChat is for botapi.Options.OnChat.
func (w *Writer) OnChat(_ context.Context, report botapi.ChatReport) {
	w.add(NewRecord(report))
}

func (w *Writer) add(r Record) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if w.closed {
		w.spill("the writer is closed", r)
		return
	}
	select {
	case w.queue <- r:
	default:
		w.spill("too many records wait", r)
	}
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
		w.insert(w.gather(first))
	}
}

// gather returns a batch: the first record and those that come within the
// FlushInterval, or until the batch is full or the queue closed.
func (w *Writer) gather(first Record) []Record {
	batch := []Record{first}
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

// insert tries until the batch is stored, the store refuses it for good, or
// the writer is out of time.
func (w *Writer) insert(batch []Record) {
	for {
		err := w.store.InsertUsage(w.ctx, batch)
		if err == nil {
			return
		}
		if _, later := errors.AsType[*botapi.StatusError](err); !later || w.ctx.Err() != nil {
			w.spill(err.Error(), batch...)
			return
		}
		w.logger.Warn("usage waits for its store", slog.Int("records", len(batch)+len(w.queue)), slog.Any("error", err))
		select {
		case <-time.After(retryPeriod):
		case <-w.ctx.Done():
		}
	}
}

// spill writes records to the log, from where they can be stored by hand.
func (w *Writer) spill(reason string, records ...Record) {
	for _, r := range records {
		w.logger.Error("usage not stored", slog.String("reason", reason), slog.Any("usage", r))
	}
}
