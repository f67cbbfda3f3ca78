package poolfile

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	generate "github.com/invopop/jsonschema"
	validate "github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/warmfleet/warmfleet/pkg/plan"
)

var update = flag.Bool("update", false, "write schema.json anew from the structs")

func TestSchema_IsGenerated(t *testing.T) {
	r := &generate.Reflector{Mapper: mapType}
	for pkg, dir := range map[string]string{"github.com/warmfleet/warmfleet/pkg/poolfile": "./", "github.com/warmfleet/warmfleet/pkg/plan": "../plan"} {
		if err := r.AddGoComments(pkg, dir); err != nil {
			t.Fatal(err)
		}
	}
	s := r.Reflect(&Pool{})
	image := s.Definitions["Image"]
	s.Definitions["ImageSteps"] = image
	s.Definitions["Image"] = &generate.Schema{OneOf: []*generate.Schema{{Type: "string", Enum: []any{"auto"}}, {Ref: "#/$defs/ImageSteps"}}}
	got, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	if *update {
		if err := os.WriteFile("schema.json", got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(got), string(want)); diff != "" {
		t.Errorf("schema.json differs from the structs; run with -update (- structs, + file):\n%s", diff)
	}
}

// mapType is the schema of types that are not written as their Go type.
func mapType(t reflect.Type) *generate.Schema {
	switch t {
	case reflect.TypeFor[plan.Duration]():
		return &generate.Schema{Type: "string", Examples: []any{"90s", "25m", "1h30m"}}
	case reflect.TypeFor[plan.Network]():
		words := &generate.Schema{Type: "string", Enum: []any{plan.NetworkNone, plan.NetworkAllow}}
		return &generate.Schema{OneOf: []*generate.Schema{words, {Type: "array", Items: &generate.Schema{Type: "string"}}}}
	}
	return nil
}

func compileSchema(t testing.TB) *validate.Schema {
	t.Helper()
	doc, err := validate.UnmarshalJSON(bytes.NewReader(Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := validate.NewCompiler()
	if err := c.AddResource("pool.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("pool.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func validateJSON(s *validate.Schema, body []byte) error {
	doc, err := validate.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		return err
	}
	return s.Validate(doc)
}

func TestSchema_AcceptsTheExample(t *testing.T) {
	src, err := os.ReadFile("../../examples/pool.yaml")
	if err != nil {
		t.Fatal(err)
	}
	p, err := ParseYAML("pool.yaml", src)
	if err != nil {
		t.Fatal(err)
	}
	s := compileSchema(t)
	for _, body := range []string{string(p.Canonical()), `{"version":1,"name":"a","resource":{"repo":"/r"},"image":"auto"}`} {
		if err := validateJSON(s, []byte(body)); err != nil {
			t.Errorf("%v\n%s", err, body)
		}
	}
	if err := validateJSON(s, []byte(`{"version":1,"name":"a","resource":{"repo":"/r"},"image":"other"}`)); err == nil {
		t.Error("the schema accepts image: other")
	}
}
