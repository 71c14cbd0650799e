// Shows a document, whose Markdown is in the page, and its headings with the ids that code
// hosts give them.

import { codeView, ready } from "./code.js";
import { el } from "./elements.js";
import { foldContents } from "./folding.js";
import { contentOf, parse, resolveLinks } from "./markdown.js";
import { store } from "./store.js";

const source = document.getElementById("markdown");

function show() {
  resolveLinks(location.href);
  const content = contentOf(parse(source.textContent));
  content.querySelectorAll("figure").forEach(codeView);
  content.querySelectorAll(".formula").forEach((each) => each.replaceWith(each.textContent)); // dollars of shells
  content.querySelectorAll("th:empty").forEach((cell) => cell.replaceWith(el("td")));
  content.querySelectorAll("a").forEach((link) => { if (link.origin === location.origin) link.removeAttribute("target"); });
  nameHeadings(content);
  const headings = [...content.querySelectorAll("h2")].map(({ id, textContent }) => el("li", null, el("a", { href: "#" + id }, textContent)));
  document.getElementById("contents").append(...headings);
  document.getElementById("contents-box").hidden = headings.length === 0;
  foldContents();
  source.replaceWith(el("div", { class: "part" }, content));
  document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
}

// nameHeadings gives headings the levels of the document, which are deeper in a chat.
function nameHeadings(content) {
  const taken = new Map();
  for (const heading of content.querySelectorAll("h3, h4, h5, h6")) {
    const { className: level, textContent } = heading;
    const name = textContent.toLowerCase().replace(/[^\p{L}\p{M}\p{N}_ -]/gu, "").replaceAll(" ", "-");
    const count = taken.get(name) ?? 0;
    taken.set(name, count + 1);
    heading.replaceWith(el(level, { id: count ? `${name}-${count}` : name, class: level }, ...heading.childNodes));
  }
}

document.getElementById("to-chat").hash = store.place;
await ready;
show();
