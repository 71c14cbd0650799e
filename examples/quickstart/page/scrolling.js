// Keeps the latest in sight while text arrives, unless somebody reads back.

export class Scroller {
  following = true;
  #element;
  #button;
  #top = 0; // where it was last seen

  constructor(element, button) {
    this.#element = element;
    this.#button = button;
    element.addEventListener("scroll", () => this.#scrolled());
    button.addEventListener("click", () => this.toEnd());
    new ResizeObserver(() => this.keepUp()).observe(element);
  }

  // Only the reader scrolls back: text that arrives makes the way longer, but
  // leaves the place.
  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.#element;
    const rest = scrollHeight - clientHeight - scrollTop;
    if (rest < 4) this.following = true;
    else if (scrollTop < this.#top) this.following = false;
    this.#top = scrollTop;
    this.#button.hidden = this.following || rest < 64;
  }

  // keepUp is to be called when there is more to see.
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

  get place() {
    return { top: this.#element.scrollTop, following: this.following };
  }

  // show shows something else, at the place where it was left.
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
