// Suggested questions for the beginning of a conversation.

import { button, el } from "./elements.js";
import { options } from "./options.js";

const suggested = options.questions ?? {};

// anyQuestion suits every bot.
export const anyQuestion = "Hello! What can you do?";

// questionsFor returns the questions for the bot with this slug. The list is empty
// only if the application has set an empty list.
export function questionsFor(slug) {
  return suggested[slug] ?? suggested[""] ?? [anyQuestion];
}

// beginning makes the element that an empty conversation shows below or instead of
// the bot's welcome: questions, each of which calls ask when it is clicked.
// drawAvatar draws the bot's picture into an element.
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
  const suggestion = button(question, "suggestion", () => ask(question));
  suggestion.dir = "auto";
  return suggestion;
}
