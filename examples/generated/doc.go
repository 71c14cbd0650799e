// Package generated holds tests only. They check openapi.json, the description
// of the interface at the root of the repository, with tools that others use:
//
//   - every request and answer of the real handler, the conformance cases
//     among them, is validated against the document with kin-openapi;
//   - clients are generated from it with oapi-codegen and ogen, compiled, and
//     run against the quickstart and the real handler;
//   - the document is linted with Redocly CLI;
//   - clients are generated from it with openapi-typescript and hey-api, too.
//
// The last two need Node.js 20.19 or newer with npm, and are skipped without it.
package generated
