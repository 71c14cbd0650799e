// Copies text and saves it as a file.

import { button, el } from "./elements.js";

// copyButton makes a button that copies the result of textOf and shows whether
// that succeeded, until the text is another one: its "changed" event says so.
export function copyButton(textOf, label = "Copy") {
  let timer;
  const reset = () => { copying.textContent = label; };
  const copying = button(label, "copy", async () => {
    copying.textContent = (await copy(textOf())) ? "Copied" : "Not copied";
    clearTimeout(timer);
    timer = setTimeout(reset, 2000);
  });
  copying.addEventListener("changed", reset);
  return copying;
}

// copy returns whether it succeeded. There is no navigator.clipboard without https.
async function copy(text) {
  return (await navigator.clipboard?.writeText(text).then(() => true, () => false)) || copyOld(text);
}

function copyOld(text) {
  const before = document.activeElement;
  const field = el("textarea", { class: "unseen" });
  field.value = text;
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  before?.focus();
  return copied;
}

// save downloads text as a file.
export function save(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000); // the browser may read the blob later
}
