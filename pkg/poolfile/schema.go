package poolfile

import _ "embed"

// schema is generated from the structs of poolfile.go: go test ./pkg/poolfile -run TestSchema -update.
//
//go:embed schema.json
var schema string

// Schema is the JSON Schema (draft 2020-12) of a pool file, for editors and for services in other languages. What
// depends on several values only this package checks.
func Schema() []byte { return []byte(schema) }
