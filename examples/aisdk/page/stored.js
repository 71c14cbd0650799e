// Conversations in the storage of the browser, which may be full, blocked or damaged.

export function load(id) {
  try {
    return parse(localStorage.getItem(id));
  } catch {
    return [];
  }
}

// parse returns the messages of a text that is stored.
export function parse(text) {
  try {
    const messages = JSON.parse(text);
    return Array.isArray(messages) ? messages : [];
  } catch {
    return [];
  }
}

// save returns whether the text of a conversation is stored.
export function save(id, text) {
  try {
    localStorage.setItem(id, text);
    return true;
  } catch {
    return false;
  }
}
