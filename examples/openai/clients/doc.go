// Package clients tests the handler of examples/openai with published client
// libraries: openai-go, go-openai and langchaingo, and in Node.js openai, the AI SDK
// with @ai-sdk/openai-compatible, and LangChain. It contains only tests.
package clients
