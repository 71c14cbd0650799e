package connection

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"

	"example.com/botapi/internal/panics"
)

// A writer records what is written and the deadlines that are set. do says what a method
// does instead; nil: nothing else.
type writer struct {
	httptest.ResponseRecorder
	do          func(method string) error
	calls       []string
	began       time.Time
	read, write []time.Duration // deadlines after the start; -1 for none, -2 for one that has passed
}

func newWriter() *writer {
	return &writer{ResponseRecorder: *httptest.NewRecorder(), began: time.Now()}
}

func (w *writer) call(method string) error {
	w.calls = append(w.calls, method)
	if w.do == nil {
		return nil
	}
	return w.do(method)
}

func (w *writer) Write(p []byte) (int, error) {
	if err := w.call("Write"); err != nil {
		return 0, err
	}
	return w.ResponseRecorder.Write(p)
}

func (w *writer) FlushError() error { return w.call("Flush") }

func (w *writer) SetReadDeadline(at time.Time) error {
	w.read = append(w.read, w.since(at))
	return w.call("SetReadDeadline")
}

func (w *writer) SetWriteDeadline(at time.Time) error {
	w.write = append(w.write, w.since(at))
	return w.call("SetWriteDeadline")
}

func (w *writer) since(at time.Time) time.Duration {
	switch {
	case at.IsZero():
		return -1
	case at.Before(w.began):
		return -2
	}
	return at.Sub(w.began)
}

// inBubble tests a connection with a WriteTimeout of eight seconds.
func inBubble(t *testing.T, isHTTP2 bool, test func(is *is.I, w *writer, c *Connection)) {
	t.Helper()
	t.Run(fmt.Sprint("HTTP/2 ", isHTTP2), func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w, c := newWriter(), new(Connection)
			c.Init(w, isHTTP2, 8*time.Second)
			test(is.New(t), w, c)
		})
	})
}

func write(text string) func(http.ResponseWriter) error {
	return func(w http.ResponseWriter) error {
		_, err := w.Write([]byte(text))
		return err
	}
}

// Each write has all of its time. On HTTP/1, the deadline is moved a little further than
// needed, and so not for each write; on HTTP/2, there is none between two writes.
func TestDeadlineOfAWrite(t *testing.T) {
	inBubble(t, false, func(is *is.I, w *writer, c *Connection) {
		for range 3 {
			is.Equal(c.Write(0, write("a")), nil)
			time.Sleep(time.Second / 2)
		}
		is.Equal(w.write, []time.Duration{9 * time.Second})
		time.Sleep(time.Second)
		is.Equal(c.Write(0, write("b")), nil)
		is.Equal(w.write, []time.Duration{9 * time.Second, 11500 * time.Millisecond})
		is.Equal(c.Write(10*time.Second, write("c")), nil) // before a deadline
		is.Equal(w.write[2:], []time.Duration{10 * time.Second})
		is.Equal(c.Elapsed(), 2500*time.Millisecond)
		is.Equal(w.Body.String(), "aaabc")
	})
	inBubble(t, true, func(is *is.I, w *writer, c *Connection) {
		is.Equal(w.write, []time.Duration{-1})
		for range 2 {
			is.Equal(c.Write(0, write("a")), nil)
		}
		is.Equal(w.write, []time.Duration{-1, 9 * time.Second, -1, 9 * time.Second, -1})
	})
}

