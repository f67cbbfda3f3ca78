package plan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func fullPlan() *Plan {
	strip, content, replaced := 1, "x = 1\n", "bar()"
	return &Plan{
		Version: 1, Name: "bump-deps",
		Resource: &Resource{Repo: "https://host/x.git", Ref: "main"},
		Pool:     "api", Strategy: CopyOnWrite, Class: Normal, Key: "acme/api",
		Timeout:   Duration(30 * time.Minute),
		Limits:    &Limits{MemoryMB: 4096, CPUCores: 2, DiskGB: 10, PIDs: 512},
		Network:   &Network{Hosts: []string{"proxy.example", "proxy.example:443", "[::1]:80", "10.0.0.1"}},
		Isolation: IsolationRequired,
		Env:       map[string]string{"CI": "true"},
		Secrets:   []string{"NPM_TOKEN"},
		Identity:  &Identity{Name: "D'Author", Email: "author@example.com"},
		Inputs:    map[string]Input{"pkg": {Required: true}},
		StepDefaults: &StepDefaults{
			WorkingDir: ".", Shell: []string{"bash", "-euo", "pipefail", "-c"}, Timeout: Duration(10 * time.Minute),
		},
		Steps: []Step{
			{
				ID: "test", Run: "go test ./...", Timeout: Duration(5 * time.Minute),
				Retry:      &Retry{Limit: 2, On: []string{"exit:75", "timeout"}, Backoff: Duration(5 * time.Second)},
				Checkpoint: true, Outputs: []string{"coverage"},
				Artifacts: []Artifact{{Path: "cover.html", Name: "coverage", If: "always"}},
			},
			{WriteFile: &WriteFile{
				Path: "cfg/app.toml", Content: &content, Mode: "0644",
				ExpectSHA256: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
			}},
			{Edit: &Edit{Path: "main.go", Old: "foo()", New: &replaced, Count: 1}},
			{Patch: &Patch{Strip: &strip, Diff: "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-x\n+y\n"}},
		},
		OnFailure: Rollback, Apply: ApplyManual, MaxAttempts: 3,
		ExpiresIn: Duration(168 * time.Hour),
		Commit:    &Commit{Message: "Bump", Branch: "main"},
	}
}

func TestParseYAML_EveryField(t *testing.T) {
	src, err := os.ReadFile("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseYAML("full.yaml", src)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(got, fullPlan()); diff != "" {
		t.Errorf("ParseYAML (- got, + want):\n%s", diff)
	}
}

func TestParseJSON_ReadsWhatCanonicalWrites(t *testing.T) {
	body := fullPlan().Canonical()
	got, err := ParseJSON(body)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(got, fullPlan()); diff != "" {
		t.Errorf("ParseJSON (- got, + want):\n%s", diff)
	}
	if again := got.Canonical(); !bytes.Equal(again, body) {
		t.Errorf("Canonical = %s, want %s", again, body)
	}
	var unmarshalled Plan
	if err := json.Unmarshal(body, &unmarshalled); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&unmarshalled, fullPlan()); diff != "" {
		t.Errorf("json.Unmarshal (- got, + want):\n%s", diff)
	}
}

