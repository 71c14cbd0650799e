// Sends chats with Chat of @ai-sdk/react, the state of useChat, for node_test.go:
//
//	node chats.js ADDRESS KEY CHAT
//
// It reads commands from standard input, one JSON object a line, and prints what the
// chat shows after each change.
import { Chat } from "@ai-sdk/react";
import { DefaultChatTransport } from "ai";
import { createInterface } from "node:readline";

const [address, key, id] = process.argv.slice(2);
let requests = [];
let finished;

const chat = new Chat({
  id,
  transport: new DefaultChatTransport({
    api: `${address}/api/chat?bot=mira`,
    headers: { Authorization: `Bearer ${key}` },
    fetch: async (...request) => {
      const response = await fetch(...request);
      requests.push({ method: request[1].method, status: response.status, retryAfter: response.headers.get("retry-after") });
      return response;
    },
  }),
  onFinish: ({ finishReason, isAbort, isDisconnect, isError }) => (finished = { finishReason, isAbort, isDisconnect, isError }),
});

const textOf = ({ parts }) => parts.map((part) => part.text ?? "").join("");

function print(what) {
  console.log(JSON.stringify({
    ...what,
    status: chat.status,
    error: chat.error?.message,
    messages: chat.messages.map((message) => ({ id: message.id, role: message.role, text: textOf(message), metadata: message.metadata })),
  }));
}

chat["~registerMessagesCallback"](() => {
  const last = chat.messages.at(-1);
  if (last?.role === "assistant" && textOf(last) !== "") print({});
}, 10);

const commands = {
  send: ({ text, files }) => chat.sendMessage({ text, files }),
  regenerate: () => chat.regenerate(),
  resume: () => chat.resumeStream(),
  stop: () => chat.stop(),
};

for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  if (command.do === "send" || command.do === "regenerate" || command.do === "resume") [requests, finished] = [[], undefined];
  commands[command.do](command).then(() => print({ done: command.do, requests, finished }));
}
