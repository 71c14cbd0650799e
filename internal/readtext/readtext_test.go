package readtext_test

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/matryer/is"

	"example.com/botapi/internal/readtext"
)

// A source is a text that is read in pieces of given sizes, again and again. It panics if it
// is read after its end.
type source struct {
	rest    string
	sizes   []byte // 0 is a Read that returns neither data nor an error
	end     error  // after the text
	endSoon bool   // end comes together with the last piece

	reads int
	ended bool
}

func (s *source) Read(p []byte) (n int, err error) {
	if s.ended {
		panic("read after the end")
	}
	size := len(p)
	if len(s.sizes) > 0 {
		size = min(size, int(s.sizes[s.reads%len(s.sizes)]))
	}
	s.reads++
	n = copy(p[:size], s.rest)
	s.rest = s.rest[n:]
	if s.rest == "" && (s.endSoon || n == 0 && size > 0) {
		s.ended = true
		return n, s.end
	}
	return n, nil
}

// textOf returns a text that repeats nothing at the distance of a chunk.
func textOf(length int) string {
	var b strings.Builder
	for i := 0; b.Len() < length; i++ {
		fmt.Fprintf(&b, "%d ", i)
	}
	return b.String()[:length]
}

// check reads a text of this length, all of it.
func check(t *testing.T, length int, from *source) {
	t.Helper()
	is := is.New(t)
	text := textOf(length)
	from.rest, from.end = text, io.EOF
	got, err := readtext.All(from)
	is.NoErr(err)
	is.True(got == text)
	is.True(from.ended)
}

func TestAll(t *testing.T) {
	const chunk = readtext.ChunkBytes
	for name, from := range map[string]source{
		"as much as there is room for": {},
		"the end with the last bytes":  {endSoon: true},
		"a byte at a time":             {sizes: []byte{1}},
		"nothing every other time":     {sizes: []byte{0, 255}},
		"nothing, and then the end":    {sizes: []byte{255, 0, 0}, endSoon: true},
	} {
		t.Run(name, func(t *testing.T) {
			for _, length := range []int{0, 1, 2, chunk - 1, chunk, chunk + 1, 2*chunk - 1, 2 * chunk, 2*chunk + 1, 5*chunk + 7} {
				check(t, length, &from)
				from = source{sizes: from.sizes, endSoon: from.endSoon}
			}
		})
	}
}

// Errors are returned as they are. Only io.EOF itself is the end.
func TestAllReturnsErrors(t *testing.T) {
	for _, want := range []error{io.ErrUnexpectedEOF, io.ErrNoProgress, errors.New("other"), fmt.Errorf("wrapped: %w", io.EOF)} {
		for _, length := range []int{0, 1, readtext.ChunkBytes, readtext.ChunkBytes + 1} {
			for _, endSoon := range []bool{false, true} {
				t.Run(fmt.Sprintf("%v after %d bytes, with the last: %v", want, length, endSoon), func(t *testing.T) {
					is := is.New(t)
					from := &source{rest: textOf(length), end: want, endSoon: endSoon}
					got, err := readtext.All(from)
					is.True(err == want) // not wrapped
					is.Equal(got, "")
				})
			}
		}
	}
}

// A text does not share memory with the chunks that the next call uses.
func TestAllReturnsACopy(t *testing.T) {
	is := is.New(t)
	for _, length := range []int{10, 3*readtext.ChunkBytes + 10} {
		text := textOf(length)
		got, err := readtext.All(strings.NewReader(text))
		is.NoErr(err)
		for range 10 {
			_, err := readtext.All(strings.NewReader(strings.Repeat("x", 2*length)))
			is.NoErr(err)
		}
		is.True(got == text)
	}
}

// The chunks and the text cost what has arrived, each once.
func TestAllMemory(t *testing.T) {
	for _, length := range []int{10, 1 << 20} {
		t.Run(fmt.Sprint(length, " bytes"), func(t *testing.T) {
			is := is.New(t)
			reader := strings.NewReader(textOf(length))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := readtext.All(reader)
			runtime.ReadMemStats(&after)
			is.NoErr(err)
			allocated := int(after.TotalAlloc - before.TotalAlloc)
			t.Log(allocated, "bytes allocated")
			is.True(allocated < 2*length+64<<10)
		})
	}
}

func FuzzAll(f *testing.F) {
	f.Add(uint16(10), []byte{}, false)
	f.Add(uint16(readtext.ChunkBytes+1), []byte{0, 200}, true)
	f.Fuzz(func(t *testing.T, length uint16, sizes []byte, endSoon bool) {
		if strings.Trim(string(sizes), "\x00") == "" {
			sizes = nil // otherwise nothing would ever be read
		}
		check(t, int(length), &source{sizes: sizes, endSoon: endSoon})
	})
}
