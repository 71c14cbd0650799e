// Parses the inside of a paragraph as CommonMark does: emphasis, code, links and
// line breaks. A text becomes a list of nodes. A node is a string or an object
//
//   {type: "em" | "strong" | "del" | "code" | "link" | "break", children, href, title}
//
// A picture becomes a link to it. HTML stays text, except for <br> in tables, which
// have no other way to break a line.

// Text that is longer than this, in characters, becomes a list of pieces,
// {type: "piece", children}, each of which starts on its own line. Otherwise, a
// browser would lay out the whole paragraph again for each new word.
const longest = 4096;

// An InlineText reads growing text. It reads each piece once.
export class InlineText {
  #isCell;
  #pieces = [];
  #read = ""; // the text of the pieces

  constructor({ isCell = false } = {}) {
    this.#isCell = isCell;
  }

  // read parses a text. If the text is still arriving, marks that are still open
  // count as closed at the end, so that "**bol" is bold already.
  read(text, arriving = false) {
    if (!text.startsWith(this.#read)) {
      this.#pieces = [];
      this.#read = "";
    }
    let at = this.#read.length;
    while (text.length - at > longest) {
      const { children, length } = readPiece(text.slice(at, at + longest), this.#isCell);
      this.#pieces.push({ type: "piece", cut: "next", children });
      at += length;
    }
    this.#read = text.slice(0, at);
    const children = readInlines(text.slice(at), arriving, this.#isCell);
    return this.#pieces.length > 0 ? [...this.#pieces, { type: "piece", cut: "last", children }] : children;
  }
}

function readInlines(text, arriving, isCell) {
  if (!hasMark.test(text)) return text === "" ? [] : [text];
  return new InlineReader(arriving ? withoutLooseEnd(text) : text, isCell).read(arriving);
}

// readPiece parses the beginning of a text and returns its length: up to the last
// space at which no mark is open, if there is one in the second half.
function readPiece(text, isCell) {
  const piece = new InlineReader(text, isCell).readClosed(text.length / 2);
  if (piece) return piece;
  const space = Math.max(text.lastIndexOf(" "), text.lastIndexOf("\n")) + 1;
  const length = space > text.length / 2 ? space : text.length - isHighSurrogate(text.charCodeAt(text.length - 1));
  return { children: readInlines(text.slice(0, length), false, isCell), length };
}

// withoutLooseEnd removes from the end what the next fragment may turn into a mark
// or an address.
function withoutLooseEnd(text) {
  text = text.replace(/!?\[([^[\]\n]*)(\]\([^\s()]*)?$/, "$1");
  let end = text.length;
  while ("*_`~".includes(text[end - 1])) end--;
  return text.slice(0, end);
}

// Deeper nesting stays text: nobody can tell the levels apart, and very deep
// nesting can overload a browser.
const deepest = 24;

const punctuation = /[\p{P}\p{S}]/u;
const plain = /(?:[^\\`*_~[\]!<&\nhH]+|h(?!ttps?:))+/iy;
const hasMark = /[\\`*_~[\]!<&\nhH]/;
const escape = /\\([!-/:-@[-`{-~])/y;
const lineBreak = /( {2,}|\\)? ?\n[ \t]*/y;
const backticks = /`+/y;
const entity = /&(?:#([0-9]{1,7})|#[xX]([0-9a-fA-F]{1,6})|([a-zA-Z]{2,6}));/y;
const addressInBrackets = /<(https?:[^\s<>]*)>/iy;
const lineBreakInCell = /<br\s*\/?>/iy;
const bareAddress = /https?:\/\/[^\s<>[\]"`]{1,2000}/iy;

const entities = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", hellip: "…", ndash: "–", mdash: "—" };

// Most marks open and close nothing: they share this array.
const none = Object.freeze([]);

class InlineReader {
  // Tokens are strings, finished nodes, and runs of delimiters, in the order of
  // the text. A run or a bracket lists the nodes that it opens and closes.
  #tokens = [];
  #offsets = []; // the offset of each token
  #brackets = []; // the indices of brackets that may still open a link
  #doubtful = Infinity; // the index of the first bracket whose link may be incomplete
  #ticks; // the offsets of runs of backticks, by their length

  constructor(text, isCell) {
    this.text = text;
    this.isCell = isCell;
    this.at = 0;
  }

  read(arriving) {
    while (this.at < this.text.length) this.#readOne();
    const openers = this.#pairEmphasis(0);
    if (arriving) this.#closeAtEnd(openers);
    return this.#tree();
  }

  // readClosed parses up to the last space at which no mark is open. It returns
  // null if there is no such space after the offset from.
  readClosed(from) {
    while (this.at < this.text.length) this.#readOne();
    const open = this.#pairEmphasis(0);
    const unclosed = this.#tokens.findIndex((token) => token.unclosed);
    const end = Math.min(...[open[0], this.#brackets[0], this.#doubtful, this.#tokens.length].filter((index) => index >= 0), unclosed < 0 ? Infinity : unclosed);
    let depth = 0;
    let last = -1;
    for (let i = 0; i < end; i++) {
      const token = this.#tokens[i];
      if (depth === 0 && typeof token === "string" && /\s/.test(token) && this.#endOf(i) > from) last = i;
      depth += (token.opens?.length ?? 0) - (token.closes?.length ?? 0);
    }
    return last < 0 ? null : this.#cutAfterSpace(last);
  }

  #cutAfterSpace(index) {
    const token = this.#tokens[index];
    const isPlain = this.#endOf(index) - this.#offsets[index] === token.length;
    const kept = isPlain ? /\s(?=\S*$)/.exec(token).index + 1 : token.length;
    const length = isPlain ? this.#offsets[index] + kept : this.#endOf(index);
    this.#tokens.length = index;
    this.#tokens.push(token.slice(0, kept));
    return { children: this.#tree(), length };
  }

  #endOf(index) {
    return this.#offsets[index + 1] ?? this.text.length;
  }

  #readOne() {
    const char = this.text[this.at];
    switch (char) {
      case "`": return this.#readCode();
      case "*": case "_": case "~": return this.#readRun(char);
      case "[": return this.#openBracket("[");
      case "!": return this.text[this.at + 1] === "[" ? this.#openBracket("![") : this.#take(1);
      case "]": return this.#closeBracket();
      case "<": return this.#readBreakInCell() || this.#readAddressInBrackets() || this.#take(1);
      case "h": case "H": return this.#readBareAddress() || this.#take(1);
      case "&": return this.#readEntity() || this.#take(1);
      case "\n": case "\\": return this.#readBreak() || this.#readEscape() || this.#take(1);
    }
    this.#readPlain();
  }

  // put adds a token for the next length characters.
  #put(token, length) {
    this.#tokens.push(token);
    this.#offsets.push(this.at);
    this.at += length;
    return true;
  }

  // take adds the next length characters as text.
  #take(length) {
    return this.#put(this.text.slice(this.at, this.at + length), length);
  }

  // match tries a sticky expression at the current offset.
  #match(expression) {
    return matchAt(expression, this.text, this.at);
  }

  #readPlain() {
    const length = this.#match(plain)[0].length;
    const end = this.at + length;
    if (this.text[end] !== "\n") return this.#take(length);
    let kept = end;
    while (kept > this.at && this.text[kept - 1] === " ") kept--; // spaces before the end of the line
    if (kept > this.at) this.#take(kept - this.at);
    this.#readBreak();
  }

  #readBreak() {
    const match = this.#match(lineBreak);
    return match && this.#put(match[1] ? { type: "break" } : "\n", match[0].length);
  }

  #readBreakInCell() {
    const match = this.isCell && this.#match(lineBreakInCell);
    return match && this.#put({ type: "break" }, match[0].length);
  }

  #readEscape() {
    const match = this.#match(escape);
    return match && this.#put(match[1], match[0].length);
  }

  #readEntity() {
    const match = this.#match(entity);
    const text = match && decodeEntity(match);
    return text && this.#put(text, match[0].length);
  }

  // ---- Code ----

  #readCode() {
    const { length } = this.#match(backticks)[0];
    const start = this.at + length;
    const end = this.#nextTicks(length, start);
    if (end === undefined) return this.#put({ unclosed: start, literal: "`".repeat(length), opens: none, closes: none }, length);
    this.#put(codeNode(this.text.slice(start, end)), end + length - this.at);
  }

  // nextTicks finds the next run of exactly length backticks. It indexes all runs
  // once, since there may be very many that nothing closes.
  #nextTicks(length, from) {
    if (!this.#ticks) {
      this.#ticks = new Map();
      for (let end, at = this.text.indexOf("`"); at >= 0; at = this.text.indexOf("`", end)) {
        for (end = at + 1; this.text[end] === "`"; end++);
        if (!this.#ticks.has(end - at)) this.#ticks.set(end - at, []);
        this.#ticks.get(end - at).push(at);
      }
      this.#ticks.forEach((offsets) => offsets.reverse());
    }
    const offsets = this.#ticks.get(length) ?? [];
    while (offsets.length > 0 && offsets.at(-1) < from) offsets.pop();
    return offsets.at(-1);
  }

  // ---- Emphasis ----

  #readRun(char) {
    let end = this.at + 1;
    while (this.text[end] === char) end++;
    const length = end - this.at;
    if (char === "~" && length !== 2) return this.#take(length);
    const before = characterBefore(this.text, this.at);
    const after = String.fromCodePoint(this.text.codePointAt(end) ?? 32);
    const spaceBefore = isSpace(before), spaceAfter = isSpace(after);
    const markBefore = punctuation.test(before), markAfter = punctuation.test(after);
    const left = !spaceAfter && (!markAfter || spaceBefore || markBefore);
    const right = !spaceBefore && (!markBefore || spaceAfter || markAfter);
    const inWord = char === "_";
    this.#put({
      char,
      length,
      left: length, // the number of delimiters without a partner
      canOpen: left && (!inWord || !right || markBefore),
      canClose: right && (!inWord || !left || markAfter),
      insideWord: !spaceBefore && !markBefore,
      opens: none, // innermost first
      closes: none,
    }, length);
  }

  // pairEmphasis pairs the runs from a token on that open and close emphasis. It
  // returns the indices of runs that are not closed.
  #pairEmphasis(from) {
    const openers = []; // indices of tokens
    const hopeless = new Map(); // for each kind of closer, the index up to which there is no opener
    for (let i = from; i < this.#tokens.length; i++) {
      const run = this.#tokens[i];
      if (!run.left || run.inert) continue;
      if (run.canClose) this.#closeRun(run, openers, hopeless);
      if (run.left > 0 && run.canOpen) openers.push(i);
    }
    return openers;
  }

  #closeRun(closer, openers, hopeless) {
    const kind = closer.char + closer.canOpen + (closer.length % 3);
    while (closer.left > 0) {
      let place = openers.length - 1;
      const floor = hopeless.get(kind) ?? -1;
      while (place >= 0 && openers[place] > floor && !areAPair(this.#tokens[openers[place]], closer)) place--;
      if (place < 0 || openers[place] <= floor) {
        if (openers.length > 0) hopeless.set(kind, openers.at(-1));
        return;
      }
      openers.length = place + 1;
      const opener = this.#tokens[openers[place]];
      const width = opener.left >= 2 && closer.left >= 2 ? 2 : 1;
      const node = { type: typeOf(closer.char, width) };
      opener.opens = [...opener.opens, node];
      closer.closes = [...closer.closes, node];
      opener.left -= width;
      closer.left -= width;
      if (opener.left === 0) openers.pop();
    }
  }

  // closeAtEnd closes all open marks at the end of the text, except for a single
  // star inside a word, which is probably a multiplication sign.
  #closeAtEnd(openers) {
    const end = { literal: "", opens: none, closes: [] };
    const close = (run, type) => {
      const node = { type };
      run.opens = [...run.opens, node];
      end.closes.push(node);
    };
    const code = this.#tokens.findIndex(({ unclosed }) => unclosed && /\S/.test(this.text[unclosed] ?? ""));
    for (const index of openers.reverse()) {
      const run = this.#tokens[index];
      if (code >= 0 && index > code) continue;
      for (; run.left >= 2; run.left -= 2) close(run, typeOf(run.char, 2));
      if (run.left === 0 || run.insideWord) continue;
      close(run, "em");
      run.left = 0;
    }
    if (code >= 0) {
      const start = this.#tokens[code].unclosed;
      this.#tokens.length = code;
      this.#tokens.push(codeNode(this.text.slice(start)));
    }
    this.#tokens.push(end);
  }

  // ---- Links ----

  #openBracket(mark) {
    this.#brackets.push(this.#tokens.length);
    this.#put({ literal: mark, opens: none, closes: none }, mark.length);
  }

  #closeBracket() {
    const index = this.#brackets.pop();
    const target = index === undefined ? null : readTarget(this.text, this.at + 1);
    const href = target && webAddress(target.href);
    if (!href) {
      if (index !== undefined && this.text[this.at + 1] === "(") this.#doubtful = Math.min(this.#doubtful, index);
      return this.#take(1);
    }
    const link = { type: "link", href, title: target.title };
    const bracket = this.#tokens[index];
    bracket.literal = "";
    bracket.opens = [link];
    this.#pairEmphasis(index + 1);
    for (const token of this.#tokens.slice(index + 1)) {
      if (token.left) token.inert = true; // it cannot have a partner outside of the link
    }
    this.#put({ literal: "", opens: none, closes: [link] }, target.end - this.at);
    this.#brackets = []; // links do not nest
  }

  #readAddressInBrackets() {
    const match = this.#match(addressInBrackets);
    return match && this.#putAddress(match[1], match[0].length);
  }

  #readBareAddress() {
    const match = this.#match(bareAddress);
    if (!match || /[\p{L}\p{N}]/u.test(characterBefore(this.text, this.at))) return false;
    const address = withoutSentence(match[0]);
    return this.#putAddress(address, address.length);
  }

  // putAddress adds a link whose text is its address.
  #putAddress(address, length) {
    const href = webAddress(address);
    return href && this.#put({ type: "link", href, title: "", children: [address] }, length);
  }

  // ---- The tree ----

  #tree() {
    const root = { children: [] };
    const open = [root];
    const add = (child) => {
      const { children } = open.at(-1);
      if (child.type === "link" && open.some(({ type }) => type === "link")) child = child.children?.[0] ?? ""; // links do not nest
      if (typeof child === "string" && typeof children.at(-1) === "string") children[children.length - 1] += child;
      else if (child !== "") children.push(child);
    };
    for (const token of this.#tokens) {
      if (typeof token === "string" || token.type) {
        add(token);
        continue;
      }
      token.closes.forEach((node) => { if (open.at(-1) === node) open.pop(); });
      add(token.literal ?? token.char.repeat(token.left));
      token.opens.toReversed().forEach((node) => {
        if (open.length > deepest) return;
        node.children = [];
        add(node);
        open.push(node);
      });
    }
    return root.children;
  }
}

