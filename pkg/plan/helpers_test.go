package plan

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func minimal(t *testing.T, members string) *Plan {
	t.Helper()
	p, err := ParseJSON(withDefaults(t, members))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPlan_Defaults(t *testing.T) {
	p := minimal(t, `{"steps":[{"run":"a"},{"id":"x","edit":{"path":"a","old":"b","new":""}},{"run":"c"}]}`)
	p.Defaults()
	removed := ""
	want := &Plan{
		Version: 1, Resource: &Resource{Path: "/a"},
		Strategy: CopyOnWrite, Base: BaseImage, Class: Normal, Timeout: Duration(time.Hour),
		Network:      &Network{Mode: NetworkNone},
		StepDefaults: &StepDefaults{WorkingDir: ".", Timeout: Duration(10 * time.Minute)},
		Steps: []Step{
			{ID: "step-1", Run: "a"},
			{ID: "x", Edit: &Edit{Path: "a", Old: "b", New: &removed, Count: 1}},
			{ID: "step-3", Run: "c"},
		},
		OnFailure: Rollback, Apply: ApplyManual, MaxAttempts: 3, ExpiresIn: Duration(168 * time.Hour),
	}
	if diff := cmp.Diff(p, want); diff != "" {
		t.Errorf("Defaults (- got, + want):\n%s", diff)
	}
	before := string(p.Canonical())
	p.Defaults()
	if got := string(p.Canonical()); got != before {
		t.Errorf("a second Defaults changed the plan to %s", got)
	}
	if _, err := ParseJSON([]byte(before)); err != nil {
		t.Errorf("a completed plan is refused: %v", err)
	}
}

func TestPlan_StepSettings(t *testing.T) {
	p := minimal(t, `{"defaults":{"working_dir":"src","timeout":"2m"},"steps":[
		{"run":"a"},{"run":"b","timeout":"5s","working_dir":"doc","shell":["python3","-c"]}]}`)
	p.Defaults()
	for i, want := range []struct {
		timeout time.Duration
		dir     string
		shell   []string
	}{
		{2 * time.Minute, "src", []string{"bash", "-euo", "pipefail", "-c"}},
		{5 * time.Second, "doc", []string{"python3", "-c"}},
	} {
		if got := p.StepTimeout(i); got != want.timeout {
			t.Errorf("StepTimeout(%d) = %v, want %v", i, got, want.timeout)
		}
		if got := p.EffectiveDir(i); got != want.dir {
			t.Errorf("EffectiveDir(%d) = %q, want %q", i, got, want.dir)
		}
		if diff := cmp.Diff(p.Shell(i, true), want.shell); diff != "" {
			t.Errorf("Shell(%d) (- got, + want):\n%s", i, diff)
		}
	}
	if diff := cmp.Diff(p.Shell(0, false), []string{"sh", "-eu", "-c"}); diff != "" {
		t.Errorf("Shell without bash (- got, + want):\n%s", diff)
	}
	p.StepDefaults.Shell = []string{"zsh", "-c"}
	if diff := cmp.Diff(p.Shell(0, false), []string{"zsh", "-c"}); diff != "" {
		t.Errorf("Shell of the plan (- got, + want):\n%s", diff)
	}
	if i, ok := p.StepIndex("step-2"); !ok || i != 1 {
		t.Errorf("StepIndex = %d, %v, want 1, true", i, ok)
	}
	if _, ok := p.StepIndex("none"); ok {
		t.Error("StepIndex finds a step that is not there")
	}
}

func TestPlan_Environment(t *testing.T) {
	p := minimal(t, `{"identity":{"name":"O'Neil","email":"o@example.com"},"env":{"A":"plan","B":"plan"},
		"inputs":{"node-version":{"default":"20"},"pkg":{"value":"x","default":"y"},"unset":{}},
		"steps":[{"run":"a","env":{"B":"step","GIT_COMMITTER_NAME":"bot"}}]}`)
	want := []string{
		"A=plan", "B=step",
		"GIT_AUTHOR_EMAIL=o@example.com", "GIT_AUTHOR_NAME=O'Neil",
		"GIT_COMMITTER_EMAIL=o@example.com", "GIT_COMMITTER_NAME=bot",
		"GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_0=user.name", "GIT_CONFIG_KEY_1=user.email", "GIT_CONFIG_VALUE_0=O'Neil", "GIT_CONFIG_VALUE_1=o@example.com",
		"WARMFLEET_INPUT_NODE_VERSION=20", "WARMFLEET_INPUT_PKG=x",
	}
	if diff := cmp.Diff(p.Environment(0), want); diff != "" {
		t.Errorf("Environment (- got, + want):\n%s", diff)
	}
}

func TestPlan_Bind(t *testing.T) {
	const inputs = `{"inputs":{"pkg":{"required":true},"port":{"default":"80"}}}`
	for _, tc := range []struct {
		name   string
		values map[string]string
		want   string
	}{
		{"Missing", nil, "inputs.pkg: is required: give it with --input pkg=VALUE"},
		{"Given", map[string]string{"pkg": ""}, ""},
		{"Unknown", map[string]string{"pkg": "x", "prot": "1"}, `inputs.prot: the plan has no such input; did you mean "port"?`},
		{"All", map[string]string{"x": "1", "port": "a\x00b"}, "inputs.x: the plan has no such input; known: pkg, port\ninputs.port: holds a NUL byte, which no variable can\ninputs.pkg: is required"},
		{"TooLong", map[string]string{"pkg": strings.Repeat("x", 128<<10)}, "WARMFLEET_INPUT_PKG and its value have 131092 bytes, Linux allows 131071"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := minimal(t, inputs)
			err := p.Bind(tc.values)
			checkSameLines(t, err, tc.want)
			if got := p.Inputs["pkg"].Value != nil; got != (tc.want == "") {
				t.Errorf("the value was set: %v, want %v", got, tc.want == "")
			}
		})
	}
	p := minimal(t, inputs)
	if err := p.Bind(map[string]string{"pkg": "left-pad"}); err != nil {
		t.Fatal(err)
	}
	q, err := ParseJSON(p.Canonical())
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Bind(nil); err != nil {
		t.Errorf("the value did not travel in the plan: %v", err)
	}
	if err := minimal(t, `{}`).Bind(map[string]string{"x": "1"}); err == nil || !strings.Contains(err.Error(), "none is declared") {
		t.Errorf("Bind on a plan without inputs = %v", err)
	}
}

