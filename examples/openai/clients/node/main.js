// node main.js CLIENTS
//
// runs the commands on its standard input, one per line: {"client": [NAME, BASE_URL, KEY,
// MODEL], "do": "models" | "ask" | "stream" | "useTool" | "continue" | "endings", "prompt",
// "next"}. CLIENTS is a module with the clients. For each command it prints lines of JSON:
// {"models"}, {"text"} or {"endings"}, and at the end {"error"} or {"done": true}.
// The command {"do": "abort"} aborts the one before it.
import { createInterface } from 'node:readline';

const { clients } = await import(process.argv[2]);

const made = new Map();
function clientOf([name, ...options]) {
  const key = JSON.stringify([name, ...options]);
  if (!made.has(key)) made.set(key, clients[name](...options));
  return made.get(key);
}

const reply = (what) => process.stdout.write(JSON.stringify(what) + '\n');

let controller;
async function run({ client: which, do: what, prompt, next }) {
  controller = new AbortController();
  try {
    const client = clientOf(which);
    if (what === 'models') reply({ models: await client.models() });
    if (what === 'ask') reply({ text: await client.ask(prompt, controller.signal) });
    if (what === 'continue') reply({ text: await client.continue(prompt, next) });
    if (what === 'endings') reply({ endings: await client.endings(prompt) });
    if (what === 'useTool') await client.useTool(prompt);
    if (what === 'stream') for await (const text of client.stream(prompt, controller.signal)) reply({ text });
    reply({ done: true });
  } catch (error) {
    reply({ error: { status: error?.status ?? error?.statusCode ?? 0, message: String(error?.message ?? JSON.stringify(error)) } });
  }
}

createInterface({ input: process.stdin }).on('line', (line) => {
  const command = JSON.parse(line);
  if (command.do === 'abort') controller.abort();
  else run(command);
});
