// One client of each library and API, with the same methods: models lists the models, ask
// requests a complete answer, stream yields the fragments of an answer, useTool requests an
// answer for which the model may call a tool, continue sends a prompt, and then another one
// as the next turn of the same conversation, endings lists how an answer and a stream have
// ended. What makes the methods of a client is exported for earlier/clients.js.
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { ChatOpenAI } from '@langchain/openai';
import { Agent, OpenAIProvider, Runner, setTracingDisabled, tool } from '@openai/agents';
import { generateText } from '@xsai/generate-text';
import { listModels } from '@xsai/model';
import { streamText } from '@xsai/stream-text';
import * as ai from 'ai';
import { randomUUID } from 'node:crypto';
import OpenAI from 'openai';

const messages = (prompt) => [{ role: 'user', content: prompt }];
const parameters = { type: 'object', properties: {}, required: [], additionalProperties: false };

// Without an idempotencyHeader, the library ignores the option idempotencyKey. With one, it
// makes a key for each request that has none, and sends the same key when it retries.
class IdempotentOpenAI extends OpenAI {
  idempotencyHeader = 'Idempotency-Key';
}

export const completions = (client, model, options = {}) => ({
  models: async () => (await client.models.list()).data.map((m) => m.id),
  async ask(prompt, signal) {
    const answer = await client.chat.completions.create({ model, messages: messages(prompt) }, { signal });
    return answer.choices[0].message.content;
  },
  async *stream(prompt, signal) {
    const chunks = await client.chat.completions.create({ model, messages: messages(prompt), stream: true }, { signal, ...options });
    for await (const chunk of chunks) yield chunk.choices[0]?.delta?.content ?? '';
  },
  async continue(first, second) {
    const turns = messages(first);
    const answer = await client.chat.completions.create({ model, messages: turns });
    const next = await client.chat.completions.create({ model, messages: [...turns, answer.choices[0].message, ...messages(second)] });
    return next.choices[0].message.content;
  },
  useTool: (prompt) => client.chat.completions.create({ model, messages: messages(prompt), tools: [{ type: 'function', function: { name: 'f', parameters } }] }),
});

export const responses = (client, model, options = {}) => ({
  models: async () => (await client.models.list()).data.map((m) => m.id),
  ask: async (prompt, signal) => (await client.responses.create({ model, input: prompt }, { signal })).output_text,
  async *stream(prompt, signal) {
    const events = await client.responses.create({ model, input: prompt, stream: true }, { signal, ...options });
    for await (const event of events) if (event.type === 'response.output_text.delta') yield event.delta;
  },
  async continue(first, second) {
    const answer = await client.responses.create({ model, input: first });
    return (await client.responses.create({ model, input: [...messages(first), ...answer.output, ...messages(second)] })).output_text;
  },
  useTool: (prompt) => client.responses.create({ model, input: prompt, tools: [{ type: 'function', name: 'f', parameters, strict: true }] }),
});

// The library's helpers collect the whole answer, and check the events on the way.
export const streamed = (client, model) => ({
  async ask(prompt, signal) {
    const { completions } = client.chat.completions.stream ? client.chat : client.beta.chat; // beta in openai 4
    const answer = await completions.stream({ model, messages: messages(prompt) }, { signal }).finalChatCompletion();
    return answer.choices[0].message.content ?? ''; // openai 4 and 5 have null for an empty text
  },
  async *stream(prompt, signal) {
    const stream = client.responses.stream({ model, input: prompt }, { signal });
    let text = '';
    for await (const event of stream) {
      if (event.type !== 'response.output_text.delta') continue;
      text += event.delta;
      yield event.delta;
    }
    const answer = await stream.finalResponse();
    const whole = answer.output[0].content.map((part) => part.text).join(''); // openai 4 has no output_text here
    if (whole !== text) throw new Error(`the events have ${text}, the response has ${whole}`);
  },
  useTool: (prompt) => client.responses.stream({ model, input: prompt, tools: [{ type: 'function', name: 'f', parameters, strict: true }] }).finalResponse(),
});

export const aiSDK = ({ generateText, streamText, jsonSchema, tool }, model, providerOptions) => {
  const options = (prompt, abortSignal) => ({ model, messages: messages(prompt), abortSignal, maxRetries: 0, providerOptions });
  const schema = jsonSchema(parameters);
  const tools = { f: tool({ inputSchema: schema, parameters: schema, execute: () => '' }) }; // parameters in AI SDK 4
  return {
    ask: async (prompt, signal) => (await generateText(options(prompt, signal))).text,
    async *stream(prompt, signal) {
      const answer = streamText({ ...options(prompt, signal), onError() {} });
      for await (const part of answer.fullStream) {
        if (part.type === 'text-delta') yield part.text ?? part.textDelta; // textDelta in AI SDK 4
        if (part.type === 'error') throw part.error;
      }
    },
    async continue(first, second) {
      const { response } = await generateText(options(first));
      return (await generateText({ ...options(), messages: [...messages(first), ...response.messages, ...messages(second)] })).text;
    },
    async endings(prompt) {
      const answer = await generateText(options(prompt));
      const streamed = streamText(options(prompt));
      for await (const part of streamed.fullStream) if (part.type === 'error') throw part.error;
      return [answer.finishReason, await streamed.finishReason];
    },
    useTool: (prompt) => generateText({ ...options(prompt), tools }),
  };
};

