package worker

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/image"
)

// A repository that has its recipe itself is built from scratch when that changes, and on the last image when it does not.
func TestBuild_RecipeOfTheRepository(t *testing.T) {
	t.Parallel()
	p, _, _ := buildRig(t)
	p.apply(t, `,"target_size":0,"image":"auto"`)
	recipe := func(step string) {
		dir := filepath.Join(p.up, ".warmfleet")
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "image.yaml"), []byte("setup: ['"+step+"']\n"), 0o644)); err != nil {
			t.Fatal(err)
		}
		gitAs(t, p.up, "add", ".warmfleet")
	}
	recipe("cat VERSION >>one")
	p.push(t, "v1")
	first := p.built(t, events.BuildParams{})
	p.push(t, "v2")
	second := p.built(t, events.BuildParams{})
	if got := p.holds(t, second, "one"); second.Parent != first.ID || got != "v1\nv2\n" {
		t.Errorf("the same recipe: on %q, one %q, want on %s", second.Parent, got, first.ID)
	}
	recipe("cat VERSION >>two")
	p.push(t, "v3")
	third := p.built(t, events.BuildParams{})
	if third.Parent != "" || p.holds(t, third, "one") != "" || p.holds(t, third, "two") != "v3\n" {
		t.Errorf("another recipe: on %q, one %q, two %q; want from scratch", third.Parent, p.holds(t, third, "one"), p.holds(t, third, "two"))
	}
	if !strings.Contains(strings.Join(third.Warnings, "\n"), image.ErrSteps.Error()) {
		t.Errorf("warnings %q, want why", third.Warnings)
	}
	recipe("oops, [")
	if err := os.WriteFile(filepath.Join(p.up, ".warmfleet/image.yaml"), []byte("steps: [x]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	gitAs(t, p.up, "add", ".warmfleet")
	p.push(t, "v4")
	if _, e := p.build(t, events.BuildParams{}); e.Kind() != "failed" || !strings.Contains(e.Data.Error, ".warmfleet/image.yaml: recipe in the repository is refused") {
		t.Errorf("a broken recipe: %s %s", e.Kind(), e.Data.Error)
	}
}

// What a repository's files are called and are of is no matter to a build that looks for a recipe.
func TestBuild_OddRecipes(t *testing.T) {
	t.Parallel()
	p, _, _ := buildRig(t)
	p.apply(t, `,"target_size":0,"image":"auto"`)
	for name, script := range map[string]string{
		"links":       "ln -s /etc/passwd yarn.lock; ln -s loop .devcontainer.json; ln -s .devcontainer.json loop; mkdir .warmfleet; ln -s /etc/passwd .warmfleet/image.yaml",
		"directories": "mkdir -p go.sum .devcontainer/devcontainer.json .warmfleet/image.yaml; for d in go.sum .devcontainer/devcontainer.json .warmfleet/image.yaml; do echo x >$d/x; done",
		"files":       "echo x >.warmfleet; echo x >.devcontainer; head -c 3000000 /dev/zero >uv.lock",
	} {
		shell(t, p.up, "git checkout -q --orphan "+name+"; git rm -rfq --ignore-unmatch .; "+script+"; git add -A")
		p.push(t, name)
		gitAs(t, p.repo, "symbolic-ref", "HEAD", "refs/heads/"+name)
		_, e := p.build(t, events.BuildParams{Scratch: true})
		// There is no uv here, but its step was found and begun.
		if want := name != "files"; want != (e.Kind() == "built") || !want && !strings.Contains(e.Data.Error, "uv sync") {
			t.Errorf("%s: %s %s", name, e.Kind(), e.Data.Error)
		}
	}
}

// shell runs a script in dir with git's settings of gitAs.
func shell(t *testing.T, dir, script string) {
	t.Helper()
	gitAs(t, dir, "-c", "alias.sh=!set -eu; cd '"+dir+"'; "+script, "sh")
}
