// One conversation with one bot: what was said, and how it looks.

import { explain } from "./words.js";

const template = (id) => document.getElementById(id).content.firstElementChild.cloneNode(true);

const unanswered = "This message has no answer yet.";

export class Conversation {
  #page;
  #messages; // {role, content}, as the interface has them
  #answer; // the AbortController of the answer in progress
  #savedAs; // the name under which this tab keeps the messages

  constructor(bot, page) {
    this.bot = bot;
    this.#page = page;
    this.#savedAs = "botapi.conversation." + bot.uid;
    this.#messages = JSON.parse(sessionStorage.getItem(this.#savedAs)) ?? [];
    this.element = template("conversation");
    this.#draw();
  }

  get answering() {
    return this.#answer !== undefined;
  }

  get isEmpty() {
    return this.#messages.length === 0;
  }

  // say adds a message of the user and asks for the bot's answer.
  say(text) {
    this.#remember("user", text);
    this.element.querySelectorAll(".again").forEach((button) => button.remove());
    this.element.append(this.#item("user", text));
    this.#ask();
  }

  // stop ends the answer in progress. What has arrived stays.
  stop() {
    this.#answer?.abort();
  }

  // startOver goes back to the bot's welcome.
  startOver() {
    this.forget();
    this.#draw();
    this.#page.changed(this, true);
    this.#page.announce("The conversation starts over.");
  }

  // forget drops everything that was said, here and in the tab.
  forget() {
    this.stop();
    this.#answer = undefined;
    this.#messages = [];
    sessionStorage.removeItem(this.#savedAs);
  }

  // ask has the bot answer the messages so far, and shows the answer as it
  // arrives. A whole answer becomes part of the conversation, and so does what
  // has arrived of one that the user stops. A failed one does not.
  async #ask() {
    const answer = (this.#answer = new AbortController());
    const item = this.#item("assistant", "");
    item.classList.add("arriving");
    this.element.append(item);
    this.#page.changed(this, true);
    this.#page.announce(`${this.bot.name} is answering.`);

    let failure;
    try {
      await this.#receive(item, answer.signal);
    } catch (error) {
      failure = error;
    }
    if (this.#answer !== answer) return; // the conversation started over meanwhile

    this.#answer = undefined;
    item.classList.remove("arriving");
    const atEnd = this.#page.isAtEnd();
    this.#conclude(item, failure, answer.signal.aborted);
    this.#page.changed(this, atEnd);
  }

  async #receive(item, signal) {
    const text = item.querySelector(".text");
    const request = { bot_uid: this.bot.uid, messages: this.#messages };
    for await (const fragment of this.#page.chat(request, signal)) {
      const atEnd = this.#page.isAtEnd();
      text.append(fragment);
      this.#page.changed(this, atEnd);
    }
  }

  #conclude(item, failure, stopped) {
    const text = item.querySelector(".text").textContent;
    if (failure && !stopped) return this.#fail(item, failure);
    if (text) this.#remember("assistant", text);
    item.classList.toggle("stopped", stopped);
    this.#page.announce(stopped ? "Stopped." : `${this.bot.name}: ${text}`);
  }

  #fail(item, error) {
    if (error.status === 401) {
      item.append(this.#failure(item, unanswered));
      this.#page.keyRefused();
      return;
    }
    const { title, advice = "" } = explain(error);
    item.append(this.#failure(item, title, advice, error.requestID));
    this.#page.announce(`${title} ${advice}`.trim());
  }

  // draw shows the welcome and the messages so far. The answer to the last of
  // them may be missing, where the page was left before it came.
  #draw() {
    this.element.replaceChildren();
    if (this.bot.welcome_message) this.element.append(this.#item("assistant", this.bot.welcome_message));
    this.element.append(...this.#messages.map(({ role, content }) => this.#item(role, content)));
    if (this.#messages.at(-1)?.role !== "user") return;
    const item = this.#item("assistant", "");
    item.append(this.#failure(item, unanswered));
    this.element.append(item);
  }

  #item(role, text) {
    const item = template("message-item");
    item.classList.add(role);
    item.querySelector(".author").textContent = role === "user" ? "You: " : `${this.bot.name}: `;
    item.querySelector(".text").textContent = text;
    if (role !== "user") drawAvatar(item.querySelector(".avatar"), this.bot);
    return item;
  }

  #failure(item, title, advice = "", requestID = "") {
    const failure = template("failure");
    failure.querySelector(".failure-title").textContent = title;
    failure.querySelector(".failure-advice").textContent = advice;
    failure.querySelector(".request-id").textContent = requestID && `Request ${requestID}`;
    failure.querySelector(".again").addEventListener("click", () => {
      item.remove();
      this.#ask();
      this.#page.focusComposer();
    });
    return failure;
  }

  #remember(role, content) {
    this.#messages.push({ role, content });
    try {
      sessionStorage.setItem(this.#savedAs, JSON.stringify(this.#messages));
    } catch {
      // The tab's store is full: the conversation goes on, and a reload forgets its end.
    }
  }
}

const tints = 6; // in style.css

// drawAvatar shows the bot's picture, and the initial of its name until the
// picture has come, or where there is none.
export function drawAvatar(place, bot) {
  place.replaceChildren([...bot.name.trim()][0]?.toUpperCase() ?? "");
  place.dataset.tint = [...bot.uid].reduce((sum, char) => sum + char.codePointAt(0), 0) % tints;
  if (!bot.avatar_url) return;
  const picture = new Image();
  picture.alt = "";
  picture.referrerPolicy = "no-referrer";
  picture.addEventListener("load", () => place.replaceChildren(picture));
  picture.src = bot.avatar_url;
}
