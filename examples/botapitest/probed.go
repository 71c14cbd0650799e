package botapitest

import (
	"example.com/botapi"
	"example.com/botapi/examples/internal/probe"
)

// MinSecret is the least length of a secret of Probed: one that nobody guesses.
const MinSecret = 16

// Probed returns an engine for a service that examples/doctor checks. It passes each chat on to
// engine, unless the chat carries the secret: such a chat is the doctor's, and the probe answers
// it. So the doctor sees when a fragment was yielded, whether a disconnect has arrived and how
// often a chat was, and no model is asked.
//
//	Engine: botapitest.Probed(engine, os.Getenv("DOCTOR_SECRET")),
//
// With examples/resume, wrap the engine that it gets. A chat of the doctor needs a valid key, and
// counts under the limits. What it can ask for is bounded: 16 running answers, and of each 64 MiB
// of text and 10 minutes of waiting. What the probe has seen of the last 64 chats stays in memory
// for 10 minutes. The secret is compared in constant time, and logged nowhere.
//
// With an empty secret, Probed returns engine. It panics if a secret is shorter than MinSecret, or
// if engine is nil.
func Probed(engine botapi.ChatEngine, secret string) botapi.ChatEngine {
	switch {
	case engine == nil:
		panic("botapitest: Probed needs an engine")
	case secret == "":
		return engine
	case len(secret) < MinSecret:
		panic("botapitest: the secret of Probed is shorter than 16 bytes")
	}
	return probe.NewEngine(engine, secret)
}

// IsProbe reports whether Probed with this secret answers a chat itself. It is for applications
// that note which chats have asked a model, and send others again: a proxy may only repeat a chat
// that has asked none, and one of the doctor's counts as if it had.
func IsProbe(req *botapi.ChatRequest, secret string) bool {
	return secret != "" && probe.IsOrder(req, secret)
}
