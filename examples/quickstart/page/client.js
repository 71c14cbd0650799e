// A client of the bot interface: it lists the bots and chats with them, and
// needs nothing but fetch. Copy this file to use it elsewhere.
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

  // bots resolves to the published bots, in the service's order.
  async bots(signal) {
    const response = await this.#fetch("v1/bots", { signal });
    return response.json();
  }

  // chat yields the fragments of the bot's answer as they arrive. It ends
  // normally only when the answer is whole. Leaving the loop, or aborting the
  // signal, closes the connection, and the bot stops. Whenever anything comes
  // from the server, a keep-alive too, heard is called.
  async *chat(request, { signal, heard = () => {} } = {}) {
    const response = await this.#fetch("v1/chat", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ ...request, stream: true }),
      signal,
    });
    heard();
    const requestID = response.headers.get("X-Request-Id") ?? "";
    try {
      for await (const { event, data } of serverSentEvents(response.body, heard)) {
        if (data === "[DONE]") return;
        if (event === "error") throw new BotError("failed", { ...JSON.parse(data), requestID });
        if (event === "message") yield JSON.parse(data).content;
      }
    } catch (error) {
      if (error instanceof BotError || signal?.aborted) throw error;
      throw new BotError("cut", { requestID, cause: error });
    }
    throw new BotError("cut", { requestID });
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
    if (!response.ok) throw await refusal(response);
    return response;
  }
}

// BotError says why there is no answer, or no whole one. Its kind is
//   "unreachable"  no answer came at all,
//   "refused"      the service answered with an error status,
//   "failed"       the service reported a failure in the middle of a stream,
//   "cut"          the stream ended before it was whole.
// The other fields are empty where they do not apply.
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

// refusal reads an error answer. One that is not from the service, such as a
// proxy's page, has no detail.
async function refusal(response) {
  const body = await response.json().catch(() => null);
  return new BotError("refused", {
    status: response.status,
    detail: body?.detail,
    retryAfter: Number(response.headers.get("Retry-After")) || 0,
    requestID: response.headers.get("X-Request-Id") ?? "",
  });
}

// serverSentEvents yields the {event, data} of a stream of bytes in the
// text/event-stream format. An event that the end of the stream cuts off is
// dropped.
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
      // Other fields have no use here, and a comment's field is empty.
    }
  }
}

// lines yields the lines of a stream, those of a chunk together: a promise for
// each would take longer than everything else. They may end in CRLF, LF or CR.
// The network cuts its chunks anywhere: inside a line, between CR and LF, and
// inside a character, which the decoder holds back until it is whole.
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

// chunks iterates a ReadableStream, which not every browser does by itself.
// Leaving the loop cancels the stream, and with it the request.
async function* chunks(stream) {
  const reader = stream.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => {}); // a stream that broke has nothing left to cancel
  }
}
