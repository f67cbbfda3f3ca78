package plan

import _ "embed"

// schema is generated from the structs of plan.go: go test ./pkg/plan -run TestSchema -update.
//
//go:embed schema.json
var schema string

// Schema is the JSON Schema (draft 2020-12) of a plan, for editors and for services in other
// languages. It knows shapes and single values; what depends on several values (strategy none
// needs apply auto, distinct ids, sizes) only this package checks.
func Schema() []byte { return []byte(schema) }
