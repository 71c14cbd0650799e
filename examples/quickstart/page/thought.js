// Folds the thought that answers of reasoning models begin with: <think>...</think>.

import { MarkdownText } from "./rendering.js";
import { el } from "./elements.js";

const partsOf = (text) => /^(\s*<think>)([^]*?)(<\/think>|$)([^]*)/.exec(text)?.slice(1);
const endToBe = /<(?:\/(?:t(?:h(?:i(?:nk?)?)?)?)?)?$/;

// isThinking reports whether an answer is a thought without its end.
export const isThinking = (text) => partsOf(text)?.[2] === "";

// withoutThought returns an answer without its thought, unless that has no end.
export const withoutThought = (text) => (partsOf(text)?.[2] ? partsOf(text)[3].trimStart() : text);

export class AnswerText extends MarkdownText {
  #thought; // a MarkdownText
  #isShown; // whether all of it is

  show(text, { arriving }) {
    const [opener, thought, end, answer] = partsOf(text) ?? [];
    if (opener === undefined) return super.show(text, { arriving });
    if (!this.element.contains(this.#thought?.element ?? null)) this.#begin();
    const isOpen = arriving && !end;
    const ready = isOpen ? thought.replace(endToBe, "") : thought;
    const shown = this.#isShown ? ready.length : this.#thought.show(ready, { arriving: isOpen });
    if (shown < ready.length) return opener.length + shown;
    this.#isShown = end !== "";
    return end ? text.length - answer.length + super.show(answer, { arriving }) : text.length;
  }

  #begin() {
    this.clear(); // it may show the beginning of the mark
    this.#isShown = false;
    this.#thought = new MarkdownText(el("div"));
    this.element.append(el("details", { class: "thought" }, el("summary", null, "Thought"), this.#thought.element));
  }
}
