// Shows formulas with KaTeX, which is loaded for the first one of the page.

import { el } from "./elements.js";

// The time for formulas in one frame, in milliseconds: the browser takes several times
// as long to lay them out.
const budget = 3;

const waiting = []; // elements
let katex; // a promise
let loaded; // its result
let isWorking = false;

// typeset shows the formulas in a block when it comes into view.
export function typeset(block) {
  if (!block.querySelector(".formula")) return;
  if (!katex) {
    katex = load();
    katex.then((library) => { loaded = library; }, () => {}); // for printing, should none come into view
  }
  views.unobserve(block); // so that the observer reports it again
  views.observe(block);
}

const views = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    views.unobserve(target);
    for (const element of target.querySelectorAll(".formula")) {
      if (element.childElementCount === 0) waiting.push(element);
    }
  }
  if (isWorking || waiting.length === 0) return;
  isWorking = true;
  katex.then(work, () => { waiting.length = 0; }); // without KaTeX, they stay as they were written
});

async function load() {
  const style = el("link", { rel: "stylesheet", href: new URL("./lib/formulas.css", import.meta.url) });
  const loaded = new Promise((resolve, reject) => Object.assign(style, { onload: resolve, onerror: reject }));
  document.head.append(style);
  const [library] = await Promise.all([import("./lib/formulas.js"), loaded]);
  return library.default;
}

function work(katex) {
  const end = performance.now() + budget;
  while (waiting.length > 0 && performance.now() < end) show(katex, waiting.shift());
  isWorking = waiting.length > 0;
  if (isWorking) requestAnimationFrame(() => work(katex));
}

function show(katex, element) {
  if (!element.isConnected || element.childElementCount > 0) return;
  const source = element.dataset.formula;
  const mark = source.startsWith("$") && !source.startsWith("$$") ? 1 : 2;
  const holder = el("span");
  try {
    katex.render(source.slice(mark, -mark), holder, { displayMode: element.classList.contains("display"), strict: false, maxSize: 20, maxExpand: 100 });
  } catch {
    element.append(el("span")); // so that it is not tried again
    return;
  }
  for (const sign of holder.querySelectorAll("svg[data-width]")) sign.style.width = sign.dataset.width;
  element.replaceChildren(holder);
  if (element.matches(".display")) widths.observe(element);
  element.dispatchEvent(new Event("grown", { bubbles: true })); // for the scroller
}

// A formula that is wider than its box scrolls, which needs the focus without a mouse.
const widths = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const isWide = target.scrollWidth > target.clientWidth;
    for (const [name, value] of [["tabindex", "0"], ["role", "group"], ["aria-label", "Formula"]]) {
      if (isWide) target.setAttribute(name, value);
      else target.removeAttribute(name);
    }
  }
});

addEventListener("beforeprint", () => {
  if (loaded) document.querySelectorAll(".formula").forEach((each) => show(loaded, each));
});

// What is copied has formulas as they were written: typeset, they are twice in it, in pieces.
document.addEventListener("copy", (event) => {
  const selection = getSelection();
  const formulas = [...document.querySelectorAll(".formula:has(*)")].filter((each) => selection.containsNode(each, true));
  if (selection.isCollapsed || formulas.length === 0) return;
  const range = selection.getRangeAt(0);
  const last = formulas.find((each) => each.contains(range.endContainer));
  const typeset = formulas.map(({ childNodes }) => [...childNodes]);
  formulas.forEach((each) => each.replaceChildren(each.dataset.formula));
  if (last) range.setEndAfter(last);
  event.clipboardData.setData("text/plain", String(selection));
  event.clipboardData.setData("text/html", el("div", null, range.cloneContents()).innerHTML);
  event.preventDefault();
  formulas.forEach((each, i) => each.replaceChildren(...typeset[i]));
});
