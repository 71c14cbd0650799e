// node main.js CLIENT BASE_URL KEY MODEL
//
// runs the commands on its standard input, one per line: {"do": "models" | "ask" |
// "stream", "prompt"}. For each command it prints lines of JSON: {"models"} or
// {"text"}, and at the end {"error"} or {"done": true}. The command {"do": "abort"}
// aborts the one before it.
import { createInterface } from 'node:readline';
import { clients } from './clients.js';

const [name, ...options] = process.argv.slice(2);
const client = clients[name](...options);
const reply = (what) => process.stdout.write(JSON.stringify(what) + '\n');

let controller;
async function run({ do: what, prompt }) {
  controller = new AbortController();
  try {
    if (what === 'models') reply({ models: await client.models() });
    if (what === 'ask') reply({ text: await client.ask(prompt, controller.signal) });
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
