// Everything that the browser keeps. It keeps the key until the tab is closed or,
// if the user wants that, until it is forgotten. It keeps conversations and drafts
// until somebody deletes them; without room, the oldest conversations are deleted.
// All tabs share the conversations. If the browser stores nothing, all this lasts until
// the page is closed.
//
// A conversation is {id, bot, name, slug, changed, title, settings, turns}, with the
// bot's uid, its name and slug for when it is gone, and when the user last asked
// something. The title is empty unless the user has named the conversation. The settings
// are {system, temperature, max_tokens}: a system message and parameters of each request,
// if they are set. A turn is a question of the user and its answer:
//
//   {id, question, answer, state: "none" | "partial" | "whole", leftOut, stopped, failure, pending, before, after, seen}
//
// The state is "none" without an answer, "whole" for a complete one. A turn that is
// left out is not sent any more. The failure is null or {title, advice, requestID,
// tooLong, retryAfter, until}: whether the request was too long, the seconds to wait
// before another attempt, and the time when they have passed. While the answer is
// in progress, or if it may be continued after a failure, pending is {key, heard,
// kept}: its Idempotency-Key, the time when something last arrived, and whether the
// service has said that it keeps the answer (false: not yet). Otherwise it is null. For before,
// after and seen, which may be missing, see versions.js.

import { everyTurn } from "./versions.js";
import { isFresh } from "./resuming.js";

const passing = "sessionStorage";
const permanent = "localStorage";

const keyName = "botapi.key";
const forgottenName = "botapi.forgotten"; // is written only to tell other tabs
const probeName = "botapi.probe"; // is written only to try a store
const themeName = "botapi.theme"; // also in theme.js
const placeName = "botapi.place";
const chatPrefix = "botapi.chat.";
const draftPrefix = "botapi.draft.";
const settingsPrefix = "botapi.settings.";
const editPrefix = "botapi.edit.";
const unseenName = "botapi.unseen"; // the ids, separated by spaces

// Browsers have room for about five million characters per origin.
const mostConversations = 200;
const mostCharacters = 4_000_000;

const page = { isInUse: () => false, evicted: () => {} }; // see watch

