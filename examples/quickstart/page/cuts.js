// Finds where a growing text can be cut, so that what comes before never has to be
// read again. What comes after is read with a prefix: lines that open again the
// list items, quotes, tables and blocks of code that continue.

import { inlineHTML } from "./markdown.js";

// Stands in a prefix for the text before the cut. No text should contain it.
export const opener = "\uE000";

// A last block that is longer than this, in characters or tokens, is cut: each
// fragment makes the page read and draw it again.
const long = 1024;
const many = 600;

// A paragraph is cut into pieces of about this many characters, since each of them
// begins a line. Pieces are short where so many formulas become many elements each, or
// so many brackets, which may be nested, take long to read.
const longParagraph = 4096;
const shortParagraph = long / 2;
const manyFormulas = 50;
const manyBrackets = 300;

// cutIn returns the best cut in a text that begins with a prefix, or null: {at, the
// offset; prefix, of what follows; depth, the number of nested elements that
// continue; and lines, if the last of these is code: how many lines of it come before,
// 0 if the cut is in the first}. A line may still change how it is read together with the
// next one, so a block can end only before two complete lines.
export function cutIn(text, tokens, prefixLength) {
  const root = treeOf(tokens);
  const lines = text.split("\n");
  const complete = lines.length - 1;
  const first = text.slice(0, prefixLength).split("\n").length; // the first line after the prefix
  const isSettled = ({ start }, i) => i > 0 && start >= first && start + 1 < complete;
  const offsetOf = (line) => lines.slice(0, line).reduce((sum, { length }) => sum + length + 1, 0);
  const cut = (line, prefix, depth) => ({ at: offsetOf(line), prefix, depth });

  const block = root.children.findLast(isSettled);
  if (block && (text.length > long / 2 || tokens.length > many / 2)) return cut(block.start, "", 0);
  if (text.length <= long && tokens.length <= many) return null;

  const containers = [];
  let depth = 0;
  for (let node = root.children.at(-1); node; node = node.children.at(-1)) {
    const isList = node.type.endsWith("list_open");
    depth++;
    if (!isList && !containerMarks[node.type]) return cutLeaf(node);
    if (!isList) containers.push(node);
    const child = node.children.findLast(isSettled);
    if (child) return cut(child.start, reopened(containers, lines), depth);
  }
  return null;

  function cutLeaf(node) {
    const before = reopened(containers, lines);
    const indent = indentIn(containers, lines);
    switch (node.type) {
      case "paragraph_open":
      case "heading_open": {
        const found = cutOfInlines(node, lines, offsetOf);
        const mark = node.type === "heading_open" ? "#".repeat(node.token.attrGet("class")[1]) + " " : "";
        return found && found.at > prefixLength ? { at: found.at, prefix: before + indent + mark + opener + found.space, depth } : null;
      }
      case "table_open": {
        const row = node.children.at(-1).children.findLast(isSettled);
        const head = (line) => indent + lines[node.start + line].slice(indent.length) + "\n";
        return row ? cut(row.start, before + head(0) + head(1), depth) : null;
      }
      case "fence": {
        const { markup, info } = node.token;
        const spaces = " ".repeat(Math.max(0, Math.min(3, lines[node.start].indexOf(markup) - indent.length)));
        return cutOfCode(node.start + 1, `${before}${indent}${spaces}${markup}${info}\n`, indent);
      }
      case "code_block":
        return cutOfCode(node.start, before, indent + "    ");
    }
    return null;
  }

  // cutOfCode cuts before the last line, or in it if that is very long.
  function cutOfCode(begin, before, indent) {
    const last = lines.findLastIndex((line, i) => i > begin && i < complete && line.trim() !== "");
    if (last >= first) return { ...cut(last, before, depth), lines: last - begin };
    const at = text.length - isHighSurrogate(text.charCodeAt(text.length - 1));
    if (complete > begin || at - offsetOf(begin) <= long / 2) return null;
    return { at, prefix: before + indent + opener, depth, lines: 0 };
  }
}

// ---- The tree ----

