package plan

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	generate "github.com/invopop/jsonschema"
	validate "github.com/santhosh-tekuri/jsonschema/v6"
)

// The generator lives in the test, so that programs do not link it.

var update = flag.Bool("update", false, "write schema.json anew from the structs")

func TestSchema_IsGenerated(t *testing.T) {
	r := &generate.Reflector{Mapper: mapType}
	if err := r.AddGoComments("github.com/warmfleet/warmfleet/pkg/plan", "./"); err != nil {
		t.Fatal(err)
	}
	got, err := json.MarshalIndent(r.Reflect(&Plan{}), "", "  ")
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
	if !*update && !bytes.Equal(Schema(), want) {
		t.Error("Schema() is not schema.json")
	}
}

// mapType is the schema of types that are not written as their Go type.
func mapType(t reflect.Type) *generate.Schema {
	words := func(of ...any) *generate.Schema { return &generate.Schema{Type: "string", Enum: of} }
	switch t {
	case reflect.TypeFor[Duration]():
		return &generate.Schema{Type: "string", Pattern: `^([0-9]*\.?[0-9]+(ns|us|µs|μs|ms|s|m|h))+$`, Examples: []any{"90s", "10m", "1h30m"}}
	case reflect.TypeFor[Network]():
		hosts := &generate.Schema{Type: "array", Items: &generate.Schema{Type: "string"}, MinItems: count(1)}
		return &generate.Schema{OneOf: []*generate.Schema{words(NetworkNone, NetworkAllow), hosts}}
	case reflect.TypeFor[Strategy]():
		return words(InPlace, CopyOnWrite, GitWorktree)
	case reflect.TypeFor[Class]():
		return words(High, Normal, Low)
	case reflect.TypeFor[Apply]():
		return words(ApplyAuto, ApplyManual, ApplyNever)
	case reflect.TypeFor[OnFailure]():
		return words(Rollback, Keep)
	case reflect.TypeFor[Isolation]():
		return words(IsolationRequired, IsolationPreferred, IsolationStrong)
	}
	return nil
}

func count(n uint64) *uint64 { return &n }

func property(s *generate.Schema, name string) *generate.Schema {
	p, ok := s.Properties.Get(name)
	if !ok {
		panic("no property " + name)
	}
	return p
}

// exactlyOne demands one of some keys and none of the others.
func exactlyOne(s *generate.Schema, keys ...string) {
	for _, k := range keys {
		s.OneOf = append(s.OneOf, &generate.Schema{Required: []string{k}})
	}
}

func (Plan) JSONSchemaExtend(s *generate.Schema) {
	s.Title = "warmfleet plan, version 1"
	property(s, "version").Const = Version
	property(s, "steps").MinItems = count(1)
	property(s, "steps").MaxItems = count(MaxSteps)
	property(s, "pool").Pattern = poolPattern.String()
	property(s, "env").PropertyNames = &generate.Schema{Pattern: envPattern.String()}
	property(s, "inputs").PropertyNames = &generate.Schema{Pattern: inputPattern.String()}
	property(s, "max_attempts").Minimum = "1"
}

func (Resource) JSONSchemaExtend(s *generate.Schema) { exactlyOne(s, "path", "repo") }

func (Limits) JSONSchemaExtend(s *generate.Schema) {
	property(s, "memory_mb").Minimum = "1"
	property(s, "pids").Minimum = "1"
	property(s, "cpu_cores").ExclusiveMinimum = "0"
	property(s, "disk_gb").ExclusiveMinimum = "0"
}

func (Step) JSONSchemaExtend(s *generate.Schema) {
	keys := make([]string, len(kinds))
	for i, k := range kinds {
		keys[i] = string(k)
	}
	exactlyOne(s, keys...)
	property(s, "id").Pattern = idPattern.String()
	property(s, "env").PropertyNames = &generate.Schema{Pattern: envPattern.String()}
	property(s, "shell").MinItems = count(1)
}

func (WriteFile) JSONSchemaExtend(s *generate.Schema) {
	property(s, "mode").Pattern = modePattern.String()
	property(s, "expect_sha256").Pattern = "^[0-9a-fA-F]{64}$"
}

