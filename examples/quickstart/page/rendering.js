// Shows Markdown. It makes each element with the DOM, never from HTML text, so
// that a text can produce only known elements, and links to http and https.

import { MarkdownReader, textsOf } from "./markdown.js";
import { codeFigure, updateCode } from "./code.js";
import { directionOf } from "./direction.js";
import { el } from "./elements.js";

// A MarkdownText shows text in an element. It can show growing text again and
// again: it touches only what has changed, and does not even read finished blocks
// again.
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

// direct sets the direction of each block to that of its text.
function direct(parent, old, fresh) {
  fresh.forEach((block, i) => {
    if (block === old[i]) return;
    const element = parent.children[i];
    if (block.type === "part") return direct(element, old[i]?.children ?? [], block.children);
    const direction = block.type === "listing" ? "ltr" : directionOf(textsOf(block));
    if (element.dir !== direction) element.dir = direction; // setting it makes the browser look at the whole content
  });
}

// patch changes the children of an element from the old nodes to the fresh ones.
function patch(parent, old, fresh) {
  if (old.length > 0 && old[0].type !== "part" && fresh[0]?.type === "part") {
    const part = el("div"); // the old nodes move into it: making them again would take too long
    part.append(...parent.childNodes);
    parent.append(part);
    old = [{ type: "part", children: old }];
  }
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
  parent.append(fragment);
}

function fill(element, nodes) {
  if (nodes.length === 1 && typeof nodes[0] === "string") {
    element.textContent = nodes[0];
    return;
  }
  for (const node of nodes) {
    if (typeof node === "string") element.append(node); // creating a text node in JavaScript would take as long as the rest
    else element.appendChild(made(node));
  }
}

// isOfAKind reports whether two nodes differ at most in their children or text.
function isOfAKind(a, b) {
  if (typeof a === "string" || typeof b === "string") return typeof a === typeof b;
  return a.type === b.type && a.level === b.level && a.language === b.language && a.ordered === b.ordered && a.start === b.start
    && a.task === b.task && a.align === b.align && a.head === b.head && a.href === b.href && a.title === b.title;
}

// isSame compares nodes, which is much faster than reading elements.
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

// contentOf returns the element for the children of a node: a table is inside of a
// box that scrolls.
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
  cell: ({ head, align }) => !head && !align ? document.createElement("td") : el(head ? "th" : "td", { ...(head && { scope: "col" }), ...(align && { class: align }) }),
  listing: codeFigure,
  piece: ({ cut }) => el("span", { class: classOf({ type: "piece", cut }) }),
  code: () => document.createElement("code"),
  em: () => document.createElement("em"),
  strong: () => document.createElement("strong"),
  del: () => document.createElement("del"),
  break: () => document.createElement("br"),
  link: ({ href, title }) => el("a", { href, target: "_blank", rel: "noopener noreferrer", ...(title && { title }) }),
};

// A table with few columns has columns of equal width, so that all its parts fit
// together.
const fewColumns = 6;

function classOf({ type, loose, cut, children }) {
  const kind = type === "list" ? (loose ? "loose" : "tight") : type;
  const even = type === "table" && children[0].children.length <= fewColumns ? " even" : "";
  return cut ? `${kind} cut ${cut}${even}` : kind;
}
