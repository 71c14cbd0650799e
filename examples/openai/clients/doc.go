// Package clients has the handler of examples/openai meet clients that others
// wrote, unmodified: openai-go, go-openai and langchaingo, and in Node.js openai,
// the AI SDK with @ai-sdk/openai-compatible, and LangChain. It holds nothing but
// tests.
package clients
