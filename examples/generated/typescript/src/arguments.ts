// The arguments of both programs: the service's URL, a key, the prompts for a JSON
// response and for a stream, and prompts whose requests get an error.
//
//   npm run openapi-fetch URL KEY ANSWER-PROMPT STREAM-PROMPT [PROMPT...]
//   npm run hey-api URL KEY ANSWER-PROMPT STREAM-PROMPT [PROMPT...]

if (process.argv.length < 6) {
  throw new Error("usage: URL KEY ANSWER-PROMPT STREAM-PROMPT [PROMPT...]");
}
export const [url, key, answerPrompt, streamPrompt, ...prompts] =
  process.argv.slice(2) as [string, string, string, string, ...string[]];
