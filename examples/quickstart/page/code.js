// Shows a block of code, with its language and a button that copies it.

import { Highlighter } from "./highlight.js";
import { copyButton } from "./copying.js";
import { el } from "./elements.js";

// The number of lines in a piece: a browser lays out a whole piece for each new
// line.
const piece = 50;

// Only this many lines are coloured.
const mostColoured = 2000;

const views = new WeakMap(); // by the figure that shows the code

// codeFigure makes an element that shows a listing {language, lines}.
export function codeFigure({ language, lines }) {
  const view = new CodeView(language);
  view.show(lines);
  views.set(view.figure, view);
  return view.figure;
}

// updateCode shows other lines of the same language in the element.
export function updateCode(figure, { lines }) {
  views.get(figure).show(lines);
}

class CodeView {
  #code;
  #highlighter;
  #lines = [];
  #spans = []; // the span that is open at the start of each line and after the last

  constructor(language) {
    this.#highlighter = Highlighter.forLanguage(language);
    this.#code = el("code", { ...(language && { "data-language": language }) });
    const head = el("figcaption", {}, el("span", {}, language || "code"), copyButton(() => this.#code.textContent));
    this.figure = el("figure", { class: "code", dir: "ltr" }, head,
      el("pre", { tabindex: 0, role: "group", "aria-label": language ? `Code, ${language}` : "Code" }, this.#code));
  }

  // show replaces the lines from the first that differs.
  show(lines) {
    let same = 0;
    while (same < lines.length && lines[same] === this.#lines[same]) same++;
    this.#removeFrom(same);
    for (let i = same; i < lines.length; i++) this.#append(lines[i], i);
    this.#lines = lines;
  }

  #removeFrom(line) {
    const pieces = this.#code.childNodes;
    while (pieces.length > Math.ceil(line / piece)) this.#code.lastChild.remove();
    const last = this.#code.lastChild;
    while (last && last.childNodes.length > line - (pieces.length - 1) * piece) last.lastChild.remove();
  }

  #append(line, i) {
    if (i % piece === 0) this.#code.append(el("span", { class: "piece" }));
    this.#code.lastChild.append(this.#highlighter && i < mostColoured ? this.#coloured(line, i) : line + "\n");
  }

  #coloured(line, i) {
    const { tokens, span } = this.#highlighter.read(line, this.#spans[i]);
    this.#spans[i + 1] = span;
    return lineOf(tokens);
  }
}

// colour shows complete code of a known language in an element.
export function colour(element, language, text) {
  const highlighter = Highlighter.forLanguage(language);
  let inside = null;
  element.replaceChildren(...text.split("\n").map((line) => {
    const { tokens, span } = highlighter.read(line, inside);
    inside = span;
    return lineOf(tokens);
  }));
}

function lineOf(tokens) {
  return el("span", null, tokens.map((token) => (typeof token === "string" ? token : el("span", { class: token.kind }, token.text))), "\n");
}
