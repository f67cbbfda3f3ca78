package test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/pkg/events"
)

// What examples/pool.yaml tells people to do: a local bare repository, `up`, `pool apply`, three warm sandboxes; then a plan that starts warm
// with the commit that was pushed just before.
func TestExample_Pool(t *testing.T) {
	for _, a := range accounts(t) {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t, a)
			c := &cluster{place: p}
			u := p.upstream(t, "example", "echo 1 >v; echo .built >.gitignore")
			b, err := os.ReadFile(filepath.Join("..", "examples", "pool.yaml"))
			must(t, err)
			text := strings.Replace(string(b), `"file:///tmp/api.git"`, quoted(u.url()), 1)
			if !strings.Contains(text, u.url()) {
				t.Fatalf("the example's repository is another:\n%s", b)
			}
			file := p.path("home", "pool.yaml")
			p.write(t, file, text)
			c.serve(t, "--workers", "2")
			if got := c.warmfleet(t, "pool", "apply", file).exits(t, 0); !strings.Contains(got.stdout+got.stderr, "api applied") {
				t.Errorf("pool apply printed %q", got.stdout+got.stderr)
			}
			was := c.warm(t, "api", 3)
			shown := c.shown(t, "api")
			if shown.State != "ready" || shown.Warm != 3 || shown.TargetSize != 3 || shown.Image != was.Image || shown.Commit == "" || shown.Error != "" {
				t.Errorf("pool show: %+v", shown)
			}
			built := shown.Commit
			c.do(t, "warmfleet", "pool", "apply", p.poolFile(t, "api", u.url(), strings.Replace(after(text, "image:"), "max_staleness: 30s", "max_staleness: 0s", 1)))
			commit := u.push(t, "echo 2 >v")
			got, claim := c.ran(t, planIn("api"), whereScript+"; cat .built; git status --porcelain")
			if want := where("trunk", commit, "2") + built + "\n"; got != want || claim.Source != events.SourceWarm || claim.Commit != commit {
				t.Errorf("got %q, started %s at %s; want %q, warm", got, claim.Source, claim.Commit, want)
			}
			c.warm(t, "api", 3)
		})
	}
}

// after is what comes from a word on.
func after(text, word string) string {
	_, rest, _ := strings.Cut(text, word)
	return word + rest
}
