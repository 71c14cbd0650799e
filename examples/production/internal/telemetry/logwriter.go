package telemetry

import (
	"bytes"
	"io"
	"log/slog"
	"sync"
	"time"
)

const (
	// LogBytes is how much of the log may wait for its reader. It has room for all
	// usage records that may wait for the database, which end up in the log if a
	// replica ends without it.
	LogBytes = 32 << 20
	// LogEnds is how long LogWriter.Close waits for the reader.
	LogEnds = 2 * time.Second

	chunkBytes = 64 << 10 // what is written at a time
)

// LogWriter writes the lines of a log in a goroutine of its own, so that nobody
// waits for a reader that hangs. Lines that find no room are dropped and
// counted; the log says how many, once it is read again.
//
// Each call of Write must be one line. It never blocks and returns no error.
type LogWriter struct {
	to    io.Writer
	most  int
	more  chan struct{} // there is a chunk
	ended chan struct{} // all chunks are written, after Close

	mu     sync.Mutex
	chunks [][]byte
	bytes  int   // of all chunks, and of the one that is being written
	lost   int64 // lines in all
	closed bool
}

// NewLogWriter returns a LogWriter for to, which may block. Close ends its
// goroutine.
func NewLogWriter(to io.Writer) *LogWriter { return newLogWriter(to, LogBytes) }

func newLogWriter(to io.Writer, most int) *LogWriter {
	w := &LogWriter{to: to, most: most, more: make(chan struct{}, 1), ended: make(chan struct{})}
	go w.write()
	return w
}

// Write appends a line. After Close, the line is lost.
func (w *LogWriter) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.bytes+len(line) > w.most {
		w.lost++
		return len(line), nil
	}
	last := len(w.chunks) - 1
	if last < 0 || len(w.chunks[last])+len(line) > chunkBytes {
		w.chunks = append(w.chunks, nil)
		last++
	}
	w.chunks[last] = append(w.chunks[last], line...)
	w.bytes += len(line)
	select {
	case w.more <- struct{}{}:
	default: // it knows
	}
	return len(line), nil
}

// Lost returns the number of lines that were dropped, or that could not be
// written.
func (w *LogWriter) Lost() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost
}

// Close waits until the log is written, at most for LogEnds: a reader that hangs
// cannot be interrupted, so the goroutine may outlive it.
func (w *LogWriter) Close() {
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		close(w.more)
	}
	w.mu.Unlock()
	select {
	case <-w.ended:
	case <-time.After(LogEnds):
	}
}

func (w *LogWriter) write() {
	defer close(w.ended)
	var said int64 // how many lines the log says that it has lost
	for range w.more {
		var err error
		for chunk := w.next(); chunk != nil; chunk = w.next() {
			var written int
			written, err = w.to.Write(chunk)
			w.wrote(len(chunk), bytes.Count(chunk[written:], []byte("\n")))
		}
		if lost := w.Lost(); err == nil && lost > said {
			if _, err := w.to.Write(lossLine(lost - said)); err == nil {
				said = lost
			}
		}
	}
}

// next returns the first chunk, or nil.
func (w *LogWriter) next() (chunk []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.chunks) > 0 {
		chunk, w.chunks = w.chunks[0], w.chunks[1:]
	}
	return chunk
}

// wrote makes room, and counts lines that could not be written.
func (w *LogWriter) wrote(size, lost int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bytes -= size
	w.lost += int64(lost)
}

func lossLine(lines int64) []byte {
	var line bytes.Buffer
	slog.New(slog.NewJSONHandler(&line, nil)).Warn("log lines lost: nobody read them", slog.Int64("lines", lines))
	return line.Bytes()
}
