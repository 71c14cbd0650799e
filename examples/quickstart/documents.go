package main

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	"example.com/botapi/examples/quickstart/guide"
)

// llms lists the documents for coding assistants, in the form of llmstxt.org.
//
//go:embed llms.txt
var llms string

// mountDocuments serves llms.txt and, below /docs/, the documents.
func mountDocuments(mux *http.ServeMux) {
	mux.Handle("GET /llms.txt", document("text/plain; charset=utf-8", llms))
	for name, text := range guide.Documents() {
		mux.Handle("GET /docs/"+name, document("text/markdown; charset=utf-8", text))
	}
}

func document(contentType, text string) http.Handler {
	etag := fmt.Sprintf(`"%x"`, sha256.Sum256([]byte(text)))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-cache")
		w.Header().Set("ETag", etag)
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(text))
	})
}

// documentsKey is the context's key of the address of the documents.
type documentsKey struct{}

// withDocuments lets the guide link to the documents at the address that the client uses.
func withDocuments(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if plainHost.MatchString(r.Host) {
			r = r.WithContext(context.WithValue(r.Context(), documentsKey{}, "http://"+r.Host+"/docs/"))
		}
		next.ServeHTTP(w, r)
	})
}

// plainHost matches hosts without characters that have a meaning in Markdown.
var plainHost = regexp.MustCompile(`^[a-zA-Z0-9.:-]+$`)

func documentsAddress(ctx context.Context) string {
	address, _ := ctx.Value(documentsKey{}).(string)
	return address
}
