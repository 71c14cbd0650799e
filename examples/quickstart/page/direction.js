// Which way text runs. This stands in for dir="auto", for which Chromium looks at
// all of an element again whenever something is added to it.

const rightToLeft = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;

// directionOf is that of the first letter in these texts: "ltr" or "rtl".
export function directionOf(texts) {
  for (const text of texts) {
    const letter = /\p{L}/u.exec(text);
    if (letter) return rightToLeft.test(letter[0]) ? "rtl" : "ltr";
  }
  return "ltr";
}