// checkSameLines is checkError for messages whose order is not part of the contract.
func checkSameLines(t *testing.T, err error, want string) {
	t.Helper()
	if want == "" {
		checkError(t, err, "")
		return
	}
	for line := range strings.Lines(want) {
		checkError(t, err, strings.TrimSpace(line))
	}
}

func TestPlan_Unsupported(t *testing.T) {
	p := fullPlan()
	p.AllowSpecial = true
	var fields []string
	for _, line := range p.Unsupported() {
		field, _, _ := strings.Cut(line, ": ")
		fields = append(fields, field)
	}
	want := []string{
		"key",
		"steps[0].outputs", "steps[0].artifacts",
	}
	if diff := cmp.Diff(fields, want); diff != "" {
		t.Errorf("Unsupported (- got, + want):\n%s", diff)
	}
	for _, members := range []string{
		`{"apply":"auto"}`, `{"network":"allow"}`, `{"network":"none"}`, `{"network":["a.example:1"]}`, `{"identity":{"name":"a","email":"b"}}`, `{"inputs":{"a":{}}}`,
		`{"env":{"A":"b"}}`, `{"limits":{}}`, `{"limits":{"memory_mb":5,"cpu_cores":0.5,"disk_gb":1,"pids":64}}`, `{"allow_special":true}`, `{"isolation":"required"}`, `{"resource":{"repo":"https://h/x"},"apply":"never"}`,
		`{"resource":{"repo":"https://h/x"}}`, `{"commit":{"message":"m"}}`,
	} {
		if got := minimal(t, members).Unsupported(); len(got) > 0 {
			t.Errorf("%s: %q, want it built", members, got)
		}
	}
	if got := minimal(t, `{"commit":{"message":"m"},"strategy":"none","apply":"auto"}`).Unsupported(); len(got) != 1 {
		t.Errorf("a commit of what was changed in place: %q, want one line", got)
	}
}

func TestRetry_Matches(t *testing.T) {
	code := func(n int) *int { return &n }
	all := &Retry{Limit: 1}
	some := &Retry{Limit: 1, On: []string{"exit:75", "timeout", "signal:KILL", "lost"}}
	for _, tc := range []struct {
		name   string
		retry  *Retry
		cause  string
		code   *int
		signal string
		want   bool
	}{
		{"NoRetry", nil, "exit", code(1), "", false},
		{"AnyExit", all, "exit", code(1), "", true},
		{"AnyCancelled", all, "cancelled", nil, "", false},
		{"ListedCode", some, "exit", code(75), "", true},
		{"OtherCode", some, "exit", code(7), "", false},
		{"NoCode", some, "exit", nil, "", false},
		{"Timeout", some, "timeout", nil, "", true},
		{"ListedSignal", some, "signal", nil, "KILL", true},
		{"OtherSignal", some, "signal", nil, "TERM", false},
		{"Lost", some, "lost", nil, "", true},
		{"Start", some, "start", nil, "", false},
		{"ExitWord", &Retry{On: []string{"exit"}}, "exit", code(9), "", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.retry.Matches(tc.cause, tc.code, tc.signal); got != tc.want {
				t.Errorf("Matches = %v, want %v", got, tc.want)
			}
		})
	}
}

