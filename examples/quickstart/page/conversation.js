// A conversation with a bot: what was said, and the answer in progress. It
// knows nothing of how it looks.

import { store } from "./store.js";
import { explain } from "./words.js";

// A server that is faster than the page keeps it busy without end. After so
// many milliseconds the browser has a turn, to show what has come and to hear
// the reader.
const patience = 8;

// So many steps can be undone.
const mostUndone = 20;

// breathe does not use a timer, which browsers slow down in hidden tabs.
function breathe() {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(null);
  });
}

export class Conversation extends EventTarget {
  turns;
  attempt = null; // the answer in progress: {turn, text, since, heard, controller}
  #past = []; // what undo brings back, the last at the end: {turns, done, turn}
  #fate = "kept"; // what became of what the store was given for the last answer
  arrived = () => {}; // called when text of an answer has come; an event for each word would cost more than the word
  #chat; // as BotClient.chat
  #ticking;

  // Events: "change" when turns have changed, "start" and "end", with its
  // outcome, of an answer, and "tick" each second meanwhile.
  constructor(bot, id, chat) {
    super();
    this.bot = bot;
    this.id = id;
    this.#chat = chat;
    this.turns = store.turns(id);
  }

  get answering() {
    return this.attempt !== null;
  }

  get isEmpty() {
    return this.turns.length === 0;
  }

  // say adds a message of the user and asks for the bot's answer. In place of a
  // turn, it takes that one and all behind it away, until that is undone.
  say(question, inPlaceOf) {
    const turn = { id: newID(), question, answer: "", state: "none", stopped: false, failure: null };
    const at = this.turns.findIndex(({ id }) => id === inPlaceOf?.id);
    if (at >= 0) this.#remember("edited", turn);
    else this.#past = [];
    this.turns = [...(at >= 0 ? this.turns.slice(0, at) : this.turns), turn];
    this.#fate = store.keep(this, this.turns);
    return this.ask(turn);
  }

  // regenerate asks for another answer. That takes the place of the one that is
  // there, until that is undone.
  regenerate(turn) {
    this.stop();
    if (turn.answer) this.#remember("regenerated", turn);
    return this.ask(turn);
  }

  // ask has the bot answer a turn, for the first time or once more. An answer
  // that is there already stays until there is a better one.
  async ask(turn) {
    this.stop();
    const attempt = { turn, text: "", since: Date.now(), heard: Date.now(), controller: new AbortController() };
    this.attempt = attempt;
    this.#ticking = setInterval(() => this.#tick(), 1000);
    this.#emit("change");
    this.#emit("start");

    let error;
    try {
      await this.#receive(attempt);
    } catch (failure) {
      error = failure;
    }
    if (this.attempt === attempt) this.#conclude(error);
  }

  async #receive(attempt) {
    const request = { bot_uid: this.bot.uid, messages: this.#messages(attempt.turn) };
    const heard = () => { attempt.heard = Date.now(); };
    let breath = performance.now();
    for await (const fragment of this.#chat(request, { signal: attempt.controller.signal, heard })) {
      if (this.attempt !== attempt) return;
      attempt.text += fragment;
      this.arrived();
      if (performance.now() - breath < patience) continue;
      await breathe();
      breath = performance.now();
    }
  }

