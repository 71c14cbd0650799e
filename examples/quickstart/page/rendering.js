// Shows Markdown with elements that are made one by one, never from HTML text,
// so nothing in it can be more than text, and links to http and https.

import { MarkdownReader } from "./markdown.js";
import { copyButton } from "./copying.js";
import { el } from "./elements.js";

// A MarkdownText shows text in an element. Text that arrives is shown as often
// as wanted: only what changed is touched, and what cannot change any more is
// not even read again.
export class MarkdownText {
  #element;
  #reader = new MarkdownReader();
  #shown = []; // blocks
  #held = null; // the block that grows, with the direction that it has so far

  constructor(element) {
    this.#element = element;
  }

  show(text, { arriving = false } = {}) {
    const blocks = this.#reader.read(text, arriving);
    if (arriving) this.#holdDirection();
    patch(this.#element, this.#shown, blocks, directed);
    this.#shown = blocks;
    if (!arriving || this.#element.lastElementChild !== this.#held) this.#releaseDirection();
  }

  // holdDirection keeps the block that grows in the direction of its first
  // letter: with dir="auto", Chromium looks again for each node that is added.
  #holdDirection() {
    const last = this.#element.lastElementChild;
    if (last?.dir !== "auto" || !/\p{L}/u.test(last.textContent)) return;
    last.dir = last.matches(":dir(rtl)") ? "rtl" : "ltr";
    this.#held = last;
  }

  #releaseDirection() {
    if (this.#held) this.#held.dir = "auto";
    this.#held = null;
  }

  clear() {
    this.#element.replaceChildren();
    this.#held = null;
    this.#reader = new MarkdownReader();
    this.#shown = [];
  }
}

// patch makes the children of an element show the new nodes where they showed
// the old ones.
function patch(parent, old, fresh, makeOne = made) {
  const shared = Math.min(old.length, fresh.length);
  for (let i = 0; i < shared; i++) {
    if (old[i] === fresh[i]) continue;
    const child = parent.childNodes[i];
    if (isOfAKind(old[i], fresh[i])) update(child, old[i], fresh[i]);
    else child.replaceWith(makeOne(fresh[i]));
  }
  for (let i = old.length; i > shared; i--) parent.lastChild.remove();
  if (fresh.length > shared) parent.append(together(fresh.slice(shared), makeOne));
}

// together makes nodes that can be added in one step. They may be more than a
// function takes arguments.
function together(nodes, makeOne) {
  const fragment = document.createDocumentFragment();
  nodes.forEach((node) => fragment.append(makeOne(node)));
  return fragment;
}

// Nodes of a kind differ in nothing but their children, or their text.
function isOfAKind(a, b) {
  if (typeof a === "string" || typeof b === "string") return typeof a === typeof b;
  return ["type", "level", "language", "ordered", "start", "loose", "align", "head", "href", "title"].every((key) => a[key] === b[key]);
}

function update(child, old, fresh) {
  if (typeof fresh === "string") return updateText(child, old, fresh);
  if (fresh.type === "listing") return updateText(codeIn(child).firstChild, old.text, fresh.text);
  patch(contentOf(child), old.children ?? [], fresh.children ?? []);
}

function updateText(node, old, fresh) {
  if (old === fresh) return;
  if (fresh.startsWith(old)) node.appendData(fresh.slice(old.length));
  else node.data = fresh;
}

// ---- Elements ----

function made(node) {
  if (typeof node === "string") return document.createTextNode(node);
  const element = make[node.type](node);
  if (node.children) contentOf(element).append(together(node.children, made));
  return element;
}

// directed makes a block that runs from left to right, or from right to left,
// as its own text does. It learns that last: until then, each child would have
// the browser look again.
function directed(node) {
  const element = made(node);
  element.dir ||= "auto";
  return element;
}

// contentOf is where the children of a node go: a table stands in a box that
// scrolls.
function contentOf(element) {
  return element.matches(".table") ? element.firstChild : element;
}

const make = {
  paragraph: () => el("p"),
  heading: ({ level }) => el("h" + Math.min(6, level + 2), { class: "h" + level }), // below the page's own headings
  quote: () => el("blockquote"),
  rule: () => el("hr"),
  list: ({ ordered, start, loose }) => el(ordered ? "ol" : "ul", { ...(ordered && { start }), class: loose ? "loose" : "tight" }),
  item: () => el("li"),
  table: () => el("div", { class: "table", tabindex: 0, role: "group", "aria-label": "Table" }, el("table")),
  row: () => el("tr"),
  cell: ({ head, align }) => el(head ? "th" : "td", { ...(head && { scope: "col" }), ...(align && { class: align }) }),
  listing: codeBlock,
  code: () => el("code"),
  em: () => el("em"),
  strong: () => el("strong"),
  break: () => el("br"),
  link: ({ href, title }) => el("a", { href, target: "_blank", rel: "noopener noreferrer", ...(title && { title }) }),
};

function codeBlock({ language, text }) {
  const code = el("code", { ...(language && { "data-language": language }) });
  code.append(document.createTextNode(text));
  const head = el("figcaption", {}, el("span", {}, language || "code"), copyButton(() => code.textContent));
  return el("figure", { class: "code", dir: "ltr" }, head, el("pre", { tabindex: 0, role: "group", "aria-label": language ? `Code, ${language}` : "Code" }, code));
}

function codeIn(figure) {
  return figure.querySelector("code");
}
