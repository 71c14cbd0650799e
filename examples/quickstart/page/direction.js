// Finds the direction of text. This replaces dir="auto", for which Chromium reads
// a whole element again whenever something is added to it.

const rightToLeft = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;

// directionOf returns the direction of the first letter in the texts: "ltr" or
// "rtl".
export function directionOf(texts) {
  for (const text of texts) {
    const letter = /\p{L}/u.exec(text);
    if (letter) return rightToLeft.test(letter[0]) ? "rtl" : "ltr";
  }
  return "ltr";
}
