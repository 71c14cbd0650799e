// Package readtext reads all of a reader into a string, in memory that grows with what has
// arrived.
package readtext

import (
	"io"
	"strings"
	"sync"
)

// ChunkBytes is how much memory is taken at a time.
const ChunkBytes = 8 << 10

var pool = sync.Pool{New: func() any { return new([ChunkBytes]byte) }}

// All reads to the end of r, which has the limit. Another error than io.EOF is returned as it
// is.
func All(r io.Reader) (string, error) {
	var few [2]*[ChunkBytes]byte
	chunks := few[:0] // all but the last are full
	defer func() {
		for _, chunk := range chunks {
			pool.Put(chunk)
		}
	}()
	for {
		chunk := pool.Get().(*[ChunkBytes]byte)
		chunks = append(chunks, chunk)
		n, err := fill(chunk[:], r)
		switch err {
		case nil:
		case io.EOF:
			return join(chunks, n), nil
		default:
			return "", err
		}
	}
}

func join(chunks []*[ChunkBytes]byte, last int) string {
	full := len(chunks) - 1
	var text strings.Builder
	text.Grow(full*ChunkBytes + last)
	for _, chunk := range chunks[:full] {
		text.Write(chunk[:])
	}
	text.Write(chunks[full][:last])
	return text.String()
}

// fill reads until p is full or an error comes. Unlike io.ReadFull, it leaves the error as
// it is: io.ErrUnexpectedEOF is one of a request body.
func fill(p []byte, r io.Reader) (n int, err error) {
	for n < len(p) && err == nil {
		var read int
		read, err = r.Read(p[n:])
		n += read
	}
	return n, err
}
