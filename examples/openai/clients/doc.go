// Package clients tests the handler of examples/openai with published client
// libraries, and with the Responses API those that know it: openai-go, go-openai and
// langchaingo, and in Node.js openai, the AI SDK, LangChain, OpenAI's agents and xsai. Of
// openai and the AI SDK, it tests earlier versions, too. It contains only tests.
package clients
