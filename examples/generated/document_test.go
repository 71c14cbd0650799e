package generated

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"example.com/botapi"
	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"github.com/matryer/is"
)

// A document validates exchanges against openapi.json, and records which of the
// described responses it has seen.
type document struct {
	*openapi3.T
	router routers.Router
	seen   map[string]bool // "POST /v1/chat 200"
}

// loadDocument loads the document with stricter schemas. The document itself allows
// additional fields in responses, for later versions; today's responses must have none.
func loadDocument(t *testing.T) *document {
	is := is.New(t)
	t.Helper()
	text, err := closeSchemas(botapi.OpenAPI, "Bot", "BotResponse", "Error", "HTTPValidationError", "ValidationError")
	is.NoErr(err)
	api, err := openapi3.NewLoader().LoadFromData(text)
	is.NoErr(err)
	is.NoErr(api.Validate(t.Context(), openapi3.EnableExamplesValidation()))
	router, err := gorillamux.NewRouter(api)
	is.NoErr(err)
	return &document{T: api, router: router, seen: map[string]bool{}}
}

func closeSchemas(text string, names ...string) ([]byte, error) {
	var api map[string]any
	if err := json.Unmarshal([]byte(text), &api); err != nil {
		return nil, err
	}
	schemas := api["components"].(map[string]any)["schemas"].(map[string]any)
	for _, name := range names {
		schemas[name].(map[string]any)["additionalProperties"] = false
	}
	return json.Marshal(api)
}

// An exchange is a request and its response.
type exchange struct {
	request  *http.Request
	sent     []byte
	response *http.Response
	received []byte
}

// checkRequest returns an error if the document does not allow the request. The
// library reads only the first JSON value, in any encoding. So checkRequest itself
// checks that the body is a single value in UTF-8, as application/json requires.
func (d *document) checkRequest(ctx context.Context, x exchange) error {
	if len(x.sent) > 0 && !(json.Valid(x.sent) && utf8.Valid(x.sent)) {
		return errors.New("the body is not application/json")
	}
	input, err := d.input(x)
	if err != nil {
		return err
	}
	return openapi3filter.ValidateRequest(ctx, input)
}

// checkResponse returns an error if the document does not describe the response's
// status, headers or body.
func (d *document) checkResponse(ctx context.Context, x exchange) error {
	input, err := d.input(x)
	if err != nil {
		return err
	}
	d.see(input.Route, x.response.StatusCode)
	if err := checkHeaderNames(input.Route, x.response); err != nil {
		return err
	}
	err = openapi3filter.ValidateResponse(ctx, &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input,
		Status:                 x.response.StatusCode,
		Header:                 x.response.Header,
		Body:                   io.NopCloser(bytes.NewReader(x.received)),
		Options:                input.Options,
	})
	if err != nil || mediaType(x.response) != "text/event-stream" {
		return err
	}
	return d.checkStream(string(x.received))
}

// input finds the operation of a request. The document describes the 405 of a path
// as a response of the allowed method.
func (d *document) input(x exchange) (*openapi3filter.RequestValidationInput, error) {
	request := x.request.Clone(context.Background())
	request.Body = io.NopCloser(bytes.NewReader(x.sent))
	request.ContentLength = int64(len(x.sent))
	request.URL.Scheme, request.URL.Host = "", ""
	if x.response != nil && x.response.StatusCode == http.StatusMethodNotAllowed {
		request.Method, _, _ = strings.Cut(x.response.Header.Get("Allow"), ",")
	}
	if request.Method == http.MethodHead {
		request.Method = http.MethodGet // the document describes only GET
	}
	route, parameters, err := d.router.FindRoute(request)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", request.Method, request.URL.Path, err)
	}
	return &openapi3filter.RequestValidationInput{
		Request:    request,
		PathParams: parameters,
		Route:      route,
		Options: &openapi3filter.Options{
			IncludeResponseStatus: true,
			AuthenticationFunc:    checkKey,
			ExcludeResponseBody:   x.request.Method == http.MethodHead,
		},
	}, nil
}

func checkKey(_ context.Context, input *openapi3filter.AuthenticationInput) error {
	if scheme := input.SecurityScheme; scheme.Type != "http" || scheme.Scheme != "bearer" {
		return fmt.Errorf("the handler does not have this security scheme: %s %s", scheme.Type, scheme.Scheme)
	}
	header := input.RequestValidationInput.Request.Header.Get("Authorization")
	if _, key, _ := strings.Cut(header, " "); key == "" {
		return errors.New("no key")
	}
	return nil
}

// checkHeaderNames returns an error for a header that the document does not
// describe. Headers that net/http sets need no description.
func checkHeaderNames(route *routers.Route, response *http.Response) error {
	described := route.Operation.Responses.Status(response.StatusCode)
	if described == nil {
		described = route.Operation.Responses.Default()
	}
	known := []string{"Content-Type", "Content-Length", "Date", "Connection"}
	for name := range described.Value.Headers {
		known = append(known, http.CanonicalHeaderKey(name))
	}
	for name := range response.Header {
		if !slices.Contains(known, name) {
			return fmt.Errorf("status %d: the header %s is not described", response.StatusCode, name)
		}
	}
	return nil
}

// checkStream validates the data of a stream's events.
func (d *document) checkStream(text string) error {
	for event := range strings.SplitSeq(strings.TrimSuffix(text, "\n\n"), "\n\n") {
		for strings.HasPrefix(event, ": keep-alive\n") {
			event = strings.TrimPrefix(event, ": keep-alive\n")
		}
		schema := "BotResponse"
		if data, isError := strings.CutPrefix(event, "event: error\n"); isError {
			schema, event = "Error", data
		}
		data, ok := strings.CutPrefix(event, "data: ")
		if !ok {
			return fmt.Errorf("not an event that the document describes: %q", event)
		}
		if data == "[DONE]" {
			continue
		}
		if err := d.checkJSON(schema, data); err != nil {
			return fmt.Errorf("event %q: %w", event, err)
		}
		if schema == "Error" && !strings.Contains(data, `,"status":`) {
			return fmt.Errorf("event %q: no status", event)
		}
	}
	return nil
}

func (d *document) checkJSON(schema, text string) error {
	var value any
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		return err
	}
	return d.Components.Schemas[schema].Value.VisitJSON(value, openapi3.EnableJSONSchema2020())
}

func (d *document) see(route *routers.Route, status int) {
	described := fmt.Sprint(status)
	if route.Operation.Responses.Status(status) == nil {
		described = "default"
	}
	d.seen[route.Method+" "+route.Path+" "+described] = true
}

// unseen lists the described responses that no exchange has had.
func (d *document) unseen() []string {
	var unseen []string
	for path, item := range d.Paths.Map() {
		for method, operation := range item.Operations() {
			for status := range operation.Responses.Map() {
				if response := method + " " + path + " " + status; !d.seen[response] {
					unseen = append(unseen, response)
				}
			}
		}
	}
	slices.Sort(unseen)
	return unseen
}

func mediaType(response *http.Response) string {
	before, _, _ := strings.Cut(response.Header.Get("Content-Type"), ";")
	return before
}

func init() {
	openapi3filter.RegisterBodyDecoder("text/event-stream", openapi3filter.PlainBodyDecoder)
}
