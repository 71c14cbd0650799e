// Package clients tests the routes of examples/ollama with Ollama's own client libraries, for
// Go and for JavaScript. It contains only tests.
package clients
