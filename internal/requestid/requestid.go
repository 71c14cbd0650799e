// Package requestid finds or makes the id of a request.
package requestid

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"net/http"
)

// Of returns the id in the X-Request-Id header if it can be echoed and logged as it is: 1
// to 128 bytes from 0x21 to 0x7E. Otherwise it returns a new one.
func Of(header http.Header) string {
	values := header["X-Request-Id"] // Header.Get would make the canonical name anew
	if len(values) == 0 || values[0] == "" || len(values[0]) > 128 {
		return random()
	}
	id := values[0]
	for i := range len(id) {
		if id[i] < 0x21 || id[i] > 0x7E {
			return random()
		}
	}
	return id
}

// random returns 128 random bits. They tell requests apart and protect nothing, so the
// kernel is not asked for them.
func random() string {
	var bytes [16]byte
	binary.NativeEndian.PutUint64(bytes[:], rand.Uint64())
	binary.NativeEndian.PutUint64(bytes[8:], rand.Uint64())
	var id [2 * len(bytes)]byte
	hex.Encode(id[:], bytes[:])
	return string(id[:])
}
