export { default as MarkdownIt } from "markdown-it";
export { default as cjkFriendly } from "markdown-it-cjk-friendly";
export { default as footnote } from "markdown-it-footnote";
export { default as DOMPurify } from "dompurify";
export { default as morphdom } from "morphdom";
