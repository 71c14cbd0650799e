// Decides when to ask again for an answer whose connection was lost. A service that
// keeps answers, as examples/resume does, gives the same one again.

// A service stops an answer that nobody has followed for this many milliseconds.
const alone = 60_000;

// Before the service has said whether it keeps an answer, the page gives up sooner,
// but not before the browser has a network: the service has no answer to lose.
const unsure = 10_000;

const mostBreaks = 2; // of the answer itself, without any text that is new

// isPassing reports whether the same request may succeed later.
export function isPassing({ kind, status }) {
  if (kind === "unreachable" || kind === "incomplete") return true;
  return [429, 502, 503].includes(status);
}

// isFresh reports whether an answer may still be in progress, or just have ended.
export function isFresh({ heard }) {
  return Math.abs(Date.now() - heard) < alone;
}

// mayContinue reports whether to ask again after an error. An attempt has lost, the
// time when it lost its connection, and breaks, the number of times when the answer
// was aborted. An error event, or an error of the service itself (a proxy's page has no
// detail), is the end of the answer, unless it says when to ask again.
export function mayContinue({ turn, kept, lost, breaks }, error) {
  if ((error.kind === "failed" || error.detail) && !error.retryAfter) return false;
  if (!turn.pending || kept === false || breaks > mostBreaks) return false;
  if (kept ? !isPassing(error) : error.kind !== "unreachable") return false;
  if (!kept && !navigator.onLine) return true;
  return Date.now() + 1000 * (error.retryAfter ?? 0) - lost < (kept ? alone : unsure);
}

// pause waits before the next request: longer after each, at least as long as the
// server asks for, and no longer than until the browser has a network again.
export function pause(tries, { retryAfter = 0 }) {
  const delay = Math.max(1000 * retryAfter, Math.min(5000, 500 * 2 ** tries) * (0.5 + Math.random() / 2));
  return new Promise((resolve) => {
    const timer = setTimeout(done, delay);
    if (!retryAfter) addEventListener("online", done);
    function done() {
      clearTimeout(timer);
      removeEventListener("online", done);
      resolve();
    }
  });
}

// newKey makes an Idempotency-Key, which nobody can guess. crypto.randomUUID does
// not exist on pages without https.
export function newKey() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// stop stops the model, and returns whether it did. If the service cannot be reached, it
// stops the model itself when nobody has followed the answer for a while.
export async function stop(service, key) {
  for (let tries = 0; tries < 3; tries++) {
    try {
      await service.stop(key);
      return true;
    } catch (error) {
      if (!isPassing(error) && error.status !== 404) return false; // 404: the chat may still be on its way
      await pause(tries, error);
    }
  }
  return false;
}
