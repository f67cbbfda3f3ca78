package worker

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/internal/sandboxtest"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/events/eventstest"
	"github.com/warmfleet/warmfleet/pkg/poolfile"
	"github.com/warmfleet/warmfleet/pkg/sandbox"
)

// poolRig is a rig with a bare repository, a clone of it that pushes, and the pool `api` of it, whose records the test writes
// as a scheduler and a builder would.
type poolRig struct {
	*rig
	up string // the clone
	// builder makes images; it serves nothing.
	builder *Worker
	made    int
}

// newBuiltPool is a rig whose repository has a commit, and the pool an image of it.
func newBuiltPool(t *testing.T) *poolRig {
	t.Helper()
	p := newPoolRig(t)
	p.push(t, "v1")
	p.image(t, "true >built")
	return p
}

func newPoolRig(t *testing.T) *poolRig {
	t.Helper()
	p := &poolRig{rig: newRig(t)}
	dir := t.TempDir()
	p.repo, p.up = filepath.Join(dir, "r.git"), filepath.Join(dir, "up")
	gitAs(t, dir, "init", "-q", "--bare", "-b", "trunk", p.repo)
	gitAs(t, dir, "init", "-q", "-b", "trunk", p.up)
	gitAs(t, p.up, "remote", "add", "origin", p.repo)
	if err := p.fleet.Queue.EnsurePool(t.Context(), "api"); err != nil {
		t.Fatal(err)
	}
	p.builder = p.make(t, "builder", p.open(t, eventstest.Connect(t, p.server)))
	t.Cleanup(p.builder.Close)
	return p
}

// gitAs runs git in dir as a user would, and returns its stdout.
func gitAs(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=T", "GIT_AUTHOR_EMAIL=t@example.com", "GIT_COMMITTER_NAME=T", "GIT_COMMITTER_EMAIL=t@example.com",
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git %q: %v: %s", args, err, stderr.String())
	}
	return strings.TrimRight(string(out), "\n")
}

// push commits VERSION with a content to the branch that is checked out, pushes it and returns the commit.
func (p *poolRig) push(t *testing.T, version string) string {
	t.Helper()
	if err := os.WriteFile(filepath.Join(p.up, "VERSION"), []byte(version+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	gitAs(t, p.up, "add", "VERSION")
	gitAs(t, p.up, "commit", "-q", "-m", version)
	gitAs(t, p.up, "push", "-q", "-f", "origin", "HEAD")
	return gitAs(t, p.up, "rev-parse", "HEAD")
}

// image builds an image of the remote's tip by a script and makes it the pool's latest.
func (p *poolRig) image(t *testing.T, script string) events.Image {
	t.Helper()
	w, ctx := p.builder, t.Context()
	base, err := w.repos.FromURL(ctx, p.repo, "")
	if err != nil {
		t.Fatal(err)
	}
	defer base.Release()
	sb, err := sandbox.New(ctx, w.hostFor(""), sandbox.Spec{
		ID: events.NewID(), Strategy: sandbox.CopyOnWrite, Chain: base.Chain, Network: isolate.NetworkNone,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.discard(sb)
	w.cps.Adopt(sb, len(base.Chain))
	sandboxtest.Run(t, sb, script)
	cp, err := w.cps.Create(ctx, sb, "", checkpoint.Phase(events.PhaseImage), nil)
	if err == nil {
		cp, err = w.cps.Store(ctx, cp.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	image := events.Image{
		ID: events.NewID(), Pool: "api", Repo: p.repo, Branch: base.Branch, Commit: base.Commit, Checkpoint: cp.ID, Worker: "builder",
		BuiltAt: time.Now(), Recipe: "r",
	}
	put(t, p.fleet.Images, image.ID, image)
	put(t, p.fleet.Images, events.LatestKey("api"), events.Latest{Pool: "api", Image: image.ID, Commit: image.Commit, BuiltAt: image.BuiltAt})
	return image
}

// apply writes the pool's record; text is what its file says beside version, name and resource.
func (p *poolRig) apply(t *testing.T, text string) {
	t.Helper()
	body := fmt.Sprintf(`{"version":1,"name":"api","resource":{"repo":%q}%s}`, p.repo, text)
	var spec poolfile.Pool
	if err := json.Unmarshal([]byte(body), &spec); err != nil {
		t.Fatal(err)
	}
	spec.Defaults()
	b, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	p.made++
	put(t, p.fleet.Pools, "api", events.Pool{Name: "api", Spec: b, Generation: uint64(p.made), AppliedAt: time.Now()})
}

func put(t *testing.T, b kv.Store, key string, v any) {
	t.Helper()
	body, err := json.Marshal(v)
	if err == nil {
		_, err = b.Put(t.Context(), key, body)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// plan submits a plan of the pool.
func (p *poolRig) plan(t *testing.T, text string) *events.Writer {
	t.Helper()
	w := p.accept(t, "pool: api\n"+text)
	if err := p.fleet.Queue.Publish(t.Context(), events.NewCommand("api", events.VerbRun, w.PlanID())); err != nil {
		t.Fatal(err)
	}
	return w
}

// claimOf waits for a plan's claim.
func (p *poolRig) claimOf(t *testing.T, id string) events.Data {
	t.Helper()
	seen := p.until(t, id, "claim", ofKind(events.TypeClaimed))
	return seen[len(seen)-1].Data
}

// output is what a plan's first step wrote.
func (p *poolRig) output(t *testing.T, id string) string {
	t.Helper()
	var out strings.Builder
	for c, err := range p.fleet.Output.Read(t.Context(), events.OutputQuery{PlanID: id}) {
		if err != nil {
			t.Fatal(err)
		}
		out.Write(c.Data)
	}
	return out.String()
}

// warm waits until a worker's numbers of the pool are as wanted.
func (p *poolRig) warm(t *testing.T, w *Worker, what string, wanted func(events.Warm) bool) events.Warm {
	t.Helper()
	var got events.Warm
	defer func() {
		if t.Failed() {
			t.Logf("last seen: %+v", got)
		}
	}()
	await(t, what, func() bool {
		got = w.Record().Warm["api"]
		return wanted(got)
	})
	return got
}

func idle(n int) func(events.Warm) bool {
	return func(s events.Warm) bool { return s.Idle == n && s.Making == 0 }
}
