// Talks to a bot service through the client that hey-api generates from openapi.json,
// including its parser for event streams.

import { answerPrompt, key, prompts, streamPrompt, url } from "./arguments.js";
import { createClient } from "./hey-api/client/index.js";
import { chat, listBots } from "./hey-api/sdk.gen.js";
import type { BotResponse, ChatErrors, ChatRequest, Error as ServiceError } from "./hey-api/types.gen.js";

const client = createClient({ baseUrl: url, auth: key });

const bots = await listBots({ client });
if (!bots.data) throw new Error(JSON.stringify(bots.error));
console.log("bots:", bots.data.map((bot) => `${bot.name} ${bot.avatar_url ?? "without a picture"}`).join(", "));
const bot_slug = bots.data[0]?.slug ?? "";

const answer = await chat({ client, body: { bot_slug, prompt: answerPrompt, stream: false } });
console.log("answer:", (answer.data as BotResponse).content);

const request: ChatRequest = { bot_slug, messages: [{ role: "user", content: streamPrompt }], stream: true };
let failure = "the stream ended before the answer was complete";
let text = "";
const { stream } = await client.sse.post({
  url: "/v1/chat",
  body: request,
  headers: { "Content-Type": "application/json" },
  security: [{ scheme: "bearer", type: "http" }],
  sseMaxRetryAttempts: 1, // a second attempt would run the bot a second time
  onSseEvent: ({ event, data }) => {
    if (event === "error") failure = failureIn(data as ServiceError);
    else if (data === "[DONE]") failure = "";
    else text += (data as BotResponse).content;
  },
});
while (!(await stream.next()).done);
console.log("stream:", failure ? `${JSON.stringify(text)}, then ${failure}` : text);

await showError("wrong key", { bot_slug, prompt: "Hello", stream: false }, "unknown");
await showError("no bot", { bot_slug: "nobody", prompt: "Hello", stream: false });
await showError("too large", { bot_slug, prompt: "a".repeat(2 << 20), stream: false });
await showError("invalid", { bot_slug, stream: false });
for (const prompt of prompts) await showError(prompt, { bot_slug, prompt, stream: false });

async function showError(name: string, body: ChatRequest, auth = key): Promise<void> {
  const { error, response } = await chat({ client, body, auth });
  if (!error || !response) throw new Error(`${name}: no error`);
  console.log(`${name}: ${response.status} ${reason(error)}`);
}

// failureIn reads an error event. A program that tries again also needs its retry_after, in
// seconds.
function failureIn({ detail, status }: ServiceError): string {
  return `${status} ${detail}`;
}

function reason({ detail }: ChatErrors[keyof ChatErrors]): string {
  if (typeof detail === "string") return detail;
  return detail.map(({ loc, msg }) => `${JSON.stringify(loc)} ${msg}`).join(", ");
}
