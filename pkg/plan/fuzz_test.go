package plan

import (
	"bytes"
	"os"
	"strings"
	"testing"

	validate "github.com/santhosh-tekuri/jsonschema/v6"
)

func addSeeds(f *testing.F) {
	f.Helper()
	for _, file := range []string{"testdata/full.yaml", "testdata/bad.yaml", "../../examples/quickstart.yaml", "../../examples/edit.yaml"} {
		src, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(src)
	}
	f.Add(fullPlan().Canonical())
	f.Add([]byte("version: 1\nresource: {path: .}\nsteps:\n  - run: &a x\n    env: {A: *a}\n"))
	f.Add([]byte(`{"version":1,"resource":{"path":"/a"},"steps":[{"run":"x","timeout":"5m"}]}`))
}

// checkAccepted holds an accepted plan to what the package promises of it.
func checkAccepted(t *testing.T, s *validate.Schema, p *Plan) {
	t.Helper()
	body := p.Canonical()
	again, err := ParseJSON(body)
	if err != nil {
		t.Fatalf("the canonical form of an accepted plan is refused: %v\n%s", err, body)
	}
	if got := again.Canonical(); !bytes.Equal(got, body) {
		t.Fatalf("the canonical form changes:\n%s\n%s", got, body)
	}
	if err := validateJSON(s, body); err != nil {
		t.Fatalf("the schema refuses an accepted plan: %v\n%s", err, body)
	}
	p.Defaults()
	if err := p.Validate(); err != nil && !strings.Contains(err.Error(), "bytes as JSON") {
		t.Fatalf("Defaults made an invalid plan: %v\n%s", err, body)
	}
	for i := range p.Steps {
		if p.Steps[i].Kind() == "" || p.Steps[i].ID == "" || p.StepTimeout(i) <= 0 || p.EffectiveDir(i) == "" || len(p.Shell(i, false)) == 0 {
			t.Fatalf("step %d is incomplete: %s", i, p.Canonical())
		}
		p.Environment(i)
	}
	p.Unsupported()
}

// checkRefused wants one line a fault and a place for each.
func checkRefused(t *testing.T, err error) {
	t.Helper()
	errs, ok := err.(*Errors)
	if !ok || len(errs.List) == 0 {
		t.Fatalf("got %T %v, want *Errors with a list", err, err)
	}
	for _, e := range errs.List {
		if e.Line < 0 || e.Message == "" || strings.ContainsAny(e.Message+e.Path, "\n\r") {
			t.Fatalf("fault %q at %d: %q is not one placed line", e.Path, e.Line, e.Message)
		}
	}
}

func FuzzParseYAML(f *testing.F) {
	addSeeds(f)
	s := compileSchema(f)
	f.Fuzz(func(t *testing.T, src []byte) {
		p, err := ParseYAML("fuzz.yaml", src)
		if err != nil {
			checkRefused(t, err)
			return
		}
		checkAccepted(t, s, p)
	})
}

func FuzzParseJSON(f *testing.F) {
	addSeeds(f)
	s := compileSchema(f)
	f.Fuzz(func(t *testing.T, src []byte) {
		p, err := ParseJSON(src)
		if err != nil {
			checkRefused(t, err)
			return
		}
		checkAccepted(t, s, p)
	})
}
