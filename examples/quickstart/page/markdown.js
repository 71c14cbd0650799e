// Parses the part of CommonMark that bots write, and tables. A text becomes a list
// of blocks. A block is an object
//
//   {type, children}   with a type of "paragraph", "heading" (level), "quote",
//                      "list" (ordered, start, loose), "item" (task: "to do"
//                      or "done", or nothing), "table", "row"
//                      (head), "cell" (align, head) or "rule",
//   {type: "listing", language, lines}
//
// Its children are blocks, or the nodes that inlines.js makes of text. More than a
// hundred children are split into parts of a hundred: {type: "part", children}, or
// several lists or tables, whose cut is "first", "next" or "last".
//
// HTML is not parsed and stays text.

import { InlineText, unescape } from "./inlines.js";

// A MarkdownReader reads growing text. It reads each complete line once. A block
// that can no longer change stays the same object.
export class MarkdownReader {
  #reader = new BlockReader();
  #complete = 0; // the length of the lines that have been read
  #ahead = new InlineText(); // of the paragraph that begins in the incomplete line, if any

  // read returns the blocks of a text, which must begin with the text of the call
  // before. Text that is still arriving is parsed as what it probably becomes:
  // "**bol" is bold, the head of a table is a table, and a line that consists only
  // of marks is ignored until more of it arrives.
  read(text, arriving = false) {
    const lineEnd = /\r\n|\n|\r(?!$)/g; // after a CR at the end, an LF may follow
    lineEnd.lastIndex = this.#complete;
    for (let end; (end = lineEnd.exec(text)); this.#complete = lineEnd.lastIndex) {
      this.#reader.read(text.slice(this.#complete, end.index));
    }
    const ahead = this.#reader.copy(this.#ahead);
    linesOf(text.slice(this.#complete), arriving).forEach((line) => ahead.read(line));
    return ahead.finish(arriving);
  }
}

// plainText returns the text of Markdown without its marks.
export function plainText(text) {
  return new MarkdownReader().read(text).map((block) => [...textsOf(block)].join("")).join("\n");
}

// textsOf yields the texts of a node in order.
export function* textsOf(node) {
  if (typeof node === "string") yield node;
  else if (node.type === "listing") yield node.lines.join("\n");
  else for (const child of node.children ?? []) yield* textsOf(child);
}

function linesOf(text, arriving) {
  const lines = text.split(/\r\n|\n|\r/);
  if (lines.at(-1) === "") lines.pop();
  else if (arriving && /^[\s>]*([-+*_=~`#|:\s]+|\d{1,9}[.)]?)?$/.test(lines.at(-1).slice(0, 100))) lines.pop();
  return lines;
}

// Deeper nesting stays text: nobody can tell the levels apart, and very deep
// nesting can overload a browser.
const deepest = 16;
const mostColumns = 64;
const mostCells = 500; // in one part of a table

const fenceEnd = Symbol("the line that ends a block of code");

// A Cursor moves along a line. A tab ends at the next multiple of 4 columns.
class Cursor {
  offset = 0;
  column = 0;
  #inTab = false; // whether the tab at the offset is partly consumed

  constructor(text) {
    this.text = text;
    this.look();
  }

  // look finds the text after the white space.
  look() {
    let column = this.column;
    let offset = this.offset;
    for (; this.text[offset] === " " || this.text[offset] === "\t"; offset++) {
      column += this.text[offset] === "\t" ? 4 - (column % 4) : 1;
    }
    this.indent = column - this.column;
    this.next = this.text.slice(offset);
    this.isBlank = this.next === "";
    return this;
  }

  // skip moves forward by a number of columns.
  skip(columns) {
    while (columns > 0 && this.offset < this.text.length) {
      const width = this.text[this.offset] === "\t" ? 4 - (this.column % 4) : 1;
      this.#inTab = width > columns;
      this.column += Math.min(width, columns);
      columns -= width;
      if (!this.#inTab) this.offset++;
    }
    return this.look();
  }

  skipIndent() {
    return this.skip(this.indent);
  }

  rest() {
    return this.#inTab ? " ".repeat(4 - (this.column % 4)) + this.text.slice(this.offset + 1) : this.text.slice(this.offset);
  }
}

// The maximum number of children in one element: a browser looks at all of them
// when one is added.
const together = 100;

// Parts splits a growing list of children, and reuses the parts that have not
// changed.
class Parts {
  #parts = [];
  #closed = []; // the nodes of the first children, which cannot change any more
  #count = 0; // of those children
  #loose = false; // whether there are blank lines between them, or between their blocks

  // close remembers the nodes of all children but the last.
  close(children) {
    for (; this.#count < children.length - 1; this.#count++) {
      this.#loose ||= areLoose(children.slice(Math.max(0, this.#count - 1), this.#count + 1));
      this.#closed.push(...finished(children[this.#count], []));
    }
  }

  isLoose(children) {
    return this.#loose || areLoose(children.slice(Math.max(0, this.#count - 1)));
  }

  nodes(children, open, arriving) {
    return [...this.#closed, ...children.slice(this.#count).flatMap((child) => finished(child, open, arriving))];
  }

  // cut makes blocks of up to a hundred children each, with make(children, first).
  cut(children, make, size = together) {
    const parts = [];
    for (let first = 0; first < children.length; first += size) {
      const part = make(children.slice(first, first + size), first);
      const known = this.#parts[parts.length];
      parts.push(known && isSame(known, part) ? known : part);
    }
    this.#parts = parts;
    return parts;
  }
}

function isSame(a, b) {
  return Object.keys(b).every((key) => a[key] === b[key] || (key === "children" && a.children.length === b.children.length && a.children.every((child, i) => child === b.children[i])));
}

// cutOf returns the cut of the part that begins at the index first, of count
// children: "" if there is only one part.
function cutOf(first, count, size = together) {
  if (count <= size) return "";
  if (first === 0) return "first";
  return first + size < count ? "next" : "last";
}

class BlockReader {
  #root = { type: "root", children: [], parts: new Parts() };
  #open = [this.#root]; // from the outermost to the innermost open block
  #number = 0; // of the line

  #spare; // the InlineText for the next paragraph

  // copy makes an independent reader that shares the closed blocks. The next paragraph
  // that begins has this InlineText.
  copy(spare) {
    const copy = new BlockReader();
    copy.#spare = spare;
    copy.#number = this.#number;
    copy.#open = this.#open.map(({ ...block }) => {
      if (block.children) {
        block.parts.close(block.children);
        block.children = [...block.children];
      }
      if (block.lines) block.lines = [...block.lines];
      return block;
    });
    copy.#root = copy.#open[0];
    copy.#open.slice(1).forEach((block, i) => copy.#open[i].children.splice(-1, 1, block)); // an open block is the last child
    return copy;
  }

  read(text) {
    this.#number++;
    const cursor = new Cursor(text);
    const matched = this.#continued(cursor);
    if (matched === fenceEnd) return;
    const tip = this.#open.at(-1);
    const goesOn = matched === this.#open.length;
    if (!(goesOn && tip.type === "code") && this.#startAll(cursor, matched, goesOn && tip)) {
      return this.#addText(cursor);
    }
    if (!goesOn && tip.type === "paragraph" && !cursor.isBlank) {
      return this.#addLine(tip, cursor.next); // CommonMark's lazy continuation line
    }
    this.#open.length = matched;
    this.#addText(cursor);
  }

  // continued returns how many of the open blocks the line continues.
  #continued(cursor) {
    for (let i = 1; i < this.#open.length; i++) {
      const answer = this.#continues(this.#open[i], cursor);
      if (answer === fenceEnd) {
        this.#touch();
        this.#open.length = i;
        return fenceEnd;
      }
      if (!answer) return i;
      if (this.#open[i].type === "quote") this.#touch(i + 1);
    }
    return this.#open.length;
  }

  #continues(block, cursor) {
    switch (block.type) {
      case "list":
        return true;
      case "quote":
        return skipQuoteMark(cursor);
      case "item":
        if (cursor.isBlank) return block.children.length > 0 && cursor.skipIndent();
        return cursor.indent >= block.width && cursor.skip(block.width);
      case "code":
        return block.fence ? continuesFenced(block, cursor) : continuesIndented(cursor);
      case "table":
      case "paragraph":
        return !cursor.isBlank;
    }
    return false;
  }

  // startAll opens the nested blocks that begin in the line, and reports whether
  // there are any.
  #startAll(cursor, matched, tip) {
    let depth = matched;
    while (this.#open[depth - 1].lines) depth--; // to the container of a paragraph
    let block = this.#start(cursor, depth, tip?.type === "paragraph" && tip);
    const started = Boolean(block);
    while (block?.children) block = this.#start(cursor, this.#open.length);
    return started;
  }

  // start opens the block that begins at the cursor, if any, inside of the first
  // depth open blocks. Without a new block, the line would continue the paragraph.
  #start(cursor, depth, paragraph) {
    const container = this.#open[depth - 1];
    const { next } = cursor;
    if (cursor.indent >= 4) {
      if (this.#open.at(-1).type === "paragraph" || cursor.isBlank) return null;
      cursor.skip(4);
      return this.#add(depth, { type: "code", lines: [] });
    }
    if (cursor.isBlank) return null;
    if (next[0] === ">" && depth < deepest) {
      skipQuoteMark(cursor);
      return this.#add(depth, { type: "quote", children: [], parts: new Parts() });
    }
    const heading = /^(#{1,6})(?:[ \t]+(.*))?$/s.exec(next);
    if (heading) {
      cursor.skip(Infinity);
      return this.#add(depth, { type: "heading", level: heading[1].length, lines: [withoutClosingMarks(heading[2] ?? "")], inside: new InlineText(), closed: true });
    }
    const fence = /^(`{3,})([^`]*)$|^(~{3,})(.*)$/s.exec(next);
    if (fence) {
      const language = unescape((fence[2] ?? fence[4]).trim()).split(/\s/)[0];
      const block = { type: "code", fence: fence[1] ?? fence[3], indent: cursor.indent, language, lines: [] };
      cursor.skip(Infinity);
      return this.#add(depth, block);
    }
    if (paragraph && /^(=+|-+)[ \t]*$/.test(next)) {
      cursor.skip(Infinity);
      return this.#turnIntoHeading(paragraph, next[0] === "=" ? 1 : 2);
    }
    if (paragraph && /^[|:-][|:\- \t]*$/.test(next)) {
      const table = this.#turnIntoTable(paragraph, next);
      if (table) {
        cursor.skip(Infinity);
        return table;
      }
    }
    if (isRule(next)) {
      cursor.skip(Infinity);
      return this.#add(depth, { type: "rule", lines: [], closed: true });
    }
    return depth < deepest ? this.#startItem(cursor, depth, container, paragraph) : null;
  }

  #startItem(cursor, depth, container, paragraph) {
    const match = /^([*+-]|(\d{1,9})([.)]))(?=[ \t]|$)/.exec(cursor.next);
    if (!match) return null;
    const [mark, , number, delimiter] = match;
    const isEmpty = cursor.next.slice(mark.length).trim() === "";
    if (paragraph && (isEmpty || (number && Number(number) !== 1))) return null; // a line of the paragraph

    const indent = cursor.indent;
    cursor.skip(indent + mark.length);
    const spaces = cursor.isBlank || cursor.indent > 4 ? 1 : cursor.indent;
    cursor.skip(cursor.isBlank ? 0 : spaces);
    const kind = delimiter ?? mark;
    if (container.type !== "list" || container.kind !== kind) {
      this.#add(depth, { type: "list", kind, ordered: number !== undefined, start: Number(number ?? 1), children: [], parts: new Parts() });
      depth = this.#open.length;
    }
    return this.#add(depth, { type: "item", width: indent + mark.length + spaces, children: [], parts: new Parts() });
  }

  // add closes all blocks after the first depth open ones, and opens a block. A
  // list contains only items.
  #add(depth, block) {
    if (this.#open[depth - 1].type === "list" && block.type !== "item") depth--;
    this.#open.length = depth;
    block.first = this.#number;
    this.#open.at(-1).children.push(block);
    this.#open.push(block);
    this.#touch();
    return block;
  }

  #turnIntoHeading(paragraph, level) {
    Object.assign(paragraph, { type: "heading", level, closed: true });
    this.#touch();
    return paragraph;
  }

  // turnIntoTable makes the last line of a paragraph the head of a table.
  #turnIntoTable(paragraph, delimiters) {
    const alignments = cells(delimiters).map(alignment);
    const head = cells(paragraph.lines.at(-1));
    if (alignments.includes(undefined) || head.length !== alignments.length || alignments.length > mostColumns) return null;
    if (!delimiters.includes("|") && !paragraph.lines.at(-1).includes("|")) return null;
    const table = { type: "table", alignments, lines: [paragraph.lines.pop()], rows: [], parts: new Parts(), first: this.#number - 1 };
    const parent = this.#open.at(-2);
    this.#open.pop();
    if (paragraph.lines.length === 0) parent.children.pop();
    else paragraph.last = this.#number - 2;
    parent.children.push(table);
    this.#open.push(table);
    this.#touch();
    return table;
  }

  #addText(cursor) {
    const block = this.#open.at(-1);
    if (block.type === "code") {
      if (block.fence && block.first === this.#number) return;
      this.#addLine(block, cursor.rest());
    } else if (block.type === "table" && block.first < this.#number - 1) {
      this.#addLine(block, cursor.next);
    } else if (block.type === "paragraph") {
      this.#addLine(block, cursor.next);
    } else if (!cursor.isBlank) {
      const beginsItem = block.type === "item" && block.children.length === 0;
      this.#addLine(this.#add(this.#open.length, { type: "paragraph", lines: [], beginsItem, inside: this.#spare ?? new InlineText() }), cursor.next);
      this.#spare = undefined;
    }
    while (this.#open.at(-1).closed) this.#open.pop();
  }

  #addLine(block, text) {
    block.lines.push(text);
    if (text.trim() !== "" || block.fence) this.#touch();
  }

  // touch records this line as the last of the first depth open blocks.
  #touch(depth = this.#open.length) {
    this.#open.slice(0, depth).forEach((block) => { block.last = this.#number; });
  }

  finish(arriving) {
    return childrenOf(this.#root, this.#open, arriving);
  }
}

// ---- Marks ----

function skipQuoteMark(cursor) {
  if (cursor.indent > 3 || cursor.next[0] !== ">") return false;
  cursor.skip(cursor.indent + 1);
  if (cursor.indent > 0) cursor.skip(1);
  return true;
}

function continuesFenced({ fence, indent }, cursor) {
  const marks = cursor.next.trimEnd();
  if (cursor.indent < 4 && marks.startsWith(fence) && isRepeated(marks)) return fenceEnd;
  return cursor.skip(Math.min(cursor.indent, indent));
}

function continuesIndented(cursor) {
  return cursor.indent >= 4 ? cursor.skip(4) : cursor.isBlank && cursor.skipIndent();
}

function isRule(text) {
  if (!"*-_".includes(text[0])) return false;
  const marks = text.replace(/[ \t]/g, "");
  return marks.length >= 3 && isRepeated(marks);
}

function isRepeated(text) {
  return text === text[0].repeat(text.length);
}

function withoutClosingMarks(text) {
  const trimmed = text.trim();
  let end = trimmed.length;
  while (trimmed[end - 1] === "#") end--;
  return end === 0 || /\s/.test(trimmed[end - 1]) ? trimmed.slice(0, end).trim() : trimmed;
}

// ---- Tables ----

// cells splits a line at its bars. A bar after a backslash is part of a cell.
function cells(line) {
  const parts = line.trim().split(/(?<!\\)\|/).slice(0, mostColumns + 3);
  if (parts[0].trim() === "") parts.shift();
  if (parts.length > 0 && parts.at(-1).trim() === "") parts.pop();
  return parts.map((part) => part.trim().replaceAll("\\|", "|"));
}

// alignment returns undefined for text that is not a delimiter.
function alignment(text) {
  if (!/^:?-+:?$/.test(text)) return undefined;
  if (text.endsWith(":")) return text.startsWith(":") ? "center" : "right";
  return text.startsWith(":") ? "left" : "";
}

function row(line, alignments, head, arriving) {
  const texts = cells(line);
  const children = alignments.map((align, i) => ({ type: "cell", align, head, children: texts[i] ? new InlineText({ isCell: true }).read(texts[i], arriving) : [] }));
  return { type: "row", head, children };
}

// ---- Finished blocks ----

// finished returns the nodes of a block: one, or several if it is cut. It computes
// those of a closed block once. In a text that is still arriving, the innermost
// open block may be unfinished.
function finished(block, open, arriving) {
  if (block.finished) return block.finished;
  const nodes = nodesOf(block, open, arriving);
  if (!open.includes(block)) block.finished = nodes;
  return nodes;
}

function nodesOf(block, open, arriving) {
  const { type } = block;
  const growing = arriving && block === open.at(-1);
  switch (type) {
    case "rule":
      return [{ type, children: [] }];
    case "code":
      return [{ type: "listing", language: block.language ?? "", lines: codeLines(block) }];
    case "heading":
      return [{ type, level: block.level, children: inside(block, growing) }];
    case "table":
      return tables(block, growing);
    case "paragraph":
      return [(growing && tableToBe(block)) || { type, children: inside(block, growing) }];
    case "list":
      return lists(block, open, arriving);
  }
  return [{ type, ...taskIn(block), children: childrenOf(block, open, arriving) }];
}

// taskIn returns the task of an item, or {} if it is not a task.
function taskIn({ type, children }) {
  const mark = type === "item" && children[0]?.type === "paragraph" && taskMark.exec(children[0].lines[0]);
  return mark ? { task: mark[1] === " " ? "to do" : "done" } : {};
}

const taskMark = /^\[([ xX])\]\s+(?=\S)/;
const taskMarkToBe = /^\[(?:[ xX]?|[ xX]\]\s*)$/;

function childrenOf({ children, parts }, open, arriving) {
  const nodes = parts.nodes(children, open, arriving);
  return nodes.length > together ? parts.cut(nodes, (children, first) => ({ type: "part", cut: cutOf(first, nodes.length), children })) : nodes;
}

function lists(list, open, arriving) {
  const { ordered, start, parts } = list;
  const loose = parts.isLoose(list.children);
  const items = parts.nodes(list.children, open, arriving);
  return parts.cut(items, (children, first) => ({ type: "list", ordered, start: start + first, loose, cut: cutOf(first, items.length), children }));
}

function tables(table, growing) {
  const rows = tableRows(table, growing);
  const size = Math.min(together, Math.floor(mostCells / table.alignments.length));
  return table.parts.cut(rows, (children, first) => ({ type: "table", cut: cutOf(first, rows.length, size), children }), size);
}

// inside parses the text of a block. It does not parse again what it has parsed
// before, even for a copy of the block.
function inside({ type, lines, beginsItem, inside }, growing) {
  const text = lines.join("\n").trim();
  if (type !== "paragraph" || !beginsItem) return inside.read(text, growing);
  return inside.read(growing && taskMarkToBe.test(text) ? "" : text.replace(taskMark, ""), growing);
}

// tableRows parses each line once, except for the last, which may still grow.
function tableRows({ lines, alignments, rows }, growing) {
  const last = lines.length - 1;
  while (rows.length < last) rows.push(row(lines[rows.length], alignments, rows.length === 0));
  return [...rows.slice(0, last), row(lines[last], alignments, last === 0, growing)];
}

function tableToBe({ lines }) {
  if (lines.length !== 1 || lines[0][0] !== "|") return null;
  const { length } = cells(lines[0]);
  return length > 1 && length <= mostColumns && { type: "table", children: [row(lines[0], Array(length).fill(""), true, true)] };
}

function codeLines({ fence, lines }) {
  if (fence) return [...lines];
  lines = lines.slice(lines.findIndex((line) => line.trim() !== ""));
  while (lines.length > 0 && lines.at(-1).trim() === "") lines.pop();
  return lines;
}

// areLoose reports whether there are blank lines between the items of a list, or
// between the blocks of an item.
function areLoose(items) {
  const hasGap = (blocks) => blocks.some(({ first }, i) => i > 0 && first - blocks[i - 1].last > 1);
  return hasGap(items) || items.some(({ children = [] }) => hasGap(children));
}
