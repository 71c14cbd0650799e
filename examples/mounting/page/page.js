// What pages of other origins do with the service, for cors_test.go: a function for each
// client. Each returns what a page can see of the responses.
import { DefaultChatTransport, readUIMessageStream } from "ai";
import { Ollama } from "ollama/browser";
import OpenAI from "openai";

const ask = (prompt) => [{ role: "user", content: prompt }];

// A client of botapi's own protocol. It stops an answer that it has begun, and finds it
// stopped when it comes back.
async function botapi(address, key) {
  const headers = { Authorization: `Bearer ${key}`, "Content-Type": "application/json" };
  const list = await fetch(`${address}/v1/bots`, { headers });
  const again = await fetch(`${address}/v1/bots`, { headers: { ...headers, "If-None-Match": list.headers.get("ETag"), "X-Request-Id": "of-the-page" } });

  const answer = { ...headers, "Idempotency-Key": crypto.randomUUID() };
  const send = () => fetch(`${address}/v1/chat`, {
    method: "POST",
    headers: answer,
    body: JSON.stringify({ bot_slug: "echo", prompt: "wait", stream: true }),
  });
  const begun = await send();
  const arrives = begun.body.pipeThrough(new TextDecoderStream()).getReader();
  const first = (await arrives.read()).value;
  const stopped = await fetch(`${address}/v1/answers`, { method: "DELETE", headers: answer });
  const joined = await send();

  const busy = await fetch(`${address}/v1/chat`, { method: "POST", headers, body: JSON.stringify({ bot_slug: "echo", prompt: "fail", stream: false }) });
  const stranger = await fetch(`${address}/v1/bots`);
  return {
    list: [list.status, (await list.json()).length],
    again: [again.status, again.headers.get("X-Request-Id")],
    begun: [begun.headers.get("X-Botapi-Answer"), first],
    stopped: stopped.status,
    joined: [joined.status, (await joined.json()).detail],
    busy: [busy.status, busy.headers.get("Retry-After")],
    stranger: [stranger.status, stranger.headers.get("WWW-Authenticate")],
  };
}

// The official library of OpenAI, whose requests have headers of its own.
async function openai(address, key) {
  const client = new OpenAI({ baseURL: `${address}/v1`, apiKey: key, maxRetries: 0, dangerouslyAllowBrowser: true });
  client.idempotencyHeader = "Idempotency-Key";
  const models = (await client.models.list()).data.map((model) => model.id);
  const { data: chunks, response, request_id: id } = await client.chat.completions
    .create({ model: "echo", messages: ask("Hello?"), stream: true })
    .withResponse();
  let completion = "";
  for await (const chunk of chunks) completion += chunk.choices[0]?.delta?.content ?? "";
  const { output_text } = await client.responses.create({ model: "echo", input: "Hello?" });
  const busy = await client.chat.completions.create({ model: "echo", messages: ask("fail") }).catch((error) => error);
  return {
    models,
    completion,
    kept: response.headers.get("X-Botapi-Answer"),
    hasRequestID: Boolean(id),
    response: output_text,
    busy: [busy.status, busy.headers?.get("Retry-After")],
  };
}

// The transport of useChat: send, come back, stop.
async function useChat(address, key) {
  const headers = { Authorization: `Bearer ${key}` };
  const transport = new DefaultChatTransport({ api: `${address}/api/chat?bot=echo`, headers });
  const chatId = "a chat";
  const resumable = new DefaultChatTransport({ api: `${address}/api/chat`, headers });
  const messages = [{ id: "1", role: "user", parts: [{ type: "text", text: "wait" }] }];
  const text = async (stream) => {
    for await (const message of readUIMessageStream({ stream })) {
      const said = message.parts.map((part) => part.text ?? "").join("");
      if (said) return said;
    }
  };
  const sent = await text(await transport.sendMessages({ chatId, messages, trigger: "submit-message" }));
  const cameBack = await text(await resumable.reconnectToStream({ chatId }));
  const stop = () => fetch(`${address}/api/chat/${encodeURIComponent(chatId)}/stream`, { method: "DELETE", headers });
  return { sent, cameBack, stopped: (await stop()).status };
}

// The official library of Ollama. The service has no such API, and the page sees that.
async function ollama(address, key) {
  const client = new Ollama({ host: address, headers: { Authorization: `Bearer ${key}` } });
  const status = async (call) => {
    const error = await call.then(() => new Error("there is an answer"), (error) => error);
    if (!error.status_code) throw error;
    return error.status_code;
  };
  return { generate: await status(client.generate({ model: "echo", prompt: "Hello?" })), list: await status(client.list()) };
}

window.clients = { botapi, openai, useChat, ollama };
