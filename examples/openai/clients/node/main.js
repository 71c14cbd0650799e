// node main.js CLIENT BASE_URL KEY MODEL
//
// does what each line of its standard input asks for, {"do": "models" | "ask" |
// "stream", "prompt"}, and tells on its standard output, a line of JSON for each:
// {"models"}, {"text"}, and at last {"error"} or {"done": true}. The line
// {"do": "leave"} aborts what is being done.
import { createInterface } from 'node:readline';
import { clients } from './clients.js';

const [name, ...place] = process.argv.slice(2);
const client = clients[name](...place);
const tell = (what) => process.stdout.write(JSON.stringify(what) + '\n');

let leaving;
async function run({ do: what, prompt }) {
  leaving = new AbortController();
  try {
    if (what === 'models') tell({ models: await client.models() });
    if (what === 'ask') tell({ text: await client.ask(prompt, leaving.signal) });
    if (what === 'stream') for await (const text of client.stream(prompt, leaving.signal)) tell({ text });
    tell({ done: true });
  } catch (error) {
    tell({ error: { status: error?.status ?? error?.statusCode ?? 0, message: String(error?.message ?? JSON.stringify(error)) } });
  }
}

createInterface({ input: process.stdin }).on('line', (line) => {
  const wish = JSON.parse(line);
  if (wish.do === 'leave') leaving.abort();
  else run(wish);
});
