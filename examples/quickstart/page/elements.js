// el makes an element. Its attributes may be left out; its children are
// elements, strings, and lists of them.
export function el(name, attributes, ...children) {
  const element = document.createElement(name);
  Object.entries(attributes ?? {}).forEach(([key, value]) => element.setAttribute(key, value));
  element.append(...children.flat(Infinity));
  return element;
}
