// Conversations in the storage of the browser, which may be full, blocked or damaged.

export function load(id) {
  try {
    const messages = JSON.parse(localStorage.getItem(id));
    return Array.isArray(messages) ? messages : [];
  } catch {
    return [];
  }
}

// save returns whether the conversation is stored.
export function save(id, messages) {
  try {
    localStorage.setItem(id, JSON.stringify(messages));
    return true;
  } catch {
    return false;
  }
}