export const store = {
  get key() {
    return read(passing, keyName) || read(permanent, keyName);
  },

  // keepsKey reports whether the key is kept for all tabs.
  get keepsKey() {
    return read(permanent, keyName) !== "";
  },

  // keepKey keeps the key for this tab, or for all tabs until it is forgotten.
  keepKey(key, forAll = false) {
    this.forgetKey();
    if (!forAll || !write(permanent, keyName, key)) write(passing, keyName, key);
  },

  // forgetKey forgets the key, in all tabs also where a tab has it for itself.
  forgetKey(inAllTabs = false) {
    write(passing, keyName, "");
    write(permanent, keyName, "");
    if (inAllTabs) ["yes", ""].forEach((text) => write(permanent, forgottenName, text));
  },

  // isBlocked reports whether the browser stores nothing.
  get isBlocked() {
    return !(stores[permanent] instanceof Storage);
  },

  // place is the hash of the chat page's address when this tab was there last.
  get place() {
    return read(passing, placeName);
  },

  keepPlace: (hash) => write(passing, placeName, hash),

  // theme returns "light", "dark", or nothing for that of the browser.
  theme: () => read(permanent, themeName),
  keepTheme: (theme) => write(permanent, themeName, theme),

  // conversations lists all conversations, the last changed first, with titles and
  // the last turn's pending instead of turns.
  conversations() {
    const names = namesWith(chatPrefix);
    [...summaries.keys()].filter((name) => !names.includes(name)).forEach((name) => summaries.delete(name));
    return names.map(summary).filter(Boolean).sort((a, b) => b.changed - a.changed);
  },

  has(id) {
    return read(permanent, chatPrefix + id) !== "";
  },

  // unseen returns the ids of conversations with an answer that nobody has seen. miss notes that
  // there is such an answer, and see that somebody has seen it.
  unseen: () => read(permanent, unseenName).split(" ").filter(Boolean),
  miss: (id) => write(permanent, unseenName, [...store.unseen().filter((each) => each !== id), id].join(" ")),
  see: (id) => write(permanent, unseenName, store.unseen().filter((each) => each !== id).join(" ")),

  // load returns the title, the settings and the turns of a conversation.
  load(id) {
    return conversationOf(read(permanent, chatPrefix + id)) ?? { title: "", settings: {}, turns: [] };
  },

  // changed returns when the user last asked something in a stored conversation.
  changed: (id) => summary(chatPrefix + id)?.changed,

  // includes reports whether a conversation has all words of a text.
  includes({ id, title }, text) {
    return includes(text)([...everyTurn(this.load(id).turns)], title);
  },

  // keep stores a conversation, or deletes it if it has no turns. It returns
  // "kept", "made room" if it had to delete older ones, or "no room".
  keep({ id, bot, title, settings }, turns, changed = Date.now()) {
    const name = chatPrefix + id;
    if (turns.length === 0) return erase(name) ? "kept" : "no room";
    removed.delete(name);
    return writeWithin(name, JSON.stringify({ bot: bot.uid, name: bot.name, slug: bot.slug, changed, title, settings, turns }));
  },

  // rename keeps a conversation with another title or other settings. It stays where it
  // is in the list.
  rename(conversation) {
    const changed = this.changed(conversation.id);
    return changed ? this.keep(conversation, this.load(conversation.id).turns, changed) : "kept";
  },

  // keepTurn adds a turn or updates it. Turns and versions that another tab has added
  // in the meantime stay.
  keepTurn(conversation, turn) {
    const { turns, changed } = this.load(conversation.id);
    const known = [...everyTurn(turns)].find(({ id }) => id === turn.id);
    if (known) Object.assign(known, turn);
    else turns.push(turn);
    return this.keep(conversation, turns, known && changed);
  },

  // remove deletes a conversation, and returns a function that restores it.
  remove(id) {
    const kept = [chatPrefix, draftPrefix, editPrefix].map((prefix) => prefix + id).map((name) => [name, read(permanent, name)]);
    const wasUnseen = this.unseen().includes(id);
    kept.forEach(([name]) => erase(name));
    this.see(id);
    return () => {
      kept.forEach(([name, text]) => {
        removed.delete(name);
        write(permanent, name, text);
      });
      if (wasUnseen) this.miss(id);
    };
  },

  // draft returns the draft of a conversation or, before its first message, of a bot.
  draft(id) {
    return read(permanent, draftPrefix + id);
  },

  keepDraft(id, text) {
    write(permanent, draftPrefix + id, text);
  },

  // settings returns the settings of a bot's conversation before its first message.
  settings: (uid) => settingsOf(parse(read(permanent, settingsPrefix + uid)) ?? {}),
  keepSettings: (uid, settings) => write(permanent, settingsPrefix + uid, Object.keys(settings).length > 0 ? JSON.stringify(settings) : ""),

  // edit returns {turn, text}, the id of the turn that is being edited in a conversation, and its new text so far.
  edit: (id) => parse(read(permanent, editPrefix + id)),
  keepEdit: (id, edit) => write(permanent, editPrefix + id, edit && JSON.stringify(edit)),

  // deleteConversations deletes all conversations and drafts.
  deleteConversations() {
    [chatPrefix, draftPrefix, settingsPrefix, editPrefix, unseenName].flatMap(namesWith).forEach(erase);
  },

  // watch calls changed with the id of each conversation that another tab has
  // changed, or without one if any may have changed, and keyChanged when another tab
  // keeps a key for all tabs, or, with true, forgets the key. It calls drafted with the id
  // of a draft that another tab has changed, and with its text before and after that, and
  // missed when another tab has changed which conversations have unseen answers, and themed
  // when it has chosen another theme. isInUse reports whether this tab shows or answers a
  // conversation, which is then not deleted for want of room; evicted is called with the id of
  // each that this tab deletes for that reason.
  watch({ changed, keyChanged, drafted, missed, themed, isInUse, evicted }) {
    Object.assign(page, { isInUse, evicted });
    addEventListener("storage", ({ key, oldValue, newValue }) => {
      if (newValue && removed.has(key) && removed.get(key) === firstTurn(newValue)) write(permanent, key, "");
      if (key === null) changed();
      else if (key.startsWith(chatPrefix)) changed(key.slice(chatPrefix.length));
      else if (key.startsWith(draftPrefix)) drafted(key.slice(draftPrefix.length), oldValue ?? "", newValue ?? "");
      else if (key === unseenName) missed();
      else if (key === themeName) themed();
      else if (key === keyName && newValue) keyChanged(false);
      else if (key === forgottenName && newValue) keyChanged(true);
    });
  },
};

