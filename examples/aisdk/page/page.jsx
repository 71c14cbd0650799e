import { useChat } from "@ai-sdk/react";
import { useEffect, useRef, useState } from "react";
import { createRoot } from "react-dom/client";
import Markdown from "react-markdown";
import remarkGfm from "remark-gfm";
import { headers, useAddress } from "./address.js";
import { Transport, useReturn } from "./resuming.js";
import { load, parse, save } from "./stored.js";

const transport = new Transport({ api: "/api/chat", headers });

const textOf = (message) => message.parts.map((part) => (part.type === "text" ? part.text : "")).join("");
const isComplete = (message) => message.parts.every((part) => part.state !== "streaming");
const isQuestion = (message) => message.role === "user";

function Page() {
  const [address, change] = useAddress();
  return <Chat key={address.chat} id={address.chat} apiKey={address.key} bot={address.bot} setBot={(bot) => change({ bot })} />;
}

function Chat({ id, apiKey, bot, setBot }) {
  const [saved] = useState(() => load(id));
  const [bots, setBots] = useState([]);
  const [text, setText] = useState("");
  const [isStopping, setIsStopping] = useState(false);
  const [problem, setProblem] = useState(""); // of Stop
  const chat = useChat({ id, messages: saved, resume: true, transport });
  const { messages, sendMessage, regenerate, resumeStream, setMessages, stop, clearError, status, error } = chat;
  const isLost = useReturn(chat);
  const isBusy = status === "submitted" || status === "streaming";
  const isStored = useStored(id, chat, isBusy);
  const last = messages.at(-1);

  // The metadata of a question is the bot that was asked.
  const botOf = (index) => messages.slice(0, index).findLast(isQuestion)?.metadata?.bot ?? bot;
  const nameOf = (slug) => bots.find((each) => each.slug === slug)?.name ?? slug;
  const authorOf = (message, index) => (isQuestion(message) ? "You" : nameOf(botOf(index)));

  const view = useRef(null);
  const announcement = useAnnouncement(chat, last && authorOf(last, messages.length - 1), view);
  useEffect(() => {
    fetch("/v1/bots", { headers: headers() }).then((response) => response.ok && response.json().then(setBots)).catch(() => {});
    if (error) resumeStream(); // which the service may have rejected for the key before
  }, [apiKey]);

  // ask first ends an attempt to come back: its end would look like the end of the new answer.
  async function ask(question) {
    setProblem("");
    view.current.scrollTop = 0; // the end
    await stop();
    question();
  }

  function send(event) {
    event.preventDefault();
    if (isBusy || text.trim() === "") return;
    setText("");
    ask(() => sendMessage({ text, metadata: { bot } }, { body: { bot } }));
  }

  function askAgain() {
    const question = messages.findLast(isQuestion);
    ask(() => {
      setMessages((messages) => messages.map((message) => (message.id === question?.id ? { ...message, metadata: { bot } } : message)));
      regenerate({ body: { bot } });
    });
  }

  // stop() only disconnects, and the service goes on with the answer: DELETE stops it. With
  // the id of the message, it cannot stop a later answer. A 404 means that nothing goes on.
  async function stopAnswer() {
    const query = last?.role === "assistant" ? `?messageId=${encodeURIComponent(last.id)}` : "";
    setProblem("");
    setIsStopping(true);
    try {
      const response = await fetch(`/api/chat/${encodeURIComponent(id)}/stream${query}`, { method: "DELETE", headers: headers() });
      if (!response.ok && response.status !== 404) throw new Error(await response.text());
      await stop();
      clearError(); // of the stream, which may say first that the answer was stopped
    } catch (error) {
      setProblem(`The answer could not be stopped, and goes on: ${error.message}`);
    } finally {
      setIsStopping(false);
    }
  }

  function writeLine(event) {
    const isConversion = event.nativeEvent.isComposing || event.keyCode === 229; // which Enter confirms
    if (event.key === "Enter" && !event.shiftKey && !isConversion) send(event);
  }

  return (
    <>
      <header>
        <h1>useChat, with botapi</h1>
        <select aria-label="Bot" value={bot} onChange={(event) => setBot(event.target.value)}>
          {!bots.some(({ slug }) => slug === bot) && <option>{bot}</option>}
          {bots.map(({ slug, name }) => <option key={slug} value={slug}>{name}</option>)}
        </select>
      </header>
      <main ref={view} tabIndex={0} aria-label="Conversation">
        <ol className="conversation">
          {messages.map((message, index) => (
            <li key={message.id} className={message.role}>
              <span className="unseen">{authorOf(message, index)}: </span>
              {isQuestion(message) ? textOf(message) : <Answer text={textOf(message)} />}
            </li>
          ))}
        </ol>
      </main>
      <footer>
        {isLost && <p role="alert">The connection is lost. The page comes back for the answer.</p>}
        {error && !isLost && !isStopping && <p role="alert">{error.message}</p>}
        {problem && <p role="alert">{problem}</p>}
        <p role="status" className="unseen">{announcement}</p>
        <div role="status">
          {status === "ready" && last && isQuestion(last) && <p>The last message has no answer. Regenerate asks for one.</p>}
          {status === "ready" && last && !isComplete(last) && <p>The last answer is incomplete. Regenerate asks for another.</p>}
          {!isStored && <p>The browser cannot store this conversation: a reload loses what is new.</p>}
        </div>
        <form onSubmit={send}>
          <textarea aria-label="Message" rows={1} value={text} onChange={(event) => setText(event.target.value)} onKeyDown={writeLine} autoFocus />
          <button disabled={isBusy || text.trim() === ""}>Send</button>
          <button type="button" id="stop" disabled={isStopping || !(isBusy || isLost)} onClick={stopAnswer}>Stop</button>
          <button type="button" id="regenerate" disabled={isBusy || messages.length === 0} onClick={askAgain}>Regenerate</button>
        </form>
        <p id="status">{status}</p>
      </footer>
    </>
  );
}

