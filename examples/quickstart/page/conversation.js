// A conversation with a bot: its messages and the answer in progress, without
// the display.

import { includes, settingsOf, store, titleOf } from "./store.js";
import { explain, isTooLong } from "./words.js";
import { branch, everyTurn, switchTo, versionWith } from "./versions.js";
import { withoutThought } from "./thought.js";
import { isFresh, isPassing, mayContinue, newKey, pause, stop } from "./resuming.js";

// A fast stream could keep the page busy all the time. After this many
// milliseconds, the browser gets a turn, to draw and to handle input.
const patience = 8;

// breathe lets the browser handle other events. It does not use a timer, since
// browsers slow timers down in hidden tabs.
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
  turns; // bot, title, settings: see store.js
  attempt = null; // the answer in progress: {turn, text, since, heard, controller, kept, lost, breaks, isResumed, before}
  cleared = null; // the turns that undo restores
  isDeleted = false; // whether another tab has deleted it, until there are turns again
  #fate = "kept"; // the result of storing the current answer, see store.keep
  arrived = () => {}; // called for each fragment; an event would cost more than the fragment
  #isStored; // whether the store has it: another tab has deleted it if it is missing there
  #service; // {chat, stop}: the functions of BotClient; stop is missing if the service does not keep answers
  #ticking;

  // Events: "change" when turns have changed, "start" and "end" of an answer (the
  // latter with its outcome), "tick" each second in between, and "deleted" when another
  // tab has deleted the conversation.
  constructor(bot, id, service) {
    super();
    const { title, settings, turns } = store.load(id);
    Object.assign(this, { bot, id, title, settings, turns });
    this.#service = service;
    this.#isStored = store.has(id);
    if (this.isEmpty) this.settings = store.settings(bot.uid);
  }

  get answering() {
    return this.attempt !== null;
  }

  get isEmpty() {
    return this.turns.length === 0;
  }

  get name() {
    return this.isEmpty ? "" : titleOf(this, this.turns);
  }

  // set changes the title or the settings.
  set(changes) {
    Object.assign(this, changes);
    if (this.isEmpty) store.keepSettings(this.bot.uid, this.settings);
    else store.rename(this);
    this.#emit("change");
  }

  // say adds a message of the user and asks for the bot's answer. With inPlaceOf, that
  // begins another version of the conversation, or asks again in place of a last turn without
  // an answer.
  say(question, inPlaceOf) {
    this.stop();
    this.cleared = null;
    const turn = newTurn(question);
    const at = this.#placeOf(inPlaceOf);
    const old = this.turns[at];
    if (at < 0) this.turns = [...this.turns, turn];
    else if (old.answer || old.question !== question || at < this.turns.length - 1) this.turns = branch(this.turns, at, turn);
    else this.turns = [...this.turns.slice(0, at), Object.assign(turn, { before: old.before, after: old.after })];
    this.#keepAll();
    return this.ask(turn);
  }

  // regenerate asks for another answer, which begins another version of the
  // conversation. If the last turn gets none, its earlier answer stays.
  regenerate(turn, pending) {
    this.stop();
    const at = this.#placeOf(turn);
    turn = this.turns[at];
    if (!turn.answer) return this.ask(turn, pending);
    turn.pending = turn.failure = null;
    const before = at === this.turns.length - 1 ? (turn.before ?? []).length : -1;
    const another = newTurn(turn.question);
    this.turns = branch(this.turns, at, another);
    this.#keepAll();
    return this.ask(another, pending, before);
  }

  // again asks again after a failure, for the same answer if the service may have it.
  again(turn) {
    if (this.attempt?.kept) return this.attempt.controller.abort(); // of a silent connection
    const pending = this.attempt ? undefined : turn.pending ?? undefined;
    const before = this.attempt?.before ?? -1;
    if (this.attempt) this.attempt.before = -1; // the turn stays for this attempt
    return turn.state === "whole" ? this.regenerate(turn, pending) : this.ask(turn, pending, before);
  }

  // show shows another version of the conversation from a turn on.
  show(turn, index) {
    this.stop();
    this.#replace(switchTo(this.turns, this.#placeOf(turn), index));
  }

  // showWith shows a version that has all words of a text, if there is one. An answer in
  // progress stays.
  showWith(text) {
    const isFound = includes(text);
    const turns = this.answering ? null : versionWith(this.turns, (turns) => isFound(turns, this.title));
    if (turns && turns !== this.turns) this.#replace(turns);
  }

  #placeOf(turn) {
    return this.turns.findIndex(({ id }) => id === turn?.id);
  }

  // resume continues the last answer if it was in progress when this page was
  // loaded, or is in progress in another tab.
  resume() {
    const turn = this.turns.at(-1);
    if (!this.attempt && this.#service.stop && turn?.pending && !turn.failure && isFresh(turn.pending)) this.again(turn);
  }

  // ask asks the bot to answer a turn, for the first time or again. An earlier
  // answer stays until there is a better one. pending is the answer to continue;
  // before is the index of the version to return to without an answer, or -1.
  async ask(turn, pending, before = -1) {
    this.stop();
    const now = Date.now();
    turn.pending = this.#service.stop ? { key: pending?.key ?? newKey(), heard: now } : null;
    turn.failure = null;
    const text = pending && turn.state === "partial" ? turn.answer : "";
    const attempt = { turn, text, since: now, heard: now, controller: new AbortController(), kept: pending && pending.kept !== false ? true : undefined, lost: 0, breaks: 0, isResumed: pending !== undefined, before };
    this.attempt = attempt;
    if (turn.pending) this.#keepTurn(turn);
    if (this.attempt !== attempt) return; // another tab has deleted the conversation
    this.#ticking = setInterval(() => this.#tick(), 1000);
    this.#emit("change");
    this.#emit("start");

    let error;
    try {
      await this.#receive(attempt);
    } catch (failure) {
      error = failure;
    }
    if (this.attempt !== attempt) return;
    if (error?.status === 410) this.#conclude(null, true, true);
    else this.#conclude(error);
  }

  // receive receives the answer, over as many connections as it takes.
  async #receive(attempt) {
    for (let tries = 0; this.attempt === attempt; tries++) {
      const before = attempt.text.length;
      let error;
      try {
        return await this.#follow(attempt);
      } catch (failure) {
        error = failure.name === "AbortError" ? { kind: "unreachable" } : failure;
      }
      if (this.attempt !== attempt) return;
      if (attempt.text.length > before) tries = attempt.breaks = 0;
      attempt.breaks += error.kind === "failed" || error.kind === "incomplete";
      attempt.lost ||= Date.now();
      if (!mayContinue(attempt, error)) throw error;
      this.#emit("tick");
      await pause(tries, error);
    }
  }

  // follow receives the answer from its first fragment. Text that has arrived
  // before stays until there is more.
  async #follow(attempt) {
    attempt.controller = new AbortController();
    const { key } = attempt.turn.pending ?? {};
    const request = this.#request(attempt.turn);
    const begun = (kept) => { attempt.kept = kept; };
    const heard = () => {
      attempt.heard = Date.now();
      attempt.lost = 0;
    };
    let text = "";
    let breath = performance.now();
    for await (const fragment of this.#service.chat(request, { key, signal: attempt.controller.signal, begun, heard })) {
      if (this.attempt !== attempt) return;
      text += fragment;
      if (text.length < attempt.text.length) continue;
      attempt.text = text;
      this.arrived();
      if (performance.now() - breath < patience) continue;
      await breathe();
      breath = performance.now();
    }
    attempt.text = text;
  }

  // request returns the request for the answer to a turn, which may be new. Models are not told
  // again what they have thought.
  #request(turn) {
    const { system, ...parameters } = this.settings;
    const messages = this.#sentBefore(turn).flatMap(({ question, answer }) => [{ role: "user", content: question }, { role: "assistant", content: withoutThought(answer) || answer }]);
    if (system) messages.unshift({ role: "system", content: system });
    return { bot_uid: this.bot.uid, ...parameters, messages: [...messages, { role: "user", content: turn.question }] };
  }

  // sentBefore returns the turns that are sent with a later one. Those without an
  // answer are not, so that roles alternate.
  #sentBefore(turn) {
    const at = this.turns.findIndex(({ id }) => id === turn.id);
    return this.turns.slice(0, at < 0 ? this.turns.length : at).filter(({ answer, leftOut }) => answer !== "" && !leftOut);
  }

  // size returns the size in bytes of the request that asks a question, in place of
  // a turn or as the next one.
  size(question, { id } = {}) {
    return new Blob([JSON.stringify({ ...this.#request({ id, question }), stream: true })]).size;
  }

  // canShorten reports whether there are turns to leave out of the request for a
  // turn or for the next one.
  canShorten(turn = {}) {
    return this.#sentBefore(turn).length > 0;
  }

  // shorten leaves the oldest turns out of later requests. The most recent ones stay,
  // up to half of what was sent, and of the limit.
  shorten(limit, turn = {}) {
    const sent = this.#sentBefore(turn).map((turn) => ({ turn, size: new Blob([turn.question, turn.answer]).size }));
    let room = Math.min(limit, sent.reduce((sum, { size }) => sum + size, 0)) / 2;
    for (const { turn, size } of sent.reverse()) turn.leftOut = (room -= size) < 0;
    this.#keepAll(store.changed(this.id));
    this.#emit("change");
  }

  // stop cancels the answer in progress. The text that has arrived stays.
  stop() {
    if (!this.attempt) return;
    this.#stopModel();
    this.#conclude(null, true);
  }

  #stopModel() {
    const { turn, kept, controller } = this.attempt;
    controller.abort();
    if (turn.pending && kept !== false) stop(this.#service, turn.pending.key);
  }

  // conclude keeps the key of an answer that the service may still have. It stores
  // nothing if another tab has stopped the answer: that tab may have removed it.
  #conclude(error, stopped = false, elsewhere = false) {
    const { text, kept, before } = this.attempt;
    let { turn } = this.attempt;
    this.attempt = null;
    clearInterval(this.#ticking);
    const isNew = (!error && !stopped) || text.length > turn.answer.length;
    Object.assign(turn, outcome(turn, text, error, stopped));
    if (!error || kept === false || !isPassing(error)) turn.pending = null;
    if (turn.pending) turn.pending.kept = kept === true;
    if (!elsewhere) this.#keepTurn(turn);
    if (before >= 0 && !elsewhere && turn.state === "none" && !this.isEmpty) turn = this.#withdraw(turn, before);
    if (this.isEmpty) return; // another tab has deleted the conversation
    this.#emit("change");
    this.#emit("end", { turn, error, stopped, isNew, fate: this.#fate });
    this.#fate = "kept";
  }

  // withdraw removes the last turn, which has got no answer, for an earlier version.
  #withdraw({ before, failure, pending }, index) {
    this.turns = switchTo(this.turns, this.turns.length - 1, index, before);
    Object.assign(this.turns.at(-1), { failure, pending });
    this.#keepAll(store.changed(this.id));
    return this.turns.at(-1);
  }

  #tick() {
    this.keep();
    this.#emit("tick");
  }

  // keep stores the text that has arrived so far, in case the page is closed.
  keep(mustKeep = false) {
    if (!this.attempt) return;
    const { turn, text, heard, kept } = this.attempt;
    const pending = turn.pending && kept !== false ? { ...turn.pending, heard, kept } : null;
    const hasMore = text.length > turn.answer.length && turn.state !== "whole";
    const isNews = pending?.kept !== turn.pending?.kept || pending?.heard > turn.pending?.heard + 10_000;
    if (!mustKeep && !hasMore && !isNews) return;
    turn.pending = pending;
    this.#keepTurn(hasMore ? { ...turn, answer: text, state: "partial", stopped: false } : turn);
  }

  // keepAll stores all turns. The settings of an empty conversation are those of the bot's next one.
  #keepAll(changed) {
    if (this.isEmpty || !this.#isStored) store.keepSettings(this.bot.uid, this.isEmpty ? this.settings : {});
    this.#fate = store.keep(this, this.turns, changed);
    this.isDeleted = false;
    this.#isStored = store.has(this.id);
  }

  // keepTurn stores a turn. A conversation that another tab has deleted stays deleted.
  #keepTurn(turn) {
    if (this.#forgetIfDeleted()) return;
    this.#fate = worst(this.#fate, store.keepTurn(this, turn));
    this.#isStored = store.has(this.id);
  }

  #forgetIfDeleted() {
    if (!this.#isStored || store.has(this.id)) return false;
    this.isDeleted = true;
    this.forget();
    this.#emit("deleted");
    return true;
  }

  // leave is called on pagehide. It stores the text that has arrived.
  leave() {
    this.keep(true);
    this.#abandon();
  }

  // startOver removes all turns. Until the next message, undo restores them.
  startOver() {
    this.stop();
    this.cleared = this.turns;
    this.#replace([]);
  }

  undo() {
    const turns = this.cleared;
    this.cleared = null;
    this.#replace(turns);
  }

  // replace shows other turns. A stored conversation stays where it is in the list.
  #replace(turns) {
    this.turns = turns;
    this.#keepAll(store.changed(this.id));
    this.#emit("change");
  }

  // forget cancels the answer in progress and removes all turns, without storing
  // anything.
  forget() {
    if (this.attempt) this.#stopModel();
    this.#abandon();
    this.turns = [];
    this.cleared = null;
    this.#isStored = false;
    this.#emit("change");
  }

  #abandon() {
    this.attempt?.controller.abort();
    this.attempt = null;
    clearInterval(this.#ticking);
  }

  // refresh loads what another tab has stored.
  refresh() {
    if (this.#forgetIfDeleted() || !store.has(this.id)) return; // it is deleted, or there was no room for it
    const own = this.attempt?.turn;
    const { title, settings, turns } = store.load(this.id);
    Object.assign(this, { title, settings });
    const at = turns.findIndex(({ id }) => id === own?.id);
    if (at >= 0) turns[at] = Object.assign(own, { before: turns[at].before, after: turns[at].after });
    else if (own && [...everyTurn(turns)].some(({ id }) => id === own.id)) return; // another tab shows another version
    else if (own && this.attempt.isResumed) this.#abandon(); // another tab has removed the turn
    else if (own) turns.push(own);
    this.turns = turns;
    this.cleared = null;
    this.isDeleted = false;
    this.#isStored = true;
    this.#emit("change");
  }

  #emit(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}

const worst = (...fates) => ["no room", "made room", "kept"].find((fate) => fates.includes(fate));

// outcome returns the changes to a turn after an attempt. A failed attempt does
// not replace a better answer of an earlier one.
function outcome(turn, text, error, stopped) {
  if (stopped) {
    return text ? { answer: text, state: "partial", stopped, failure: null } : { stopped: turn.state !== "whole", failure: null };
  }
  if (!error) return { answer: text, state: "whole", stopped, failure: null };
  const failure = error.status === 401 ? null : failureOf(error); // the page asks for another key
  if (turn.state === "whole" || text.length <= turn.answer.length) return { failure };
  return { answer: text, state: "partial", stopped, failure };
}

function newTurn(question) {
  return { id: newID(), question, answer: "", state: "none", stopped: false, failure: null, pending: null };
}

function failureOf(error) {
  const { title, advice = "" } = explain(error);
  const { requestID = "", retryAfter = 0 } = error;
  return { title, advice, requestID, tooLong: isTooLong(error), retryAfter, until: Date.now() + 1000 * retryAfter };
}

// newID makes an id for a turn or a conversation. crypto.randomUUID does not
// exist on pages without https.
export function newID() {
  return Date.now().toString(36) + Math.random().toString(36).slice(2);
}

// ---- Export and import ----

export function asMarkdown({ bot, title, settings, turns }) {
  const { system, ...parameters } = settings;
  const values = Object.entries(parameters).map(([name, value]) => `- ${name}: ${value}`);
  const before = [
    ...(system ? ["## Instructions", system] : []),
    ...(values.length > 0 ? ["## Parameters", values.join("\n")] : []),
  ];
  const parts = turns.flatMap(({ question, answer, state }) => [
    "## You", question,
    "## " + bot.name, withoutThought(answer) || "*No answer.*",
    ...(answer && state === "partial" ? ["*This answer is incomplete.*"] : []),
  ]);
  return [`# ${title || bot.name}`, ...before, ...parts].join("\n\n") + "\n";
}

export function asJSON({ bot, title, settings, turns }) {
  const more = { ...(title && { title }), ...(Object.keys(settings).length > 0 && { settings }) };
  return JSON.stringify({ bot: { uid: bot.uid, slug: bot.slug, name: bot.name }, ...more, messages: messagesOf(turns) }, null, 2) + "\n";
}

// messagesOf returns the messages of turns. A message of the user from which there are
// other versions has them, too: see versions.js.
function messagesOf(turns) {
  return turns.flatMap(({ question, answer, state, before = [], after = [] }) => [
    { role: "user", content: question, ...(before.length + after.length > 0 && { before: before.map(messagesOf), after: after.map(messagesOf) }) },
    ...(state === "none" ? [] : [{ role: "assistant", content: answer, complete: state === "whole" }]),
  ]);
}

// fromJSON returns the conversation that asJSON has written: {bot, title, settings,
// turns}. It throws an error if the text is something else.
export function fromJSON(text) {
  const { bot: { uid, slug, name }, title = "", settings, messages } = JSON.parse(text);
  requireStrings(uid, slug, name, title);
  return { bot: { uid, slug, name }, title, settings: settingsOf(settings), turns: turnsFrom(messages) };
}

function turnsFrom(messages) {
  const turns = [];
  for (const { role, content, complete, before = [], after = [] } of messages) {
    requireStrings(content);
    if (role === "user") turns.push(Object.assign(newTurn(content), { before: before.map(turnsFrom), after: after.map(turnsFrom) }));
    else Object.assign(turns.at(-1), { answer: content, state: complete ? "whole" : "partial" });
  }
  if (turns.length === 0) throw new TypeError("not a conversation");
  return turns;
}

function requireStrings(...values) {
  if (values.some((each) => typeof each !== "string")) throw new TypeError("not a conversation");
}
