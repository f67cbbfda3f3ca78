package events

import (
	"embed"
	"fmt"
	"strings"
)

// schemaFiles are generated from the structs of this package by the test of this file (go test -run Schemas -update).
//
//go:embed schemas/*.json
var schemaFiles embed.FS

// PlanShowType names the schema of a View.
const (
	PlanShowType = "warmfleet.plan-show.v1"
	EventType    = "warmfleet.event.v1"
)

// Schemas returns the JSON Schemas (2020-12) of what crosses process borders, by message type: SubmissionType,
// CommandType, EventType, PlanShowType. The inside of a plan has its schema in package plan.
func Schemas() map[string][]byte {
	entries, err := schemaFiles.ReadDir("schemas")
	if err != nil {
		panic(fmt.Sprintf("events: read embedded schemas: %v", err)) // they are part of the program
	}
	schemas := map[string][]byte{}
	for _, e := range entries {
		b, err := schemaFiles.ReadFile("schemas/" + e.Name())
		if err != nil {
			panic(fmt.Sprintf("events: read embedded schema %q: %v", e.Name(), err))
		}
		schemas[strings.TrimSuffix(e.Name(), ".json")] = b
	}
	return schemas
}
