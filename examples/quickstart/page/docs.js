// The API reference: shows openapi.json as a page.

import { colour } from "./code.js";
import { el } from "./elements.js";
import { foldContents } from "./folding.js";
import { store } from "./store.js";
import { begin, trial } from "./trial.js";

let api; // openapi.json

const methods = ["get", "post", "put", "patch", "delete"];

// resolved follows a $ref, if the node is one.
function resolved(node) {
  if (!node?.$ref) return node;
  return node.$ref.split("/").slice(1).reduce((value, name) => value[name], api);
}

// ---- Text ----

// prose shows the Markdown that openapi.json uses: paragraphs, lists and code.
function prose(text = "") {
  return text.split("\n\n").filter(Boolean).map((block) => {
    if (!block.startsWith("- ")) return el("p", null, inline(block));
    return el("ul", null, block.slice(2).split("\n- ").map((item) => el("li", null, inline(item))));
  });
}

// leadOf splits a text after its first paragraph.
function leadOf(text) {
  const [lead, ...rest] = text.split("\n\n");
  return [lead, rest.join("\n\n")];
}

function inline(text) {
  return text.split(/(`[^`]+`)/).map((part) =>
    part.startsWith("`") ? el("code", null, part.slice(1, -1)) : part);
}

// ---- Operations ----

const version = "/v1";

// operations lists each operation of a tag once. otherPath is its path without
// the version, if there is one.
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
  const [lead, rest] = leadOf(description);
  return el("section", { id: operationId, "aria-labelledby": operationId + "-title" },
    el("h3", { id: operationId + "-title" }, summary),
    el("p", { class: "route" }, el("span", { class: "method " + method }, method.toUpperCase()), " ", el("code", null, path), otherPath ? [" or ", el("code", null, otherPath)] : []),
    prose(lead),
    el("h4", null, "Try it"),
    trial({ operationId, method, path, parameters: parameters.map(resolved) }, examplesOf(requestBody)),
    prose(rest),
    headerTable("Request header", parameters.map(resolved).map((parameter) => [parameter.name, parameter])),
    requestBody ? [el("h4", null, "Request body"), bodies(resolved(requestBody).content)] : [],
    el("h4", null, "Responses"),
    Object.entries(responses).map(([status, response]) => responseDetails(status, resolved(response))));
}

// examplesOf returns the bodies to try an operation with.
function examplesOf(requestBody) {
  return Object.values(resolved(requestBody)?.content["application/json"].examples ?? {}).map(resolved);
}

// ---- Responses ----

function responseDetails(status, { description, headers = {}, content = {} }) {
  const [lead, rest] = leadOf(description);
  return el("details", status === "200" ? { open: "" } : null,
    el("summary", null, el("span", { class: "status" }, status === "default" ? "other" : status), " ", inline(lead)),
    prose(rest),
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
  const pre = el("pre", { tabindex: "0", role: "group", "aria-label": summary ?? "Example" });
  if (typeof value === "string") pre.textContent = value.trimEnd();
  else colour(pre, "json", JSON.stringify(value, null, 2));
  return el("figure", null, el("figcaption", null, inline(summary ?? "Example")), pre);
}

// ---- Schemas ----

function schemaSection([name, schema]) {
  return el("section", { id: "schema-" + name, "aria-labelledby": "schema-title-" + name },
    el("h3", { id: "schema-title-" + name }, name),
    prose(schema.description),
    schema.properties ? fields(schema.properties, schema.required ?? []) : el("p", null, typeOf(schema)));
}

function fields(properties, required) {
  return table(["Field", "Type", "Meaning"], Object.entries(properties).map(([field, property]) => [
    [el("code", null, field), required.includes(field) ? el("span", { class: "required" }, "required") : ""],
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
    el("ul", null, link("overview", "Overview")),
    ...tags().flatMap((tag) => [
      el("h2", null, tag.name),
      el("ul", null, operations(tag).map(({ operationId, summary }) => link(operationId, summary))),
    ]),
    el("h2", null, "All operations"),
    el("ul", null, link("all", "In general"), link("authentication", "Authentication")),
    el("h2", null, "Schemas"),
    el("ul", null, Object.keys(api.components.schemas).map((name) => link("schema-" + name, name))),
  ];
}

// reference puts the operations, which can be tried, before the general text.
function reference() {
  const [lead, rest] = leadOf(api.info.description);
  return [
    el("section", { id: "overview" }, el("h1", null, api.info.title), prose(lead)),
    ...tags().flatMap((tag) => [
      el("h2", null, tag.name),
      ...operations(tag).map(operationSection),
    ]),
    el("section", { id: "all" }, el("h2", null, "All operations"), prose(rest)),
    el("section", { id: "authentication" },
      el("h3", null, "Authentication"),
      Object.values(api.components.securitySchemes).flatMap(({ description }) => prose(description))),
    el("h2", null, "Schemas"),
    ...Object.entries(api.components.schemas).map(schemaSection),
  ];
}

async function show() {
  const response = await fetch("openapi.json");
  if (!response.ok) throw new Error(`openapi.json: status ${response.status}`);
  api = await response.json();
  foldContents();
  document.getElementById("to-chat").hash = store.place;
  document.getElementById("contents").replaceChildren(...contents());
  document.getElementById("reference").replaceChildren(...reference());
  await begin();
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

show().catch((error) => {
  document.getElementById("reference").replaceChildren(
    el("p", { role: "alert" }, `The reference cannot be shown: ${error.message}.`));
});
