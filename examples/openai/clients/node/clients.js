// One client of each library, with the same methods: models lists the models, ask
// requests a complete answer, stream yields the fragments of an answer.
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { ChatOpenAI } from '@langchain/openai';
import { generateText, streamText } from 'ai';
import { randomUUID } from 'node:crypto';
import OpenAI from 'openai';

const messages = (prompt) => [{ role: 'user', content: prompt }];

// Without an idempotencyHeader, the library ignores the option idempotencyKey. With one, it
// makes a key for each request that has none, and sends the same key when it retries.
class IdempotentOpenAI extends OpenAI {
  idempotencyHeader = 'Idempotency-Key';
}

export const clients = {
  openai(baseURL, apiKey, model) {
    const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
    const completions = client.chat.completions;
    return {
      models: async () => (await client.models.list()).data.map((m) => m.id),
      async ask(prompt, signal) {
        const answer = await completions.create({ model, messages: messages(prompt) }, { signal });
        return answer.choices[0].message.content;
      },
      async *stream(prompt, signal) {
        const chunks = await completions.create({ model, messages: messages(prompt), stream: true }, { signal });
        for await (const chunk of chunks) yield chunk.choices[0]?.delta?.content ?? '';
      },
    };
  },

  // ask sends the key that the library makes, stream always the same one.
  'openai-idempotent'(baseURL, apiKey, model) {
    const completions = new IdempotentOpenAI({ baseURL, apiKey }).chat.completions;
    const idempotencyKey = randomUUID();
    return {
      async ask(prompt, signal) {
        const answer = await completions.create({ model, messages: messages(prompt) }, { signal });
        return answer.choices[0].message.content;
      },
      async *stream(prompt, signal) {
        const chunks = await completions.create({ model, messages: messages(prompt), stream: true }, { signal, idempotencyKey });
        for await (const chunk of chunks) yield chunk.choices[0]?.delta?.content ?? '';
      },
    };
  },

  'ai-sdk'(baseURL, apiKey, model) {
    const provider = createOpenAICompatible({ name: 'botapi', baseURL, apiKey });
    const options = (prompt, abortSignal) => ({ model: provider(model), messages: messages(prompt), abortSignal, maxRetries: 0 });
    return {
      ask: async (prompt, signal) => (await generateText(options(prompt, signal))).text,
      async *stream(prompt, signal) {
        const answer = streamText({ ...options(prompt, signal), onError() {} });
        for await (const part of answer.fullStream) {
          if (part.type === 'text-delta') yield part.text;
          if (part.type === 'error') throw part.error;
        }
      },
    };
  },

  langchain(baseURL, apiKey, model) {
    const chat = new ChatOpenAI({ model, apiKey, maxRetries: 0, configuration: { baseURL } });
    return {
      ask: async (prompt, signal) => (await chat.invoke(prompt, { signal })).content,
      async *stream(prompt, signal) {
        for await (const chunk of await chat.stream(prompt, { signal })) yield chunk.content;
      },
    };
  },
};
