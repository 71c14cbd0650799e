// Tries an operation of the API: shows the call as a program to copy, and a button
// that sends it and shows the response.

import { BotClient } from "./client.js";
import { colour } from "./code.js";
import { copyButton } from "./copying.js";
import { button, el } from "./elements.js";
import { options } from "./options.js";
import { anyQuestion, questionsFor } from "./questions.js";
import { newKey, stop } from "./resuming.js";
import { languages } from "./snippets.js";
import { parse, store } from "./store.js";

const { api, keyHint, resume } = options;
const apiBase = new URL(api, document.baseURI);

const trials = []; // all trials on the page
let language = "curl"; // of all trials
let bots = []; // empty until there is a valid key
let bot; // the chosen one
let answerKey = ""; // the Idempotency-Key of all trials that have one
let lastKey = ""; // that of the last chat

// trial makes an element to try an operation {operationId, method, path, parameters}. The
// examples are request bodies {summary, value}; an operation without a body has
// none.
export function trial(operation, examples) {
  const trial = new Trial(operation, examples);
  trials.push(trial);
  return trial.element;
}

// begin makes the trials use the key of this tab, and offer its bots.
export async function begin(key = store.key) {
  bots = [];
  let problem = "";
  if (key) {
    try {
      bots = await new BotClient(apiBase, key).bots();
      if (key !== store.key) store.keepKey(key, store.keepsKey);
    } catch (error) {
      problem = error.status === 401 ? "The server did not accept this key." : "The server did not list its bots.";
      if (error.status === 401) key = "";
    }
  }
  [bot] = bots;
  trials.forEach((trial) => trial.meet(key, problem));
}

class Trial {
  #id;
  #method;
  #address;
  #examples;
  #key = "";
  #call; // {method, address, key, body} as shown
  #filled; // the body before anybody edited it
  #text; // of the program shown
  #sending; // an AbortController during a request
  #kept; // the Idempotency-Key of the request, if the service may go on without this page

  #keyInput = el("input", { type: "password", autocomplete: "off", spellcheck: "false", autocapitalize: "none" });
  #keyProblem = el("p", { class: "problem", role: "alert" });
  #keyForm = el("form", { class: "trial-key" }, this.#keyProblem,
    el("label", null, "API key ", this.#keyInput), el("button", { class: "quiet" }, "Use"),
    el("p", { class: "hint" }, `The key is sent to this server only. ${keyHint} ${store.conversations().length > 0 ? "Or choose “Keep it in this browser” in a tab that has it." : ""}`));
  #keyNote = el("p", { class: "hint" });

  #bots = el("select");
  #choice = el("select");
  #answerKey = el("input", { autocomplete: "off", spellcheck: "false", placeholder: "None" });
  #body = el("textarea", { spellcheck: "false", autocomplete: "off", autocapitalize: "none" });
  #useLast = button("Use that of the last chat", "link", () => nameAnswer(lastKey));
  #bodyProblem = el("p", { class: "problem", role: "status" });

  #tabs = Object.keys(languages).map((name) => el("button", { type: "button", role: "tab" }, name));
  #code = el("pre", { tabindex: "0" });
  #copy = copyButton(() => this.#text);
  #run = el("span", { class: "hint" });

  #send = el("button", { type: "button", class: "primary send" }, "Send");
  #status = el("p", { class: "sent", role: "status" });
  #headers = el("pre", { tabindex: "0", role: "group", "aria-label": "Response headers" });
  #headersBox = el("details", null, el("summary", null, "Headers"), this.#headers);
  #answer = el("pre", { class: "answer", tabindex: "0", role: "group", "aria-label": "Response body" });

  constructor({ operationId, method, path, parameters }, examples) {
    this.#id = operationId;
    this.#method = method.toUpperCase();
    this.#address = new URL("." + path, apiBase).href;
    this.#examples = examples;
    this.namesAnswer = resume && parameters.some(({ name }) => name === "Idempotency-Key");
    this.element = el("div", { class: "trial" }, this.#keyForm, this.#keyNote, this.#bodyFields(), this.#answerField(),
      el("div", { class: "sending" }, this.#send, this.#status), this.#headersBox, this.#answer, this.#program());
    this.#headersBox.hidden = this.#answer.hidden = true;
    this.#keyForm.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.#keyInput.value.trim()) begin(this.#keyInput.value.trim());
    });
    this.#send.addEventListener("click", () => this.#sendOrStop());
    this.meet("", "");
  }

