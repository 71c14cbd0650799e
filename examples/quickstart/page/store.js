// What the browser keeps: the key for as long as the tab is open, or until it is
// forgotten; what was said to the bots, and what was not sent yet, until somebody
// deletes it, or it is the oldest when there is no room. All tabs share the
// conversations.
//
// A conversation is {id, bot, changed, turns} with the bot's uid. A turn of it is
// what the user said and what came of it:
//
//   {id, question, answer, state: "none" | "partial" | "whole", stopped, failure}
//
// with a state of "none" while there is no answer, and a failure or null:
// {title, advice, requestID, retryAfter, until}, with how many seconds to wait for
// another try, and until when.

const passing = "sessionStorage";
const permanent = "localStorage";

const keyName = "botapi.key";
const chatPrefix = "botapi.chat.";
const draftPrefix = "botapi.draft.";

// Browsers have room for some five million characters of a server's pages.
const mostConversations = 200;
const mostCharacters = 4_000_000;

export const store = {
  get key() {
    return read(passing, keyName) || read(permanent, keyName);
  },

  // keepsKey is whether it is kept for all tabs.
  get keepsKey() {
    return read(permanent, keyName) !== "";
  },

  // keepKey keeps the key for this tab, or for all tabs until it is forgotten.
  keepKey(key, forAll = false) {
    this.forgetKey();
    if (!forAll || !write(permanent, keyName, key)) write(passing, keyName, key);
  },

  forgetKey() {
    write(passing, keyName, "");
    write(permanent, keyName, "");
  },

  // conversations lists all, the last that has changed first, each with a title
  // in place of its turns.
  conversations() {
    const names = chatNames();
    [...summaries.keys()].filter((name) => !names.includes(name)).forEach((name) => summaries.delete(name));
    return names.map(summary).filter(Boolean).sort((a, b) => b.changed - a.changed);
  },

  turns(id) {
    return conversationOf(read(permanent, chatPrefix + id))?.turns ?? [];
  },

  // keep keeps a conversation as it is now, or forgets one without turns. It
  // returns what became of it: "kept", "made room" if older ones had to go, or
  // "no room".
  keep({ id, bot }, turns) {
    const name = chatPrefix + id;
    if (turns.length === 0) return write(permanent, name, "") ? "kept" : "no room";
    return writeWithin(name, JSON.stringify({ bot: bot.uid, changed: Date.now(), turns }));
  },

  // keepTurn adds a turn, or keeps its new state. Turns that another tab has
  // added meanwhile stay.
  keepTurn(conversation, turn) {
    const turns = this.turns(conversation.id);
    const at = turns.findIndex(({ id }) => id === turn.id);
    turns.splice(at < 0 ? turns.length : at, at < 0 ? 0 : 1, turn);
    return this.keep(conversation, turns);
  },

  // remove forgets a conversation, and returns what restores it.
  remove(id) {
    const kept = [chatPrefix + id, draftPrefix + id].map((name) => [name, read(permanent, name)]);
    kept.forEach(([name]) => write(permanent, name, ""));
    return () => kept.forEach(([name, text]) => write(permanent, name, text));
  },

  // A draft is that of a conversation, or of a bot to which nothing was said yet.
  draft(id) {
    return read(permanent, draftPrefix + id);
  },

  keepDraft(id, text) {
    write(permanent, draftPrefix + id, text);
  },

  // deleteConversations deletes everything that was said to any bot.
  deleteConversations() {
    [chatPrefix, draftPrefix].flatMap(namesWith).forEach((name) => write(permanent, name, ""));
  },

  // watch calls changed with the id of a conversation that another tab has
  // changed, or with none if that may be any.
  watch(changed) {
    addEventListener("storage", ({ key }) => {
      if (key === null) changed();
      else if (key.startsWith(chatPrefix)) changed(key.slice(chatPrefix.length));
    });
  },
};

// ---- Conversations ----

const chatNames = () => namesWith(chatPrefix);

const summaries = new Map(); // by name: {text, summary}, so that each text is read once

function summary(name) {
  const text = read(permanent, name);
  if (summaries.get(name)?.text !== text) summaries.set(name, { text, summary: summaryOf(name.slice(chatPrefix.length), text) });
  return summaries.get(name).summary;
}

function summaryOf(id, text) {
  const conversation = conversationOf(text);
  return conversation && { id, bot: conversation.bot, changed: conversation.changed, title: titleOf(conversation.turns) };
}

// conversationOf is null for a text that is none: anybody can write to the store.
function conversationOf(text) {
  const conversation = parse(text);
  if (typeof conversation?.bot !== "string" || !Array.isArray(conversation.turns)) return null;
  const turns = conversation.turns.filter(isTurn);
  return turns.length > 0 ? { bot: conversation.bot, changed: Number(conversation.changed) || 0, turns } : null;
}

const longestTitle = 48;

// titleOf is the first words of a conversation.
export function titleOf(turns) {
  const words = turns[0].question.slice(0, 500).trim().replace(/\s+/g, " ");
  const letters = [...words];
  if (letters.length <= longestTitle) return words;
  const cut = letters.slice(0, longestTitle).join("");
  return cut.replace(/(?<=.{24}) \S*$/su, "") + "…";
}

// writeWithin keeps a conversation within the bounds, and within what the
// browser has room for: the oldest ones make room.
function writeWithin(name, text) {
  if (text.length > mostCharacters) return "no room";
  const others = store.conversations().map(({ id }) => id).filter((id) => chatPrefix + id !== name); // the oldest last
  const size = (id) => read(permanent, chatPrefix + id).length;
  let rest = mostCharacters - text.length - others.reduce((sum, id) => sum + size(id), 0);
  const leaving = others.splice(mostConversations - 1);
  leaving.forEach((id) => { rest += size(id); });
  while (rest < 0) {
    leaving.push(others.pop());
    rest += size(leaving.at(-1));
  }
  const restore = leaving.map((id) => store.remove(id));
  if (write(permanent, name, text)) return leaving.length > 0 ? "made room" : "kept";

  let freed = 0; // the browser has less room than expected
  while (others.length > 0 && freed < text.length) {
    const id = others.pop();
    freed += size(id);
    restore.push(store.remove(id));
  }
  if (freed > 0 && write(permanent, name, text)) return "made room";
  restore.forEach((put) => put());
  return "no room";
}

// ---- The browser's stores ----

// A browser may refuse to keep anything, or have no room left: these do what
// they can. The stores are named, for even to look at them may be refused.

function read(storage, name) {
  try {
    return window[storage].getItem(name) ?? "";
  } catch {
    return "";
  }
}

function write(storage, name, text) {
  try {
    if (text) window[storage].setItem(name, text);
    else window[storage].removeItem(name);
    return true;
  } catch {
    return false;
  }
}

function namesWith(prefix) {
  try {
    return Object.keys(window[permanent]).filter((name) => name.startsWith(prefix));
  } catch {
    return [];
  }
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function isTurn(turn) {
  return [turn?.id, turn?.question, turn?.answer].every((each) => typeof each === "string") && ["none", "partial", "whole"].includes(turn.state);
}
