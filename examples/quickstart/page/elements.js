// el makes an element. attributes may be null; children are elements, strings, and
// arrays of them.
export function el(name, attributes, ...children) {
  const element = document.createElement(name);
  Object.entries(attributes ?? {}).forEach(([key, value]) => element.setAttribute(key, value));
  element.append(...children.flat(Infinity));
  return element;
}

// button makes a button that calls act when it is clicked.
export function button(label, name, act) {
  const element = el("button", { type: "button", class: name }, label);
  element.addEventListener("click", act);
  return element;
}

// template returns a copy of the element in a template of the page.
export const template = (id) => document.getElementById(id).content.firstElementChild.cloneNode(true);

// arrange makes these items the children of an element. It does not move an item
// that is already in the right place.
export function arrange(element, items) {
  const wanted = new Set(items);
  [...element.children].filter((child) => !wanted.has(child)).forEach((child) => child.remove());
  items.forEach((item, i) => {
    if (element.children[i] !== item) element.insertBefore(item, element.children[i] ?? null);
  });
}
