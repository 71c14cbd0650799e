// How a conversation looks.

import { MarkdownText } from "./rendering.js";
import { copyButton } from "./copying.js";
import { noteOn, troubleWith } from "./words.js";

const template = (id) => document.getElementById(id).content.firstElementChild.cloneNode(true);

// A server that is well sends something at least this often, in seconds.
const keepAlive = Number(document.querySelector("meta[name=keep-alive]").content);

// What is shown in so many milliseconds may be shown in every frame.
const quick = 8;

export class ConversationView {
  #conversation;
  #page; // {edit(turn), focusComposer(), changed(view), announce(text)}
  #shown = new Map(); // by the turn's id: how it looks
  #drawing = 0; // the frame that is asked for
  #rested = 0; // when what has arrived may be shown again
  #welcome;
  element = template("conversation");

  constructor(conversation, page) {
    this.#conversation = conversation;
    this.#page = page;
    conversation.addEventListener("change", () => this.draw());
    conversation.addEventListener("arrival", () => this.#drawSoon());
    conversation.addEventListener("tick", () => this.#shownTurn()?.tick(conversation.attempt));
    this.draw();
  }

  // drawSoon shows what has arrived, at most once a frame: however fast it comes,
  // the browser lays the page out once. What takes long to show is shown less
  // often, so that most of the time is the reader's.
  #drawSoon() {
    this.#drawing ||= requestAnimationFrame(() => {
      this.#drawing = 0;
      if (!this.#conversation.attempt) return;
      const began = performance.now();
      if (began < this.#rested) return this.#drawSoon();
      this.#shownTurn()?.arrive(this.#conversation.attempt);
      this.#page.changed(this);
      const took = performance.now() - began;
      this.#rested = began + took + 3 * Math.max(0, took - quick);
    });
  }

  // spoken is what an answer says, without its marks and buttons.
  spoken(turn) {
    return this.#shown.get(turn.id)?.spoken() || "The answer is empty.";
  }

  #shownTurn() {
    return this.#shown.get(this.#conversation.attempt?.turn.id);
  }

