package pools

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// What examples/pool.yaml tells people to do: a local bare repository, `up`, `pool apply`, three warm sandboxes; then a plan that starts warm
// with the commit that was pushed just before.
func TestExample_Pool(t *testing.T) {
	t.Parallel()
	for _, a := range fleettest.Accounts(t) {
		t.Run(a.Name, func(t *testing.T) {
			t.Parallel()
			p := fleettest.NewPlace(t, a)
			c := &rig{&fleettest.Cluster{Place: p}}
			u := c.upstream(t, "example", "echo 1 >v; echo .built >.gitignore")
			b, err := os.ReadFile(filepath.Join("..", "..", "examples", "pool.yaml"))
			fleettest.Must(t, err)
			text := strings.Replace(string(b), `"file:///tmp/api.git"`, fleettest.Quoted(u.url()), 1)
			if !strings.Contains(text, u.url()) {
				t.Fatalf("the example's repository is another:\n%s", b)
			}
			file := p.Path("home", "pool.yaml")
			p.Write(t, file, text)
			c.Serve(t, "--workers", "2")
			if got := c.Warmfleet(t, "pool", "apply", file).Exits(t, 0); !strings.Contains(got.Stdout+got.Stderr, "api applied") {
				t.Errorf("pool apply printed %q", got.Stdout+got.Stderr)
			}
			was := c.warm(t, "api", 3)
			shown := c.shown(t, "api")
			if shown.State != "ready" || shown.Warm != 3 || shown.TargetSize != 3 || shown.Image != was.Image || shown.Commit == "" || shown.Error != "" {
				t.Errorf("pool show: %+v", shown)
			}
			built := shown.Commit
			c.Do(t, "warmfleet", "pool", "apply", c.poolFile(t, "api", u.url(), strings.Replace(after(text, "image:"), "max_staleness: 30s", "max_staleness: 0s", 1)))
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
