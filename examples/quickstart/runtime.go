package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/openai"
)

// A modelRuntime is a server with an OpenAI-compatible API, such as Ollama.
type modelRuntime struct {
	botapi.ChatEngine
	address, key, model string
	problem             error // the error of probe at the start, if any
}

// newRuntime returns nil if neither an address nor a model is given.
func newRuntime(address, model string) (*modelRuntime, error) {
	switch {
	case address == "" && model == "":
		return nil, nil
	case address == "":
		return nil, errors.New("-model needs -runtime, the address of the model's runtime")
	case model == "":
		return nil, errors.New("-runtime needs -model, the name of a model there")
	}
	key := os.Getenv("BOTAPI_RUNTIME_KEY")
	engine, err := openai.NewEngine(openai.Config{BaseURL: address, Key: key, Model: model})
	if err != nil {
		return nil, fmt.Errorf("-runtime: %w", err)
	}
	return &modelRuntime{ChatEngine: engine, address: address, key: key, model: model}, nil
}

// join adds a bot for the model: first in the list, or last if there was a
// problem at the start.
func (r *modelRuntime) join(bots []botapi.Bot) []botapi.Bot {
	if r == nil {
		return bots
	}
	bot := botapi.Bot{UID: "model", Slug: "model", Name: r.model, Description: "A real model, at " + r.host(), Model: r.model}
	if r.problem == nil {
		return slices.Insert(bots, 0, bot)
	}
	bot.Description = "At the start: " + r.problem.Error()
	return append(bots, bot)
}

// host returns the host and port only: the rest of the URL may contain a secret.
func (r *modelRuntime) host() string {
	return r.url().Host
}

func (r *modelRuntime) url() *url.URL {
	address, _ := url.Parse(r.address) // NewEngine has checked it
	return address
}

// Chat answers with the model. If the runtime fails before the answer begins,
// the error says what the person who runs the quickstart can do about it.
func (r *modelRuntime) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for text, err := range r.ChatEngine.Chat(ctx, req) {
			if !yield(text, r.explain(err)) {
				return
			}
		}
	}
}

func (r *modelRuntime) explain(err error) error {
	failure, failed := errors.AsType[*openai.Failure](err)
	answer, answered := errors.AsType[*botapi.StatusError](err)
	if !failed || !answered || failure.Begun {
		return err
	}
	detail := ""
	switch {
	case failure.Status == 0:
		detail = fmt.Sprintf("No model runtime answers at %s. Is it running?", r.host())
	case failure.Status == http.StatusUnauthorized:
		detail = fmt.Sprintf("The model runtime at %s rejects the key. Set BOTAPI_RUNTIME_KEY, and start the quickstart again", r.host())
	case failure.NoModel:
		detail = fmt.Sprintf("The model runtime at %s does not have the model %s. With Ollama: ollama pull %[2]s", r.host(), r.model)
	case failure.Status == http.StatusNotFound:
		detail = fmt.Sprintf("The server at %s has no OpenAI-compatible API at the address of -runtime. Such an address often ends in /v1", r.host())
	default:
		return err
	}
	return &botapi.StatusError{Status: answer.Status, Detail: detail, Err: err}
}

// probe returns a one-line error if the runtime or the model is unavailable, or if the
// address lacks its /v1.
func (r *modelRuntime) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	names, err := r.models(ctx, r.url())
	switch {
	case err == nil:
		return r.find(names)
	case !errors.Is(err, errNoList) && !errors.Is(err, errNotList):
		return err
	}
	if _, failed := r.models(ctx, r.url().JoinPath("v1")); failed == nil {
		return fmt.Errorf("the address of the model runtime lacks its /v1: start the quickstart with -runtime %s", r.withV1())
	}
	if errors.Is(err, errNoList) {
		return nil // a runtime without a list of models may work nevertheless
	}
	return fmt.Errorf("the server at %s is not a model runtime: %w; the address often ends in /v1", r.host(), err)
}

var (
	errNoList  = errors.New("there is no list of models")
	errNotList = errors.New("its list of models is something else")
)

// models returns the names of the models that a runtime lists.
func (r *modelRuntime) models(ctx context.Context, base *url.URL) ([]string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath("models").String(), nil)
	if err != nil {
		return nil, err
	}
	if r.key != "" {
		req.Header.Set("Authorization", "Bearer "+r.key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("no model runtime answers at %s: %w", r.host(), withoutURL(err))
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		return nil, fmt.Errorf("the model runtime at %s rejects the key: set BOTAPI_RUNTIME_KEY", r.host())
	case http.StatusOK:
		return readModels(resp.Body)
	}
	return nil, errNoList
}

// withV1 returns the address with /v1. A path or a query may contain a secret, and is not
// repeated.
func (r *modelRuntime) withV1() string {
	address := r.url()
	if address.User != nil || strings.Trim(address.Path, "/") != "" || address.RawQuery != "" {
		return "and /v1 at the end of its path"
	}
	return address.JoinPath("v1").String()
}

// withoutURL removes the URL from an error: it may contain a secret.
func withoutURL(err error) error {
	if failed, ok := errors.AsType[*url.Error](err); ok {
		return failed.Err
	}
	return err
}

// readModels reads a list of models: {"data": [{"id": "..."}]}. Ollama's data is null while
// it has none.
func readModels(body io.Reader) (names []string, err error) {
	var list struct{ Data json.RawMessage }
	var models []struct{ ID string }
	if json.NewDecoder(io.LimitReader(body, 1<<20)).Decode(&list) != nil || json.Unmarshal(list.Data, &models) != nil {
		return nil, errNotList
	}
	for _, model := range models {
		names = append(names, strings.TrimSuffix(model.ID, ":latest"))
	}
	return names, nil
}

// find looks for the model among those of the runtime. Ollama lists each model with a tag; in
// a request, the tag "latest" may be omitted.
func (r *modelRuntime) find(names []string) error {
	if slices.Contains(names, strings.TrimSuffix(r.model, ":latest")) {
		return nil
	}
	if len(names) == 0 {
		return fmt.Errorf("the model runtime at %s has no models; with Ollama: ollama pull %s", r.host(), r.model)
	}
	return fmt.Errorf("the model runtime at %s does not have the model %s; it has %s", r.host(), r.model, strings.Join(names, ", "))
}
