// The reference page: it shows openapi.json as text to read.

import { copyButton } from "./copying.js";
import { el } from "./elements.js";

let api; // the document

const methods = ["get", "post", "put", "patch", "delete"];

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

const version = "/v1";

// operations lists each operation of a tag once, with the other path that it
// may have: the one without the version.
function operations(tag) {
  return Object.entries(api.paths)
    .filter(([path]) => !api.paths[version + path])
    .flatMap(([path, item]) => methods.filter((method) => item[method]).map((method) => ({ path, otherPath: otherPath(path), method, ...item[method] })))
    .filter(({ tags }) => tags.includes(tag.name));
}

function otherPath(path) {
  const other = path.startsWith(version) && path.slice(version.length);
  return other && api.paths[other] ? other : "";
}

function tags() {
  return api.tags.filter((tag) => operations(tag).length > 0);
}

function operationSection({ path, otherPath, method, operationId, summary, description, parameters = [], requestBody, responses }) {
  return el("section", { id: operationId, "aria-labelledby": operationId + "-title" },
    el("h3", { id: operationId + "-title" }, summary),
    el("p", { class: "route" }, el("span", { class: "method " + method }, method.toUpperCase()), " ", el("code", null, path), otherPath ? [" or ", el("code", null, otherPath)] : []),
    prose(description),
    el("h4", null, "Try it"),
    calls(method, path, requestBody && resolved(requestBody)),
    headerTable("Request header", parameters.map(resolved).map((parameter) => [parameter.name, parameter])),
    requestBody ? [el("h4", null, "Request body"), bodies(resolved(requestBody).content)] : [],
    el("h4", null, "Responses"),
    Object.entries(responses).map(([status, response]) => responseDetails(status, resolved(response))));
}

// ---- Examples to copy ----

// calls shows how to call an operation, with each of its example bodies.
function calls(method, path, requestBody) {
  const examples = Object.values(requestBody?.content["application/json"].examples ?? { none: {} });
  return examples.map(resolved).map(({ summary, value }) => [
    summary ? el("p", { class: "example" }, inline(summary)) : [],
    code("curl", curlCall(path, value)),
    code("JavaScript", value?.stream ? streamCall(value) : fetchCall(method, path, value)),
  ]);
}

function addressOf(path) {
  return new URL("." + path, document.baseURI).href;
}

function curlCall(path, body) {
  const lines = [`curl ${body?.stream ? "-N " : ""}${addressOf(path)}`, `-H "Authorization: Bearer $BOTAPI_KEY"`];
  if (body) lines.push(`-d '${JSON.stringify(body).replaceAll("'", `'\\''`)}'`);
  return lines.join(" \\\n  ");
}

function fetchCall(method, path, body) {
  return [
    `const response = await fetch("${addressOf(path)}", {`,
    ...(method === "get" ? [] : [`  method: "${method.toUpperCase()}",`]),
    "  headers: { Authorization: `Bearer ${key}` },",
    ...(body ? [`  body: JSON.stringify(${indented(body)}),`] : []),
    "});",
    "if (!response.ok) throw new Error(await response.text());",
    "console.log(await response.json());",
  ].join("\n");
}

function streamCall({ stream, ...body }) {
  return [
    `import { BotClient } from "./client.js"; // a copy of ${addressOf("/page/client.js")}`,
    "",
    `const client = new BotClient("${addressOf("/")}", key);`,
    `for await (const fragment of client.chat(${indented(body, "")})) {`,
    "  console.log(fragment);",
    "}",
  ].join("\n");
}

// indented writes a value as JavaScript, behind a line that is indented itself.
function indented(value, indent = "  ") {
  return JSON.stringify(value, null, 2).replace(/"([a-z_]+)":/g, "$1:").replaceAll("\n", "\n" + indent);
}

function code(title, text) {
  return el("figure", { class: "code" },
    el("figcaption", null, el("span", null, title), copyButton(() => text)),
    el("pre", { tabindex: "0", role: "group", "aria-label": title }, text));
}

// ---- Answers ----

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
    el("pre", { tabindex: "0", role: "group", "aria-label": summary ?? "Example" }, text));
}

// ---- Schemas ----

function schemaSection([name, schema]) {
  return el("section", { id: "schema-" + name, "aria-labelledby": "schema-title-" + name },
    el("h3", { id: "schema-title-" + name }, name),
    prose(schema.description),
    schema.properties ? members(schema.properties, schema.required ?? []) : el("p", null, typeOf(schema)));
}

function members(properties, required) {
  return table(["Member", "Type", "Meaning"], Object.entries(properties).map(([member, property]) => [
    [el("code", null, member), required.includes(member) ? el("span", { class: "required" }, "required") : ""],
    typeOf(property),
    inline(property.description ?? ""),
  ]));
}

// typeOf names the type of a schema, with links to the schemas it refers to.
function typeOf(schema) {
  if (schema.$ref) {
    const name = schema.$ref.split("/").at(-1);
    return el("a", { href: "#schema-" + name }, name);
  }
  if (schema.allOf) return schema.allOf.map(typeOf); // a reference with a description of its own
  if (schema.enum) return schema.enum.map((value, i) => [i ? ", " : "", el("code", null, value)]);
  if (schema.oneOf) return schema.oneOf.map((one, i) => [i ? " or " : "", typeOf(one)]);
  return [schema.type, schema.type === "array" ? [" of ", typeOf(schema.items)] : [], schema.nullable ? " or null" : ""];
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
    ...tags().flatMap((tag) => [
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
    ...tags().flatMap((tag) => [
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