// useStored stores the messages, and takes over what another tab has stored of this chat while none
// arrive here: the next message goes on with it. It returns whether the messages are stored.
function useStored(id, { messages, setMessages }, isBusy) {
  const [isStored, setIsStored] = useState(true);
  const taken = useRef(); // is not stored again: the other tab may have stored more in the meantime
  useEffect(() => {
    const text = JSON.stringify(messages);
    if (text !== taken.current) setIsStored(save(id, text));
  }, [messages]);
  useEffect(() => {
    if (isBusy) return undefined;
    const follow = ({ key, newValue }) => {
      if (key !== id || newValue === null) return;
      taken.current = newValue;
      setMessages(parse(newValue));
    };
    addEventListener("storage", follow);
    return () => removeEventListener("storage", follow);
  }, [isBusy]);
  return isStored;
}

// useAnnouncement returns what a screen reader says of its own accord: that an author is answering,
// and the answer when it is complete. After a reload, it does not say an answer again.
function useAnnouncement({ messages, status }, author, view) {
  const last = messages.at(-1);
  const answered = status === "ready" && last?.role === "assistant" && isComplete(last) ? last.id : undefined;
  const [said, setSaid] = useState({ id: answered, text: "" });
  useEffect(() => {
    if (answered && answered !== said.id) setSaid({ id: answered, text: view.current.querySelector("ol").lastChild.textContent });
  }, [answered]);
  if (status === "streaming" && last.id !== said.id) return `${author} is answering.`;
  return answered === said.id ? said.text : "";
}

// An Answer shows no images: their addresses could tell other servers what was said.
function Answer({ text }) {
  const components = { a: ({ node, ...link }) => <a {...link} target="_blank" rel="noreferrer" /> };
  return <Markdown remarkPlugins={[remarkGfm]} disallowedElements={["img"]} components={components}>{text}</Markdown>;
}

createRoot(document.getElementById("root")).render(<Page />);