  #bodyFields() {
    if (this.#examples.length === 0) return [];
    this.#choice.append(...this.#examples.map(({ summary }, i) => el("option", { value: i }, summary)));
    this.#choice.addEventListener("change", () => this.#fill());
    this.#bots.addEventListener("change", () => {
      bot = bots[this.#bots.value];
      trials.forEach((trial) => trial.changeBot());
    });
    this.#body.addEventListener("input", () => this.write());
    return [
      el("label", { class: "field" }, "Bot", this.#bots),
      el("label", { class: "field" }, "Example", this.#choice),
      el("label", { class: "field" }, "Request body", this.#body),
      this.#bodyProblem,
    ];
  }

  // answerField names an answer, so that it can be stopped. Only a chat has a new one.
  #answerField() {
    if (!this.namesAnswer) return [];
    this.#answerKey.addEventListener("input", () => nameAnswer(this.#answerKey.value.trim()));
    const offer = this.#method === "POST" ? button("Make an Idempotency-Key", "link", () => nameAnswer(newKey())) : this.#useLast;
    return [el("label", { class: "field" }, "Idempotency-Key", this.#answerKey), offer];
  }

  #program() {
    const panel = this.#id + "-program";
    this.#tabs.forEach((tab, i) => {
      tab.id = `${this.#id}-tab-${i}`;
      tab.setAttribute("aria-controls", panel);
      tab.addEventListener("click", () => choose(tab.textContent));
      tab.addEventListener("keydown", (event) => this.#walk(event, i));
    });
    this.panel = el("div", { id: panel, role: "tabpanel" }, this.#code);
    return el("div", { class: "code program" },
      el("div", { class: "tabs" }, el("div", { role: "tablist", "aria-label": "Language" }, this.#tabs), this.#copy),
      this.panel, this.#run);
  }

  // walk moves between the tabs with the arrow keys.
  #walk(event, i) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = this.#tabs.at((i + step) % this.#tabs.length);
    choose(next.textContent);
    next.focus();
  }

  // meet makes the trial use a key, and offer the bots, or ask for a key.
  meet(key, problem) {
    this.#key = key;
    this.#keyForm.hidden = key !== "";
    this.#keyProblem.hidden = problem === "";
    this.#keyProblem.textContent = problem;
    this.#keyNote.hidden = key === "";
    this.#keyNote.textContent = bot ? `With the key of this ${store.keepsKey ? "browser" : "tab"}.` : problem || "There is no bot to talk to.";
    this.#bots.replaceChildren(...bots.map(({ name }, i) => el("option", { value: i }, name)));
    this.#bots.disabled = bots.length === 0;
    this.#send.disabled = key === "";
    this.#fill();
  }

  // changeBot names the chosen bot in the body. What was edited stays otherwise.
  changeBot() {
    this.#bots.value = bots.indexOf(bot);
    if (this.#body.value === this.#filled) return this.#fill();
    this.#body.value = this.#body.value.replace(/("bot_(slug|uid)"\s*:\s*)"(?:[^"\\]|\\.)*"/g, (_, start, name) => start + JSON.stringify(bot[name]));
    this.write();
  }

  // fill puts the chosen example into the body, for the chosen bot.
  #fill() {
    const example = this.#examples[this.#choice.value || 0];
    if (example) {
      this.#body.value = this.#filled = JSON.stringify(forBot(example.value), null, 2);
      this.#body.rows = this.#body.value.split("\n").length;
    }
    this.write();
  }

  // write shows the program that makes the call.
  write() {
    const body = this.#examples.length > 0 ? this.#body.value : undefined;
    const value = body === undefined ? {} : parse(body);
    const understood = value instanceof Object && !Array.isArray(value);
    this.#bodyProblem.hidden = understood;
    this.#bodyProblem.textContent = understood ? "" : "This is not a JSON object. Send shows the error that the service returns; the program below has the last valid object.";
    if (this.#answerKey.value.trim() !== answerKey) this.#answerKey.value = answerKey;
    if (understood) this.#call = { method: this.#method, address: this.#address, key: this.#key, body, streams: value.stream === true, answerKey: this.namesAnswer ? answerKey : "" };
    this.#tabs.forEach((tab) => {
      const chosen = tab.textContent === language;
      tab.setAttribute("aria-selected", chosen);
      tab.tabIndex = chosen ? 0 : -1;
      if (chosen) this.panel.setAttribute("aria-labelledby", tab.id);
    });
    this.#useLast.hidden = lastKey === "" || lastKey === answerKey;
    const text = languages[language].write(this.#call);
    if (text !== this.#text) this.#copy.dispatchEvent(new Event("changed"));
    this.#text = text;
    colour(this.#code, languages[language].colours, this.#text.trimEnd());
    this.#run.textContent = languages[language].run;
  }

  async #sendOrStop() {
    if (this.#sending) return this.#sending.abort();
    this.#sending = new AbortController();
    this.#send.textContent = "Stop";
    const began = performance.now();
    try {
      await this.#exchange(began, this.#sending.signal);
    } catch (error) {
      this.#status.append(this.#sending.signal.aborted ? await this.#stopModel() : ` · ${this.#status.textContent ? "the connection was lost" : "The server cannot be reached."}`);
    }
    this.#sending = undefined;
    this.#send.textContent = "Send";
  }

  // stopModel stops the model of a chat that was left, and says whether it did. A
  // service that keeps an answer goes on with it.
  async #stopModel() {
    const isStopped = !this.#kept || (await stop(new BotClient(apiBase, this.#key), this.#kept));
    return isStopped ? " · stopped" : " · disconnected; the answer may go on for a while";
  }

  // exchange sends the request and shows the response as it arrives.
  async #exchange(began, signal) {
    const took = () => `${Math.round(performance.now() - began)} ms`;
    this.#status.textContent = "";
    this.#answer.replaceChildren();
    this.#headersBox.hidden = this.#answer.hidden = true;
    this.#kept = this.namesAnswer && this.#method === "POST" ? answerKey : "";
    if (this.#kept) lastKey = this.#kept;
    const response = await fetch(this.#address, {
      method: this.#method,
      headers: { Authorization: `Bearer ${this.#key}`, ...(this.namesAnswer && answerKey && { "Idempotency-Key": answerKey }) },
      body: this.#examples.length > 0 ? this.#body.value : undefined,
      cache: "no-store",
      signal,
    });
    if (!["kept", "joined"].includes(response.headers.get("X-Botapi-Answer"))) this.#kept = "";
    this.#status.textContent = `${response.status} ${response.statusText} · headers after ${took()}`;
    this.#headers.textContent = [...response.headers].map(([name, value]) => `${name}: ${value}`).join("\n");
    this.#headersBox.hidden = this.#answer.hidden = false;
    let text = "";
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let chunk; !(chunk = await reader.read()).done;) {
      text += chunk.value;
      this.#answer.append(chunk.value);
      this.#answer.scrollTop = this.#answer.scrollHeight;
    }
    if (parse(text) instanceof Object) {
      colour(this.#answer, "json", JSON.stringify(parse(text), null, 2));
      this.#answer.scrollTop = 0;
    }
    const isIncomplete = response.headers.get("Content-Type") === "text/event-stream" && !text.endsWith("data: [DONE]\n\n");
    this.#status.append(isIncomplete ? ` · incomplete: ended after ${took()} without [DONE]` : ` · complete after ${took()}`);
  }
}

function nameAnswer(key) {
  answerKey = key;
  trials.forEach((trial) => trial.write());
}

function choose(name) {
  language = name;
  trials.forEach((trial) => trial.write());
}

// forBot fills the chosen bot and a question for it into an example. As long as
// the bot is unknown, it fills in placeholders.
function forBot(example) {
  const { slug, uid } = bot ?? { slug: "your-bot", uid: "uid-of-your-bot" };
  const [question = anyQuestion] = questionsFor(slug);
  const body = { ...example };
  if ("bot_slug" in body) body.bot_slug = slug;
  if ("bot_uid" in body) body.bot_uid = uid;
  if ("prompt" in body) body.prompt = question;
  if ("messages" in body) body.messages = [{ role: "system", content: "Be brief." }, { role: "user", content: question }];
  return body;
}
