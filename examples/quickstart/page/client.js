// A client of the bot API. It lists the bots and chats with them, and needs only
// fetch. You can copy this file to use it elsewhere.
//
//   const client = new BotClient("https://bots.example.org/", key);
//   for (const bot of await client.bots()) console.log(bot.name);
//   for await (const fragment of client.chat({ bot_slug: "guide", prompt: "Hello" })) {
//     show(fragment);
//   }

export class BotClient {
  #base;
  #key;

  constructor(base, key) {
    this.#base = base;
    this.#key = key;
  }

  // bots resolves to the published bots, in the order of the service.
  async bots(signal) {
    const response = await this.#fetch("v1/bots", { signal });
    return response.json();
  }

  // chat yields the fragments of the answer as they arrive. It returns normally
  // only if the answer is complete. Leaving the loop, or aborting the signal,
  // closes the connection. Without a key, that stops the bot. With one, a service
  // that keeps answers goes on for a while: the same request with the same key
  // gets the answer again, from its first fragment, and stop stops the bot. chat
  // calls begun when the response begins, with whether the service keeps the
  // answer, and heard whenever something arrives, including a keep-alive comment.
  async *chat(request, { key, signal, begun = () => {}, heard = () => {} } = {}) {
    const response = await this.#fetch("v1/chat", {
      method: "POST",
      headers: { "Content-Type": "application/json", ...(key && { "Idempotency-Key": key }) },
      body: JSON.stringify({ ...request, stream: true }),
      signal,
    });
    begun(["kept", "joined"].includes(response.headers.get("X-Botapi-Answer")));
    heard();
    const requestID = response.headers.get("X-Request-Id") ?? "";
    try {
      for await (const { event, data } of serverSentEvents(response.body, heard)) {
        if (data === "[DONE]") return;
        if (event === "error") {
          const { detail, status, retry_after: retryAfter } = JSON.parse(data);
          throw new BotError("failed", { detail, status, retryAfter, requestID });
        }
        if (event === "message") yield JSON.parse(data).content;
      }
    } catch (error) {
      if (error instanceof BotError || signal?.aborted) throw error;
      throw new BotError("incomplete", { requestID, cause: error });
    }
    throw new BotError("incomplete", { requestID });
  }

  // stop stops the bot that gives the answer with a key, even if the page is closed
  // meanwhile.
  async stop(key) {
    await this.#fetch("v1/answers", { method: "DELETE", headers: { "Idempotency-Key": key }, keepalive: true });
  }

  async #fetch(path, init) {
    const headers = { ...init.headers, Authorization: `Bearer ${this.#key}` };
    let response;
    try {
      response = await fetch(new URL(path, this.#base), { ...init, headers, cache: "no-cache" });
    } catch (error) {
      if (init.signal?.aborted) throw error;
      throw new BotError("unreachable", { cause: error });
    }
    if (!response.ok) throw await rejection(response);
    return response;
  }
}

// BotError says why there is no complete answer. Its kind is
//   "unreachable"  there was no response,
//   "rejected"     the response has an error status,
//   "failed"       the stream contains an error event,
//   "incomplete"   the stream ended without [DONE].
// The status and retryAfter of an error event are what those of an error response would
// have been. Fields that do not apply are empty.
export class BotError extends Error {
  constructor(kind, { status = 0, detail = "", retryAfter = 0, requestID = "", cause } = {}) {
    super([kind, status, detail && JSON.stringify(detail)].filter(Boolean).join(" "), { cause });
    this.name = "BotError";
    this.kind = kind;
    this.status = status;
    this.detail = typeof detail === "string" ? detail : "";
    this.problems = Array.isArray(detail) ? detail : []; // of {loc, msg, type}, with status 422
    this.retryAfter = retryAfter; // seconds
    this.requestID = requestID;
  }
}

// rejection makes a BotError of an error response. A response that is not from
// the service, such as a proxy's error page, has no detail.
async function rejection(response) {
  const body = await response.json().catch(() => null);
  return new BotError("rejected", {
    status: response.status,
    detail: body?.detail,
    retryAfter: Number(response.headers.get("Retry-After")) || 0,
    requestID: response.headers.get("X-Request-Id") ?? "",
  });
}

// serverSentEvents yields the {event, data} of a stream of bytes in the
// text/event-stream format. It drops an incomplete event at the end.
export async function* serverSentEvents(stream, heard = () => {}) {
  let event = "";
  let data = [];
  for await (const some of lines(stream, heard)) {
    for (const line of some) {
      if (line === "") {
        if (data.length > 0) yield { event: event || "message", data: data.join("\n") };
        event = "";
        data = [];
        continue;
      }
      const [, field, value] = /^([^:]*):? ?(.*)$/s.exec(line);
      if (field === "data") data.push(value);
      if (field === "event") event = value;
      // Other fields are ignored. The field of a comment is empty.
    }
  }
}

// lines yields an array with the complete lines of each chunk, since a promise
// for each line would cost more than the rest. Lines end with CRLF, LF or CR. A
// chunk may end anywhere: inside a line, between CR and LF, or inside a
// character, which the decoder keeps until it is complete.
async function* lines(stream, heard) {
  const decoder = new TextDecoder();
  let rest = "";
  let afterCR = false;
  for await (const chunk of chunks(stream)) {
    heard();
    let text = decoder.decode(chunk, { stream: true });
    if (text === "") continue;
    if (afterCR && text.startsWith("\n")) text = text.slice(1);
    afterCR = text.endsWith("\r");
    const parts = (rest + text).split(/\r\n|\r|\n/);
    rest = parts.pop();
    yield parts;
  }
}

// chunks iterates over a ReadableStream, which is not iterable in every browser.
// Leaving the loop cancels the stream and so the request.
async function* chunks(stream) {
  const reader = stream.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => {}); // fails if the stream has failed
  }
}
