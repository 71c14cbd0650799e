// Package engines shows the ways other than OpenAI's protocol in which Go programs
// reach a model, and engines that stand around engines. Each file is made to be
// copied by itself: it needs botapi, botapi/examples/openai for the mapping of
// failures, the settings and the tokens, and the client library that it is about.
package engines
