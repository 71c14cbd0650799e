// Talks to a bot service through a client whose types are generated from
// openapi.json: it lists the bots, asks the first one for an answer in one body
// and as a stream, and sends a request that is not valid.
//
//   npm start http://127.0.0.1:8080 KEY

import createClient from "openapi-fetch";
import { EventSourceParserStream } from "eventsource-parser/stream";
import type { components, paths } from "./openapi.js";

type BotResponse = components["schemas"]["BotResponse"];
type ServiceError = components["schemas"]["Error"];

const [url, key] = process.argv.slice(2);
if (!url || !key) throw new Error("usage: npm start URL KEY");
const client = createClient<paths>({ baseUrl: url, headers: { Authorization: `Bearer ${key}` } });

const bots = await client.GET("/v1/bots");
if (!bots.data) throw new Error(bots.error.detail);
console.log("bots:", bots.data.map((bot) => bot.name).join(", "));
const bot = bots.data[0];
if (!bot) throw new Error("no bot is published");

const answer = await client.POST("/v1/chat", {
  body: { bot_uid: bot.uid, prompt: "Hello", stream: false },
});
console.log("answer:", answer.data);

const refused = await client.POST("/v1/chat", {
  // @ts-expect-error The types know that a prompt or messages are needed.
  body: { bot_uid: bot.uid, stream: false },
});
console.log("refused:", refused.response.status, JSON.stringify(refused.error));

const stream = await client.POST("/v1/chat", {
  body: { bot_slug: bot.slug, messages: [{ role: "user", content: "Hello again" }], stream: true },
  parseAs: "stream",
});
if (stream.error || !stream.response.body) throw new Error(JSON.stringify(stream.error));
let text = "";
for await (const fragment of fragments(stream.response.body)) text += fragment;
console.log("stream:", text);

// fragments yields the text of a stream's events, and throws if the answer is
// not whole.
async function* fragments(body: ReadableStream<BufferSource>): AsyncGenerator<string> {
  const events = body
    .pipeThrough(new TextDecoderStream())
    .pipeThrough(new EventSourceParserStream());
  for await (const { event, data } of events) {
    if (data === "[DONE]") return;
    if (event === "error") throw new Error((JSON.parse(data) as ServiceError).detail);
    yield (JSON.parse(data) as BotResponse).content;
  }
  throw new Error("the stream ended before the answer was whole");
}
