package openai

import "maps"

// A limit is what bots do with a field that changes what an answer is: other values than
// those that ask for nothing are rejected, since the client would believe that they were
// honoured. A field that only tunes an answer has no limit, and reaches the engine in
// ChatRequest.Extra, which it may ignore. Values are compared, and not how they are written;
// null asks for nothing in any field.
type limit struct {
	nothing       []any  // the values that ask for nothing
	instead       string // what a client can do
	canBeHonoured bool   // an engine can, since its text is all that changes: Options.Honours
}

const (
	noTools    = `bots call no tools. Leave tools out, or send tool_choice "none"; in an agent or editor, choose a mode without tools`
	noLogprobs = "the engine reports no log probabilities. Leave the field out"
	onlyText   = "bots answer with text. Leave the field out"
	noStorage  = "bots store no responses. Send the whole conversation in each request"
)

// The limits of both APIs, as of openai-node 7.57 (November 2026). Their other fields only
// tune an answer: access_programs, frequency_penalty, image, logit_bias,
// max_completion_tokens, max_output_tokens, max_tokens, max_tool_calls, metadata,
// parallel_tool_calls, prediction, presence_penalty, prompt_cache_key,
// prompt_cache_options.mode and ttl, prompt_cache_retention, reasoning, reasoning_effort,
// safety_identifier, seed, service_tier, stop, temperature, top_p, user and verbosity.
var limits = map[string]limit{
	"audio":         {nil, onlyText, false},
	"function_call": {[]any{"none", "auto"}, noTools, false},
	"functions":     {[]any{[]any{}}, noTools, false},
	"logprobs":      {[]any{false}, noLogprobs, false},
	"modalities":    {[]any{[]any{}, []any{"text"}}, onlyText, false},
	"moderation":    {nil, "this service moderates no answer on request. Leave the field out", true},
	"n":             {[]any{1.0}, "a request has one answer. Send a request for each", false},
	"prompt_cache_options.prewarm": {[]any{false},
		"this service prepares no cache: it would answer. Leave the field out", true},
	"response_format":    {[]any{map[string]any{"type": "text"}}, "this service promises no format. Leave the field out, and ask for the format in a message", true},
	"store":              {[]any{false}, "bots store no answers. Leave the field out, or send false", false},
	"tool_choice":        {[]any{"none", "auto"}, noTools, false},
	"tools":              {[]any{[]any{}}, noTools, false},
	"top_logprobs":       {[]any{0.0}, noLogprobs, false},
	"web_search_options": {nil, "this service does not search the web. Leave the field out", true},
}

// The limits of the Responses API.
var responseLimits = merged(limits, map[string]limit{
	"background":           {[]any{false}, "answers are sent in their response. Leave the field out", false},
	"context_management":   {[]any{[]any{}}, "bots do not compact a conversation. Leave the field out", false},
	"conversation":         {nil, noStorage, false},
	"generate":             {[]any{true}, "bots always answer. Leave the field out", false},
	"include":              {[]any{[]any{}, []any{"reasoning.encrypted_content"}}, "responses have text only. Leave the field out", false}, // no response has reasoning
	"previous_response_id": {nil, noStorage + "; some clients do so with store: false", false},
	"prompt":               {nil, "there are no stored prompts. Send instructions and input", false},
	"truncation":           {[]any{"disabled"}, "this service does not shorten a conversation. Leave the field out", false},
})

func merged(all, more map[string]limit) map[string]limit {
	all = maps.Clone(all)
	maps.Copy(all, more)
	return all
}
