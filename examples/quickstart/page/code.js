// Shows a block of code, with its language and a button that copies it.

import { copyButton } from "./copying.js";
import { button, el } from "./elements.js";
import { load } from "./loading.js";

let hljs;

// ready is fulfilled when code can be coloured.
export const ready = load(() => [import("./lib/highlight.js")]).then(([library]) => { hljs = library.default; });

// The number of lines in a piece: a browser lays out a whole piece for each new
// line, and its colours are found together. It ends outside of comments and strings
// that extend over several lines, if they do not extend over too many.
const piece = 50;
const longestPiece = 100;

// Only this many lines are coloured, and no pieces with lines that are longer than
// this many characters: they are data.
const mostColoured = 2000;
const longestLine = 2000;

const views = new WeakMap(); // by the figure that shows the code

// codeView returns the view of a figure, which contains only the code at first.
export function codeView(figure) {
  if (!views.has(figure)) views.set(figure, new CodeView(figure));
  return views.get(figure);
}

class CodeView {
  #code;
  #language;
  #base = ""; // the code before what show shows, after that of finished pieces
  #finished = 0; // the length of the code of finished pieces that show shows
  #last = ""; // what show has shown
  #count = 0; // of the lines in finished pieces
  #piece; // the element of the last piece
  #shown = []; // its lines

  constructor(figure) {
    const text = figure.textContent;
    const { language } = figure.dataset;
    this.#language = hljs.getLanguage(language) ? language : "";
    this.#code = el("code", { ...(language && { "data-language": language }) });
    figure.dir = "ltr";
    figure.replaceChildren(
      el("figcaption", {}, el("span", {}, language || "code"), wrapButton(figure), copyButton(() => this.#code.textContent)),
      el("pre", { tabindex: 0, role: "group", "aria-label": language ? `Code, ${language}` : "Code" }, this.#code));
    this.show(text);
  }

  // show shows code, which must begin with finished pieces of the code of the call
  // before.
  show(text) {
    this.#last = text;
    let rest = (this.#base + text).slice(this.#finished);
    for (;;) {
      const lines = this.#linesOf(rest);
      const count = endOfPiece(lines);
      if (!count) return this.#draw(lines);
      this.#draw(lines.slice(0, count));
      this.#count += count;
      const { length } = rest.split("\n", count).join("\n");
      this.#finished += length + 1;
      rest = rest.slice(length + 1);
      this.#piece = undefined;
      this.#shown = [];
    }
  }

  // finish makes show begin after what it has shown: with the next line, of a text
  // that has this many lines, or in the same one if that is 0.
  finish(lines) {
    const text = this.#last.replace(/\n$/, "");
    const padded = lines ? text + "\n".repeat(lines - text.split("\n").length + 1) : text;
    this.#base = (this.#base + padded).slice(this.#finished);
    this.#finished = 0;
    this.#last = "";
  }

  // linesOf returns the lines of a text. A line is {key, tokens, isOpen}. Its tokens are strings or
  // {kind, text}. The line is open if a comment or a string continues in the next one.
  #linesOf(text) {
    if (text === "") return [];
    const lines = text.replace(/\n$/, "").split("\n"); // the last one may lack its end
    const isData = lines.some(({ length }) => length > longestLine);
    if (this.#language && this.#count < mostColoured && !isData) return colouredLines(text, this.#language);
    return lines.map((line) => ({ key: line, tokens: [line], isOpen: false }));
  }

  // draw replaces the lines of the last piece from the first that differs.
  #draw(lines) {
    if (!this.#piece) {
      this.#piece = el("span", { class: "piece" });
      this.#code.append(this.#piece);
    }
    let same = 0;
    while (same < lines.length && lines[same].key === this.#shown[same]?.key) same++;
    while (this.#piece.childNodes.length > same) this.#piece.lastChild.remove();
    this.#piece.append(...lines.slice(same).map(elementOf));
    this.#shown = lines;
  }
}

// wrapButton makes a button that wraps the long lines of a figure, or lets them scroll.
function wrapButton(figure) {
  const wrapping = button("Wrap", "wrap", () => wrapping.setAttribute("aria-pressed", figure.classList.toggle("wrapped")));
  wrapping.setAttribute("aria-pressed", "false");
  return wrapping;
}

// endOfPiece returns the number of lines of a finished piece, or 0 if the lines are
// not enough for one.
function endOfPiece(lines) {
  if (lines.length <= piece + 1) return 0;
  for (let count = piece; count < Math.min(lines.length - 1, longestPiece); count++) {
    if (!lines[count - 1].isOpen) return count;
  }
  return lines.length > longestPiece + 1 ? longestPiece : 0;
}

// colour shows complete code of a known language in an element.
export async function colour(element, language, text) {
  element.textContent = text;
  await ready;
  if (element.textContent === text) element.replaceChildren(...colouredLines(text, language).map(elementOf));
}

function elementOf({ tokens }) {
  if (tokens.length === 1 && typeof tokens[0] === "string") return tokens[0] + "\n";
  return el("span", null, tokens.map((token) => (typeof token === "string" ? token : el("span", { class: token.kind }, token.text))), "\n");
}

const kinds = {
  comment: "comment", quote: "comment",
  string: "string", regexp: "string", char: "string",
  number: "number", literal: "keyword",
  keyword: "keyword", built_in: "keyword", type: "keyword", meta: "keyword", "selector-tag": "keyword", name: "keyword",
  addition: "string", deletion: "number",
};

const characters = { amp: "&", lt: "<", gt: ">", quot: '"', "#x27": "'" };

// colouredLines reads the HTML of highlight.js, in which spans may extend over
// several lines.
function colouredLines(text, language) {
  const { value } = hljs.highlight(text.replace(/\n$/, ""), { language, ignoreIllegals: true });
  const lines = [];
  const open = []; // kinds
  let tokens = [];
  const put = (text) => {
    const kind = open.at(-1);
    const last = tokens.at(-1);
    if (!kind) tokens.push(typeof last === "string" ? tokens.pop() + text : text);
    else if (last?.kind === kind && last.depth === open.length) last.text += text;
    else tokens.push({ kind, text, depth: open.length });
  };
  const endLine = () => {
    lines.push({ key: JSON.stringify(tokens), tokens: tokens.length > 0 ? tokens : [""], isOpen: open.some((kind) => kind === "comment" || kind === "string") });
    tokens = [];
  };
  for (const [mark, name, character] of value.matchAll(/<span class="hljs-(\w[\w-]*)[^>]*">|<\/span>|&(amp|lt|gt|quot|#x27);|\n|<span[^>]*>|[^<&\n]+/g)) {
    if (mark === "\n") endLine();
    else if (character) put(characters[character]);
    else if (mark === "</span>") open.pop();
    else if (mark.startsWith("<span")) open.push(kinds[name] ?? "");
    else put(mark);
  }
  endLine();
  return lines;
}
