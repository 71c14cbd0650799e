// Finds comments, strings, numbers and keywords in lines of code. It knows no
// grammar: the result for a line depends only on that line and on the span that
// the lines before have left open.

const words = (text) => new Set(text.split(" "));

// A language has line comments, spans {open, close, kind, escapes} that may extend
// over several lines, strings that end with their line, and keywords.
const blockComment = { open: "/*", close: "*/", kind: "comment" };
const doubleQuoted = String.raw`"(?:\\.|[^"\\])*(?:"|\\?$)`;
const singleQuoted = String.raw`'(?:\\.|[^'\\])*(?:'|\\?$)`;
const character = String.raw`'(?:\\[^']+|[^'\\])'`; // does not match a Rust lifetime
const cLike = { comment: "//.*", spans: [blockComment], strings: [doubleQuoted, character] };
const template = { open: "`", close: "`", kind: "string", escapes: true };
const hash = String.raw`(?<![^\s;|&(])#.*`;

const javaScript = "as async await break case catch class const continue debugger default delete do else export extends false finally for from function get if import in instanceof let new null of return set static super switch this throw true try typeof undefined var void while with yield";

const languages = {
  go: { ...cLike, spans: [blockComment, { ...template, escapes: false }], keywords: words("any bool break byte case chan const continue default defer else error fallthrough false float32 float64 for func go goto if import int int32 int64 interface iota len make map nil package range return rune select string struct switch true type uint var") },
  python: { comment: "#.*", spans: [{ open: '"""', close: '"""', kind: "string", escapes: true }, { open: "'''", close: "'''", kind: "string", escapes: true }], strings: [doubleQuoted, singleQuoted], keywords: words("False None True and as assert async await break case class continue def del elif else except finally for from global if import in is lambda match nonlocal not or pass raise return self try while with yield") },
  javascript: { ...cLike, spans: [blockComment, template], strings: [doubleQuoted, singleQuoted], keywords: words(javaScript) },
  typescript: { ...cLike, spans: [blockComment, template], strings: [doubleQuoted, singleQuoted], keywords: words(javaScript + " abstract any boolean declare enum implements infer interface is keyof namespace never number object private protected public readonly string type unknown") },
  json: { comment: "//.*", spans: [blockComment], strings: [doubleQuoted], keywords: words("false null true") },
  shell: { comment: hash, spans: [{ open: '"', close: '"', kind: "string", escapes: true }, { open: "'", close: "'", kind: "string" }], strings: [], keywords: words("case cd do done echo elif else esac eval exec exit export fi for function if in local read return set shift source then trap unset until while") },
  sql: { comment: "--.*", spans: [blockComment, { open: "'", close: "'", kind: "string" }], strings: [doubleQuoted], ignoresCase: true, keywords: words("add all alter and any as asc begin between by case cast check column commit constraint create cross database default delete desc distinct drop else end exists false foreign from full function group having if in index inner insert into is join key left like limit not null offset on or order outer over partition primary references returning right rollback select set table then true truncate union unique update using values view when where window with") },
  c: { ...cLike, keywords: words("auto bool break case char const continue default do double else enum extern false float for goto if inline int long nullptr register return short signed sizeof static struct switch true typedef union unsigned void volatile while #define #else #endif #if #ifdef #ifndef #include #pragma") },
  cpp: { ...cLike, keywords: words("auto bool break case catch char class const constexpr continue default delete do double else enum explicit extern false final float for friend goto if inline int long mutable namespace new noexcept nullptr operator override private protected public return short signed sizeof static struct switch template this throw true try typedef typename union unsigned using virtual void volatile while #define #else #endif #if #ifdef #ifndef #include #pragma") },
  java: { ...cLike, spans: [blockComment, { open: '"""', close: '"""', kind: "string", escapes: true }], keywords: words("abstract boolean break byte case catch char class continue default do double else enum extends false final finally float for if implements import instanceof int interface long new null package private protected public record return short static super switch synchronized this throw throws true try var void volatile while yield") },
  csharp: { ...cLike, keywords: words("abstract as async await base bool break byte case catch char class const continue decimal default delegate do double else enum event false finally float for foreach get if in int interface internal is long namespace new null object out override params private protected public readonly record ref return sealed set static string struct switch this throw true try using var virtual void while yield") },
  rust: { ...cLike, keywords: words("as async await bool break char const continue crate dyn else enum extern f32 f64 false fn for i32 i64 if impl in let loop match mod move mut pub ref return self Self static str struct super trait true type u32 u64 u8 unsafe use usize where while") },
  kotlin: { ...cLike, keywords: words("as break by class companion continue data do else false for fun if import in interface internal is lateinit null object open override package private protected public return sealed super suspend this throw true try typealias val var when while") },
  swift: { ...cLike, keywords: words("as async await break case catch class continue default defer do else enum extension false fileprivate for func guard if import in init inout internal is let mutating nil open private protocol public return self static struct super switch throw throws true try var where while") },
  php: { comment: "(?://|#).*", spans: [blockComment], strings: [doubleQuoted, singleQuoted], keywords: words("abstract and array as break case catch class const continue default do echo else elseif extends false final finally fn for foreach function if implements interface match namespace new null or private protected public readonly require return static switch this throw true try use var while yield") },
  yaml: { comment: hash, spans: [], strings: [doubleQuoted, singleQuoted], keywords: words("false no null true yes") },
};

