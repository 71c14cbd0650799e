// Shows Markdown that may still grow: only the last block is read and drawn again,
// and of a very long block only its end.

import { codeView, ready as highlighting } from "./code.js";
import { directionOf } from "./direction.js";
import { el } from "./elements.js";
import { typeset } from "./formulas.js";
import { load } from "./loading.js";

let markdown, libraries, cuts;

// ready is fulfilled when texts can be shown. The page does not wait for it before it
// shows the rest.
export const ready = load(() => [import("./markdown.js"), import("./lib/markdown.js"), import("./cuts.js"), highlighting])
  .then((modules) => { [markdown, libraries, cuts] = modules; });

export const isReady = () => cuts !== undefined;

// plainText returns the text of Markdown without its marks.
export const plainText = (text) => (isReady() ? markdown.plainText(text) : text);

// At most this much is read in one step: so much takes a few milliseconds. A row of a
// wide table is a lot to show, even if it is short.
const mostCharacters = 1024;
const mostLines = 40;
const wideTable = /(?:-{1,99}:? {0,9}\| {0,9}:?){11}/; // its delimiters
const fewestLines = 4;

// No step begins after so many milliseconds.
const budget = 8;

// After so many more characters, the page tries again to finish a part of the text.
const step = 256;

// The number of blocks in an element, in which a part of a very long block counts as
// several: a browser looks at all of them when one is added.
const together = 100;
const longCounts = 10;

// So many mentions of a footnote become buttons.
const mostMentions = 500;

// A MarkdownText shows text in an element. It can show growing text again and
// again: it does not even read finished blocks again.
export class MarkdownText {
  element;
  #part; // the element for the next block
  #room = 0; // in it, in blocks
  #taken = 0; // the number of characters of the text that have been read
  #text = ""; // what has been read and may still change, after the prefix
  #next = 0; // the length of the text that is tried next
  #prefix = ""; // opens what continues after a cut
  #depth = 0; // the number of nested elements that continue
  #before; // the last finished element
  #code; // the view of a block of code that continues
  #open = []; // the elements that may still change
  #labels = new Set(); // of the explained footnotes
  #scrolled = false; // whether a table was

  constructor(element) {
    this.element = element;
    element.addEventListener("click", showFootnote);
    element.addEventListener("scroll", ({ target }) => {
      this.#scrolled ||= target.matches(".table");
      scrollTogether([...element.querySelectorAll(".table")], target);
    }, { capture: true });
  }

