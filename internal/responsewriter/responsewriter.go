// Package responsewriter asks a ResponseWriter for what http.ResponseController cannot.
package responsewriter

import (
	"io"
	"net/http"
	"strings"
)

// CloseAfterResponse has net/http send the response without reading the remaining body
// first, and close the connection after it. (A read deadline ends what net/http still reads
// then.) net/http closes its own side and waits a while: if it closed immediately, with
// bytes of the client unread, the connection would be reset and the response lost. Only
// http.MaxBytesReader can ask net/http for that, when its limit is reached.
func CloseAfterResponse(w http.ResponseWriter) {
	for {
		wrapper, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			break
		}
		w = wrapper.Unwrap()
	}
	_, _ = http.MaxBytesReader(w, io.NopCloser(strings.NewReader("more")), 0).Read(make([]byte, 1))
}

// FlushOutermost sends what w has buffered, if w itself has a Flush. It does not use that
// of a writer behind Unwrap: a w that buffers and has no Flush may not have sent its status
// yet.
func FlushOutermost(w http.ResponseWriter) (flushed bool, err error) {
	switch w := w.(type) {
	case interface{ FlushError() error }:
		err = w.FlushError()
		return err == nil, err
	case http.Flusher:
		w.Flush()
		return true, nil
	}
	return false, nil
}
