// Writes a call of the API as a program in each language. The programs are
// complete, need no libraries, and work as they are copied.

// languages has the writer and the syntax of each language. write takes {method,
// address, key, body}; body is undefined for a GET. Without a key, the program
// reads the environment variable BOTAPI_KEY.
export const languages = {
  curl: { colours: "shell", run: "Paste it into a shell.", write: curl },
  Python: { colours: "python", run: "Save it as call.py, and run: python3 call.py", write: python },
  Go: { colours: "go", run: "Save it as call.go, and run: go run call.go", write: go },
  JavaScript: { colours: "javascript", run: "Save it as call.js, and run: node call.js", write: javaScript },
};

function curl({ address, key, body }) {
  const authorization = key ? shellWord(`Authorization: Bearer ${key}`) : `"Authorization: Bearer $BOTAPI_KEY"`;
  return lines(
    `curl ${body?.stream ? "-N " : ""}${shellWord(address)} \\`,
    `  -H ${authorization}${body ? " \\" : ""}`,
    body && `  -d ${shellWord(JSON.stringify(body))}`,
  );
}

function shellWord(text) {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

function python({ address, key, body }) {
  return lines(
    "import json",
    !key && "import os",
    "import urllib.request",
    "",
    "request = urllib.request.Request(",
    `    ${JSON.stringify(address)},`,
    `    headers={"Authorization": ${key ? JSON.stringify(`Bearer ${key}`) : `"Bearer " + os.environ["BOTAPI_KEY"]`}},`,
    body && `    data=json.dumps(${pythonValue(body, "    ")}).encode(),`,
    ")",
    ...(body?.stream ? [
      "done = failed = False",
      "with urllib.request.urlopen(request, timeout=60) as response:",
      "    for line in response:",
      `        field, _, data = line.decode().rstrip("\\r\\n").partition(": ")`,
      `        if field == "event":`,
      `            failed = data == "error"`,
      `        elif field != "data":`,
      "            continue  # a blank line or a comment",
      `        elif data == "[DONE]":`,
      "            done = True",
      "        elif failed:",
      "            raise RuntimeError(data)",
      "        else:",
      `            print(json.loads(data)["content"], end="", flush=True)`,
      "print()",
      "if not done:",
      `    raise RuntimeError("the stream ended without [DONE]: the answer is incomplete")`,
    ] : [
      "with urllib.request.urlopen(request, timeout=600) as response:",
      body ? `    print(json.load(response)["content"])` : "    print(json.dumps(json.load(response), indent=2))",
    ]),
  );
}

// pythonValue writes a value that begins in a line with this indent.
function pythonValue(value, indent) {
  const inner = indent + "    ";
  if (Array.isArray(value)) {
    return `[\n${value.map((each) => `${inner}${pythonValue(each, inner)},\n`).join("")}${indent}]`;
  }
  if (value && typeof value === "object") {
    return `{\n${Object.entries(value).map(([name, each]) => `${inner}${JSON.stringify(name)}: ${pythonValue(each, inner)},\n`).join("")}${indent}}`;
  }
  if (typeof value === "string") return JSON.stringify(value);
  return { true: "True", false: "False", null: "None" }[value] ?? String(value);
}

function go({ method, address, key, body }) {
  const imports = ["fmt", "io", "log", "net/http", ...(key ? [] : ["os"]), ...(body ? ["strings"] : []),
    ...(body?.stream ? ["bufio"] : []), ...(body ? ["encoding/json"] : [])].sort();
  return lines(
    "package main",
    "",
    "import (",
    ...imports.map((name) => `\t"${name}"`),
    ")",
    "",
    "func main() {",
    body && `\tbody := ${goText(body)}`,
    `\treq, err := http.NewRequest("${method}", ${JSON.stringify(address)}, ${body ? "strings.NewReader(body)" : "nil"})`,
    "\tcheck(err)",
    `\treq.Header.Set("Authorization", ${key ? JSON.stringify(`Bearer ${key}`) : `"Bearer "+os.Getenv("BOTAPI_KEY")`})`,
    "\tresp, err := http.DefaultClient.Do(req)",
    "\tcheck(err)",
    "\tdefer resp.Body.Close()",
    "\tif resp.StatusCode != http.StatusOK {",
    "\t\tproblem, _ := io.ReadAll(resp.Body)",
    "\t\tlog.Fatal(resp.Status, \" \", string(problem))",
    "\t}",
    ...(body?.stream ? goStream : body ? [
      "\tvar answer struct{ Content string }",
      "\tcheck(json.NewDecoder(resp.Body).Decode(&answer))",
      "\tfmt.Println(answer.Content)",
      "}",
    ] : [
      "\tbots, err := io.ReadAll(resp.Body)",
      "\tcheck(err)",
      "\tfmt.Println(string(bots))",
      "}",
    ]),
    "",
    "func check(err error) {",
    "\tif err != nil {",
    "\t\tlog.Fatal(err)",
    "\t}",
    "}",
  );
}

const goStream = [
  "\tfailed := false",
  "\tfor lines := bufio.NewScanner(resp.Body); lines.Scan(); {",
  "\t\tdata, isData := strings.CutPrefix(lines.Text(), \"data: \")",
  "\t\tvar event struct{ Content string }",
  "\t\tswitch {",
  "\t\tcase lines.Text() == \"event: error\":",
  "\t\t\tfailed = true",
  "\t\tcase data == \"[DONE]\":",
  "\t\t\tfmt.Println()",
  "\t\t\treturn",
  "\t\tcase !isData: // a blank line or a comment",
  "\t\tcase json.Unmarshal([]byte(data), &event) != nil:",
  "\t\t\tlog.Fatal(\"not an event: \", data)",
  "\t\tcase failed:",
  "\t\t\tlog.Fatal(data)",
  "\t\tdefault:",
  "\t\t\tfmt.Print(event.Content)",
  "\t\t}",
  "\t}",
  "\tlog.Fatal(\"the stream ended without [DONE]: the answer is incomplete\")",
  "}",
];

// goText writes the body as a raw string. Backquotes occur only inside of JSON
// strings, so they can be written as an escape.
function goText(body) {
  return "`" + JSON.stringify(body).replaceAll("`", "\\u0060") + "`";
}

function javaScript({ method, address, key, body }) {
  return lines(
    "async function main() {",
    `  const response = await fetch(${JSON.stringify(address)}, {`,
    body && `    method: "${method}",`,
    `    headers: { Authorization: ${key ? JSON.stringify(`Bearer ${key}`) : "`Bearer ${process.env.BOTAPI_KEY}`"} },`,
    body && `    body: JSON.stringify(${indented(body, "    ")}),`,
    "  });",
    "  if (!response.ok) throw new Error(`${response.status} ${await response.text()}`);",
    ...(body?.stream ? javaScriptStream : [
      body ? "  console.log((await response.json()).content);" : "  console.log(JSON.stringify(await response.json(), null, 2));",
    ]),
    "}",
    "",
    "main();",
  );
}

const javaScriptStream = [
  "  let done = false, failed = false, rest = \"\";",
  "  for await (const text of response.body.pipeThrough(new TextDecoderStream())) {",
  "    const lines = (rest + text).split(\"\\n\");",
  "    rest = lines.pop();",
  "    for (const line of lines) {",
  "      if (line === \"event: error\") failed = true;",
  "      if (!line.startsWith(\"data: \")) continue; // a blank line or a comment",
  "      const data = line.slice(\"data: \".length);",
  "      if (data === \"[DONE]\") { done = true; continue; }",
  "      if (failed) throw new Error(data);",
  "      process.stdout.write(JSON.parse(data).content);",
  "    }",
  "  }",
  "  console.log();",
  "  if (!done) throw new Error(\"The stream ended without [DONE]: the answer is incomplete.\");",
];

// indented writes a value as JavaScript that begins in a line with this indent.
function indented(value, indent) {
  return JSON.stringify(value, null, 2).replace(/^( *)"([a-z_]+)":/gm, "$1$2:").replaceAll("\n", "\n" + indent);
}

function lines(...texts) {
  return texts.filter((text) => typeof text === "string").join("\n") + "\n";
}
