package poolfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/pkg/plan"
)

const head = "version: 1\nname: api\nresource: {repo: https://host/api.git}\n"

func TestParseYAML_Defaults(t *testing.T) {
	p, err := ParseYAML("pool.yaml", []byte(head+"image: auto\nmax_staleness: 0s\ntarget_size: 0\n"))
	if err != nil {
		t.Fatal(err)
	}
	p.Defaults()
	got := []any{*p.TargetSize, time.Duration(*p.MaxAge), time.Duration(*p.MaxStaleness), time.Duration(*p.BuildInterval), p.Network.Mode, p.PlanNetwork.Mode, p.Image.Auto}
	want := []any{0, 25 * time.Minute, time.Duration(0), 30 * time.Minute, "allow", "none", true}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("defaults (- got, + want):\n%s", diff)
	}
}

// Each fault is told with its place, and all of them at once.
func TestParseYAML_Faults(t *testing.T) {
	for name, tc := range map[string]struct{ src, want string }{
		"UnknownKey":    {head + "target_sise: 3\n", `p.yaml:4:1: target_sise: unknown key "target_sise"; did you mean "target_size"?`},
		"Name":          {"version: 1\nname: Api\nresource: {repo: /r}\n", `p.yaml:2:7: name: "Api" is no pool name`},
		"Default":       {"version: 1\nname: default\nresource: {repo: /r}\n", `name: "default" is a name of the fleet itself`},
		"HostName":      {"version: 1\nname: h-1\nresource: {repo: /r}\n", `name: "h-1" is a name of the fleet itself`},
		"NoName":        {"version: 1\nresource: {repo: /r}\n", "name: is missing"},
		"NoVersion":     {"name: a\nresource: {repo: /r}\n", "version: is missing"},
		"NoRepo":        {"version: 1\nname: a\n", "resource.repo: is missing"},
		"Credentials":   {"version: 1\nname: a\nresource: {repo: 'https://u:p@h/r.git'}\n", "resource.repo: carries credentials"},
		"Option":        {"version: 1\nname: a\nresource: {repo: '--upload-pack=x'}\n", "begins with -"},
		"Ref":           {"version: 1\nname: a\nresource: {repo: /r, ref: 'a..b'}\n", "resource.ref:"},
		"Word":          {head + "image: autos\n", `p.yaml:4:8: image: "autos" is no way to make an image`},
		"AutoAndSteps":  {head + "image: {auto: true, setup: [x]}\n", "image: has auto"},
		"EmptyStep":     {head + "image: {setup: [a, ' ']}\n", "image.setup[1]: is empty"},
		"Secret":        {head + "image: {secrets: ['a b']}\n", "image.secrets[0]:"},
		"NoToken":       {head + "token: {}\n", "token: has 0 sources"},
		"TwoTokens":     {head + "token: {env: A, file: /a}\n", "token: has 2 sources"},
		"RelativeToken": {head + "token: {file: a}\n", "token.file:"},
		"EmptyCommand":  {head + "token: {command: []}\n", "token.command: is empty"},
		"NegativeSize":  {head + "target_size: -1\n", "target_size: -1 is out of range"},
		"NegativeLeast": {head + "min_idle: -1\n", "min_idle: -1 is out of range"},
		"NoEmail":       {head + "identity: {name: A}\n", "identity.email: is missing"},
		"Duration":      {head + "max_age: 25\n", `max_age: "25" has no unit`},
		"LongAge":       {head + "max_age: 25h\n", "max_age: 25h is out of range"},
		"NoInterval":    {head + "build_interval: 0s\n", "build_interval: 0s is out of range"},
		"Limit":         {head + "limits: {memory_mb: -1}\n", "limits.memory_mb: -1 is negative"},
		"Network":       {head + "plan_network: some\n", `plan_network: "some" is not one of none, allow`},
		"Empty":         {"", "the pool file is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseYAML("p.yaml", []byte(tc.src))
			if !errors.Is(err, plan.ErrInvalid) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
	_, err := ParseYAML("p.yaml", []byte("version: 2\nname: A\ntarget_size: x\n"))
	var all *plan.Errors
	if !errors.As(err, &all) || len(all.List) != 4 {
		t.Errorf("got %v, want four faults at once", err)
	}
}

func TestSameRepo(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want bool
	}{
		{"/r/a.git", "file:///r/a.git", true},
		{"/r/a.git/", "/r/a.git", true},
		{"/r/a b.git", "file:///r/a%20b.git", true},
		{"/r/a%20b.git", "file:///r/a%20b.git", false},
		{"/r/a.git", "file://localhost/r/a.git", true},
		{"https://h/a/", "https://h/a", true},
		{"https://h/a", "https://h/b", false},
	} {
		if got := SameRepo(tc.a, tc.b); got != tc.want {
			t.Errorf("SameRepo(%q, %q) = %v", tc.a, tc.b, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	example, err := os.ReadFile("../../examples/pool.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(example)
	f.Add([]byte(head + "image: auto\ntoken: {command: [a, b]}\n"))
	f.Add([]byte(`{"version":1,"name":"a","resource":{"repo":"/r"},"image":{"setup":["x"]}}`))
	s := compileSchema(f)
	f.Fuzz(func(t *testing.T, src []byte) {
		for _, parse := range []func([]byte) (*Pool, error){ParseJSON, func(b []byte) (*Pool, error) { return ParseYAML("f", b) }} {
			p, err := parse(src)
			if err != nil {
				continue
			}
			body := p.Canonical()
			again, err := ParseJSON(body)
			if err != nil || !bytes.Equal(again.Canonical(), body) {
				t.Fatalf("the canonical form is refused or changes: %v\n%s", err, body)
			}
			if err := validateJSON(s, body); err != nil {
				t.Fatalf("the schema refuses an accepted pool: %v\n%s", err, body)
			}
			p.Defaults()
			if err := p.Validate(); err != nil {
				t.Fatalf("Defaults made an invalid pool: %v\n%s", err, body)
			}
			var plain Pool
			if err := json.Unmarshal(p.Canonical(), &plain); err != nil || !bytes.Equal(plain.Canonical(), p.Canonical()) {
				t.Fatalf("encoding/json reads something else: %v\n%s", err, body)
			}
		}
	})
}
