// The clients of ../clients.js with earlier versions of their libraries, which many have
// installed.
import * as ai4 from 'ai-4';
import * as ai5 from 'ai-5';
import * as ai6 from 'ai-6';
import { createOpenAI as createOpenAI1 } from 'ai-sdk-openai-1';
import { createOpenAI as createOpenAI2 } from 'ai-sdk-openai-2';
import { createOpenAI as createOpenAI3 } from 'ai-sdk-openai-3';
import { createOpenAICompatible as createOpenAICompatible0 } from 'ai-sdk-openai-compatible-0';
import { createOpenAICompatible as createOpenAICompatible1 } from 'ai-sdk-openai-compatible-1';
import { createOpenAICompatible as createOpenAICompatible2 } from 'ai-sdk-openai-compatible-2';
import OpenAI4 from 'openai-4';
import OpenAI5 from 'openai-5';
import OpenAI6 from 'openai-6';
import { aiSDK, completions, responses, streamed } from '../clients.js';

export const clients = {};

for (const [version, OpenAI] of [[4, OpenAI4], [5, OpenAI5], [6, OpenAI6]]) {
  for (const [name, methods] of [['', completions], ['-responses', responses], ['-helpers', streamed]]) {
    clients[`openai-${version}${name}`] = (baseURL, apiKey, model) => methods(new OpenAI({ baseURL, apiKey, maxRetries: 0 }), model);
  }
}

for (const [version, ai, createOpenAI, createOpenAICompatible] of [
  [4, ai4, createOpenAI1, createOpenAICompatible0],
  [5, ai5, createOpenAI2, createOpenAICompatible1],
  [6, ai6, createOpenAI3, createOpenAICompatible2],
]) {
  const store = { openai: { store: false } };
  clients[`ai-sdk-${version}-chat`] = (baseURL, apiKey, model) => aiSDK(ai, createOpenAI({ baseURL, apiKey }).chat(model));
  clients[`ai-sdk-${version}-responses`] = (baseURL, apiKey, model) => aiSDK(ai, createOpenAI({ baseURL, apiKey }).responses(model), store);
  clients[`ai-sdk-${version}-compatible`] = (baseURL, apiKey, model) => aiSDK(ai, createOpenAICompatible({ name: 'botapi', baseURL, apiKey })(model));
}
