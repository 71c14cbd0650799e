// What the browser keeps: the key for as long as the tab is open, what was said
// to each bot, and what was not sent yet, until somebody deletes it. All tabs
// share the conversations.
//
// A turn of a conversation is what the user said and what came of it:
//
//   {id, question, answer, state: "none" | "partial" | "whole", stopped, failure}
//
// with a state of "none" while there is no answer, and a failure {title, advice,
// requestID} or null.

const passing = "sessionStorage";
const permanent = "localStorage";

const keyName = "botapi.key";
const turnsOf = (uid) => "botapi.turns." + uid;
const draftOf = (uid) => "botapi.draft." + uid;

export const store = {
  get key() {
    return read(passing, keyName);
  },

  set key(key) {
    write(passing, keyName, key);
  },

  turns(uid) {
    const turns = parse(read(permanent, turnsOf(uid)));
    return Array.isArray(turns) ? turns.filter(isTurn) : [];
  },

  // replaceTurns reports whether the browser had room.
  replaceTurns(uid, turns) {
    return write(permanent, turnsOf(uid), turns.length > 0 ? JSON.stringify(turns) : "");
  },

  // putTurn adds a turn, or keeps its new state. Turns that another tab has
  // added meanwhile stay.
  putTurn(uid, turn) {
    const turns = this.turns(uid);
    const at = turns.findIndex(({ id }) => id === turn.id);
    turns.splice(at < 0 ? turns.length : at, at < 0 ? 0 : 1, turn);
    return this.replaceTurns(uid, turns);
  },

  draft(uid) {
    return read(permanent, draftOf(uid));
  },

  keepDraft(uid, text) {
    write(permanent, draftOf(uid), text);
  },

  // deleteConversations deletes everything that was said to any bot.
  deleteConversations() {
    namesIn(permanent).filter((name) => name.startsWith("botapi.")).forEach((name) => write(permanent, name, ""));
  },

  // watch calls changed when another tab has changed a conversation.
  watch(changed) {
    addEventListener("storage", ({ key }) => {
      if (key === null || key.startsWith(turnsOf(""))) changed();
    });
  },
};

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

function namesIn(storage) {
  try {
    return Object.keys(window[storage]);
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
