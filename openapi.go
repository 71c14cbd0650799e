package botapi

import _ "embed"

// OpenAPI describes the interface for tools: an OpenAPI 3.1 document in JSON,
// with every operation, schema, status and header. The handler does not serve
// it; a host that wants to sends it as application/json. Its paths are those of
// a handler at the root of a server: a host that mounts the handler elsewhere
// says so in the document's servers.
//
//go:embed openapi.json
var OpenAPI string
