// Package docs holds the documents of this folder, for programs that show them.
package docs

import "embed"

// Files has each document by its name, such as "wire.md".
//
//go:embed *.md
var Files embed.FS
