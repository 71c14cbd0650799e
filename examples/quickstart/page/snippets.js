// Writes a call of the API as a program in each language. The programs are
// complete, need no libraries, and work as they are copied.

// languages has the writer and the syntax of each language. write takes {method,
// address, key, body, streams, answerKey}; body is undefined for a GET or a DELETE, which
// has no response body, and answerKey empty without an Idempotency-Key. The body is the
// JSON text of an object, which the program sends as it is: as a value of the language, its
// numbers might change. Without a key, the program reads the environment variable
// BOTAPI_KEY.
export const languages = {
  curl: { colours: "shell", run: "Paste it into a shell.", write: curl },
  Python: { colours: "python", run: "Save it as call.py, and run: python3 call.py", write: python },
  Go: { colours: "go", run: "Save it as call.go, and run: go run call.go", write: go },
  JavaScript: { colours: "javascript", run: "Save it as call.js, and run: node call.js", write: javaScript },
};

function curl({ method, address, key, body, streams, answerKey }) {
  const authorization = key ? shellWord(`Authorization: Bearer ${key}`) : `"Authorization: Bearer $BOTAPI_KEY"`;
  const named = answerKey ? ` \\\n  -H ${shellWord(`Idempotency-Key: ${answerKey}`)}` : "";
  return lines(
    `curl ${streams ? "-N " : ""}${method === "DELETE" ? "-i -X DELETE " : ""}${shellWord(address)} \\`,
    `  -H ${authorization}${named}${body ? " \\" : ""}`,
    body && `  -d ${shellWord(inOneLine(body))}`,
  );
}

// inOneLine removes the white space between the tokens of a JSON text.
function inOneLine(json) {
  return json.replace(/("(?:[^"\\]|\\.)*")|\s+/g, "$1");
}

function shellWord(text) {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

function python({ method, address, key, body, streams, answerKey }) {
  return lines(
    "import json",
    !key && "import os",
    "import urllib.error",
    "import urllib.request",
    "",
    body && `body = r"""${body}"""\n`, // a JSON text has no three quotation marks in a row
    "request = urllib.request.Request(",
    `    ${JSON.stringify(address)},`,
    `    headers={"Authorization": ${key ? JSON.stringify(`Bearer ${key}`) : `"Bearer " + os.environ["BOTAPI_KEY"]`}${answerKey && `, "Idempotency-Key": ${JSON.stringify(answerKey)}`}},`,
    method === "DELETE" && `    method="DELETE",`,
    body && "    data=body.encode(),",
    ")",
    "try:",
    `    response = urllib.request.urlopen(request, timeout=${streams ? 60 : 600})`,
    "except urllib.error.HTTPError as error:",
    "    raise SystemExit(f\"{error.code} {error.read().decode()}\")",
    ...(streams ? [
      "done = failed = False",
      "with response:",
      "    for line in response:",
      `        field, _, data = line.decode().rstrip("\\r\\n").partition(": ")`,
      `        if field == "event":`,
      `            failed = data == "error"`,
      `        elif field != "data":`,
      "            continue  # a blank line or a comment",
      `        elif data == "[DONE]":`,
      "            done = True",
      "        elif failed:",
      "            raise SystemExit(data)",
      "        else:",
      `            print(json.loads(data)["content"], end="", flush=True)`,
      "print()",
      "if not done:",
      `    raise SystemExit("the stream ended without [DONE]: the answer is incomplete")`,
    ] : [
      "with response:",
      method === "DELETE" ? "    print(response.status)" : body ? `    print(json.load(response)["content"])` : "    print(json.dumps(json.load(response), indent=2))",
    ]),
  );
}

function go({ method, address, key, body, streams, answerKey }) {
  const imports = ["fmt", "io", "log", "net/http", ...(key ? [] : ["os"]), ...(body ? ["strings"] : []),
    ...(streams ? ["bufio"] : []), ...(body ? ["encoding/json"] : [])].sort();
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
    answerKey && `\treq.Header.Set("Idempotency-Key", ${JSON.stringify(answerKey)})`,
    "\tresp, err := http.DefaultClient.Do(req)",
    "\tcheck(err)",
    "\tdefer resp.Body.Close()",
    `\tif resp.StatusCode != http.Status${method === "DELETE" ? "NoContent" : "OK"} {`,
    "\t\tproblem, _ := io.ReadAll(resp.Body)",
    "\t\tlog.Fatal(resp.Status, \" \", string(problem))",
    "\t}",
    ...(streams ? goStream : body ? [
      "\tvar answer struct{ Content string }",
      "\tcheck(json.NewDecoder(resp.Body).Decode(&answer))",
      "\tfmt.Println(answer.Content)",
    ] : method === "DELETE" ? ["\tfmt.Println(resp.Status)"] : [
      "\tbots, err := io.ReadAll(resp.Body)",
      "\tcheck(err)",
      "\tfmt.Println(string(bots))",
    ]),
    "}",
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
  "\tlines := bufio.NewScanner(resp.Body)",
  "\tlines.Buffer(nil, 64<<20) // the longest event",
  "\tfor lines.Scan() {",
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
];

// goText writes the body as a raw string. What such a string cannot contain occurs
// only inside of JSON strings, where it can be written as an escape.
function goText(body) {
  return "`" + body.replaceAll("`", "\\u0060").replaceAll("\ufeff", "\\ufeff") + "`";
}

function javaScript({ method, address, key, body, streams, answerKey }) {
  return lines(
    body && `const body = \`${body.replace(/[\\`]|\$(?=\{)/g, "\\$&")}\`;\n`,
    "async function main() {",
    `  const response = await fetch(${JSON.stringify(address)}, {`,
    method !== "GET" && `    method: "${method}",`,
    `    headers: { Authorization: ${key ? JSON.stringify(`Bearer ${key}`) : "`Bearer ${process.env.BOTAPI_KEY}`"}${answerKey && `, "Idempotency-Key": ${JSON.stringify(answerKey)}`} },`,
    body && "    body,",
    "  });",
    "  if (!response.ok) throw new Error(`${response.status} ${await response.text()}`);",
    ...(streams ? javaScriptStream : [
      method === "DELETE" ? "  console.log(response.status);" : body ? "  console.log((await response.json()).content);" : "  console.log(JSON.stringify(await response.json(), null, 2));",
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

function lines(...texts) {
  return texts.filter((text) => typeof text === "string").join("\n") + "\n";
}