// After a write that has failed, nothing more is written. It has stalled if it has used up
// its time.
func TestFailedWrite(t *testing.T) {
	broken := errors.New("broken pipe")
	for name, c := range map[string]struct {
		takes   time.Duration
		panics  bool
		stalled bool
	}{
		"at once":           {0, false, false},
		"in time":           {8*time.Second - 1, false, false},
		"after its time":    {8 * time.Second, false, true},
		"a panic":           {0, true, false},
		"a panic, too late": {9 * time.Second, true, true},
	} {
		for _, isHTTP2 := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				inBubble(t, isHTTP2, func(is *is.I, w *writer, conn *Connection) {
					w.do = func(method string) error {
						if method != "Write" {
							return nil
						}
						time.Sleep(c.takes)
						if c.panics {
							panic(broken)
						}
						return broken
					}
					is.Equal(conn.Write(0, write("a")) != nil, true)
					failed := conn.Failed
					is.Equal(failed.Stalled, c.stalled)
					is.True(strings.Contains(failed.Error(), broken.Error()))
					is.Equal(errors.Is(failed.Err, broken), !c.panics)
					is.Equal(errors.As(failed.Err, new(*panics.Error)), c.panics)
					is.Equal(conn.Stalled(), c.stalled)
					calls, deadlines := len(w.calls), len(w.write)
					is.Equal(conn.Write(0, write("b")), failed)
					is.Equal(conn.Write(time.Hour, write("b")), failed)
					written, err := conn.WriteBody([][]byte{[]byte("b")}, 1, time.Hour)
					is.Equal(written, 0)
					is.Equal(err, error(failed))
					is.Equal(len(w.calls), calls)
					is.Equal(len(w.write), deadlines)
				})
			})
		}
	}
}

// A write in progress has stalled once it has used up its time. One that has ended has not.
func TestStalled(t *testing.T) {
	inBubble(t, false, func(is *is.I, w *writer, c *Connection) {
		is.True(!c.Stalled())
		is.Equal(c.Write(0, func(http.ResponseWriter) error {
			time.Sleep(8*time.Second - 1)
			is.True(!c.Stalled())
			time.Sleep(time.Nanosecond)
			is.True(c.Stalled())
			return nil
		}), nil)
		is.True(!c.Stalled())
	})
}

// Interrupt makes the write in progress fail. No later call moves the deadline back.
func TestInterrupt(t *testing.T) {
	for _, isHTTP2 := range []bool{false, true} {
		inBubble(t, isHTTP2, func(is *is.I, w *writer, c *Connection) {
			interrupted := make(chan struct{})
			is.Equal(c.Write(0, func(http.ResponseWriter) error {
				go func() {
					defer close(interrupted)
					c.Interrupt()
				}()
				<-interrupted
				time.Sleep(time.Second)
				return nil
			}), nil)
			is.Equal(c.Write(0, write("a")), nil)
			is.Equal(c.Write(time.Minute, write("b")), nil)
			c.ExtendDeadlineForReturn()
			is.Equal(w.write[len(w.write)-1], time.Duration(-2))
		})
	}
}

// A writer without deadlines, or whose method fails or panics, is written to nevertheless,
// and is asked once.
func TestDeadlineThatCannotBeSet(t *testing.T) {
	for name, does := range map[string]func() error{
		"unsupported": func() error { return http.ErrNotSupported }, "fails": func() error { return errors.New("closed") }, "panics": func() error { panic("a bug") },
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			w, c := newWriter(), new(Connection)
			w.do = func(method string) error {
				if strings.HasSuffix(method, "Deadline") {
					return does()
				}
				return nil
			}
			c.Init(w, false, 8*time.Second)
			is.Equal(c.Write(0, write("a")), nil)
			is.Equal(c.Write(time.Minute, write("b")), nil)
			c.Interrupt()
			is.Equal(len(w.write), 1)
			c.SetReadDeadline(time.Now())
			c.EndReading()
			is.Equal(w.Body.String(), "ab")
		})
	}
}