function typeOf(char, width) {
  if (char === "~") return "del";
  return width === 2 ? "strong" : "em";
}

function areAPair(opener, closer) {
  if (opener.char !== closer.char) return false;
  const either = opener.canClose || closer.canOpen;
  return !either || (opener.length + closer.length) % 3 !== 0 || (opener.length % 3 === 0 && closer.length % 3 === 0);
}

function codeNode(text) {
  text = text.replaceAll("\n", " ");
  if (/^ .* $/.test(text) && text.trim() !== "") text = text.slice(1, -1);
  return { type: "code", children: [text] };
}

function decodeEntity([, decimal, hexadecimal, name]) {
  if (name) return Object.hasOwn(entities, name) ? entities[name] : "";
  const code = decimal ? parseInt(decimal, 10) : parseInt(hexadecimal, 16);
  return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : "\ufffd";
}

// unescape replaces escapes and entities.
export function unescape(text) {
  return text
    .replace(/\\([!-/:-@[-`{-~])|&(?:#([0-9]{1,7})|#[xX]([0-9a-fA-F]{1,6})|([a-zA-Z]{2,6}));/g,
      (whole, escaped, ...match) => escaped ?? (decodeEntity([whole, ...match]) || whole));
}

// readTarget reads the target of a link: an address in parentheses, and perhaps a
// title.
function readTarget(text, at) {
  if (text[at] !== "(") return null;
  const match = matchAt(/\(\s*/y, text, at);
  const address = readAddress(text, at + match[0].length);
  if (!address) return null;
  const rest = matchAt(/(?:\s+("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|\((?:\\.|[^()\\])*\)))?\s*\)/sy, text, address.end);
  if (!rest) return null;
  return { href: unescape(address.text), title: unescape(rest[1]?.slice(1, -1) ?? ""), end: address.end + rest[0].length };
}

const longestAddress = 4096;

function readAddress(text, at) {
  const bracketed = matchAt(/<((?:\\.|[^<>\\\n])*)>/y, text, at);
  if (bracketed) return { text: bracketed[1], end: at + bracketed[0].length };
  if (text[at] === "<") return null;
  let depth = 0;
  let end = at;
  for (; end < text.length && end - at < longestAddress; end++) {
    const char = text[end];
    if (char === "\\") end++;
    else if (char === "(") depth++;
    else if (char === ")" && depth-- === 0) break;
    else if (char <= " ") break;
    if (depth > 32) return null;
  }
  return depth > 0 ? null : { text: text.slice(at, end), end };
}

function matchAt(expression, text, at) {
  expression.lastIndex = at;
  return expression.exec(text);
}

// webAddress returns an address as the browser normalizes it, or "" if it is not
// an absolute http or https URL.
function webAddress(text) {
  try {
    const url = new URL(text);
    return ["http:", "https:"].includes(url.protocol) ? url.href : "";
  } catch {
    return "";
  }
}

// withoutSentence removes the punctuation of the sentence around an address.
function withoutSentence(address) {
  address = address.replace(/[?!.,:;*_~']+$/, "");
  while (address.endsWith(")") && count(address, ")") > count(address, "(")) address = address.slice(0, -1);
  return address;
}

function characterBefore(text, at) {
  if (at === 0) return " ";
  const low = text.charCodeAt(at - 1);
  return low >= 0xdc00 && low <= 0xdfff ? text.slice(at - 2, at) : text[at - 1];
}

function isHighSurrogate(code) {
  return code >= 0xd800 && code <= 0xdbff;
}

function isSpace(char) {
  return /\s/.test(char);
}

function count(text, char) {
  return text.split(char).length - 1;
}
