// What both programs are told: where the service is, its key, what to ask for
// an answer and for a stream, and what to ask that is going to be refused.
//
//   npm run openapi-fetch URL KEY ANSWER-PROMPT STREAM-PROMPT [PROMPT...]
//   npm run hey-api URL KEY ANSWER-PROMPT STREAM-PROMPT [PROMPT...]

if (process.argv.length < 6) {
  throw new Error("usage: URL KEY ANSWER-PROMPT STREAM-PROMPT [PROMPT...]");
}
export const [url, key, answerPrompt, streamPrompt, ...prompts] =
  process.argv.slice(2) as [string, string, string, string, ...string[]];
