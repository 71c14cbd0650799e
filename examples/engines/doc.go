// Package engines has engines for models that are not reached by OpenAI's protocol,
// and engines that wrap other engines. Copy the file that you need. Besides botapi and
// its client library, it needs botapi/examples/openai for the mapping of failures, the
// settings and the token counts.
package engines