func TestRetry_TriesAndDelay(t *testing.T) {
	var none *Retry
	if got := none.Tries(); got != 1 {
		t.Errorf("Tries without retry = %d, want 1", got)
	}
	if got := (&Retry{Limit: 2}).Tries(); got != 3 {
		t.Errorf("Tries = %d, want 3", got)
	}
	for _, tc := range []struct {
		backoff time.Duration
		try     int
		want    time.Duration
	}{
		{5 * time.Second, 1, 0},
		{5 * time.Second, 2, 5 * time.Second},
		{5 * time.Second, 3, 10 * time.Second},
		{5 * time.Second, 100, 5 * time.Minute},
		{time.Hour, 2, time.Hour},
		{time.Hour, 3, time.Hour},
		{0, 3, 0},
	} {
		r := &Retry{Backoff: Duration(tc.backoff)}
		if got := r.Delay(tc.try); got != tc.want {
			t.Errorf("Delay(%d) with %v = %v, want %v", tc.try, tc.backoff, got, tc.want)
		}
	}
	if got := none.Delay(2); got != 0 {
		t.Errorf("Delay without retry = %v, want 0", got)
	}
}

func TestDuration_Text(t *testing.T) {
	for in, want := range map[string]string{
		"10m": "10m", "90s": "1m30s", "168h": "168h", "1h30m": "1h30m", "0.5s": "500ms", "1h0m5s": "1h0m5s", "60m": "1h", "10s": "10s", "0s": "0s",
	} {
		var d Duration
		if err := d.UnmarshalText([]byte(in)); err != nil {
			t.Errorf("%q: %v", in, err)
		}
		if got := d.String(); got != want {
			t.Errorf("%q reads as %q, want %q", in, got, want)
		}
	}
	for in, want := range map[string]string{
		"600": `write "600s" or "600m"`, "7d": `"168h"`, "soon": "is not a duration", "": "is not a duration", "99999999999999999d": "is not a duration",
	} {
		var d Duration
		if err := d.UnmarshalText([]byte(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q in it", in, err, want)
		}
	}
}

func TestNetwork_JSON(t *testing.T) {
	for _, want := range []string{`"none"`, `"allow"`, `["a","b:1"]`, `[]`} {
		var n Network
		if err := json.Unmarshal([]byte(want), &n); err != nil {
			t.Fatal(err)
		}
		got, err := json.Marshal(n)
		if err != nil || string(got) != want {
			t.Errorf("got %s, %v, want %s", got, err, want)
		}
	}
	for _, c := range []struct {
		a, b Network
		want bool
	}{
		{Network{Mode: NetworkNone}, Network{Mode: NetworkNone}, true},
		{Network{Mode: NetworkNone}, Network{Mode: NetworkAllow}, false},
		{Network{Hosts: []string{"a", "B:1"}}, Network{Hosts: []string{"b:1", "A"}}, true},
		{Network{Hosts: []string{"a"}}, Network{Hosts: []string{"a", "b"}}, false},
		{Network{Hosts: []string{"none"}}, Network{Mode: NetworkNone}, false},
	} {
		if got := c.a.Same(c.b); got != c.want {
			t.Errorf("%v and %v: got %v", c.a, c.b, got)
		}
	}
	var n Network
	if err := json.Unmarshal([]byte(`5`), &n); err == nil {
		t.Error("a number is accepted")
	}
}

func TestWriteFile_UnixMode(t *testing.T) {
	for in, want := range map[string]uint32{"0644": 0o644, "755": 0o755, "4755": 0o4755, "04755": 0o4755, "0000": 0} {
		if got, given := (&WriteFile{Mode: in}).UnixMode(); got != want || !given {
			t.Errorf("UnixMode(%q) = %o, %v, want %o, true", in, got, given, want)
		}
	}
	if _, given := (&WriteFile{}).UnixMode(); given {
		t.Error("an absent mode counts as given")
	}
}

// Case F6: what can't be run is refused when the plan is sent, with the name of the field.
func TestParse_LargePlans(t *testing.T) {
	steps := strings.TrimSuffix(strings.Repeat(`{"run":"true"},`, MaxSteps), ",")
	minimal(t, `{"steps":[`+steps+`]}`)
	minimal(t, `{"steps":[{"run":"`+strings.Repeat("x", 200<<10)+`"}]}`)
	for _, tc := range []struct{ name, members, want string }{
		{"Steps", `{"steps":[` + steps + `,{"run":"x"}]}`, "steps: has 2001 steps, at most 2000 are accepted"},
		{"Env", `{"env":{"BIG":"` + strings.Repeat("x", 200<<10) + `"}}`, "env.BIG: BIG and its value have 204804 bytes, Linux allows 131071"},
		{"StepEnv", `{"steps":[{"run":"x","env":{"BIG":"` + strings.Repeat("x", 200<<10) + `"}}]}`, "steps[0].env.BIG: BIG and its value"},
		{"Script3MB", `{"steps":[{"run":"` + strings.Repeat("x", 3<<20) + `"}]}`, "at most 2097152 are read"},
		{"Edit5MB", `{"steps":[{"edit":{"path":"a","old":"b","new":"` + strings.Repeat("x", 5<<20) + `"}}]}`, "at most 2097152 are read"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := ParseJSON(withDefaults(t, tc.members))
			checkError(t, err, tc.want)
		})
	}
}
