// Copying text, and saving it as a file.

// copyButton makes a button that copies the text that it is given when it is
// pressed, and says whether that went well.
export function copyButton(textOf, label = "Copy") {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = label;
  let reset;
  button.addEventListener("click", async () => {
    button.textContent = (await copy(textOf())) ? "Copied" : "Not copied";
    clearTimeout(reset);
    reset = setTimeout(() => { button.textContent = label; }, 2000);
  });
  return button;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyOld(text); // over plain http, browsers have no clipboard to write to
  }
}

function copyOld(text) {
  const before = document.activeElement;
  const place = document.createElement("textarea");
  place.value = text;
  place.className = "unseen";
  document.body.append(place);
  place.select();
  const copied = document.execCommand("copy");
  place.remove();
  before?.focus();
  return copied;
}

// save offers text to the reader as a file.
export function save(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000); // the browser reads it when it likes
}