// treeOf makes a tree of the tokens that have a position.
function treeOf(tokens) {
  const root = { children: [] };
  const open = [root];
  for (const token of tokens) {
    const node = { token, type: token.type, start: token.map?.[0], children: [] };
    if (token.nesting !== -1 && token.map && token.type !== "inline") open.at(-1).children.push(node);
    if (token.type === "inline") open.at(-1).text = token.content;
    if (token.nesting === 1) open.push(token.map ? node : open.at(-1));
    if (token.nesting === -1) open.pop();
  }
  return root;
}

// ---- Containers ----

const containerMarks = {
  blockquote_open: /\s*> ?/y,
  list_item_open: /\s*(?:[-+*]|\d{1,9}[.)])(?:[ \t]{1,4}(?=\S)|[ \t]|$)/y,
  footnote_reference_open: /\s*\[\^[^\]]*\]:[ \t]*/y,
};

// marksOf returns the marks of containers at the beginning of the line where the
// last of them begins.
function marksOf(containers, lines) {
  const line = lines[containers.at(-1).start];
  let end = 0;
  for (const { type, start } of containers) {
    if (type !== "blockquote_open" && start !== containers.at(-1).start) continue; // only an indent here
    const expression = containerMarks[type];
    expression.lastIndex = end;
    if (expression.test(line)) end = expression.lastIndex;
  }
  return line.slice(0, end) + (/[ \t>]$/.test(line.slice(0, end)) ? "" : " ");
}

// reopened returns lines that open the containers, with headings in them, which no
// other line can continue.
function reopened(containers, lines) {
  return containers.map((container, i) => {
    if (containers[i + 1]?.start === container.start) return "";
    return `${marksOf(containers.slice(0, i + 1), lines)}# ${opener}\n`;
  }).join("");
}

// indentIn returns the beginning of a line that continues all containers.
function indentIn(containers, lines) {
  return containers.length === 0 ? "" : marksOf(containers, lines).replace(/[^>\s]/g, " ");
}

// ---- Paragraphs ----

// Chinese, Japanese and Korean texts have no spaces.
const breakAfter = /[\s\u2e80-\u9fff\uac00-\ud7af\uff00-\uffef]/;

// cutOfInlines cuts the text of a block into pieces that can be shown on their own.
function cutOfInlines({ text: content, start }, lines, offsetOf) {
  const size = sizeOfPiece(content.slice(0, longParagraph));
  if (content.length <= size) return null;
  const whole = content.slice(0, size);
  const end = endOfPiece(whole);
  const linesBefore = whole.slice(0, end).split("\n");
  const line = start + linesBefore.length - 1;
  const inLine = lines[line].lastIndexOf(content.split("\n")[linesBefore.length - 1]);
  return inLine < 0 ? null : { at: offsetOf(line) + inLine + linesBefore.at(-1).length, space: spaceAt(whole, end) };
}

function sizeOfPiece(text) {
  return text.split(/\$|\\[([]/).length > manyFormulas || text.split("[").length > manyBrackets ? shortParagraph : longParagraph;
}

// endOfPiece returns where a text is cut: after a space in its second half, if there is
// one, and where both parts show the same as the whole, if a few attempts find that.
function endOfPiece(whole) {
  const last = lastBreak(whole, whole.length);
  if (last <= whole.length / 2) return whole.length - isHighSurrogate(whole.charCodeAt(whole.length - 1));
  const shown = [];
  const isAlike = (end) => {
    const before = inlineHTML(whole.slice(0, end)), opened = opener + spaceAt(whole, end), after = whole.slice(end);
    return endings.every((ending, i) => before + inlineHTML(opened + after + ending).replace(opened, "") === (shown[i] ??= inlineHTML(whole + ending)));
  };
  let end = last;
  for (let attempt = 1; attempt <= 8 && end > whole.length / 2; attempt++) {
    if (isAlike(end)) return end;
    end = lastBreak(whole, end - attempt * 16);
  }
  return last;
}

// What may follow a text, and show that a cut has separated what belongs together.
const endings = ["", "](https://a.example)", ")"];

function lastBreak(text, from) {
  let at = from;
  while (at > 0 && !breakAfter.test(text[at - 1])) at--;
  return at;
}

function spaceAt(text, at) {
  return /\s/.test(text[at - 1]) ? " " : "";
}

function isHighSurrogate(code) {
  return code >= 0xd800 && code <= 0xdbff;
}
