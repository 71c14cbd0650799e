// Shows a conversation.

import { MarkdownText, isReady, ready } from "./rendering.js";
import { AnswerText, isThinking, withoutThought } from "./thought.js";
import { beginning } from "./questions.js";
import { copyButton } from "./copying.js";
import { arrange, button, el, template } from "./elements.js";
import { choicesOf } from "./versions.js";
import { directionOf } from "./direction.js";
import { options } from "./options.js";
import { noteOn, noteOnVersion, secondsUntil, troubleWith } from "./words.js";

// An update that takes at most this many milliseconds may run in every frame.
const quick = 8;

// A frame shows more text until that has taken this many milliseconds, without the
// layout: first half of what the frame before has shown, but at least some characters,
// and then as many as it has shown already. A longer answer continues in the next
// frames, so that the page always stays responsive.
const budget = 6;
const fewest = 256;

// Each step takes some time for the text that is shown already, so that it must not be
// too short for a very long one.
const enough = (length) => Math.min(8192, length / 32);

export class ConversationView {
  #conversation;
  #page; // {ask(question), edit(turn), canShorten(conversation, question, turn), shorten(turn), turn(turn, index, name, direction), focusComposer(), changed(view), announce(text)}
  #shown = new Map(); // the view of each turn, by its id
  #drawing = 0; // the requested frame
  #rested = 0; // the time before which no more is shown
  #pace = 0; // the number of characters that the last frame has shown
  #welcome;
  #beginning;
  #cleared = el("li", { class: "cleared" }, "The conversation is cleared. ", button("Undo", "quiet", () => {
    this.#conversation.undo();
    this.#page.announce("Undone.");
    this.#page.focusComposer();
  }));
  #deleted = el("li", { class: "cleared" }, "This conversation was deleted in another tab.");
  element = el("ol", { class: "conversation" });

  constructor(conversation, page) {
    this.#conversation = conversation;
    this.#page = page;
    conversation.addEventListener("change", () => this.draw());
    this.element.addEventListener("click", ({ target }) => this.#open(target));
    this.element.addEventListener("focusin", ({ target }) => target.matches(":focus-visible") && this.#open(target));
    conversation.arrived = () => this.#drawSoon();
    conversation.addEventListener("tick", () => this.#shownTurn()?.tick(conversation.attempt));
    this.draw();
    if (!isReady()) ready.then(() => this.#drawSoon());
  }

  // open shows the buttons of the message in which something is, on a phone. It does so after a
  // click: what moves before that would be missed.
  #open(target) {
    const message = target.closest(".message");
    if (!message) return;
    this.element.querySelector(".opened")?.classList.remove("opened");
    message.classList.add("opened");
  }

  // drawSoon shows more text, at most once a frame, so that the browser lays the
  // page out once per frame however fast text arrives. Slow updates run less
  // often, so that most of the time is left for input.
  #drawSoon() {
    this.#drawing ||= requestAnimationFrame(() => {
      this.#drawing = 0;
      const began = performance.now();
      if (began < this.#rested) return this.#drawSoon();
      if (this.#conversation.attempt) this.#shownTurn()?.arrive(this.#conversation.attempt);
      this.#showMore();
      const now = performance.now();
      this.#rested = this.#drawing ? now : now + 3 * Math.max(0, now - began - quick);
    });
  }

  // showMore shows as much as the budget allows, the last turns first: they are
  // visible.
  #showMore() {
    if (isReady()) this.#showMoreText();
    this.#page.changed(this);
  }

  #showMoreText() {
    const end = performance.now() + budget;
    let shown = 0;
    for (const turn of [...this.#shown.values()].reverse()) {
      while (turn.hasMore && performance.now() < end) shown += turn.showMore(Math.max(fewest, this.#pace / 2, shown));
      if (turn.hasMore) this.#drawSoon();
    }
    this.#pace = shown;
  }

  #shownTurn() {
    return this.#shown.get(this.#conversation.attempt?.turn.id);
  }

  // draw shows the current conversation. It does not touch unchanged turns.
  draw() {
    const { turns, attempt, bot, cleared, isDeleted } = this.#conversation;
    const shown = new Map(turns.map((turn) => [turn.id, this.#shown.get(turn.id) ?? new TurnView(turn, this.#conversation, this.#page)]));
    this.#shown.forEach((view, id) => { if (!shown.has(id)) view.leave(); });
    this.#shown = shown;
    turns.forEach((turn, i) => shown.get(turn.id).show(turn, attempt?.turn === turn ? attempt : null, i === turns.length - 1));
    this.#welcome ??= bot.welcome_message ? welcome(bot) : [];
    this.#beginning ??= beginning(bot, drawAvatar, this.#page.ask);
    arrange(this.element, [this.#welcome, turns.length === 0 ? this.#beginning : [], cleared ? this.#cleared : [], isDeleted ? this.#deleted : [], [...shown.values()].map(({ items }) => items)].flat(2));
    if (this.element.isConnected) this.#showMore();
    else this.#drawSoon(); // most likely, it is on the page then, and tables have widths
  }

  // markEdited marks the question of the turn that is being edited, if any.
  markEdited(turn) {
    this.#shown.forEach(({ question }, id) => question.classList.toggle("edited", id === turn?.id));
    this.element.querySelector(".edited")?.scrollIntoView({ block: "nearest" });
  }

  // focusVersions focuses the button to go on in the same direction, if there is one.
  focusVersions(at, name, direction) {
    [...this.#shown.values()][at].focusVersions(name, direction);
  }
}

function welcome(bot) {
  const item = messageItem("assistant", bot);
  const text = item.querySelector(".text");
  showAsWritten(text, bot.welcome_message);
  ready.then(() => {
    const markdown = new MarkdownText(el("div", { class: "text" }));
    while (markdown.show(bot.welcome_message) < bot.welcome_message.length);
    text.replaceWith(markdown.element);
  });
  return item;
}

function messageItem(role, bot) {
  const item = template("message-item");
  item.classList.add(role);
  item.querySelector(".author").textContent = role === "user" ? "You: " : `${bot.name}: `;
  if (role !== "user") drawAvatar(item.querySelector(".avatar"), bot);
  return item;
}

function showAsWritten(element, text) {
  element.textContent = text;
  element.classList.add("as-written");
  element.dir = directionOf([text]);
}

// A TurnView shows a question and its answer or failure.
class TurnView {
  #turn;
  #conversation;
  #page;
  question;
  #answer;
  #text; // of the answer
  #wanted = { text: "", arriving: false }; // the text to show
  #soFar = ""; // the beginning of it that is shown
  #open = false; // whether that is shown as text that continues
  #looks; // the turn as it was drawn, as JSON
  #waiting; // the timer of a failure that counts down

  constructor(turn, conversation, page) {
    this.#turn = turn;
    this.#conversation = conversation;
    this.#page = page;
    this.question = messageItem("user", conversation.bot);
    showAsWritten(this.question.querySelector(".text"), turn.question);
    this.#answer = messageItem("assistant", conversation.bot);
    this.#text = new AnswerText(this.#answer.querySelector(".text"));
    this.#addActions();
  }

  get items() {
    return [this.question, this.#answer];
  }

  #addActions() {
    this.question.querySelector(".actions").append(
      this.#versions("question"),
      button("Edit", "edit", () => this.#page.edit(this.#turn)),
      copyButton(() => this.#turn.question));
    this.#find(".actions").append(
      copyButton(() => withoutThought(this.#turn.answer)),
      button("Regenerate", "regenerate", () => this.#ask()),
      this.#versions("answer")); // last, so that it moves nothing when it appears
    this.#find(".silence button").addEventListener("click", () => this.#ask("again"));
  }

  // versions makes the buttons to choose among the versions of a question or an answer.
  #versions(name) {
    const turnTo = (sign, direction, step) => {
      const to = button(sign, direction, () => {
        const { all, shown } = choicesOf(this.#turn)[name];
        this.#page.turn(this.#turn, all[shown + step], name, direction);
      });
      to.setAttribute("aria-label", `${direction === "earlier" ? "Earlier" : "Later"} version of the ${name}`);
      return to;
    };
    return el("span", { class: "versions" }, turnTo("‹", "earlier", -1), el("span", { class: "place" }), turnTo("›", "later", 1));
  }

  #showVersions(name, { all, shown }, isArriving) {
    const versions = this.#itemOf(name).querySelector(".versions");
    versions.hidden = all.length < 2 || isArriving;
    this.#itemOf(name).classList.toggle("versioned", !versions.hidden);
    versions.querySelector(".place").textContent = `${shown + 1} / ${all.length}`;
    versions.querySelector(".earlier").disabled = shown === 0;
    versions.querySelector(".later").disabled = shown === all.length - 1;
  }

  #itemOf(name) {
    return name === "answer" ? this.#answer : this.question;
  }

  focusVersions(name, direction) {
    const versions = this.#itemOf(name).querySelector(".versions");
    (versions.querySelector(`.${direction}:enabled`) ?? versions.querySelector("button:enabled"))?.focus();
  }

  #ask(how = "regenerate") {
    this.#conversation[how](this.#turn);
    const note = noteOnVersion(this.#conversation.turns.at(-1) ?? {});
    if (note) this.#page.announce(note);
    this.#page.focusComposer();
  }

  // show shows the turn, with the attempt to answer it if there is one.
  show(turn, attempt, isLast) {
    this.#turn = turn;
    const choices = choicesOf(turn);
    const versionNote = isLast ? noteOnVersion(turn) : "";
    const looks = JSON.stringify([{ ...turn, before: null, after: null }, choices, versionNote, isLast, attempt !== null]);
    if (looks === this.#looks) return;
    this.#looks = looks;

    this.#answer.classList.toggle("arriving", attempt !== null);
    this.#answer.classList.toggle("waiting", attempt !== null && attempt.text === "");
    this.#answer.classList.toggle("stopped", !attempt && turn.stopped);
    const trouble = attempt ? null : troubleWith(turn, isLast);
    const note = attempt || trouble ? "" : noteOn(turn);
    this.#showFailure(trouble);
    this.#answer.querySelector(":scope > .note").textContent = [note, versionNote].filter(Boolean).join(" ");
    const isEmpty = turn.state !== "whole" && turn.answer === "";
    this.#find(".actions").hidden = attempt !== null || (isEmpty && choices.answer.all.length < 2);
    this.#find(".actions > .copy").hidden = isEmpty;
    this.#find(".regenerate").hidden = isEmpty || trouble !== null; // the failure has its own button
    for (const name of ["question", "answer"]) this.#showVersions(name, choices[name], attempt !== null);
    this.#find(".progress").hidden = false;
    this.#find(".lost").hidden = this.#find(".silence").hidden = true;
    this.#find(".elapsed").textContent = "";
    if (!attempt) this.#showText(turn.answer, turn.state === "partial" && !isThinking(turn.answer)); // a mark without its end stays open
    this.question.querySelector(".edit").disabled = attempt !== null;
    this.question.querySelector(".edit").hidden = trouble !== null && turn.answer === ""; // so here
    for (const item of this.items) item.classList.toggle("left-out", turn.leftOut || (!isLast && turn.answer === ""));
  }

  #find(selector) {
    return this.#answer.querySelector(selector);
  }

  // arrive shows the text that has arrived so far. Before the first fragment, the
  // answer of an earlier attempt stays on the screen.
  arrive(attempt) {
    if (attempt.text === "") return;
    this.#answer.classList.remove("waiting");
    this.#showText(attempt.text, true);
  }

  #showText(text, arriving) {
    this.#wanted = { text, arriving };
    if (!text.startsWith(this.#soFar)) {
      this.#text.clear();
      this.#soFar = "";
    }
    this.#showFilling();
  }

  get hasMore() {
    return this.#isFilling || this.#wanted.arriving !== this.#open;
  }

  // showMore shows up to room more characters of the text, and returns how many.
  showMore(room) {
    const { text, arriving } = this.#wanted;
    const before = this.#soFar.length;
    const soFar = text.slice(0, before + Math.floor(Math.max(room, enough(before))));
    const shown = this.#text.show(soFar, { arriving: arriving || soFar.length < text.length });
    this.#soFar = text.slice(0, shown);
    this.#open = arriving || this.#isFilling;
    this.#showFilling();
    return this.#soFar.length - before;
  }

  get #isFilling() {
    return this.#soFar.length < this.#wanted.text.length;
  }

  // showFilling says how much of a long answer is shown, after all of it has arrived.
  #showFilling() {
    this.#answer.classList.toggle("filling", this.#isFilling);
    if (this.#answer.classList.contains("arriving")) return;
    this.#find(".progress").hidden = !this.#isFilling;
    this.#find(".elapsed").textContent = `Showing the answer: ${Math.floor(100 * this.#soFar.length / this.#wanted.text.length)} %`;
  }

  tick({ since, heard, lost, kept }) {
    const seconds = (time) => Math.round((Date.now() - time) / 1000);
    this.#find(".elapsed").textContent = seconds(since) >= 2 ? duration(seconds(since)) : "";
    this.#find(".lost").textContent = kept ? "The answer is interrupted. The page tries to get the rest of it." : "The server cannot be reached: the message is not sent yet. The page keeps trying.";
    if (lost && this.#find(".lost").hidden) this.#page.announce(this.#find(".lost").textContent);
    this.#find(".lost").hidden = !lost;
    const silence = this.#find(".silence");
    const wasHidden = silence.hidden;
    silence.hidden = lost > 0 || seconds(heard) < 2 * options.keepAlive;
    this.#find(".silent-for").textContent = duration(seconds(heard));
    if (wasHidden && !silence.hidden) this.#page.announce("Nothing has arrived for a while. The connection may be lost.");
  }

  // leave stops the timer of a view that is no longer needed.
  leave() {
    clearTimeout(this.#waiting);
  }

  // showFailure replaces the failure box. Only the last turn has one.
  #showFailure(trouble) {
    this.#find(".failure")?.remove();
    clearTimeout(this.#waiting);
    if (trouble) this.#answer.append(this.#failure(trouble));
  }

  #failure({ title, requestID, tooLong }) {
    const turn = this.#turn;
    const isShortenable = tooLong && this.#page.canShorten(this.#conversation, turn.question, turn);
    const advice = el("p", { class: "failure-advice", dir: "auto" });
    const again = button("Try again", "quiet again", () => this.#ask("again"));
    this.#countDown(advice, again);
    const change = button("Edit", "quiet change", () => this.#page.edit(this.#turn));
    const shorten = button("Go on with the most recent messages", "quiet shorten", () => this.#page.shorten(this.#turn));
    return el("div", { class: "failure" },
      el("p", { class: "failure-title" }, title),
      advice,
      el("p", { class: "failure-actions" },
        tooLong ? [] : again,
        turn.answer ? [] : change,
        isShortenable ? shorten : [],
        requestID ? el("span", { class: "request-id" }, `Request ${requestID}`) : []));
  }

  // countDown enables "Try again" when the time that the server asked for is over.
  #countDown(advice, again) {
    const seconds = secondsUntil(this.#turn.failure?.until ?? 0);
    advice.textContent = troubleWith(this.#turn, true).advice;
    again.disabled = seconds > 0;
    again.textContent = seconds > 0 ? `Try again in ${duration(seconds)}` : "Try again";
    if (seconds > 0) this.#waiting = setTimeout(() => this.#countDown(advice, again), 1000);
  }
}

function duration(seconds) {
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 60 * 60) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor(seconds / 60) % 60} min`;
}

const hues = [172, 28, 262, 212, 340, 96];

// drawAvatar shows the bot's picture. Until it has loaded, or if there is none, it
// shows the initial of the bot's name.
export function drawAvatar(element, bot) {
  element.replaceChildren([...bot.name.trim()][0]?.toUpperCase() ?? "");
  const sum = [...bot.uid].reduce((sum, char) => sum + char.codePointAt(0), 0);
  element.style.setProperty("--hue", hues[sum % hues.length]);
  if (!bot.avatar_url) return;
  const picture = new Image();
  picture.alt = "";
  picture.referrerPolicy = "no-referrer";
  picture.addEventListener("load", () => element.replaceChildren(picture));
  picture.src = bot.avatar_url;
}
