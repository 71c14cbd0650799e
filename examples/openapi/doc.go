// Package openapi holds tests only. They check openapi.json, the description
// of the interface at the root of the repository, with tools that others use:
//
//   - every request and answer of the real handler, the conformance cases
//     among them, is validated against the document with kin-openapi;
//   - the document is linted with Redocly CLI;
//   - a TypeScript client is generated from it, compiled, and run against the
//     real handler.
//
// The last two need Node.js 20.19 or newer with npm, and are skipped without it.
package openapi
