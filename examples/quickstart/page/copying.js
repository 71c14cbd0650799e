// Copies text and saves it as a file.

// copyButton makes a button that copies the result of textOf and shows whether
// that succeeded.
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
    return copyOld(text); // there is no navigator.clipboard on pages without https
  }
}

function copyOld(text) {
  const before = document.activeElement;
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "unseen";
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
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000); // the browser may read the blob later
}
