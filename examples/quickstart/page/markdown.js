// Reads Markdown with markdown-it: CommonMark with tables, deleted text, tasks,
// footnotes and formulas. HTML and pictures stay outside: HTML stays text, and a
// picture becomes a link to it.

import { DOMPurify, MarkdownIt, cjkFriendly, footnote } from "./lib/markdown.js";

// Deeper nesting stays text: nobody can tell the levels apart, and very deep
// nesting can overload a browser.
const deepestBlock = 16;
const deepestInline = 24;
const deepestPicture = 2; // in the text of another one

// A short line may be a row of many empty cells. A longer table is read in parts,
// which have fewer cells than that.
const mostColumns = 64;
const mostCells = 4000;

// Longer formulas stay text: they would take too long.
const longestFormula = 1000;

const md = new MarkdownIt({ linkify: true }).use(cjkFriendly).use(footnote);
md.disable(["reference", "footnote_inline", "footnote_ref", "footnote_tail"]);
md.core.ruler.disable("linkify"); // finds addresses without a scheme

// parse reads a text and returns markdown-it's tokens. Text that is still arriving is
// read as what it probably becomes: in its last paragraph, "**bol" is bold.
export function parse(text, arriving = false) {
  return md.parse(text, { arriving });
}

// contentOf returns what the tokens show, as nodes.
export function contentOf(tokens) {
  return DOMPurify.sanitize(md.renderer.render(tokens, md.options, {}), allowed);
}

// inlineHTML returns what the text of a paragraph shows, as HTML to compare. Marks that
// are open at its end are closed there.
export function inlineHTML(text) {
  const tokens = [];
  md.inline.parse(text, md, { growing: tokens }, tokens);
  return md.renderer.renderInline(tokens, md.options, {});
}

// plainText returns the text of Markdown without its marks.
export function plainText(text) {
  const textOf = ({ type, content }) => (type.endsWith("break") ? "\n" : content);
  return parse(text).filter(({ content }) => content !== "").map((token) => token.children?.map(textOf).join("") ?? token.content).join("\n");
}

