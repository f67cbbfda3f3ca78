package plans

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// k5Git is a git that keeps with what it was called, then is git.
const k5Git = `#!/bin/bash
printf '%s|%s|%s|%s\n' "${LC_ALL-unset}" "${LANGUAGE-unset}" "${LANG-unset}" "$1" >>LOG
exec REAL "$@"
`

// Case K5: whatever the language of worker and caller, every git of ours speaks C, and a step has the plan's, or UTF-8. Whether translations
// are installed does not matter to that.
func TestCase_K5_OwnGit(t *testing.T) {
	t.Parallel()
	p := fleettest.NewPlace(t, fleettest.Ordinary(t))
	real := strings.TrimSpace(p.Sh(t, p.Path("work"), "command -v git"))
	log := p.Path("tmp", "log")
	p.Write(t, p.Path("home", "git"), strings.NewReplacer("LOG", log, "REAL", real).Replace(k5Git))
	fleettest.Must(t, os.Chmod(p.Path("home", "git"), 0o755))
	german := p.Without("LANG").Without("PATH").With("PATH="+p.Path("home")+":"+fleettest.Bin(t)+":/usr/local/bin:/usr/bin:/bin", "LANG=de_DE.UTF-8", "LANGUAGE=de", "LC_ALL=de_DE.UTF-8")
	c := &fleettest.Cluster{Place: german}
	c.Serve(t)
	c.Worker(t, "w")
	top := p.Tree(t, "k5", "git init -q -b trunk up; cd up; echo s >s; git add -A; "+fleettest.GitIdentity+"commit -qm up; cd ..\n"+fleettest.SubmoduleScript)
	dir := filepath.Join(top, "repo")
	p.Sh(t, dir, "git config user.name R; git config user.email r@x; echo a >a; echo z >Z; echo u >ü; git add .; git commit -qm two")
	const see = `printf 'ü|%s|%s|%s\n' "${LC_ALL-unset}" "${LANGUAGE-unset}" "$LANG"; locale charmap; echo b >>a; echo n >ä`
	for _, head := range []string{"strategy: git_worktree\n", "strategy: copy_on_write\n"} {
		id := c.Submit(t, c.Plan(t, "apply: auto\ncommit: {message: m, branch: made}\nidentity: {name: By, email: by@example.com}\n"+head+fleettest.Resource(dir), see))
		c.Ends(t, id)
		if got := c.Do(t, "warmfleet", "plan", "logs", id); got != "ü|unset|unset|C.UTF-8\nUTF-8\n" {
			t.Errorf("a step printed %q", got)
		}
	}
	own := c.Submit(t, c.Plan(t, "apply: never\nenv: {LC_ALL: tr_TR.UTF-8, LANGUAGE: tr}\n"+fleettest.Resource(dir), `printf '%s|%s\n' "$LC_ALL" "$LANGUAGE"`))
	c.Ended(t, own, events.StateExecuted)
	if got := c.Do(t, "warmfleet", "plan", "logs", own); !strings.HasSuffix(got, "tr_TR.UTF-8|tr\n") {
		t.Errorf("with the plan's language a step printed %q", got)
	}
	for ref, code := range map[string]int{"trunk": 0, "nope": 2} {
		r := c.Warmfleet(t, "run", c.Plan(t, "apply: never", "true"), "--repo", "file://"+dir, "--ref", ref)
		if code == 0 && r.Code != 0 || code != 0 && (r.Code == 0 || !strings.Contains(r.Stderr, ref)) {
			t.Errorf("ref %s: exit code %d, %s", ref, r.Code, r.Stderr)
		}
	}
	calls := 0
	for line := range strings.Lines(fleettest.Read(t, log)) {
		if calls++; !strings.HasPrefix(line, "C|C|") {
			t.Errorf("a git of ours was called with %q", line)
		}
	}
	if calls < 10 {
		t.Errorf("only %d calls were seen", calls)
	}
}