  // messages are what a turn's question follows on. Turns without an answer are
  // left out, so that roles alternate.
  #messages(turn) {
    const before = this.turns.slice(0, this.turns.indexOf(turn)).filter(({ answer }) => answer !== "");
    return [
      ...before.flatMap(({ question, answer }) => [{ role: "user", content: question }, { role: "assistant", content: answer }]),
      { role: "user", content: turn.question },
    ];
  }

  // stop ends the answer in progress. What has arrived stays.
  stop() {
    if (!this.attempt) return;
    this.attempt.controller.abort();
    this.#conclude(null, true);
  }

  #conclude(error, stopped = false) {
    const { turn, text } = this.attempt;
    this.attempt = null;
    clearInterval(this.#ticking);
    Object.assign(turn, outcome(turn, text, error, stopped));
    if (this.#isSameAsBefore(turn)) this.#past.pop();
    this.#fate = worst(this.#fate, store.keepTurn(this, turn));
    this.#emit("change");
    this.#emit("end", { turn, error, stopped, fate: this.#fate });
    this.#fate = "kept";
  }

  #tick() {
    this.keep();
    this.#emit("tick");
  }

  // keep has the browser keep what has arrived so far, should the page be left.
  keep() {
    const { turn, text } = this.attempt ?? {};
    if (turn && text.length > turn.answer.length && turn.state !== "whole") {
      store.keepTurn(this, { ...turn, answer: text, state: "partial", stopped: false, failure: null });
    }
  }

  // leave is for when the page is left: what has arrived is kept.
  leave() {
    this.keep();
    this.#abandon();
  }

  // startOver goes back to the bot's welcome, until that is undone.
  startOver() {
    this.stop();
    this.#remember("cleared", null);
    this.#replace([]);
  }

  // undoable is what undo would bring back: {done: "cleared" | "edited" |
  // "regenerated", turn}, with the turn that took the place of others. There is
  // nothing to undo once something else has been said.
  get undoable() {
    const last = this.#past.at(-1);
    const isPending = last?.done === "regenerated" && this.attempt?.turn.id === last.turn.id;
    return last && !isPending ? last : null;
  }

  undo() {
    this.stop();
    const { turns } = this.#past.pop();
    this.#replace(turns);
  }

  // isSameAsBefore says of a turn that was to be regenerated that its answer
  // stays, and there is nothing to undo.
  #isSameAsBefore({ id, answer }) {
    const last = this.#past.at(-1);
    return last?.done === "regenerated" && last.turn.id === id && last.turns.find((turn) => turn.id === id)?.answer === answer;
  }

  // remember keeps the turns as they are for undo.
  #remember(done, turn) {
    this.#past.push({ done, turn, turns: this.turns.map((each) => ({ ...each })) });
    if (this.#past.length > mostUndone) this.#past.shift();
  }

  #replace(turns) {
    this.turns = turns;
    store.keep(this, turns);
    this.#emit("change");
  }

  // forget ends what is going on, without a trace.
  forget() {
    this.#abandon();
    this.turns = [];
    this.#past = [];
    this.#emit("change");
  }

  #abandon() {
    this.attempt?.controller.abort();
    this.attempt = null;
    clearInterval(this.#ticking);
  }

  // meet takes note of a bot's new name or picture.
  meet(bot) {
    this.bot = bot;
  }

  // refresh takes over what another tab has kept.
  refresh() {
    const own = this.attempt?.turn;
    const before = this.turns;
    this.turns = store.turns(this.id).map((turn) => (turn.id === own?.id ? own : turn));
    if (own && !this.turns.includes(own)) this.turns.push(own);
    if (this.turns.length !== before.length || this.turns.some(({ id }, i) => id !== before[i].id)) this.#past = [];
    this.#emit("change");
  }

  #emit(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}

const worst = (...fates) => ["no room", "made room", "kept"].find((fate) => fates.includes(fate));

// outcome is what becomes of a turn after a try. A failed one does not take
// away what an earlier one has brought.
function outcome(turn, text, error, stopped) {
  if (stopped) {
    return text ? { answer: text, state: "partial", stopped, failure: null } : { stopped: turn.state !== "whole", failure: null };
  }
  if (!error) return { answer: text, state: "whole", stopped, failure: null };
  const failure = error.status === 401 ? null : failureOf(error); // for a new key it is a new try
  if (turn.state === "whole" || text.length <= turn.answer.length) return { failure };
  return { answer: text, state: "partial", stopped, failure };
}

function failureOf(error) {
  const { title, advice = "" } = explain(error);
  const { requestID = "", retryAfter = 0 } = error;
  return { title, advice, requestID, retryAfter, until: Date.now() + 1000 * retryAfter };
}

// newID is that of a turn, or a conversation. It is not of crypto.randomUUID, which pages without https do not have.
export function newID() {
  return Date.now().toString(36) + Math.random().toString(36).slice(2);
}

// ---- Export ----

export function asMarkdown({ bot, turns }) {
  const parts = turns.flatMap(({ question, answer, state }) => [
    "## You", question,
    "## " + bot.name, answer || "*No answer.*",
    ...(answer && state === "partial" ? ["*This answer is incomplete.*"] : []),
  ]);
  return [`# ${bot.name}`, ...parts].join("\n\n") + "\n";
}

export function asJSON({ bot, turns }) {
  const messages = turns.flatMap(({ question, answer, state }) => [
    { role: "user", content: question },
    ...(state === "none" ? [] : [{ role: "assistant", content: answer, complete: state === "whole" }]),
  ]);
  return JSON.stringify({ bot: { uid: bot.uid, slug: bot.slug, name: bot.name }, messages }, null, 2) + "\n";
}