func (Retry) JSONSchemaExtend(s *generate.Schema) {
	property(s, "limit").Minimum = "1"
	property(s, "on").MinItems = count(1)
}

func (Artifact) JSONSchemaExtend(s *generate.Schema) {
	property(s, "if").Enum = []any{"always", "success", "failure"}
}

func compileSchema(t testing.TB) *validate.Schema {
	t.Helper()
	doc, err := validate.UnmarshalJSON(bytes.NewReader(Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := validate.NewCompiler()
	if err := c.AddResource("plan.json", doc); err != nil {
		t.Fatal(err)
	}
	compiled, err := c.Compile("plan.json")
	if err != nil {
		t.Fatal(err)
	}
	return compiled
}

func validateJSON(s *validate.Schema, body []byte) error {
	doc, err := validate.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		return err
	}
	return s.Validate(doc)
}

func TestSchema_AcceptsEveryExample(t *testing.T) {
	s := compileSchema(t)
	files, err := filepath.Glob("../../examples/*.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("found %d examples, want at least 5 (%v)", len(files), err)
	}
	for _, file := range files {
		if filepath.Base(file) == "pool.yaml" {
			continue // a pool file: package poolfile reads it
		}
		t.Run(filepath.Base(file), func(t *testing.T) {
			src, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			p, err := ParseYAML(file, src)
			if err != nil {
				t.Fatal(err)
			}
			if err := validateJSON(s, p.Canonical()); err != nil {
				t.Error(err)
			}
			if got := p.Unsupported(); len(got) > 0 {
				t.Errorf("an example uses what is not built: %q", got)
			}
		})
	}
}

func TestExamples_FailingIsQuickstartWithOneMoreStep(t *testing.T) {
	read := func(file string) []Step {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		p, err := ParseYAML(file, src)
		if err != nil {
			t.Fatal(err)
		}
		return p.Steps
	}
	got, want := read("../../examples/failing.yaml"), read("../../examples/quickstart.yaml")
	if len(got) != len(want)+1 {
		t.Fatalf("failing.yaml has %d steps, want %d", len(got), len(want)+1)
	}
	if diff := cmp.Diff(got[:len(want)], want); diff != "" {
		t.Errorf("failing.yaml (- got, + quickstart.yaml):\n%s", diff)
	}
}

func TestSchema_RefusesWhatTheChecksRefuse(t *testing.T) {
	s := compileSchema(t)
	for name, tc := range map[string]string{
		"UnknownKey":    `{"stepz":[]}`,
		"TwoKinds":      `{"steps":[{"run":"x","edit":{"path":"a","old":"b","new":"c"}}]}`,
		"NoKind":        `{"steps":[{"id":"a"}]}`,
		"NoSteps":       `{"steps":[]}`,
		"Version":       `{"version":2}`,
		"PathAndRepo":   `{"resource":{"path":"/a","repo":"https://h/r"}}`,
		"NoResource":    `{"resource":{}}`,
		"Strategy":      `{"strategy":"copy"}`,
		"Network":       `{"network":"some"}`,
		"NegativeLimit": `{"limits":{"memory_mb":-1}}`,
		"Duration":      `{"timeout":"600"}`,
		"DurationType":  `{"timeout":600}`,
		"Mode":          `{"steps":[{"write_file":{"path":"a","content":"","mode":"rw"}}]}`,
		"EnvName":       `{"env":{"a b":"c"}}`,
		"EnvType":       `{"env":{"A":1}}`,
	} {
		t.Run(name, func(t *testing.T) {
			body := withDefaults(t, tc)
			if err := validateJSON(s, body); err == nil {
				t.Errorf("the schema accepts %s", body)
			}
			if _, err := ParseJSON(body); err == nil {
				t.Errorf("ParseJSON accepts %s", body)
			}
		})
	}
}

// withDefaults lays members over a minimal valid plan.
func withDefaults(t *testing.T, members string) []byte {
	t.Helper()
	plan := map[string]any{"version": 1, "resource": map[string]any{"path": "/a"}, "steps": []any{map[string]any{"run": "true"}}}
	if err := json.NewDecoder(strings.NewReader(members)).Decode(&plan); err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	return body
}
