// Folds the contents of a long page.

// foldContents opens the contents if there is room for them beside the text.
export function foldContents() {
  const wide = matchMedia("(min-width: 60rem)");
  const fold = () => { document.getElementById("contents-box").open = wide.matches; };
  wide.addEventListener("change", fold);
  document.getElementById("contents").addEventListener("click", () => wide.matches || fold());
  fold();
}
