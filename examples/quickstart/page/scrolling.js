// Scrolls to the end while text arrives, unless the reader has scrolled back.

export class Scroller {
  following = true;
  #element;
  #button;
  #top = 0; // the last scroll position

  constructor(element, button) {
    this.#element = element;
    this.#button = button;
    element.addEventListener("scroll", () => this.#scrolled());
    button.addEventListener("click", () => this.toEnd());
    new ResizeObserver(() => this.keepUp()).observe(element);
    let keeping = 0; // the requested frame
    element.addEventListener("grown", () => { keeping ||= requestAnimationFrame(() => { keeping = 0; this.keepUp(); }); });
  }

  // Only the reader scrolls back: text that arrives makes the content longer, but
  // does not change scrollTop.
  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.#element;
    const rest = scrollHeight - clientHeight - scrollTop;
    if (rest < 4) this.following = true;
    else if (scrollTop < this.#top) this.following = false;
    this.#top = scrollTop;
    this.#button.hidden = this.following || rest < 64;
  }

  // keepUp must be called when the content has grown.
  keepUp() {
    if (!this.following) return;
    this.#element.scrollTop = 2 ** 30;
    this.#top = this.#element.scrollTop;
  }

  toEnd() {
    this.following = true;
    this.#button.hidden = true;
    this.keepUp();
  }

  get position() {
    return { top: this.#element.scrollTop, following: this.following };
  }

  // show shows other content, at its last position.
  show(content, { top = 0, following = true } = {}) {
    this.#element.replaceChildren(content);
    this.following = following;
    if (following) return this.toEnd();
    this.#element.scrollTop = this.#top = top;
    this.#scrolled();
  }

  clear() {
    this.#element.replaceChildren();
    this.#button.hidden = true;
  }
}
