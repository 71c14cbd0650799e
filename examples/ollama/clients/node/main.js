// node main.js COMMAND BASE_URL KEY PROMPT
//
// prints lines of JSON: what the library returned, and {"error", "status"} if it has thrown.
import { Ollama } from 'ollama';

const [command, host, key, prompt] = process.argv.slice(2);
const ollama = new Ollama({ host, headers: { Authorization: `Bearer ${key}` } });
const print = (what) => process.stdout.write(JSON.stringify(what) + '\n');
const request = { model: 'helper', messages: [{ role: 'user', content: prompt }], options: { temperature: 0.5, num_predict: 100 }, keep_alive: '5m' };
const image = new Uint8Array([1, 2, 3]);

const commands = {
  list: async () => print(await ollama.list()),
  ps: async () => print(await ollama.ps()),
  show: async () => print(await ollama.show({ model: 'helper:latest' })),
  version: async () => print(await ollama.version()),
  ask: async () => print(await ollama.chat(request)),
  stream: async () => {
    for await (const part of await ollama.chat({ ...request, stream: true })) print(part);
  },
  format: async () => print(await ollama.chat({ ...request, format: 'json' })),
  tools: async () => print(await ollama.chat({ ...request, tools: [{ type: 'function', function: { name: 'f' } }] })),
  think: async () => print(await ollama.chat({ ...request, think: true })),
  image: async () => print(await ollama.chat({ ...request, messages: [{ role: 'user', content: prompt, images: [image] }] })),
  abort: async () => {
    for await (const part of await ollama.chat({ ...request, stream: true })) {
      print(part);
      ollama.abort();
    }
  },
};

try {
  await commands[command]();
} catch (error) {
  print({ error: String(error.message), status: error.status_code ?? 0 });
}
