package plans

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/test/fleettest"
)

// told is a result without what differs from run to run.
func told(p *fleettest.Place, r fleettest.Result) string {
	text := strings.ReplaceAll(r.Stdout+"\n---\n"+r.Stderr, p.Dir, "DIR")
	for pattern, with := range map[string]string{
		`[0-7][0-9A-HJKMNP-TV-Z]{25}`: "ID", `[0-9a-f]{7,40}`: "HASH", `\d+ B stored`: "SIZE", `(\d+(\.\d+)?(ms|µs|s|m))+\b`: "TIME", `\d{4}-\d\d-\d\d[T ][0-9:.]+Z?`: "WHEN",
	} {
		text = regexp.MustCompile(pattern).ReplaceAllString(text, with)
	}
	return text
}

// Case K5: what the worker's and the caller's language is changes neither states nor texts,
// nor the order of paths; a step's bytes stay as they are.
func TestCase_K5(t *testing.T) {
	t.Parallel()
	outcomes := func(t *testing.T, env ...string) []string {
		p := fleettest.NewPlace(t, fleettest.Ordinary(t))
		p = p.Without("LANG").With(env...)
		repo := func(name, script string) string {
			return p.Tree(t, name, "git init -q -b main; git config user.name R; git config user.email r@x; "+script)
		}
		full := repo("full", "echo a >a; echo z >Z; echo u >ü; git add .; git commit -qm one")
		unborn := repo("unborn", "echo a >a")
		locked := repo("locked", "echo a >a; git add .; git commit -qm one; : >.git/index.lock")
		bare := p.Tree(t, "plain", "echo a >a")
		var out []string
		try := func(args ...string) {
			r := p.Warmfleet(t, args...)
			out = append(out, fmt.Sprintf("exit %d\n%s", r.Code, told(p, r)))
		}
		try("run", p.Plan(t, "strategy: git_worktree\napply: never", `printf 'ü\n'; echo 1 >>a; echo 1 >>Z; echo 1 >>ü; echo 1 >ä; git status --short`), "--path", full)
		try("run", p.Plan(t, "apply: auto\nstrategy: git_worktree\ncommit: {message: m}\nidentity: {name: P, email: p@x}", "true"), "--path", full)
		try("run", p.Plan(t, "strategy: git_worktree\napply: never", "true"), "--path", unborn)
		try("run", p.Plan(t, "strategy: git_worktree\napply: never", "true"), "--path", bare)
		try("run", p.Plan(t, "strategy: git_worktree\napply: never", "git checkout no-such-branch"), "--path", full)
		v := p.Warmfleet(t, "run", p.Plan(t, "apply: manual", "echo ours >a"), "--path", full, "-o", "json").Exits(t, 0).View(t)
		p.Sh(t, full, "echo theirs >a")
		try("plan", "approve", v.ID)
		try("run", p.Plan(t, "apply: auto\nstrategy: git_worktree\ncommit: {message: m}\nidentity: {name: P, email: p@x}", "echo b >a"), "--path", locked)
		return out
	}
	want := outcomes(t, "LC_ALL=C.UTF-8")
	if all := strings.Join(want, "\n"); !strings.Contains(all, "ü") || !strings.Contains(all, "exit 9") || strings.Count(all, "exit 0") > 3 {
		t.Errorf("what is compared is not what was meant:\n%s", all)
	}
	for _, env := range [][]string{
		{"LANG=de_DE.UTF-8", "LANGUAGE=de", "LC_ALL=de_DE.UTF-8"}, {"LC_ALL=C"}, {"LANG=tr_TR.UTF-8", "LANGUAGE=tr", "LC_ALL=tr_TR.UTF-8"},
	} {
		t.Run(env[0], func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(outcomes(t, env...), want); diff != "" {
				t.Errorf("%v (-got +with C.UTF-8):\n%s", env, diff)
			}
		})
	}
}
