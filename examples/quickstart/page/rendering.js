// Shows Markdown with elements that are made one by one, never from HTML text,
// so nothing in it can be more than text, and links to http and https.

import { MarkdownReader, textsOf } from "./markdown.js";
import { codeFigure, updateCode } from "./code.js";
import { directionOf } from "./direction.js";
import { el } from "./elements.js";

// A MarkdownText shows text in an element. Text that arrives is shown as often
// as wanted: only what changed is touched, and what cannot change any more is
// not even read again.
export class MarkdownText {
  #element;
  #reader = new MarkdownReader();
  #blocks = [];

  constructor(element) {
    this.#element = element;
  }

  show(text, { arriving = false } = {}) {
    const blocks = this.#reader.read(text, arriving);
    patch(this.#element, this.#blocks, blocks);
    direct(this.#element, this.#blocks, blocks);
    this.#blocks = blocks;
  }

  clear() {
    this.#element.replaceChildren();
    this.#reader = new MarkdownReader();
    this.#blocks = [];
  }
}

// direct has each of the blocks run as its own text does.
function direct(parent, old, fresh) {
  fresh.forEach((block, i) => {
    if (block === old[i]) return;
    const element = parent.children[i];
    if (block.type === "part") return direct(element, old[i]?.children ?? [], block.children);
    const direction = block.type === "listing" ? "ltr" : directionOf(textsOf(block));
    if (element.dir !== direction) element.dir = direction; // setting it costs a look at all that is inside
  });
}

// patch makes the children of an element show the new nodes where they showed
// the old ones.
function patch(parent, old, fresh) {
  const shared = Math.min(old.length, fresh.length);
  for (let i = 0; i < shared; i++) {
    if (isSame(old[i], fresh[i])) continue;
    const child = parent.childNodes[i];
    if (isOfAKind(old[i], fresh[i])) update(child, old[i], fresh[i]);
    else child.replaceWith(typeof fresh[i] === "string" ? fresh[i] : made(fresh[i]));
  }
  for (let i = old.length; i > shared; i--) parent.lastChild.remove();
  if (fresh.length === shared) return;
  const fragment = document.createDocumentFragment();
  fill(fragment, fresh.slice(shared));
  parent.append(fragment); // in one step
}

function fill(element, nodes) {
  if (nodes.length === 1 && typeof nodes[0] === "string") {
    element.textContent = nodes[0];
    return;
  }
  for (const node of nodes) {
    if (typeof node === "string") element.append(node); // without an object for it, which would take as long as the rest
    else element.appendChild(made(node));
  }
}

// Nodes of a kind differ in nothing but their children, or their text.
function isOfAKind(a, b) {
  if (typeof a === "string" || typeof b === "string") return typeof a === typeof b;
  return a.type === b.type && a.level === b.level && a.language === b.language && a.ordered === b.ordered && a.start === b.start
    && a.task === b.task && a.align === b.align && a.head === b.head && a.href === b.href && a.title === b.title;
}

// isSame spares the elements, which take much longer to look at than nodes.
function isSame(a, b) {
  if (a === b) return true;
  return Boolean(a.children) && isOfAKind(a, b) && a.loose === b.loose && a.cut === b.cut
    && a.children.length === b.children.length && a.children.every((child, i) => isSame(child, b.children[i]));
}

function update(child, old, fresh) {
  if (typeof fresh === "string") return updateText(child, old, fresh);
  if (fresh.type === "listing") return updateCode(child, fresh);
  if (old.loose !== fresh.loose || old.cut !== fresh.cut) child.className = classOf(fresh);
  patch(contentOf(child), old.children ?? [], fresh.children ?? []);
}

function updateText(node, old, fresh) {
  if (old === fresh) return;
  if (fresh.startsWith(old)) node.appendData(fresh.slice(old.length));
  else node.data = fresh;
}

// ---- Elements ----

function made(node) {
  const element = make[node.type](node);
  if (node.children) fill(contentOf(element), node.children);
  return element;
}

// contentOf is where the children of a node go: a table stands in a box that
// scrolls.
function contentOf(element) {
  return element.localName === "div" && element.classList.contains("table") ? element.firstChild : element;
}

const make = {
  paragraph: () => document.createElement("p"),
  heading: ({ level }) => el("h" + Math.min(6, level + 2), { class: "h" + level }), // below the page's own headings
  quote: () => el("blockquote"),
  rule: () => el("hr"),
  part: (node) => el("div", { class: classOf(node) }),
  list: (node) => el(node.ordered ? "ol" : "ul", { ...(node.ordered && { start: node.start }), class: classOf(node) }),
  item: ({ task }) => (task ? el("li", { class: task === "done" ? "task done" : "task" }) : document.createElement("li")),
  table: (node) => el("div", { class: classOf(node), tabindex: 0, role: "group", "aria-label": "Table" }, el("table")),
  row: () => document.createElement("tr"),
  cell: ({ head, align }) => el(head ? "th" : "td", { ...(head && { scope: "col" }), ...(align && { class: align }) }),
  listing: codeFigure,
  piece: ({ cut }) => el("span", { class: classOf({ type: "piece", cut }) }),
  code: () => document.createElement("code"),
  em: () => document.createElement("em"),
  strong: () => document.createElement("strong"),
  del: () => document.createElement("del"),
  break: () => document.createElement("br"),
  link: ({ href, title }) => el("a", { href, target: "_blank", rel: "noopener noreferrer", ...(title && { title }) }),
};

// A table of few columns keeps their widths over all parts.
const fewColumns = 6;

function classOf({ type, loose, cut, children }) {
  const kind = type === "list" ? (loose ? "loose" : "tight") : type;
  const even = type === "table" && children[0].children.length <= fewColumns ? " even" : "";
  return cut ? `${kind} cut ${cut}${even}` : kind;
}
