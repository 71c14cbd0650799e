import { useChat } from "@ai-sdk/react";
import { DefaultChatTransport, generateId } from "ai";
import { useEffect, useState } from "react";
import { createRoot } from "react-dom/client";

// The address of the page has the API key and the chat, so a reload finds them again.
const place = new URLSearchParams(location.hash.slice(1));
if (!place.has("chat")) {
  place.set("chat", generateId());
  location.replace(`#${place}`);
}
const id = place.get("chat");
const headers = { Authorization: `Bearer ${place.get("key")}` };
const saved = JSON.parse(localStorage.getItem(id) ?? "[]");
const transport = new DefaultChatTransport({ api: "/api/chat", headers });

const textOf = (message) => message.parts.map((part) => (part.type === "text" ? part.text : "")).join("");

function Chat() {
  const [bots, setBots] = useState([]);
  const [bot, setBot] = useState("mira");
  const [text, setText] = useState("");
  const { messages, sendMessage, regenerate, stop, resumeStream, status, error } = useChat({
    id,
    messages: saved,
    resume: true,
    transport,
    onFinish: ({ isDisconnect }) => isDisconnect && setTimeout(resumeStream, 1000),
  });
  const isBusy = status === "submitted" || status === "streaming";

  useEffect(() => {
    localStorage.setItem(id, JSON.stringify(messages));
    scrollTo(0, document.body.scrollHeight);
  }, [messages]);
  useEffect(() => {
    fetch("/v1/bots", { headers }).then((response) => (response.ok ? response.json() : [])).then(setBots);
  }, []);

  // stop() only disconnects, and the service goes on with the answer: DELETE stops it. With
  // the id of the message, it cannot stop a later answer.
  function stopAnswer() {
    const last = messages.at(-1);
    const query = last?.role === "assistant" ? `?messageId=${encodeURIComponent(last.id)}` : "";
    fetch(`/api/chat/${encodeURIComponent(id)}/stream${query}`, { method: "DELETE", headers });
    stop();
  }

  function send(event) {
    event.preventDefault();
    sendMessage({ text }, { body: { bot } });
    setText("");
  }

  return (
    <>
      <header>
        <h1>useChat, with botapi</h1>
        <select aria-label="Bot" value={bot} onChange={(event) => setBot(event.target.value)}>
          {bots.map(({ slug, name }) => <option key={slug} value={slug}>{name}</option>)}
        </select>
      </header>
      <ol>
        {messages.map((message) => <li key={message.id} className={message.role}>{textOf(message)}</li>)}
      </ol>
      <footer>
        {error && <p role="alert">{error.message}</p>}
        <form onSubmit={send}>
          <input aria-label="Message" value={text} onChange={(event) => setText(event.target.value)} autoFocus />
          <button disabled={isBusy || text === ""}>Send</button>
          <button type="button" id="stop" disabled={!isBusy} onClick={stopAnswer}>Stop</button>
          <button type="button" id="regenerate" disabled={isBusy || messages.length === 0} onClick={() => regenerate({ body: { bot } })}>Regenerate</button>
        </form>
        <p role="status">{status}</p>
      </footer>
    </>
  );
}

createRoot(document.getElementById("root")).render(<Chat />);
