// The reference page: it shows openapi.json as text to read.

let api; // the document

const methods = ["get", "post", "put", "patch", "delete"];

// el makes an element. Its attributes may be left out; its children are
// elements, strings, and lists of them.
function el(name, attributes, ...children) {
  const element = document.createElement(name);
  Object.entries(attributes ?? {}).forEach(([key, value]) => element.setAttribute(key, value));
  element.append(...children.flat(Infinity));
  return element;
}

// resolved follows a reference into the document.
function resolved(node) {
  if (!node?.$ref) return node;
  return node.$ref.split("/").slice(1).reduce((place, name) => place[name], api);
}

// ---- Text ----

// prose shows the part of Markdown that the document uses: paragraphs, lists
// and code.
function prose(text = "") {
  return text.split("\n\n").filter(Boolean).map((block) => {
    if (!block.startsWith("- ")) return el("p", null, inline(block));
    return el("ul", null, block.slice(2).split("\n- ").map((item) => el("li", null, inline(item))));
  });
}

function inline(text) {
  return text.split(/(`[^`]+`)/).map((part) =>
    part.startsWith("`") ? el("code", null, part.slice(1, -1)) : part);
}

// ---- Operations ----

function operations(tag) {
  return Object.entries(api.paths)
    .flatMap(([path, item]) => methods.filter((method) => item[method]).map((method) => ({ path, method, ...item[method] })))
    .filter(({ tags }) => tags.includes(tag.name));
}

function operationSection({ path, method, operationId, summary, description, parameters = [], requestBody, responses }) {
  return el("section", { id: operationId, "aria-labelledby": operationId + "-title" },
    el("h3", { id: operationId + "-title" }, summary),
    el("p", { class: "route" }, el("span", { class: "method " + method }, method.toUpperCase()), " ", el("code", null, path)),
    prose(description),
    headerTable("Request header", parameters.map(resolved).map((parameter) => [parameter.name, parameter])),
    requestBody ? [el("h4", null, "Request body"), bodies(resolved(requestBody).content)] : [],
    el("h4", null, "Responses"),
    Object.entries(responses).map(([status, response]) => responseDetails(status, resolved(response))));
}

function responseDetails(status, { description, headers = {}, content = {} }) {
  const [lead, ...more] = description.split("\n\n");
  return el("details", status === "200" ? { open: "" } : null,
    el("summary", null, el("span", { class: "status" }, status === "default" ? "other" : status), " ", inline(lead)),
    prose(more.join("\n\n")),
    headerTable("Header", Object.entries(headers).map(([name, header]) => [name, resolved(header)])),
    bodies(content));
}

function headerTable(title, rows) {
  if (rows.length === 0) return [];
  return table([title, "Meaning"], rows.map(([name, header]) => [
    [el("code", null, name)],
    [inline(header.description ?? ""), " Example: ", el("code", null, header.example)],
  ]));
}

function bodies(content) {
  return Object.entries(content).map(([type, body]) => el("div", { class: "body" },
    el("p", null, el("code", null, type), ": ", typeOf(body.schema)),
    Object.values(body.examples ?? {}).map(resolved).map(example)));
}

function example({ summary, value }) {
  const text = typeof value === "string" ? value.trimEnd() : JSON.stringify(value, null, 2);
  return el("figure", null,
    el("figcaption", null, inline(summary ?? "Example")),
    el("pre", { tabindex: "0" }, text));
}

// ---- Schemas ----

function schemaSection([name, schema]) {
  const required = schema.required ?? [];
  return el("section", { id: "schema-" + name, "aria-labelledby": "schema-title-" + name },
    el("h3", { id: "schema-title-" + name }, name),
    prose(schema.description),
    table(["Member", "Type", "Meaning"], Object.entries(schema.properties).map(([member, property]) => [
      [el("code", null, member), required.includes(member) ? el("span", { class: "required" }, "required") : ""],
      typeOf(property),
      inline(property.description ?? ""),
    ])));
}

// typeOf names the type of a schema, with links to the schemas it refers to.
function typeOf(schema) {
  if (schema.$ref) {
    const name = schema.$ref.split("/").at(-1);
    return el("a", { href: "#schema-" + name }, name);
  }
  if (schema.enum) return schema.enum.map((value, i) => [i ? ", " : "", el("code", null, value)]);
  return [schema.type].flat().map((type, i) => [
    i ? " or " : "", type, type === "array" ? [" of ", typeOf(schema.items)] : []]);
}

function table(heads, rows) {
  return el("div", { class: "table" }, el("table", null,
    el("thead", null, el("tr", null, heads.map((head) => el("th", { scope: "col" }, head)))),
    el("tbody", null, rows.map((cells) => el("tr", null, cells.map((cell) => el("td", null, cell)))))));
}

// ---- The page ----

function contents() {
  const link = (id, text) => el("li", null, el("a", { href: "#" + id }, text));
  return [
    el("ul", null, link("overview", "Overview"), link("authentication", "Authentication")),
    ...api.tags.flatMap((tag) => [
      el("h2", null, tag.name),
      el("ul", null, operations(tag).map(({ operationId, summary }) => link(operationId, summary))),
    ]),
    el("h2", null, "Schemas"),
    el("ul", null, Object.keys(api.components.schemas).map((name) => link("schema-" + name, name))),
  ];
}

function reference() {
  return [
    el("section", { id: "overview" }, el("h1", null, api.info.title), prose(api.info.description)),
    el("section", { id: "authentication" },
      el("h2", null, "Authentication"),
      Object.values(api.components.securitySchemes).flatMap(({ description }) => prose(description))),
    ...api.tags.flatMap((tag) => [
      el("h2", null, tag.name),
      ...prose(tag.description),
      ...operations(tag).map(operationSection),
    ]),
    el("h2", null, "Schemas"),
    ...Object.entries(api.components.schemas).map(schemaSection),
  ];
}

async function show() {
  const response = await fetch("openapi.json");
  if (!response.ok) throw new Error(`openapi.json: status ${response.status}`);
  api = await response.json();
  document.title = `${api.info.title} · API reference`;
  document.getElementById("contents").replaceChildren(...contents());
  document.getElementById("reference").replaceChildren(...reference());
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

show().catch((error) => {
  document.getElementById("reference").replaceChildren(
    el("p", { role: "alert" }, `The reference cannot be shown: ${error.message}.`));
});