func TestPlan_CanonicalIsDeterministic(t *testing.T) {
	yaml := "version: 1\nresource: {path: /a}\nenv: {B: \"<&>\", A: x}\nsteps: [{run: \"true\"}]\n"
	same := `{"steps":[{"run":"true"}],"env":{"A":"x","B":"\u003c&>"},"resource":{"path":"/a"},"version":1}`
	a, err := ParseYAML("", []byte(yaml))
	if err != nil {
		t.Fatal(err)
	}
	b, err := ParseJSON([]byte(same))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"version":1,"resource":{"path":"/a"},"env":{"A":"x","B":"<&>"},"steps":[{"run":"true"}]}`
	if got := string(a.Canonical()); got != want {
		t.Errorf("from YAML:\n%s, want\n%s", got, want)
	}
	if got := string(b.Canonical()); got != want {
		t.Errorf("from JSON:\n%s, want\n%s", got, want)
	}
}

func TestParseYAML_EveryErrorAtOnce(t *testing.T) {
	src, err := os.ReadFile("testdata/bad.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/bad.txt")
	if err != nil {
		t.Fatal(err)
	}
	_, got := ParseYAML("bad.yaml", src)
	if got == nil {
		t.Fatal("accepted")
	}
	if *update {
		if err := os.WriteFile("testdata/bad.txt", []byte(got.Error()+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(got.Error()+"\n", string(want)); diff != "" {
		t.Errorf("errors (- got, + want):\n%s", diff)
	}
	if !errors.Is(got, ErrInvalid) || errors.Is(got, ErrTooLarge) {
		t.Errorf("errors.Is: invalid %v, too large %v, want true, false", errors.Is(got, ErrInvalid), errors.Is(got, ErrTooLarge))
	}
}

func TestParseJSON_PositionsInTheText(t *testing.T) {
	src := "{\n  \"version\": 1,\n  \"näme\": \"x\",  \"resource\": {\"path\": \"/a\"},\n  \"steps\": [{\"run\": \"x\", \"timeout\": 5}]\n}"
	_, err := ParseJSON([]byte(src))
	want := "line 3, column 3: näme: unknown key \"näme\"; did you mean \"name\"?\n" +
		`line 4, column 37: steps[0].timeout: "5" has no unit: write "5s" or "5m"`
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v, want\n%v", err, want)
	}
}

func TestParse_OptionsStandForTheCommandLine(t *testing.T) {
	const bare = "version: 1\nsteps: [{run: \"true\"}]\n"
	for _, tc := range []struct {
		name, src string
		opts      []Option
		want      string
	}{
		{"NoResource", bare, nil, "resource: is missing"},
		{"PathGiven", bare, []Option{WithResource(Resource{Path: "."})}, ""},
		{"Pool", bare + "pool: api\n", nil, ""},
		{"GivenReplaces", bare + "resource: {path: a}\n", []Option{WithResource(Resource{Repo: "https://h/x"})}, ""},
		{"BadGiven", bare, []Option{WithResource(Resource{Repo: "ext::sh -c x"})}, "resource.repo: "},
		{"InPlaceNeedsAuto", bare + "resource: {path: .}\nstrategy: none\n", nil, "apply: strategy none"},
		{"InPlaceFromFlag", bare + "resource: {path: .}\n", []Option{WithStrategy(InPlace)}, "apply: strategy none"},
		{"InPlaceWithAuto", bare + "resource: {path: .}\n", []Option{WithStrategy(InPlace), WithApply(ApplyAuto)}, ""},
		{"Live", bare + "resource: {path: .}\nbase: live\n", nil, ""},
		{"LiveUnknown", bare + "resource: {path: .}\nbase: alive\n", nil, "base: \"alive\" is not one of image, live; did you mean \"live\"?"},
		{"LiveInPlace", bare + "resource: {path: .}\nbase: live\napply: auto\n", []Option{WithStrategy(InPlace)}, "base: live shows the original"},
		{"LiveCheckout", bare + "resource: {path: .}\nbase: live\n", []Option{WithStrategy(GitWorktree)}, "base: live shows the original"},
		{"LiveRepo", bare + "resource: {repo: \"https://h/x\"}\nbase: live\napply: never\n", nil, "base: live is the directory itself"},
		{"InPlaceRepo", bare + "resource: {repo: \"https://h/x\"}\napply: auto\n", []Option{WithStrategy(InPlace)}, "strategy: none works on the original"},
		{"BadFlag", bare + "resource: {path: .}\n", []Option{WithStrategy("fast")}, `strategy: "fast" is not one of`},
		{"SubmittedRelative", bare + "resource: {path: a, host: h}\n", []Option{Submitted()}, "resource.path: "},
		{"SubmittedUnclean", bare + "resource: {path: /a/../b, host: h}\n", []Option{Submitted()}, "resource.path: "},
		{"SubmittedNoHost", bare + "resource: {path: /a}\n", []Option{Submitted()}, "resource.host: is missing"},
		{"Submitted", bare + "resource: {path: /a, host: h}\n", []Option{Submitted()}, ""},
		{"SubmittedNoInput", bare + "resource: {path: /a, host: h}\ninputs: {a: {required: true}}\n", []Option{Submitted()}, "inputs.a: is required"},
		{"SubmittedInput", bare + "resource: {path: /a, host: h}\ninputs: {a: {required: true, value: x}}\n", []Option{Submitted()}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := ParseYAML("", []byte(tc.src), tc.opts...)
			checkError(t, err, tc.want)
		})
	}
}

// checkError wants an error that contains want, or none when want is empty.
func checkError(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("got %v, want no error", err)
	case want != "" && err == nil:
		t.Errorf("got no error, want %q", want)
	case want != "" && !strings.Contains(err.Error(), want):
		t.Errorf("got %v, want %q in it", err, want)
	case err != nil && !errors.Is(err, ErrInvalid):
		t.Errorf("%v does not match ErrInvalid", err)
	}
}

func TestParseYAML_HostileText(t *testing.T) {
	bomb := "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'k'; c++ {
		bomb += string(c) + ": &" + string(c) + " [" + strings.TrimSuffix(strings.Repeat("*"+string(c-1)+",", 10), ",") + "]\n"
	}
	long := "x: &x " + strings.Repeat("y", 100<<10) + "\nenv: {" + strings.Repeat("A: *x, ", 1000) + "}\n"
	for name, tc := range map[string]struct{ src, want string }{
		"Empty":          {"", "the plan is empty"},
		"OnlySpace":      {" \n\n", "the plan is empty"},
		"OnlyComments":   {"# nothing\n", "the plan is empty"},
		"OnlyDashes":     {"---\n", "the plan is empty"},
		"Scalar":         {"hello", "p.yaml:1:1: must be a mapping, not text"},
		"List":           {"- run: x", "must be a mapping, not a list"},
		"TwoDocuments":   {"version: 1\n---\nversion: 1\n", "p.yaml:2:1: a second document begins here"},
		"Syntax":         {"version: 1\nsteps: [\n", "p.yaml:3:1: the plan is not valid YAML"},
		"Tab":            {"version: 1\nsteps:\n\t- run: x\n", "p.yaml:3:1: this line is indented with a tab"},
		"NotUTF8":        {"version: 1\nname: \"a\xffb\"\n", "p.yaml:2:9: the plan is not UTF-8 text"},
		"UTF16":          {"\xff\xfev\x00", "p.yaml:1:1: the plan is not UTF-8 text"},
		"ControlByte":    {"version: 1\nname: \"a\x01b\"\n", "control characters are not allowed"},
		"Bomb":           {bomb, "aliases repeat more than 524288 bytes"},
		"LongBomb":       {long, "aliases repeat more than 524288 bytes"},
		"SelfAlias":      {"env: &a\n  A: *a\n", "contains itself"},
		"UnknownAlias":   {"env: *b\n", "the plan is not valid YAML"},
		"Deep":           {strings.Repeat("[", 5000), "not valid YAML"},
		"DeepClosed":     {strings.Repeat("[", 200) + strings.Repeat("]", 200), "nested more than 64 levels"},
		"Duplicate":      {"version: 1\nname: a\nname: b\n", "p.yaml:3:1: name: the key \"name\" is given twice, first on line 2"},
		"DuplicateDeep":  {"steps:\n  - run: a\n    run: b\n", "p.yaml:3:5: steps[0].run: the key \"run\" is given twice"},
		"DuplicateInMap": {"env:\n  A: x\n  A: y\n", "p.yaml:3:3: env.A: the key \"A\" is given twice"},
		"Merge":          {"a: &a {run: x}\nsteps:\n  - <<: *a\n", "merge keys are not part of the format"},
		"ComplexKey":     {"? [a]\n: b\n", "a key must be plain text"},
		"Tag":            {"version: !python/object 1\n", "the tag \"!python/object\" means nothing"},
		"NoBool":         {"allow_special: !!bool yes\n", "p.yaml:1:16: \"yes\" is neither true nor false"},
		"WordAsBool":     {"allow_special: yes\n", "p.yaml:1:16: allow_special: must be true or false, not the text \"yes\""},
		"Values":         {"secrets: [" + strings.Repeat("a,", 100001) + "]\n", "more than 100000 values"},
		"Binary":         {"name: !!binary aGk=\n", "the tag \"!!binary\" means nothing"},
		"Infinity":       {"limits: {cpu_cores: .inf}\n", "limits.cpu_cores: must be a number"},
		"HugeNumber":     {"limits: {pids: 99999999999999999999}\n", "limits.pids: must be a whole number"},
		"Fraction":       {"limits: {pids: 1.5}\n", "limits.pids: must be a whole number, not \"1.5\""},
		"KeyWithBreak":   {"\"a\\nb\": 1\n", "p.yaml:1:1: a b: unknown key \"a\\nb\""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseYAML("p.yaml", []byte(tc.src))
			checkError(t, err, tc.want)
			if err != nil && len(err.Error()) > 20<<10 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
	}
}

func TestParseYAML_AliasesAndByteOrderMark(t *testing.T) {
	src := "\ufeffversion: 1\nresource: {path: .}\nenv: &e {A: x}\nsteps:\n  - run: &r \"true\"\n    env: *e\n  - run: *r\n"
	got, err := ParseYAML("", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	if got.Steps[0].Env["A"] != "x" || got.Steps[1].Run != "true" {
		t.Errorf("steps = %+v, want the aliased values", got.Steps)
	}
}

func TestParseJSON_HostileText(t *testing.T) {
	for name, tc := range map[string]struct{ src, want string }{
		"Empty":        {"", "the plan is empty"},
		"NotJSON":      {"version: 1", "be read as JSON"},
		"Null":         {"null", "the plan is empty"},
		"Cut":          {`{"version":1,"steps":[{"run":"x"`, "ends in the middle"},
		"Trailing":     {`{"version":1} {}`, "text follows the plan"},
		"TrailingText": {`{"version":1} x`, "text follows the plan"},
		"Comma":        {`{"version":1,}`, "be read as JSON"},
		"NotUTF8":      {"{\"name\":\"a\xff\"}", "line 1, column 11: the plan is not UTF-8 text"},
		"Deep":         {strings.Repeat("[", 100000), "nested too deeply"},
		"Duplicate":    {"{\"version\":1,\n\"version\":1}", "line 2, column 1: version: the key \"version\" is given twice"},
		"NullValue":    {`{"steps":null}`, "steps: has no value"},
		"Exponent":     {`{"version":1e0}`, "version: must be a whole number"},
		"HugeFloat":    {`{"limits":{"disk_gb":1e999}}`, "limits.disk_gb: must be a number"},
		"Number":       {`{"name":7}`, "name: must be text, not a number"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseJSON([]byte(tc.src))
			checkError(t, err, tc.want)
		})
	}
}

func TestParse_Sizes(t *testing.T) {
	plan := func(bytes int) string {
		return "version: 1\nresource: {path: .}\nsteps:\n  - run: |\n      # " + strings.Repeat("x", bytes) + "\n"
	}
	for _, tc := range []struct {
		name, src string
		want      string
		tooLarge  bool
	}{
		{"Comments", "# " + strings.Repeat("x", 1<<20) + "\n" + plan(10), "", false},
		{"Script400k", plan(400 << 10), "", false},
		{"Plan1.2MB", plan(1200000), "the plan has 1200062 bytes as JSON, at most 524288 are accepted", true},
		{"File5MB", plan(5 << 20), "at most 2097152 are read", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := ParseYAML("", []byte(tc.src))
			checkError(t, err, tc.want)
			if got := errors.Is(err, ErrTooLarge); got != tc.tooLarge {
				t.Errorf("errors.Is(err, ErrTooLarge) = %v, want %v", got, tc.tooLarge)
			}
		})
	}
	err := CheckBody(make([]byte, BodyLimit+1))
	if !errors.Is(err, ErrTooLarge) || !strings.Contains(err.Error(), "524289 bytes") {
		t.Errorf("CheckBody = %v, want both numbers", err)
	}
	if err := CheckBody(make([]byte, BodyLimit)); err != nil {
		t.Errorf("CheckBody at the limit = %v", err)
	}
}

// Every text of an accepted size is judged in time that grows with its length.
func TestParse_WorkIsBounded(t *testing.T) {
	var keys, words strings.Builder
	for i := range 8000 {
		fmt.Fprintf(&keys, `"%060d":1,`, i)
	}
	for i := range 60000 {
		fmt.Fprintf(&words, `"A%d",`, i)
	}
	list := strings.TrimSuffix(words.String(), ",")
	for name, members := range map[string]string{
		"UnknownKeys":  `{` + strings.TrimSuffix(keys.String(), ",") + `}`,
		"Words":        `{"secrets":[` + list + `],"defaults":5}`,
		"Numbers":      `{"network":[` + strings.TrimSuffix(strings.Repeat("1,", 120000), ",") + `]}`,
		"DottedKey":    `{"defaults":5,"env":{"` + strings.Repeat("a.", 256<<10) + `":"x"}}`,
		"DottedFaults": `{"defaults":5,"env":{` + strings.TrimSuffix(strings.ReplaceAll(keys.String(), `":1`, strings.Repeat(".b", 90)+`":1`), ",") + `}}`,
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			_, errJSON := ParseJSON([]byte(members))
			_, errYAML := ParseYAML("", []byte(members))
			if errJSON == nil || errYAML == nil {
				t.Error("accepted")
			}
			// Seconds are ample even on a busy machine; quadratic work took minutes.
			if took := time.Since(start); took > 30*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}

func TestParse_FaultsBeyondTheLimitAreCounted(t *testing.T) {
	_, err := ParseJSON([]byte(`{"env":{` + strings.TrimSuffix(strings.Repeat(`"":1,`, 300), ",") + `}}`))
	var errs *Errors
	if !errors.As(err, &errs) {
		t.Fatal(err)
	}
	last := errs.List[len(errs.List)-1].Message
	if len(errs.List) != maxFaults+1 || !strings.Contains(last, "more faults are not shown") {
		t.Errorf("%d faults, the last %q, want %d and a count of the rest", len(errs.List), last, maxFaults+1)
	}
}

func TestPlan_ValidateNeedsNoText(t *testing.T) {
	if err := fullPlan().Validate(); err != nil {
		t.Errorf("Validate = %v", err)
	}
	p := fullPlan()
	p.Steps[0].Edit = p.Steps[2].Edit
	p.Timeout = -1
	want := "timeout: -1ns is not positive: leave it out for the default\nsteps[0].edit: the step already has run: a step does exactly one thing, split it in two"
	if err := p.Validate(); err == nil || err.Error() != want {
		t.Errorf("Validate =\n%v, want\n%s", err, want)
	}
}