// The elements and attributes that a text can produce.
const attributes = ["aria-label", "class", "data-formula", "data-language", "data-note", "rel", "role", "scope", "start", "tabindex", "target", "title"];
const allowed = {
  ALLOWED_TAGS: ["a", "blockquote", "br", "code", "del", "div", "em", "figure", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"],
  ALLOWED_ATTR: ["href", ...attributes],
  ADD_URI_SAFE_ATTR: attributes, // those without an address
  ALLOWED_URI_REGEXP: /^https?:/i,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

// ---- Limits ----

// change replaces a rule by another one, which may use it.
function change(ruler, name, rule) {
  const { fn, alt } = ruler.__rules__.find((each) => each.name === name);
  ruler.at(name, (...rest) => rule(fn, ...rest), { alt });
}

for (const name of ["blockquote", "list", "footnote_def"]) {
  change(md.block.ruler, name, (read, state, ...rest) => state.level < 2 * deepestBlock && read(state, ...rest));
}

change(md.inline.ruler, "image", (read, state, silent) => {
  const { env } = state;
  const before = env.pictures ?? 0; // that contain this one
  env.pictures = before + 1;
  const isRead = before < deepestPicture && read(state, silent);
  env.pictures = before;
  return isRead;
});

change(md.block.ruler, "table", (read, state, line, end, silent) => {
  if (line + 1 >= end) return false;
  const delimiters = state.src.slice(state.bMarks[line + 1], state.eMarks[line + 1]);
  const columns = delimiters.split("|").length;
  if (!delimiters.includes("-") || columns > mostColumns + 2) return false;
  return read(state, line, Math.min(end, line + 2 + Math.floor(mostCells / columns)), silent);
});

// ---- Links ----

let base; // of relative links

// resolveLinks makes relative links, which stay text otherwise, lead from an address.
export function resolveLinks(address) {
  base = address;
}

// The browser copies the key, if only the tab has it, to a tab that knows its opener: so do
// those of page.Options.Documents, from where links lead back to the bots.
const documents = new URL("docs/", document.baseURI).href;

// webAddress returns an address as the browser normalizes it, or "" if it is not
// an http or https URL.
function webAddress(text) {
  try {
    const url = new URL(text, base);
    return ["http:", "https:"].includes(url.protocol) ? url.href : "";
  } catch {
    return "";
  }
}

md.normalizeLink = webAddress;
md.validateLink = Boolean;
md.normalizeLinkText = String;

// A bare address ends at punctuation of Chinese, Japanese or Korean, and the name of
// its host at their letters: no top-level domain has both these and Latin letters.
const sentence = /[\u3000-\u3004\u3008-\u3020\u3030\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65“”‘’…—]/;
const mixedHost = /^(\/\/(?:[^/?#]*\.)?[a-z0-9-]+)[\p{sc=Han}\p{sc=Hiragana}\p{sc=Katakana}\p{sc=Hangul}]/iu;
for (const scheme of ["http:", "https:"]) {
  md.linkify.add(scheme, {
    validate: (text, at, { re }) => {
      const [before] = text.slice(at, at + 2000).split(sentence, 1);
      const address = mixedHost.exec(before)?.[1] ?? before;
      const expression = re.get_http_validator();
      expression.lastIndex = 0;
      return expression.exec(address)?.[0].length ?? 0;
    },
  });
}
for (const scheme of ["ftp:", "//", "mailto:"]) md.linkify.add(scheme, null);

// ---- Formulas ----

// A dollar before a digit or a space may be one of money.
const formula = /\$\$([^$]+)\$\$|\$(?![\s$])((?:\\.|[^\\$\n])*[^\\\s$])\$(?![\d$])|\\\[((?:(?!\\\])[^])+)\\\]|\\\(((?:(?!\\\))[^])+)\\\)/y;

function readFormula(text, at) {
  if (text[at] !== "$" && (text[at] !== "\\" || !"[(".includes(text[at + 1]))) return null;
  const near = text.slice(at, at + longestFormula);
  formula.lastIndex = 0;
  const match = formula.exec(near);
  return match && /[\p{L}\p{N}]/u.test(match[0]) ? { source: match[0], isDisplay: match[1] !== undefined || match[3] !== undefined } : null;
}

md.inline.ruler.before("escape", "formula", (state, silent) => {
  const found = readFormula(state.src, state.pos);
  if (!found) return false;
  if (!silent) Object.assign(state.push("formula", "", 0), { content: found.source, meta: found });
  state.pos += found.source.length;
  return true;
});

// A formula may contain lines that would begin a list.
md.block.ruler.before("table", "formulas", (state, line, end, silent) => {
  const begin = state.bMarks[line] + state.tShift[line];
  if (state.sCount[line] - state.blkIndent >= 4 || !/^(\$\$|\\\[)/.test(state.src.slice(begin, begin + 2))) return false;
  let last = line;
  while (last < end && state.eMarks[last] - begin < longestFormula && !isFormula(state, begin, last)) last++;
  if (last >= end || !isFormula(state, begin, last) || state.sCount[last] < state.blkIndent) return false;
  if (silent) return true;
  const content = state.getLines(line, last + 1, state.blkIndent, false).trim();
  Object.assign(state.push("paragraph_open", "p", 1), { map: [line, last + 1] });
  Object.assign(state.push("inline", "", 0), { content, map: [line, last + 1], children: [] });
  state.push("paragraph_close", "p", -1);
  state.line = last + 1;
  return true;
}, { alt: ["paragraph", "reference", "blockquote"] });

function isFormula(state, begin, last) {
  const text = state.src.slice(begin, state.eMarks[last]).trimEnd();
  return readFormula(text, 0)?.source === text;
}

// ---- Footnotes ----

// A footnote may be explained later than it is mentioned: its mark stays as it was
// written until then. A label that nobody explains was not meant to be one.
md.inline.ruler.after("image", "note", (state, silent) => {
  const match = state.src[state.pos] === "[" && /^\[\^([^\]\s]+)\]/.exec(state.src.slice(state.pos, state.pos + 64));
  if (!match) return false;
  if (!silent) state.push("note", "", 0).meta = { label: match[1] };
  state.pos += match[0].length;
  return true;
});

change(md.block.ruler, "footnote_def", (read, state, line, end, silent) => {
  const first = state.tokens.length;
  if (state.sCount[line] - state.blkIndent >= 4 || !read(state, line, end, silent)) return false;
  if (!silent) state.tokens[first].map = [line, state.line];
  return true;
});

// ---- Arriving text ----

// withoutLooseEnd removes from the end what the next fragment may turn into a mark
// or an address.
function withoutLooseEnd(text) {
  text = text.replace(/!?\[([^[\]\n]*)(\]\([^\s()]*)?$/, "$1");
  let end = text.length;
  while ("*_`~".includes(text[end - 1])) end--;
  return text.slice(0, end);
}

md.core.ruler.before("inline", "arriving", ({ env, tokens, src }) => {
  const i = env.arriving && !/\n[ \t>]*\n[ \t>]*$/.test(src) ? tokens.findLastIndex(({ nesting, type, content }) => nesting === 0 && (type !== "inline" || content !== "")) : -1;
  const last = tokens[i];
  if (last?.type !== "inline") return;
  const isTask = tokens[i - 2]?.type === "list_item_open" && taskMarkToBe.test(last.content);
  last.content = isTask ? "" : withoutLooseEnd(last.content);
  env.growing = last.children;
});

md.inline.ruler.before("backticks", "open code", (state, silent) => {
  if (silent || state.env.growing !== state.tokens || state.src[state.pos] !== "`") return false;
  const [ticks] = /^`+/.exec(state.src.slice(state.pos));
  const rest = state.src.slice(state.pos + ticks.length);
  if (!/^[^`\s]/.test(rest) || new RegExp("(?<!`)" + ticks + "(?!`)").test(rest)) return false;
  state.push("code_inline", "code", 0).content = rest.replaceAll("\n", " ");
  state.pos = state.posMax;
  return true;
});

// Marks that are open at the end are closed there, except for a single star inside
// a word, which is probably a multiplication sign.
md.inline.ruler2.after("balance_pairs", "open marks", (state) => {
  if (state.env.growing !== state.tokens) return;
  const { delimiters } = state;
  for (let i = delimiters.length - 1; i >= 0; i--) {
    if (!isOpen(delimiters[i])) continue;
    const isDouble = i > 0 && isOpen(delimiters[i - 1]) && delimiters[i - 1].marker === delimiters[i].marker && delimiters[i - 1].token === delimiters[i].token - 1;
    if (delimiters[i].marker !== tilde && !isDouble && /[\p{L}\p{N}]$/u.test(state.tokens[delimiters[i].token - 1]?.content)) continue;
    close(state, delimiters[i]);
    if (isDouble && delimiters[i].marker !== tilde) close(state, delimiters[--i]);
  }
});

const tilde = 0x7e;

function isOpen({ open, end }) {
  return open && end < 0;
}

function close(state, opener) {
  state.push("text", "", 0).content = state.tokens[opener.token].content;
  opener.end = state.delimiters.length;
  state.delimiters.push({ marker: opener.marker, length: 0, token: state.tokens.length - 1, end: -1, open: false, close: true });
}

// ---- What the page shows ----

md.core.ruler.push("page", ({ tokens }) => {
  tokens.forEach((token, i) => {
    token.block = token.hidden = false;
    looks[token.type]?.(token, tokens, i);
  });
});

const looks = {
  paragraph_open: looksOfParagraph,
  heading_open: (token) => {
    token.attrs = [["class", token.tag]];
    token.tag = deeper(token.tag);
  },
  heading_close: (token) => { token.tag = deeper(token.tag); },
  bullet_list_open: looksOfList,
  ordered_list_open: looksOfList,
  th_open: (token) => { token.attrs = [["scope", "col"], ...alignment(token)]; },
  td_open: (token) => { token.attrs = alignment(token); },
  inline: (token, tokens, i) => {
    token.children = limited(token.children);
    if (tokens[i - 1].tag === "th" || tokens[i - 1].tag === "td") token.children = token.children.flatMap(withBreaks);
  },
};

// deeper returns a heading below the page's own.
function deeper(tag) {
  return "h" + Math.min(6, Number(tag[1]) + 2);
}

function alignment(token) {
  const align = token.attrGet("style")?.replace("text-align:", "");
  return align ? [["class", align]] : [];
}

function looksOfList(list, tokens, i) {
  let paragraph = i + 1;
  while (tokens[paragraph].level > list.level && !(tokens[paragraph].type === "paragraph_open" && tokens[paragraph].level === list.level + 2)) paragraph++;
  list.attrJoin("class", tokens[paragraph].hidden || tokens[paragraph].level === list.level ? "tight" : "loose");
}

const taskMark = /^\[([ xX])\]\s+/; // before a text: it is trimmed
const taskMarkToBe = /^\[(?:[ xX]?|[ xX]\]\s*)$/;

function looksOfParagraph(_, tokens, i) {
  const item = tokens[i - 1], text = tokens[i + 1];
  if (item?.type !== "list_item_open") return;
  const mark = taskMark.exec(text.content);
  if (mark) {
    item.attrs = [["class", mark[1] === " " ? "task" : "task done"]];
    const first = text.children.find(({ content }) => content !== "");
    first.content = first.content.replace(taskMark, "");
  }
}

// withBreaks splits a text of a table at each <br>: its cells have no other way to
// break a line.
function withBreaks(token) {
  if (token.type !== "text" || !token.content.includes("<")) return [token];
  return token.content.split(/<br\s*\/?>/i).flatMap((content, i) => [
    ...(i > 0 ? [Object.assign(Object.create(token), { type: "hardbreak" })] : []),
    Object.assign(Object.create(token), { content }),
  ]);
}

// limited makes text of marks that are nested too deeply and of links without an
// address, and links of pictures. Links do not nest.
function limited(tokens) {
  const open = []; // for each open mark, "link", "mark", or {end}: the text that ends it
  return withoutPictures(tokens).map((token) => {
    if (token.tag === "s") token.tag = "del";
    if (token.nesting === 1) {
      const isLink = token.type === "link_open";
      const isShown = open.length < deepestInline && !(isLink && (open.includes("link") || !token.attrGet("href")));
      const [begin, end] = isLink ? literalLink(token) : [token.markup, token.markup];
      open.push(!isShown ? { end } : isLink ? "link" : "mark");
      if (isShown && isLink) token.attrs.push(["target", "_blank"], ["rel", token.attrGet("href").startsWith(documents) ? "opener" : "noopener noreferrer"]);
      return isShown ? token : asText(token, begin);
    }
    const closed = token.nesting === -1 && open.pop();
    return closed?.end === undefined ? token : asText(token, closed.end);
  });
}

function withoutPictures(tokens) {
  if (!tokens.some(({ type }) => type === "image")) return tokens;
  return tokens.flatMap((token) => token.type !== "image" ? [token] : [
    Object.assign(derived(token, "link_open", "a", 1), { attrs: [["href", token.attrGet("src")], ...(token.attrGet("title") ? [["title", token.attrGet("title")]] : [])], info: "picture" }),
    ...withoutPictures(token.children),
    derived(token, "link_close", "a", -1),
  ]);
}

function literalLink(token) {
  if (token.attrGet("href")) return ["", ""];
  return [token.info === "picture" ? "![" : "[", "]()"];
}

function asText(token, content) {
  return Object.assign(derived(token, "text", "", 0), { content });
}

function derived({ constructor: Token }, type, tag, nesting) {
  return new Token(type, tag, nesting);
}

const few = 6; // columns, whose widths the parts of a table share
const { escapeHtml } = md.utils;

Object.assign(md.renderer.rules, {
  hardbreak: () => "<br>",
  table_open: (tokens, i) => {
    const columns = tokens.slice(i, tokens.findIndex(({ type }, j) => j > i && type === "tr_close")).filter(({ type }) => type === "th_open").length;
    return `<div class="table${columns > few ? "" : " even"}" tabindex="0" role="group" aria-label="Table"><table>`;
  },
  table_close: () => "</table></div>",
  fence: (tokens, i) => listing(tokens[i].content, md.utils.unescapeAll(tokens[i].info).trim().split(/\s/)[0]),
  code_block: (tokens, i) => listing(tokens[i].content, ""),
  formula: (tokens, i) => `<span class="formula${tokens[i].meta.isDisplay ? " display" : ""}" data-formula="${escapeHtml(tokens[i].content)}">${escapeHtml(tokens[i].content)}</span>`,
  note: (tokens, i) => `<span class="note" data-note="${escapeHtml(tokens[i].meta.label)}">[^${escapeHtml(tokens[i].meta.label)}]</span>`,
  footnote_reference_open: (tokens, i) => `<div class="footnote" data-note="${escapeHtml(tokens[i].meta.label)}"><span class="label">${escapeHtml(tokens[i].meta.label)}</span>`,
  footnote_reference_close: () => "</div>",
});

function listing(code, language) {
  return `<figure class="code" data-language="${escapeHtml(language)}">${escapeHtml(code)}</figure>`;
}