const otherNames = {
  golang: "go", py: "python", python3: "python", js: "javascript", jsx: "javascript", mjs: "javascript", node: "javascript",
  ts: "typescript", tsx: "typescript", jsonc: "json", json5: "json", sh: "shell", bash: "shell", zsh: "shell", console: "shell",
  postgres: "sql", postgresql: "sql", mysql: "sql", sqlite: "sql", h: "c", "c++": "cpp", cc: "cpp", hpp: "cpp", "c#": "csharp", cs: "csharp",
  rs: "rust", kt: "kotlin", yml: "yaml", toml: "yaml",
};

const number = String.raw`(?<![\p{L}\p{N}_$])(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.\d[\d_]*)?(?:[eE][+-]?\d+)?)[a-zA-Z]*`;
const word = String.raw`#?[\p{L}_$][\p{L}\p{N}_$]*`;

// Longer lines are data and are not coloured.
const longest = 2000;

// A Highlighter reads lines of one language, in order.
export class Highlighter {
  #language;
  #expression;

  constructor(language) {
    this.#language = language;
    const spans = language.spans.map(({ open }) => open.replace(/[*$]/g, String.raw`\$&`));
    const groups = [["comment", [language.comment]], ["open", spans], ["string", language.strings], ["number", [number]], ["word", [word]]];
    this.#expression = new RegExp(groups.filter(([, of]) => of.length > 0).map(([name, of]) => `(?<${name}>${of.join("|")})`).join("|"), "gu");
  }

  // forLanguage returns null for an unknown language.
  static forLanguage(name) {
    const lower = name.toLowerCase();
    const known = Object.hasOwn(otherNames, lower) ? otherNames[lower] : lower;
    return Object.hasOwn(languages, known) ? new Highlighter(languages[known]) : null;
  }

  // read reads a line. span is the span that is open at its start, or null. It
  // returns the line's tokens, {kind, text} or plain strings, and the span that is
  // open at its end.
  read(line, span = null) {
    if (line.length > longest) return { tokens: [line], span };
    const tokens = [];
    let at = 0;
    const put = (kind, end) => {
      if (end > at) tokens.push(kind ? { kind, text: line.slice(at, end) } : line.slice(at, end));
      at = end;
    };
    const close = (from) => {
      const end = endOf(span, line, from);
      put(span.kind, end < 0 ? line.length : end);
      if (end >= 0) span = null;
    };

    if (span) close(0);
    while (!span && at < line.length) {
      this.#expression.lastIndex = at;
      const match = this.#next(line);
      if (!match) break;
      put("", match.index);
      if (match.groups.open) {
        span = this.#language.spans.find(({ open }) => open === match[0]);
        close(at + span.open.length);
      } else {
        put(this.#kindOf(match.groups), at + match[0].length);
      }
    }
    put("", line.length);
    return { tokens, span };
  }

  // next returns the next match, without words that are not keywords.
  #next(line) {
    for (;;) {
      const match = this.#expression.exec(line);
      if (!match?.groups.word || this.#isKeyword(match[0])) return match;
    }
  }

  #isKeyword(text) {
    return this.#language.keywords.has(this.#language.ignoresCase ? text.toLowerCase() : text);
  }

  #kindOf({ comment, string, number }) {
    if (comment) return "comment";
    if (string) return "string";
    return number ? "number" : "keyword";
  }
}

// endOf finds where a span ends in a line, or -1.
function endOf({ close, escapes }, line, from) {
  for (let at = from; at < line.length; at++) {
    if (escapes && line[at] === "\\") at++;
    else if (line.startsWith(close, at)) return at + close.length;
  }
  return -1;
}