// A body is written in chunks, each with its own time, and only the last one is flushed. None
// but the first is begun too late.
func TestWriteBody(t *testing.T) {
	long := strings.Repeat("x", 2*MaxChunk+1)
	for name, c := range map[string]struct {
		pieces  []string
		takes   time.Duration // each chunk
		last    time.Duration // when the last may begin
		written int
		late    bool
		calls   string
	}{
		"nothing":                    {nil, 0, time.Hour, 0, false, ""},
		"empty pieces":               {[]string{"", ""}, 0, time.Hour, 0, false, ""},
		"one piece":                  {[]string{"a"}, 0, time.Hour, 1, false, "Write Flush"},
		"pieces":                     {[]string{"a", "", "b", ""}, 0, time.Hour, 2, false, "Write Write Flush"},
		"a long piece":               {[]string{long}, 7 * time.Second, time.Hour, len(long), false, "Write Write Write Flush"},
		"a chunk that begins late":   {[]string{long}, 7 * time.Second, 7*time.Second - 1, MaxChunk, true, "Write"},
		"a chunk that begins just":   {[]string{long}, 7 * time.Second, 7 * time.Second, 2 * MaxChunk, true, "Write Write"},
		"a first chunk that is late": {[]string{"a"}, 0, -1, 1, false, "Write Flush"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, false, func(is *is.I, w *writer, conn *Connection) {
				var body [][]byte
				length := 0
				for _, piece := range c.pieces {
					body = append(body, []byte(piece))
					length += len(piece)
				}
				var calls []string
				w.do = func(method string) error {
					if method == "Write" || method == "Flush" {
						calls = append(calls, method)
					}
					if method == "Write" {
						time.Sleep(c.takes)
					}
					return nil
				}
				written, err := conn.WriteBody(body, length, c.last)
				is.Equal(written, c.written)
				is.Equal(err == ErrLate, c.late)
				is.True(err == nil || c.late)
				is.Equal(strings.Join(calls, " "), c.calls)
				is.Equal(w.Body.Len(), c.written)
			})
		})
	}
}

// If only the flush has failed, HTTP/1 has kept the head in its buffer: nothing was sent. On
// HTTP/2, the status was.
func TestWriteBodyWhoseFlushFails(t *testing.T) {
	for _, isHTTP2 := range []bool{false, true} {
		for _, unsupported := range []bool{false, true} {
			t.Run(fmt.Sprint("unsupported ", unsupported), func(t *testing.T) {
				inBubble(t, isHTTP2, func(is *is.I, w *writer, c *Connection) {
					failure := errors.New("broken pipe")
					if unsupported {
						failure = fmt.Errorf("this writer: %w", errors.ErrUnsupported)
					}
					w.do = func(method string) error {
						if method == "Flush" {
							return failure
						}
						return nil
					}
					written, err := c.WriteBody([][]byte{[]byte("ab")}, 2, time.Hour)
					is.Equal(err == nil, unsupported)
					want := 0
					if unsupported || isHTTP2 {
						want = 2
					}
					is.Equal(written, want)
					is.True(!c.CannotFlush) // which is said of streams only
				})
			})
		}
	}
}

// A stream that cannot be flushed is no failure. Other errors of a flush are.
func TestFlush(t *testing.T) {
	for failure, cannot := range map[error]bool{nil: false, http.ErrNotSupported: true, errors.New("broken pipe"): false} {
		inBubble(t, true, func(is *is.I, w *writer, c *Connection) {
			w.do = func(method string) error {
				if method == "Flush" {
					return failure
				}
				return nil
			}
			failed := c.Write(0, func(http.ResponseWriter) error { return c.Flush() })
			is.Equal(failed != nil, failure != nil && !cannot)
			is.Equal(c.CannotFlush, cannot)

			// On HTTP/2, what was flushed leaves nothing to write when the handler returns.
			before := len(w.write)
			c.ExtendDeadlineForReturn()
			is.Equal(len(w.write) > before, failure != nil)
		})
	}
}

// On HTTP/1, net/http writes the end of a response when the handler has returned.
func TestExtendDeadlineForReturn(t *testing.T) {
	inBubble(t, false, func(is *is.I, w *writer, c *Connection) {
		is.Equal(c.Write(0, func(http.ResponseWriter) error { return c.Flush() }), nil)
		time.Sleep(5 * time.Second)
		c.ExtendDeadlineForReturn()
		is.Equal(w.write, []time.Duration{9 * time.Second, 14 * time.Second})
	})
}

// A panic of the writer is no failure of the response.
func TestEndReadingPanics(t *testing.T) {
	inBubble(t, false, func(is *is.I, w *writer, c *Connection) {
		w.do = func(string) error { panic("a bug") }
		c.EndReading()
		is.Equal(w.read, []time.Duration{-2})
	})
}
