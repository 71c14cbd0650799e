// Package ollama serves bots with Ollama's own API, which chat programs for the desk, the
// editor and the home speak. To them, each bot is a model.
//
// [Routes] returns the routes for botapi.Options.
package ollama

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/jsonbody"
)

// Options configure the routes.
type Options struct {
	Bots   botapi.BotStore // required: lists the models. It is that of botapi.Options
	Prefix string          // before each path, such as "/ollama" if another route has /api/chat; may be empty
}

// Routes returns the routes of Ollama's API: POST /api/chat, GET /api/tags, POST /api/show,
// GET /api/ps, GET /api/version and GET /. A key is required for each. The context of each
// chat has an openai.Usage: the last line of an answer has the token counts that the
// engine reports there, and whether a limit ended the answer. Routes panics if Bots is nil.
func Routes(o Options) []botapi.Route {
	if o.Bots == nil {
		panic("ollama: Options.Bots is nil")
	}
	d := &door{o.Bots, time.Now().UTC()}
	route := func(method, path string, serve func(*http.Request) (botapi.Response, error)) botapi.Route {
		return botapi.Route{Patterns: []string{method + " " + o.Prefix + path}, Serve: serve, Errors: errorReply}
	}
	root := route("GET", "/", constant("text/plain; charset=utf-8", "Ollama is running")) // how clients look for an Ollama
	if o.Prefix != "" {
		root.Patterns = append(root.Patterns, "GET "+o.Prefix)
	}
	return []botapi.Route{
		root,
		route("POST", "/api/chat", d.chat),
		route("GET", "/api/tags", d.tags),
		route("POST", "/api/show", d.show),
		route("GET", "/api/ps", constant("application/json", `{"models":[]}`)), // those in memory, of which nothing is known
		// Of the Ollama whose API this is: clients compare it with the version that they need.
		route("GET", "/api/version", constant("application/json", `{"version":"0.17.4"}`)),
	}
}

func constant(contentType, body string) func(*http.Request) (botapi.Response, error) {
	return func(*http.Request) (botapi.Response, error) {
		return botapi.Reply{Header: http.Header{"Content-Type": {contentType}}, Body: []byte(body)}, nil
	}
}

type door struct {
	bots  botapi.BotStore
	since time.Time // a model has a time at which it was modified, and a bot has not
}

func (d *door) tags(r *http.Request) (botapi.Response, error) {
	bots, err := d.bots.Bots(r.Context())
	if err != nil {
		return nil, err
	}
	models := make([]map[string]any, len(bots))
	for i, bot := range bots {
		models[i] = map[string]any{
			"name": nameOf(bot), "model": nameOf(bot), "modified_at": d.since, "size": 0,
			"digest": fmt.Sprintf("%x", sha256.Sum256([]byte(bot.UID))), "details": details(bot),
		}
	}
	return jsonbody.Reply(map[string]any{"models": models})
}

func (d *door) show(r *http.Request) (botapi.Response, error) {
	model := ""
	_, err := jsonbody.ReadRequest(r, func(f jsonbody.Field) (err error) {
		text := model
		if f.Name == "model" || f.Name == "name" { // its older name, which Ollama's own client leaves empty
			text, err = f.Text()
		}
		model = cmp.Or(text, model)
		return err
	})
	if err != nil {
		return nil, err
	}
	bot, err := botapi.FindBot(r.Context(), d.bots, "", slug(r.Context(), model))
	if err != nil {
		return nil, err
	}
	return jsonbody.Reply(map[string]any{
		"modelfile": "", "parameters": "", "template": "", "modified_at": d.since, "details": details(bot),
		"model_info":   map[string]string{"general.architecture": bot.Model, "general.basename": bot.Name, "general.description": bot.Description},
		"capabilities": []string{"completion"},
	})
}

func details(bot botapi.Bot) map[string]any {
	return map[string]any{
		"family": bot.Model, "families": []string{bot.Model},
		"format": "", "parent_model": "", "parameter_size": "", "quantization_level": "",
	}
}

// latest is the tag of a model whose name has none.
const latest = ":latest"

// nameOf returns the name in lists, which has a tag, as in Ollama's own.
func nameOf(bot botapi.Bot) string {
	if strings.Contains(bot.Slug, ":") && !strings.HasSuffix(bot.Slug, latest) {
		return bot.Slug
	}
	return bot.Slug + latest
}

type modelKey struct{}

// slug returns the slug in the name of a model, and notes the name for errorReply.
func slug(ctx context.Context, model string) string {
	botapi.RequestFrom(ctx).SetValue(modelKey{}, model)
	return strings.TrimSuffix(model, latest)
}

func errorReply(ctx context.Context, f botapi.Failure) botapi.Reply {
	if model, isKnown := botapi.RequestFrom(ctx).Value(modelKey{}).(string); isKnown && errors.Is(f.Err, botapi.ErrBotNotFound) {
		f.Detail = fmt.Sprintf("model '%s' not found", model)
	}
	if f.Status == http.StatusUnprocessableEntity {
		f.Status = http.StatusBadRequest
	}
	return botapi.Reply{Status: f.Status, Body: errorObject(f)}
}

func errorObject(f botapi.Failure) []byte {
	if len(f.Problems) > 0 { // the Detail begins with the path of a field of Extra
		f.Detail = strings.Replace(strings.TrimPrefix(f.Detail, "body."), maxTokens, numPredict, 1)
	}
	object, _ := json.Marshal(map[string]string{"error": f.Detail}) // a string cannot fail
	return object
}