  // draw shows the conversation as it is. Turns that look right are left alone.
  draw() {
    const { turns, attempt, bot, cleared } = this.#conversation;
    const shown = new Map(turns.map((turn) => [turn.id, this.#shown.get(turn.id) ?? new TurnView(turn, this.#conversation, this.#page)]));
    this.#shown = shown;
    turns.forEach((turn, i) => shown.get(turn.id).show(turn, attempt?.turn === turn ? attempt : null, i === turns.length - 1));
    this.#welcome ??= bot.welcome_message ? welcome(bot) : [];
    arrange(this.element, [this.#welcome, cleared?.length > 0 ? this.#undo() : [], [...shown.values()].map(({ items }) => items)].flat(2));
    this.#page.changed(this);
  }

  #undo() {
    const item = template("cleared");
    item.querySelector("button").addEventListener("click", () => {
      this.#conversation.undo();
      this.#page.focusComposer();
    });
    return item;
  }
}

// arrange makes these items the children of an element, and moves none that is
// in its place.
function arrange(element, items) {
  const wanted = new Set(items);
  [...element.children].filter((child) => !wanted.has(child)).forEach((child) => child.remove());
  items.forEach((item, i) => {
    if (element.children[i] !== item) element.insertBefore(item, element.children[i] ?? null);
  });
}

function welcome(bot) {
  const item = messageItem("assistant", bot);
  new MarkdownText(item.querySelector(".text")).show(bot.welcome_message);
  return item;
}

function messageItem(role, bot) {
  const item = template("message-item");
  item.classList.add(role);
  item.querySelector(".author").textContent = role === "user" ? "You: " : `${bot.name}: `;
  if (role !== "user") drawAvatar(item.querySelector(".avatar"), bot);
  return item;
}

// A TurnView shows a question and what came of it.
class TurnView {
  #turn;
  #conversation;
  #page;
  #question;
  #answer;
  #text; // of the answer
  #soFar = ""; // what it shows
  #looks; // what the turn was like when it was drawn

  constructor(turn, conversation, page) {
    this.#turn = turn;
    this.#conversation = conversation;
    this.#page = page;
    this.#question = messageItem("user", conversation.bot);
    this.#showQuestion(turn.question);
    this.#answer = messageItem("assistant", conversation.bot);
    this.#text = new MarkdownText(this.#answer.querySelector(".text"));
    this.#addActions();
  }

  get items() {
    return [this.#question, this.#answer];
  }

  #showQuestion(text) {
    const place = this.#question.querySelector(".text");
    place.textContent = text;
    place.classList.add("as-written");
    place.dir = "auto";
  }

  #addActions() {
    this.#question.querySelector(".actions").append(
      button("Edit", "edit", () => this.#page.edit(this.#turn)),
      copyButton(() => this.#turn.question));
    this.#find(".actions").append(
      copyButton(() => this.#turn.answer),
      button("Regenerate", "regenerate", () => this.#ask()));
    this.#find(".silence button").addEventListener("click", () => this.#ask());
  }

  #ask() {
    this.#conversation.ask(this.#turn);
    this.#page.focusComposer();
  }

  // show shows the turn at rest, or with an attempt to answer it.
  show(turn, attempt, isLast) {
    this.#turn = turn;
    const looks = JSON.stringify([turn, isLast, attempt !== null]);
    if (looks === this.#looks) return;
    this.#looks = looks;

    this.#answer.classList.toggle("arriving", attempt !== null);
    this.#answer.classList.toggle("waiting", attempt !== null && attempt.text === "");
    this.#answer.classList.toggle("stopped", !attempt && turn.stopped);
    if (!attempt) this.#showText(turn.answer, turn.state === "partial"); // its marks stay open
    const trouble = attempt ? null : troubleWith(turn, isLast);
    const note = attempt || trouble ? "" : noteOn(turn);
    this.#find(".failure")?.remove();
    if (trouble) this.#answer.append(this.#failure(trouble, isLast));
    this.#find(".note").textContent = note;
    this.#find(".actions").hidden = attempt !== null || (turn.state !== "whole" && turn.answer === "");
    this.#find(".regenerate").hidden = !isLast;
    this.#find(".progress").hidden = attempt === null;
    this.#find(".silence").hidden = true;
    this.#find(".elapsed").textContent = "";
    this.#question.querySelector(".edit").disabled = attempt !== null;
    for (const item of this.items) item.classList.toggle("left-out", !isLast && turn.answer === "");
  }

  #find(selector) {
    return this.#answer.querySelector(selector);
  }

  // arrive shows what has arrived so far. Until then, the answer of an earlier
  // try stays on the screen.
  arrive(attempt) {
    if (attempt.text === "") return;
    this.#answer.classList.remove("waiting");
    this.#showText(attempt.text, true);
  }

  spoken() {
    const text = this.#find(".text").cloneNode(true);
    text.querySelectorAll("figcaption").forEach((caption) => caption.remove());
    return [...text.children].map((block) => block.textContent).join("\n");
  }

  #showText(text, arriving) {
    if (!text.startsWith(this.#soFar)) this.#text.clear();
    this.#soFar = text;
    this.#text.show(text, { arriving });
  }

  tick({ since, heard }) {
    const seconds = (time) => Math.round((Date.now() - time) / 1000);
    this.#find(".elapsed").textContent = seconds(since) >= 2 ? duration(seconds(since)) : "";
    const silence = this.#find(".silence");
    const wasHidden = silence.hidden;
    silence.hidden = seconds(heard) < 2 * keepAlive;
    this.#find(".silent-for").textContent = duration(seconds(heard));
    if (wasHidden && !silence.hidden) this.#page.announce("Nothing has come for a while. The connection may be lost.");
  }

  #failure({ title, advice, requestID }, isLast) {
    const failure = template("failure");
    failure.querySelector(".failure-title").textContent = title;
    failure.querySelector(".failure-advice").textContent = advice;
    failure.querySelector(".request-id").textContent = requestID && `Request ${requestID}`;
    const again = failure.querySelector(".again");
    again.hidden = !isLast;
    again.addEventListener("click", () => this.#ask());
    const change = failure.querySelector(".change");
    change.hidden = this.#turn.answer !== "";
    change.addEventListener("click", () => this.#page.edit(this.#turn));
    return failure;
  }
}

function button(label, name, act) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = name;
  button.textContent = label;
  button.addEventListener("click", act);
  return button;
}

function duration(seconds) {
  return seconds < 60 ? `${seconds} s` : `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
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
