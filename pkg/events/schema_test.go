package events_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/invopop/jsonschema"
	validate "github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/warmfleet/warmfleet/pkg/events"
)

var update = flag.Bool("update", false, "write the generated schemas")

// structs are the Go types the schemas are made from.
func structs() map[string]any {
	return map[string]any{
		events.SubmissionType: events.Submission{},
		events.CommandType:    events.Command{},
		events.EventType:      events.Event{},
		events.PlanShowType:   events.View{},
	}
}

func generate(t *testing.T, name string, v any) []byte {
	t.Helper()
	r := jsonschema.Reflector{AllowAdditionalProperties: name != events.SubmissionType, Anonymous: true, ExpandedStruct: true}
	schema := r.Reflect(v)
	schema.ID = jsonschema.ID("urn:warmfleet:schema:" + name)
	schema.Title = name
	b, err := json.MarshalIndent(schema, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(b, '\n')
}

func TestSchemas_Fresh(t *testing.T) {
	for name, v := range structs() {
		want := generate(t, name, v)
		if *update {
			if err := os.WriteFile(filepath.Join("schemas", name+".json"), want, 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if diff := cmp.Diff(string(events.Schemas()[name]), string(want)); diff != "" {
			t.Errorf("schema %s is stale, run go test ./pkg/events -run Schemas -update (-have +generated):\n%s", name, diff)
		}
	}
	if got, want := slices.Sorted(maps.Keys(events.Schemas())), slices.Sorted(maps.Keys(structs())); !slices.Equal(got, want) && !*update {
		t.Errorf("schemas %q, want %q", got, want)
	}
}

func compile(t *testing.T, name string) *validate.Schema {
	t.Helper()
	doc, err := validate.UnmarshalJSON(bytes.NewReader(events.Schemas()[name]))
	if err != nil {
		t.Fatal(err)
	}
	c := validate.NewCompiler()
	if err := c.AddResource(name, doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func check(t *testing.T, s *validate.Schema, message []byte) error {
	t.Helper()
	v, err := validate.UnmarshalJSON(bytes.NewReader(message))
	if err != nil {
		t.Fatal(err)
	}
	return s.Validate(v)
}

func TestSchemas_ValidateMessages(t *testing.T) {
	sub := events.NewSubmission(json.RawMessage(`{"version":1}`), "svc")
	cmd := events.NewCommand("default", events.VerbRun, events.NewID())
	cmd.Params = json.RawMessage(`{"x":[1,null]}`)
	for name, v := range map[string]any{
		events.SubmissionType: sub,
		events.CommandType:    cmd,
		events.EventType:      fullEvent(),
		events.PlanShowType:   events.BuildView(life()),
	} {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if err := check(t, compile(t, name), b); err != nil {
			t.Errorf("%s: %v\n%s", name, err, b)
		}
	}
	for _, r := range life() {
		b, err := events.EncodeEvent(r.Event, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if err := check(t, compile(t, events.EventType), b); err != nil {
			t.Errorf("%s: %v", r.Event.Type, err)
		}
	}
}

func TestSchemas_RefuseOthers(t *testing.T) {
	for name, messages := range map[string][]string{
		events.SubmissionType: {`{}`, `{"v":2,"type":"warmfleet.submit.v1","plan":{}}`, `{"v":1,"type":"warmfleet.submit.v1","plan":{},"pln":{}}`, `{"v":1,"type":"warmfleet.submit.v1","plan":"x"}`},
		events.CommandType:    {`{"v":1,"type":"warmfleet.command.v1","verb":"frob","plan_id":"x","pool":"p"}`},
		events.EventType:      {`{"specversion":"1.0"}`, `{"specversion":"0.3","id":"x","source":"/x","type":"warmfleet.plan.x","subject":"x","time":"2026-01-01T00:00:00Z","datacontenttype":"application/json","data":{"final":false}}`},
	} {
		s := compile(t, name)
		for _, m := range messages {
			if err := check(t, s, []byte(m)); err == nil {
				t.Errorf("%s accepts %s", name, m)
			}
		}
	}
}

// fullEvent has a value in every field.
func fullEvent() events.Event {
	d := events.Data{
		Final: true, Step: "s", StepIndex: ptr(0), Try: 1, State: "failed", Epoch: 1, Attempt: 1, Worker: "w", Host: "h", PlanID: events.NewID(),
		SandboxID: events.NewID(), Pool: "p", Image: "i", Source: "warm", Commit: "c", Strategy: "none", Base: "b", Isolation: "bare", Guarantees: map[string]string{"writes": "absent"}, Reason: "r", Code: "c",
		Error: "e", By: "me", ExitCode: ptr(1), Signal: "KILL", Cause: "signal", DurationMS: ptr(int64(5)),
		Checkpoint: &events.CheckpointRef{ID: events.NewID(), Phase: "step", SizeBytes: 1, Portable: true, Fuzzy: true, Cursor: 1, Object: "o", Lost: 1},
		Conflicts: []events.Conflict{{
			Path: "a", Kind: "content", Detail: "d", Base: &events.FileState{Type: "file", Mode: "0644", Size: 1, SHA256: "s"},
			Theirs: &events.FileState{Type: "symlink", Mode: "0777", Link: "l"},
		}},
		ConflictCount: 7, Changed: ptr(1), RolledBack: "sandbox", Notes: []string{"n"}, Omitted: "o",
		Steps: []string{"s"}, Body: json.RawMessage(`{"a":1}`), RetryOf: events.NewID(),
		Plan: &events.Fold{
			State: "failed", Resource: events.Resource{Path: "/p", Host: "h", Repo: "r", Ref: "main"}, Created: time.Now(), ExpiresAt: time.Now(),
			Checkpoint: &events.FoldCheckpoint{ID: events.NewID(), Phase: "step"}, Intent: &events.Intent{Epoch: 1}, Cut: []string{"name"},
		},
	}
	ev := events.NewEvent(events.TypeOf(events.NounPlan, events.TypeFailed), events.NewID(), "/worker/w", d)
	ev.TraceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	return ev
}
