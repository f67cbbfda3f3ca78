package fleettest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Strategies are the names of all strategies.
func Strategies() []string { return []string{"none", "copy_on_write", "git_worktree"} }

// Plan writes a plan file of run steps step-1, step-2, ... Lines of head are its other keys.
func (p *Place) Plan(t testing.TB, head string, scripts ...string) string {
	t.Helper()
	var steps []string
	for _, s := range scripts {
		steps = append(steps, "{run: "+Quoted(s)+"}")
	}
	return p.PlanOf(t, head, steps...)
}

// PlanOf writes a plan file; each step is a YAML flow mapping.
func (p *Place) PlanOf(t testing.TB, head string, steps ...string) string {
	t.Helper()
	text := "version: 1\nname: " + Quoted(filepath.Base(t.Name())) + "\n" + strings.TrimSpace(head) + "\nsteps:\n"
	for _, s := range steps {
		text += "  - " + s + "\n"
	}
	f, err := os.CreateTemp(p.Path("home"), "plan-*.yaml")
	Must(t, err)
	_, err = f.WriteString(text)
	Must(t, err)
	Must(t, f.Close())
	Must(t, os.Chmod(f.Name(), 0o644))
	return f.Name()
}

// Quoted is text as a double-quoted YAML scalar, which any JSON string is.
func Quoted(text string) string {
	b, err := json.Marshal(text)
	if err != nil {
		panic(err) // a string always encodes
	}
	return string(b)
}

// Resource is the line of a plan file that names a directory.
func Resource(dir string) string { return "resource: {path: " + Quoted(dir) + "}" }
