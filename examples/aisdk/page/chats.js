// Sends chats with Chat of @ai-sdk/react, the state of useChat, for node_test.go:
//
//	node chats.js ADDRESS KEY CHAT [VERSION]
//
// with AI SDK 7, or an earlier version that many have installed. It reads commands from standard input, one JSON object a line, and prints what the
// chat shows after each change.
import { createInterface } from "node:readline";

const [address, key, id, version = "7"] = process.argv.slice(2);
const [react, ai] = { 5: ["react-2", "ai-5"], 6: ["react-3", "ai-6"], 7: ["@ai-sdk/react", "ai"] }[version];
const { Chat } = await import(react);
const { DefaultChatTransport } = await import(ai);
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