const langchain = (chat) => ({
  ask: async (prompt, signal) => (await chat.invoke(prompt, { signal })).text,
  async *stream(prompt, signal) {
    for await (const chunk of await chat.stream(prompt, { signal })) yield chunk.text;
  },
  async continue(first, second) {
    const answer = await chat.invoke(first);
    return (await chat.invoke([...messages(first), answer, ...messages(second)])).text;
  },
  useTool: (prompt) => chat.invoke(prompt, { tools: [{ type: 'function', function: { name: 'f', parameters } }] }),
});

const agents = (openAIClient, model, useResponses) => {
  setTracingDisabled(true); // the library sends traces to OpenAI otherwise
  const runner = new Runner({ modelProvider: new OpenAIProvider({ openAIClient, useResponses }) });
  const agent = new Agent({ name: 'Helper', instructions: 'Do as you are told', model });
  const withTool = agent.clone({ tools: [tool({ name: 'f', description: 'f', parameters, strict: true, execute: () => '' })] });
  return {
    ask: async (prompt, signal) => (await runner.run(agent, prompt, { signal })).finalOutput,
    async *stream(prompt, signal) {
      const result = await runner.run(agent, prompt, { signal, stream: true });
      for await (const text of result.toTextStream()) yield text;
      await result.completed;
    },
    async continue(first, second) {
      const { history } = await runner.run(agent, first);
      return (await runner.run(agent, [...history, ...messages(second)])).finalOutput;
    },
    useTool: (prompt) => runner.run(withTool, prompt),
  };
};

const xsai = (baseURL, apiKey, model) => {
  const options = (prompt, abortSignal) => ({ baseURL, apiKey, model, messages: messages(prompt), abortSignal });
  const withStatus = (error) => { // the library's errors have the response
    throw Object.assign(error, { status: error.response?.status });
  };
  const streamed = (prompt, signal) => {
    const answer = streamText({ ...options(prompt, signal), streamOptions: { includeUsage: true } });
    // All of these fail with the stream, and Node.js would end at a failure that nobody awaits.
    for (const name of ['messages', 'steps', 'usage', 'totalUsage']) answer[name].catch(() => {});
    return answer;
  };
  return {
    models: async () => (await listModels({ baseURL, apiKey })).map((m) => m.id),
    ask: async (prompt, signal) => (await generateText(options(prompt, signal)).catch(withStatus)).text,
    async *stream(prompt, signal) {
      try {
        for await (const text of streamed(prompt, signal).textStream) yield text;
      } catch (error) {
        withStatus(error);
      }
    },
    async continue(first, second) {
      const { messages: turns } = await generateText(options(first));
      return (await generateText({ ...options(), messages: [...turns, ...messages(second)] })).text;
    },
    async endings(prompt) {
      const answer = await generateText(options(prompt));
      const { textStream, steps } = streamed(prompt);
      for await (const _ of textStream);
      return [answer.finishReason, (await steps).at(-1).finishReason];
    },
    useTool: (prompt) => generateText({ ...options(prompt), tools: [{ type: 'function', function: { name: 'f', parameters }, execute: () => '' }] }).catch(withStatus),
  };
};

const openAI = (baseURL, apiKey) => new OpenAI({ baseURL, apiKey, maxRetries: 0 });

// idempotent has ask send the key that the library makes, and stream always the same one.
const idempotent = (methods) => (baseURL, apiKey, model) =>
  methods(new IdempotentOpenAI({ baseURL, apiKey }), model, { idempotencyKey: randomUUID() });

export const clients = {
  openai: (baseURL, apiKey, model) => completions(openAI(baseURL, apiKey), model),
  'openai-responses': (baseURL, apiKey, model) => responses(openAI(baseURL, apiKey), model),
  'openai-helpers': (baseURL, apiKey, model) => streamed(openAI(baseURL, apiKey), model),
  'openai-idempotent': idempotent(completions),
  'openai-responses-idempotent': idempotent(responses),
  'ai-sdk-compatible': (baseURL, apiKey, model) => aiSDK(ai, createOpenAICompatible({ name: 'botapi', baseURL, apiKey })(model)),
  'ai-sdk-chat': (baseURL, apiKey, model) => aiSDK(ai, createOpenAI({ baseURL, apiKey }).chat(model)),
  'ai-sdk-stateless': (baseURL, apiKey, model) => aiSDK(ai, createOpenAI({ baseURL, apiKey })(model), { openai: { store: false } }),
  'ai-sdk-responses': (baseURL, apiKey, model) => aiSDK(ai, createOpenAI({ baseURL, apiKey })(model)),
  langchain: (baseURL, apiKey, model) => langchain(new ChatOpenAI({ model, apiKey, maxRetries: 0, configuration: { baseURL } })),
  'langchain-responses': (baseURL, apiKey, model) =>
    langchain(new ChatOpenAI({ model, apiKey, maxRetries: 0, configuration: { baseURL }, useResponsesApi: true })),
  'agents-chat': (baseURL, apiKey, model) => agents(openAI(baseURL, apiKey), model, false),
  'agents-responses': (baseURL, apiKey, model) => agents(openAI(baseURL, apiKey), model),
  xsai,
};
