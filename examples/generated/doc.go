// Package generated contains only tests. They check openapi.json, the description of
// the API at the root of the repository, with common tools:
//
//   - kin-openapi validates requests and responses of the handler against the
//     document, including the conformance cases;
//   - oapi-codegen and ogen generate clients from it, which are compiled and run
//     against the quickstart and the handler;
//   - Redocly CLI lints it;
//   - openapi-typescript and hey-api generate clients from it, too.
//
// The last two need Node.js 20.19 or newer with npm, and are skipped without it.
package generated
