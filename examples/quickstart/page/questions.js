// Questions to begin a conversation with. The host suggests them, by the bot's
// slug, or for bots without their own.

import { el } from "./elements.js";

const suggested = JSON.parse(document.querySelector("meta[name=questions]").content) ?? {};

// anyQuestion suits every bot.
export const anyQuestion = "Hello! What can you do?";

// questionsFor has those for the bot with this slug. There are none only if the
// host wants it so.
export function questionsFor(slug) {
  return suggested[slug] ?? suggested[""] ?? [anyQuestion];
}

// beginning is what an empty conversation shows below the bot's welcome, or in
// its place: questions that ask is called with. drawAvatar draws the bot's
// picture into an element.
export function beginning(bot, drawAvatar, ask) {
  const questions = questionsFor(bot.slug);
  if (questions.length === 0 && bot.welcome_message) return [];
  return el("li", { class: "beginning" },
    bot.welcome_message ? [] : introduction(bot, drawAvatar),
    questions.length === 0 ? [] : el("ul", { "aria-label": "Suggested questions" }, questions.map((question) => el("li", null, asking(question, ask)))));
}

function introduction(bot, drawAvatar) {
  const avatar = el("span", { class: "avatar", "aria-hidden": "true" });
  drawAvatar(avatar, bot);
  return [avatar, el("p", { class: "introduced", dir: "auto" }, bot.name), bot.description ? el("p", { dir: "auto" }, bot.description) : []];
}

function asking(question, ask) {
  const button = el("button", { type: "button", class: "suggestion", dir: "auto" }, question);
  button.addEventListener("click", () => ask(question));
  return button;
}