// includes returns a function that reports whether turns and their title have all words of a
// text, in any order and without regard for case, accents and quotation marks around words.
export function includes(text) {
  const words = plain(text).split(/[\s"“”]+/);
  return (turns, title) => {
    const all = plain([title, ...turns.flatMap(({ question, answer }) => [question, answer])].join("\n"));
    return words.every((word) => all.includes(word));
  };
}

const plain = (text) => text.toLowerCase().normalize("NFD").replace(/[\u0300-\u036f]/g, "");

// ---- Conversations ----

// A tab that is answering may write a conversation in the moment in which this tab
// removes it. It is removed again, if its first turn is still the same.
const removed = new Map(); // the ids of first turns, by the conversation's name

const firstTurn = (text) => conversationOf(text)?.turns[0].id;

function erase(name) {
  const id = firstTurn(read(permanent, name));
  if (id) removed.set(name, id);
  return write(permanent, name, "");
}

const summaries = new Map(); // by name: {text, summary}, so that each text is read once

function summary(name) {
  const text = read(permanent, name);
  if (summaries.get(name)?.text !== text) summaries.set(name, { text, summary: summaryOf(name.slice(chatPrefix.length), text) });
  return summaries.get(name).summary;
}

function summaryOf(id, text) {
  const conversation = conversationOf(text);
  if (!conversation) return null;
  const { turns, ...rest } = conversation;
  return { id, ...rest, title: titleOf(rest, turns), pending: turns.at(-1).pending };
}

// conversationOf parses a stored conversation. It returns null if the text is not
// one: other code of this origin can write to the store.
function conversationOf(text) {
  const conversation = parse(text);
  if (typeof conversation?.bot !== "string" || !Array.isArray(conversation.turns)) return null;
  const { bot, name, slug, title } = conversation;
  const turns = turnsOf(conversation.turns);
  return turns.length > 0 ? { bot, name: String(name ?? "A bot"), slug: String(slug ?? "conversation"), changed: Number(conversation.changed) || 0, title: String(title ?? ""), settings: settingsOf(conversation.settings), turns } : null;
}

// settingsOf returns those settings of an object that can be used.
export function settingsOf({ system, temperature, max_tokens } = {}) {
  return { ...(system && { system: String(system) }), ...(Number.isFinite(temperature) && { temperature }), ...(max_tokens > 0 && { max_tokens: Math.round(max_tokens) }) };
}

function turnsOf(list) {
  return list.filter(isTurn).map((turn) => (turn.before || turn.after ? { ...turn, before: versionsOf(turn.before), after: versionsOf(turn.after) } : turn));
}

function versionsOf(list) {
  return Array.isArray(list) ? list.filter(Array.isArray).map(turnsOf).filter(({ length }) => length > 0) : [];
}

const longestTitle = 120; // the page cuts what does not fit

// titleOf returns the title of a conversation, or its first words.
export function titleOf({ title }, turns) {
  const words = title || turns[0].question.slice(0, 500).trim().replace(/\s+/g, " ");
  const letters = [...words];
  return letters.length <= longestTitle ? words : letters.slice(0, longestTitle).join("") + "…";
}

// writeWithin stores a conversation. To stay within the limits above and that of
// the browser, it deletes the oldest ones that nobody needs now.
function writeWithin(name, text) {
  if (text.length > mostCharacters) return "no room";
  const others = store.conversations().filter(({ id }) => chatPrefix + id !== name);
  const old = others.filter(({ id, pending }) => !page.isInUse(id) && !(pending && isFresh(pending))).map(({ id }) => id); // the oldest last
  const size = (id) => read(permanent, chatPrefix + id).length;
  let rest = mostCharacters - text.length - others.reduce((sum, { id }) => sum + size(id), 0);
  const evicted = new Map(); // functions that restore conversations, by id
  const evict = () => {
    const id = old.pop();
    rest += size(id);
    evicted.set(id, store.remove(id));
  };
  while (old.length > 0 && (rest < 0 || others.length - evicted.size >= mostConversations)) evict();
  const enough = rest + text.length;
  while (rest < 0 || !write(permanent, name, text)) { // the browser has less room than expected
    if (rest >= enough || old.length === 0) {
      evicted.forEach((restore) => restore());
      return "no room";
    }
    evict();
  }
  evicted.forEach((_, id) => page.evicted(id));
  return evicted.size > 0 ? "made room" : "kept";
}

// ---- The browser's stores ----

// In memory, a text is kept as in a store of the browser: as a property with its name.
const memory = {
  getItem(name) { return this[name]; },
  setItem(name, text) { this[name] = text; },
  removeItem(name) { delete this[name]; },
};

const stores = Object.fromEntries([passing, permanent].map((storage) => [storage, storeOf(storage)]));

// storeOf returns a store of the browser. If the browser blocks it, so that even reading
// window.localStorage may throw, or has no room for anything, memory takes its place.
function storeOf(storage) {
  try {
    const store = window[storage];
    if (store.length === 0) store.setItem(probeName, "yes");
    store.removeItem(probeName);
    return store;
  } catch {
    return Object.create(memory);
  }
}

// The browser may have no room left: these functions do what they can.

function read(storage, name) {
  try {
    return stores[storage].getItem(name) ?? "";
  } catch {
    return "";
  }
}

function write(storage, name, text) {
  try {
    if (text) stores[storage].setItem(name, text);
    else stores[storage].removeItem(name);
    return true;
  } catch {
    return false;
  }
}

function namesWith(prefix) {
  try {
    return Object.keys(stores[permanent]).filter((name) => name.startsWith(prefix));
  } catch {
    return [];
  }
}

// parse returns what a JSON text says, or null if it is not one.
export function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function isTurn(turn) {
  return [turn?.id, turn?.question, turn?.answer].every((each) => typeof each === "string") && ["none", "partial", "whole"].includes(turn.state);
}
