// Talks to a bot service through openapi-fetch, with the types that
// openapi-typescript generates from openapi.json.

import createClient from "openapi-fetch";
import { EventSourceParserStream } from "eventsource-parser/stream";
import { answerPrompt, key, prompts, streamPrompt, url } from "./arguments.js";
import type { components, paths } from "./openapi.js";

type BotResponse = components["schemas"]["BotResponse"];
type ChatRequest = components["schemas"]["ChatRequest"];
type ServiceError = components["schemas"]["Error"];
type ErrorBody = ServiceError | components["schemas"]["HTTPValidationError"];

// A StreamError is an error event. status and retryAfter (in seconds) say whether to try
// again, as those of an error response do.
class StreamError extends Error {
  readonly status: number;
  readonly retryAfter: number | undefined;

  constructor({ detail, status = 500, retry_after }: ServiceError) {
    super(`${status} ${detail}`);
    this.status = status;
    this.retryAfter = retry_after;
  }
}

const client = createClient<paths>({ baseUrl: url, headers: { Authorization: `Bearer ${key}` } });

const bots = await client.GET("/v1/bots");
if (!bots.data) throw new Error(bots.error?.detail);
console.log("bots:", bots.data.map((bot) => `${bot.name} ${bot.avatar_url ?? "without a picture"}`).join(", "));
const bot_slug = bots.data[0]?.slug ?? "";

const answer = await client.POST("/v1/chat", { body: { bot_slug, prompt: answerPrompt, stream: false } });
console.log("answer:", (answer.data as BotResponse).content);

const stream = await client.POST("/v1/chat", {
  body: { bot_slug, messages: [{ role: "user", content: streamPrompt }], stream: true },
  parseAs: "stream",
});
if (stream.error || !stream.response.body) throw new Error(JSON.stringify(stream.error));
let text = "";
try {
  for await (const fragment of fragments(stream.response.body)) text += fragment;
  console.log("stream:", text);
} catch (error) {
  console.log(`stream: ${JSON.stringify(text)}, then ${(error as Error).message}`);
}

await showError("wrong key", { bot_slug, prompt: "Hello", stream: false }, { Authorization: "Bearer unknown" });
await showError("no bot", { bot_slug: "nobody", prompt: "Hello", stream: false });
await showError("too large", { bot_slug, prompt: "a".repeat(2 << 20), stream: false });
await showError("invalid", { bot_slug, stream: false });
for (const prompt of prompts) await showError(prompt, { bot_slug, prompt, stream: false });

async function showError(name: string, body: ChatRequest, headers: Record<string, string> = {}): Promise<void> {
  const { error, response } = await client.POST("/v1/chat", { body, headers });
  if (!error) throw new Error(`${name}: no error`);
  console.log(`${name}: ${response.status} ${reason(error)}`);
}

function reason({ detail }: ErrorBody): string {
  if (typeof detail === "string") return detail;
  return detail.map(({ loc, msg }) => `${JSON.stringify(loc)} ${msg}`).join(", ");
}

// fragments yields the text of a stream's events. It throws if the answer is
// incomplete.
async function* fragments(body: ReadableStream<BufferSource>): AsyncGenerator<string> {
  const events = body
    .pipeThrough(new TextDecoderStream())
    .pipeThrough(new EventSourceParserStream());
  for await (const { event, data } of events) {
    if (data === "[DONE]") return;
    if (event === "error") throw new StreamError(JSON.parse(data) as ServiceError);
    yield (JSON.parse(data) as BotResponse).content;
  }
  throw new Error("the stream ended before the answer was complete");
}
