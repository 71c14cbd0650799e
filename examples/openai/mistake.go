package openai

import (
	"encoding/json"
	"net/http"
	"strings"

	"example.com/botapi"
)

// blame finds out what the client can change in its request, so that the runtime accepts it.
// A field that the client has not sent is a setting of the application, and no mistake of
// the client's.
func (f *Failure) blame(req *botapi.ChatRequest, said runtimeError) {
	if message := said.order(); message != "" {
		f.Mistake = mistake("messages", message, "value_error.messages.order")
		return
	}
	if f.Status != http.StatusOK && f.Status != http.StatusBadRequest && f.Status != http.StatusUnprocessableEntity {
		return
	}
	switch name := said.field(req.Extra, f.TooLong); {
	case name == "":
	case name == limitIn(req.Extra):
		f.blameLimit(req, said, name)
	case f.TooLong:
	case said.says("cannot both be specified"):
		f.Mistake = mistake(name, "the model accepts only one of temperature and top_p", notAccepted)
	default:
		f.Mistake = mistake(name, "the model does not accept this value", notAccepted)
	}
}

// blameLimit tells a limit of the answer that is too large from a conversation that is too
// long: runtimes add the two up, and the greater one is to blame. A runtime that does not
// know the field needs Config.MaxCompletionTokens.
func (f *Failure) blameLimit(req *botapi.ChatRequest, said runtimeError, name string) {
	limit := field[int64](req.Extra, name)
	if f.TooLong && (limit == nil || *limit <= promptTokens(req)) || said.code == "unsupported_parameter" {
		return
	}
	f.TooLong = false
	f.Mistake = mistake(name, "the model does not accept a limit of this size", notAccepted)
}

const notAccepted = "value_error.not_accepted"

// promptTokens is an estimate.
func promptTokens(req *botapi.ChatRequest) (tokens int64) {
	for _, m := range req.Messages {
		tokens += int64(len(m.Content))/4 + 1
	}
	return tokens
}

func mistake(name, msg, kind string) *botapi.ValidationError {
	return &botapi.ValidationError{Loc: []any{"body", name}, Msg: msg, Type: kind}
}

// order returns what is wrong with the order of the messages; empty if it is something else.
func (e runtimeError) order() string {
	switch {
	case e.says("must end with a user message", // Anthropic
		"expected last role user"): // Mistral
		return "the conversation must end with a message of the user"
	case e.says("roles must alternate"): // the chat templates of several models
		return "the roles of the messages must alternate between user and assistant"
	}
	return ""
}

// field returns the field of Extra that the runtime complains about, by the client's name;
// empty if there is none. Some runtimes name it apart from the message. Otherwise the
// message begins with it, or has a name in it that no other text has.
func (e runtimeError) field(extra map[string]json.RawMessage, tooLong bool) string {
	param, _, _ := strings.Cut(e.param, ".")
	if field := clientsName(extra, param); field != "" && !reservedFields[field] {
		return field
	}
	first, _, _ := strings.Cut(strings.TrimLeft(e.message, "`'\""), " ")
	if field := clientsName(extra, strings.TrimRight(first, "`'\":.,")); checkedFields[field] != nil {
		return field
	}
	for _, name := range []string{
		"max_completion_tokens", "max_tokens", "max_new_tokens", "temperature", "top_p", "presence_penalty", "frequency_penalty", "stop_sequences",
	} {
		if field := clientsName(extra, name); field != "" && e.says(name) {
			return field
		}
	}
	if tooLong && e.says("completion", "output tokens") {
		return limitIn(extra)
	}
	return ""
}

// clientsName returns the client's name for a field of a runtime's request; empty if the
// client has not sent it.
func clientsName(extra map[string]json.RawMessage, name string) string {
	switch name {
	case "max_tokens", "max_completion_tokens", "max_new_tokens", "max_output_tokens":
		return limitIn(extra)
	case "stop_sequences":
		name = "stop"
	}
	if !isSent(extra, name) {
		return ""
	}
	return name
}

// limitIn returns the name with which the client limits the answer; empty if it does not.
func limitIn(extra map[string]json.RawMessage) string {
	for _, name := range []string{"max_completion_tokens", "max_tokens"} {
		if isSent(extra, name) {
			return name
		}
	}
	return ""
}

func isSent(extra map[string]json.RawMessage, name string) bool {
	value, ok := extra[name]
	return ok && string(value) != "null"
}