  // show shows a text, which must begin with the text of the call before. It returns
  // how much of it is shown: after a few milliseconds, it leaves the rest for the next
  // call, so that the page stays responsive.
  show(text, { arriving = false } = {}) {
    const end = performance.now() + budget;
    const last = text.endsWith("\r") ? text.length - 1 : text.length; // an LF may follow
    while (this.#taken < last && performance.now() < end) {
      const part = partOf(text.slice(this.#taken, last), isWide(this.#text + text.slice(this.#taken, this.#taken + mostCharacters)) ? fewestLines : mostLines);
      this.#taken += part.length;
      this.#text += part.replace(/\r\n?/g, "\n");
      this.#cut();
    }
    const isOpen = arriving || this.#taken < last;
    this.#draw(isOpen ? asItBecomes(this.#text) : this.#text, isOpen);
    return this.#taken < last ? this.#taken : text.length;
  }

  clear() {
    this.element.replaceChildren();
    this.#taken = this.#depth = this.#next = this.#room = 0;
    this.#text = this.#prefix = "";
    this.#part = this.#before = this.#code = undefined;
    this.#open = [];
    this.#labels.clear();
  }

  // cut finishes what can no longer change.
  #cut() {
    while (this.#text.length >= this.#next || isWide(this.#text)) {
      const cut = cuts.cutIn(this.#text, markdown.parse(this.#text), this.#prefix.length);
      this.#next = cut ? 0 : this.#text.length + step;
      if (!cut) return;
      this.#draw(this.#text.slice(0, cut.at));
      this.#finish(cut);
      this.#text = cut.prefix + this.#text.slice(cut.at);
    }
  }

  #finish({ prefix, depth, lines }) {
    const last = this.#open.at(-1);
    if (lines === undefined) this.#code = undefined;
    else if (last) this.#code = codeView(last.matches("figure") ? last : [...last.querySelectorAll("figure")].at(-1));
    this.#code?.finish(lines);
    if (depth > 0) this.#room -= Math.max(longCounts, last?.querySelectorAll(".formula").length ?? 0) - 1;
    this.#prefix = prefix;
    this.#depth = depth;
    this.#before = last ?? this.#before;
    keepColumns(this.#before, depth);
    this.#open = [];
  }

  #draw(text, arriving) {
    const content = markdown.contentOf(withoutOpeners(markdown.parse(text, arriving), this.#prefix));
    if (this.#code) continueCode(this.#code, content);
    continueElements(this.#before, content.firstElementChild, this.#code ? this.#depth - 1 : this.#depth);
    this.#explain(content);
    const blocks = [...content.children];
    for (const block of blocks) block.dir = this.#directionOf(block);
    this.#open.slice(blocks.length).forEach((old) => old.remove());
    this.#open = blocks.map((block, i) => this.#put(block, this.#open[i]));
    this.#open.forEach(furnish);
  }

  #directionOf(block) {
    if (block.matches("figure")) return "ltr";
    return block.classList.contains("continued") ? this.#before.dir : directionOf([block.textContent]);
  }

  // put shows a block in place of an old element, if there is one, and returns its
  // element.
  #put(block, old) {
    if (old && isAlike(old, block)) return libraries.morphdom(old, block, { onBeforeElUpdated: mayChange });
    if (old) old.replaceWith(block);
    else this.#partWithRoom().append(block);
    if (this.#scrolled && block.matches(".table.continued")) block.scrollLeft = this.#before.scrollLeft;
    return block;
  }

  #partWithRoom() {
    if (this.#room-- > 0) return this.#part;
    this.#room = together - 1;
    this.#part?.classList.add("cut");
    this.#part = el("div", { class: "part" });
    this.element.append(this.#part);
    return this.#part;
  }

  // explain makes buttons of the mentions of footnotes, when they have been explained.
  #explain(content) {
    for (const { dataset: { note } } of content.querySelectorAll(".footnote")) {
      if (this.#labels.has(note)) continue;
      this.#labels.add(note);
      [...this.element.querySelectorAll(`.note[data-note="${CSS.escape(note)}"]`)].slice(0, mostMentions).forEach(mention);
    }
    content.querySelectorAll(".note").forEach((each) => { if (this.#labels.has(each.dataset.note)) mention(each); });
  }
}

// partOf returns the beginning of a text that is read in one step.
function partOf(text, mostLines) {
  let end = Math.min(text.length, mostCharacters);
  for (let line = 0, lines = 0; lines < mostLines; lines++) {
    line = text.indexOf("\n", line) + 1;
    if (line === 0 || line > end) break;
    if (lines === mostLines - 1) end = line;
  }
  return text[end - 1] === "\r" && text[end] === "\n" ? text.slice(0, end + 1) : text.slice(0, end);
}

function isWide(text) {
  return wideTable.test(text);
}

// ---- Arriving text ----

// asItBecomes removes a last line that consists only of marks, and makes the head of
// a table a table.
function asItBecomes(text) {
  const start = text.lastIndexOf("\n") + 1;
  if (/^[\s>]*([-+*_=~`#|:\s]+|\d{1,9}[.)]?)?$/.test(text.slice(start, start + 100))) text = text.slice(0, start).replace(/\n$/, "");
  const [, before, head] = /(?:^|\n[ \t>]*\n)((?:[ \t>]|[-+*][ \t]|\d{1,9}[.)][ \t])*)(\|.*)$/.exec(text) ?? [];
  const columns = head?.trimEnd().replace(/\|$/, "").split(/(?<!\\)\|/).length - 1;
  return columns > 1 ? `${text}\n${before.replace(/[^>\s]/g, " ")}|${"-|".repeat(columns)}` : text;
}

// ---- What continues after a cut ----

// withoutOpeners removes what a prefix shows.
function withoutOpeners(tokens, prefix) {
  const { opener } = cuts;
  if (!prefix.includes(opener)) return tokens;
  const lines = prefix.split("\n").length;
  const kept = [];
  for (let i = 0; i < tokens.length; i++) {
    const token = tokens[i];
    const isOpener = token.map?.[0] < lines && token.content.startsWith(opener);
    if (isOpener && token.type === "inline" && token.content.trim() === opener) {
      kept.pop();
      i++;
      continue;
    }
    if (isOpener && token.type === "inline") {
      const first = token.children[0];
      first.content = first.content.slice(prefix.endsWith(" ") && first.content[1] === " " ? 2 : 1);
    } else if (isOpener) {
      token.content = token.content.slice(1);
    }
    kept.push(token);
  }
  return kept;
}

// continueCode moves the first block of code into the view of the one that it
// continues.
function continueCode(view, content) {
  let element = content.querySelector("figure");
  if (!element) return;
  view.show(element.textContent);
  for (let parent; element !== content && (!parent || element.childElementCount === 0); element = parent) {
    parent = element.parentNode;
    element.remove();
  }
}

function continueElements(before, fresh, depth) {
  if (depth <= 0 || !fresh || before?.localName !== fresh.localName) return;
  fresh.classList.add("continued");
  fresh.querySelector(":scope > .label, :scope > table > thead")?.remove();
  if (fresh.matches(".even")) fresh.firstElementChild.prepend(...[...before.querySelectorAll(":scope > table > colgroup")].map((each) => each.cloneNode(true)));
  if (fresh.localName === "ol") fresh.start = before.start + before.childElementCount - (depth > 1 ? 1 : 0);
  continueElements(before.lastElementChild, fresh.firstElementChild, depth - 1);
}

// The parts of a table have these widths of columns: the column with the most text has
// the rest of the room, but at least some; the others have more than they need so far.
const mostText = 192;
const reserve = 1.2;

// keepColumns sets the widths of the columns of a table that continues. There are none
// in a conversation that is not on show.
function keepColumns(block, depth) {
  for (; depth > 1 && block; depth--) block = block.lastElementChild;
  if (depth !== 1 || !block?.matches(".even:not(.continued)") || block.clientWidth === 0) return;
  const table = block.firstElementChild;
  const rows = [...table.rows];
  const now = [...rows[0].cells].map(({ offsetWidth }) => offsetWidth);
  const lengths = now.map((_, i) => rows.reduce((sum, { cells }) => sum + cells[i].textContent.length, 0));
  const longest = lengths.indexOf(Math.max(...lengths));
  const others = now.reduce((sum, width, i) => sum + (i === longest ? 0 : reserve * width), 0);
  const rest = Math.max(mostText, block.clientWidth - others);
  const isTight = others + rest > block.clientWidth && table.offsetWidth <= block.clientWidth;
  const widths = isTight ? now : now.map((width, i) => Math.floor(i === longest ? rest : reserve * width));
  table.prepend(el("colgroup", null, ...widths.map((width) => el("col", { width }))));
}

// At most so many parts of a table scroll together: the browser has to lay out each.
const mostParts = 40;

function scrollTogether(tables, table) {
  const at = tables.indexOf(table);
  if (at < 0) return;
  const first = tables.findLastIndex((each, i) => i <= at && !each.classList.contains("continued"));
  const next = tables.findIndex((each, i) => i > at && !each.classList.contains("continued"));
  const parts = tables.slice(Math.max(first, at - mostParts / 2), Math.min(next < 0 ? Infinity : next, at + mostParts / 2));
  for (const each of parts) each.scrollLeft = table.scrollLeft;
}

// ---- Elements ----

function isAlike(old, fresh) {
  return old.localName === fresh.localName && old.dataset.language === fresh.dataset.language;
}

function mayChange(old, fresh) {
  if (old.isEqualNode(fresh)) return false;
  if (fresh.localName === "span") return fresh.dataset.formula === undefined || fresh.dataset.formula !== old.dataset.formula;
  if (old.localName !== "figure") return true;
  if (isAlike(old, fresh)) codeView(old).show(fresh.textContent);
  else old.replaceWith(fresh);
  return false;
}

// furnish completes what Markdown makes of code and formulas.
function furnish(element) {
  if (element.matches("figure")) codeView(element);
  element.querySelectorAll("figure").forEach(codeView);
  typeset(element);
}

function mention(element) {
  if (element.firstElementChild) return;
  const { note } = element.dataset;
  element.replaceChildren(el("button", { type: "button", "aria-label": `Footnote ${note}` }, note));
}

function showFootnote({ target, currentTarget }) {
  const note = target.closest(".note > button")?.parentElement.dataset.note;
  const footnote = note && currentTarget.querySelector(`.footnote[data-note="${CSS.escape(note)}"]`);
  if (!footnote) return;
  footnote.tabIndex = -1;
  footnote.focus();
}
