package plans

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// Case B4. An archive that reaches outside is refused whole, by whoever restores, exports or compares it.
func TestCase_B4(t *testing.T) {
	t.Parallel()
	fleettest.EachAccount(t, func(t *testing.T, c *fleettest.Cluster) {
		dir := c.Tree(t, "b4", "echo x >f")
		canary := c.Tree(t, "canary", "echo precious >file; mkdir x; echo precious >x/b")
		before := fleettest.Snapshot(t, canary)
		v := c.Warmfleet(t, "run", c.Plan(t, "apply: never", "echo y >g"), "--path", dir, "-o", "json").Exits(t, 0).View(t)
		post := v.Checkpoints[len(v.Checkpoints)-1].ID
		up := strings.Repeat("../", 30) + canary[1:]
		file := func(name string) *tar.Header {
			return &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: 4}
		}
		link := func(typ byte, name, to string) *tar.Header {
			return &tar.Header{Name: name, Linkname: to, Typeflag: typ, Mode: 0o777}
		}
		for _, h := range []struct {
			name    string
			entries []*tar.Header
			good    bool
		}{
			{"ThroughALink", []*tar.Header{link(tar.TypeSymlink, "a", canary+"/x"), file("a/b")}, false},
			{"Upwards", []*tar.Header{file("../z")}, false},
			{"UpwardsFar", []*tar.Header{file(up + "/file")}, false},
			{"Absolute", []*tar.Header{file(canary + "/file")}, false},
			{"HardLinkUpwards", []*tar.Header{link(tar.TypeLink, "h", up+"/file")}, false},
			{"HardLinkAbsolute", []*tar.Header{link(tar.TypeLink, "h", canary+"/file")}, false},
			{"HardLinkThroughALink", []*tar.Header{link(tar.TypeSymlink, "a", canary), link(tar.TypeLink, "h", "a/file")}, false},
			{"HardLink", []*tar.Header{file("h1"), link(tar.TypeLink, "h2", "h1")}, true},
		} {
			t.Run(h.name, func(t *testing.T) {
				id := plant(t, c, post, h.entries)
				if h.good {
					if got := c.Sh(t, c.Export(t, id), "cat f h1 h2; [ h1 -ef h2 ] && echo one"); got != "x\nevilevilone\n" {
						t.Errorf("exported: %q", got)
					}
					c.Warmfleet(t, "checkpoint", "rollback", id, "--worker", "w").Exits(t, 0)
					return
				}
				c.Warmfleet(t, "checkpoint", "rollback", id, "--worker", "w").OneLine(t, 1, "corrupt")
				c.Warmfleet(t, "checkpoint", "diff", id).OneLine(t, 1, "corrupt")
				r := c.Warmfleet(t, "checkpoint", "export", id)
				r.OneLine(t, 1, "corrupt")
				if r.Stdout != "" {
					t.Errorf("export wrote %d bytes of it", len(r.Stdout))
				}
			})
		}
		fleettest.Unchanged(t, canary, before)
		// The one good checkpoint has a sandbox that is kept for an hour.
		if left := fleettest.Unfinished(t, c.Path("w")); len(left) > 1 {
			t.Errorf("left behind: %v", left)
		}
	})
}

// plant stores an archive as the top layer of a checkpoint that is otherwise like another, and returns its id.
func plant(t *testing.T, c *fleettest.Cluster, like string, entries []*tar.Header) string {
	t.Helper()
	var plain bytes.Buffer
	w := tar.NewWriter(&plain)
	for _, h := range entries {
		h.Format = tar.FormatPAX
		fleettest.Must(t, w.WriteHeader(h))
		_, err := w.Write([]byte("evil")[:h.Size])
		fleettest.Must(t, err)
	}
	fleettest.Must(t, w.Close())
	enc, err := zstd.NewWriter(nil)
	fleettest.Must(t, err)
	packed := enc.EncodeAll(plain.Bytes(), nil)
	ref := checkpoint.LayerRef{
		Name: fmt.Sprintf("sha256-%x.tar.zst", sha256.Sum256(plain.Bytes())), Size: int64(len(packed)), TarSize: int64(plain.Len()),
		Digest: fmt.Sprintf("sha256:%x", sha256.Sum256(packed)),
	}
	_, err = c.Fleet.Store.Put(t.Context(), ref.Name, bytes.NewReader(packed))
	fleettest.Must(t, err)
	cp, err := checkpoint.Load(t.Context(), c.Fleet.Checkpoints, like)
	fleettest.Must(t, err)
	cp.ID, cp.Layers = events.NewID(), []checkpoint.LayerRef{ref}
	b, err := json.Marshal(cp)
	fleettest.Must(t, err)
	_, err = c.Fleet.Checkpoints.Create(t.Context(), cp.ID, b)
	fleettest.Must(t, err)
	return cp.ID
}

// Case B5. Whatever links lie in a sandbox, or in its place, removing it never touches what they lead to.
func TestCase_B5(t *testing.T) {
	t.Parallel()
	fleettest.EachAccount(t, func(t *testing.T, c *fleettest.Cluster) {
		keep := c.Tree(t, "keep", "echo 1 >a; mkdir d; echo 2 >d/b; echo 3 >c")
		before := fleettest.Snapshot(t, keep)
		script := "rm -rf node_modules; ln -sn " + keep + " node_modules; ln -sfn / root; ln -sfn .. up; mkdir -p deep; ln -sfn " + keep + " deep/link; echo x >f"
		o := fleettest.NewOutlet(t, c.Place)
		c.Worker(t, "links", "--expose", o.Dir)
		for _, strategy := range fleettest.Strategies() {
			t.Run(strategy, func(t *testing.T) {
				dir := c.Tree(t, "b5-"+strategy, "git init -q -b trunk .; mkdir node_modules; echo one >node_modules/f; git add -A; "+fleettest.GitIdentity+"commit -qm one")
				head := "strategy: " + strategy + "\n" + applyFor(strategy) + "\n" + fleettest.Resource(dir)
				c.Ends(t, c.Submit(t, c.Plan(t, head, script)))
				c.Ends(t, c.Submit(t, c.Plan(t, head, script, "exit 3")))
				id := c.Submit(t, c.Plan(t, head, script, "until [ -e /never ]; do sleep 0.05; done"))
				c.Until(t, id, "second step", fleettest.All(fleettest.IsType(events.TypeStepStarted), fleettest.OfStep("step-2")))
				c.Do(t, "warmfleet", "plan", "cancel", id)
				c.Ended(t, id, events.StateCancelled)
				fleettest.Unchanged(t, keep, before)
			})
		}
		t.Run("RootSwapped", func(t *testing.T) { swappedRoot(t, keep) })
		fleettest.Unchanged(t, keep, before)
	})
}

// swappedRoot puts links in the place of every directory of a sandbox just before it is removed.
func swappedRoot(t *testing.T, keep string) {
	before := fleettest.Snapshot(t, keep)
	c := fleettest.StartCluster(t, fleettest.Self())
	o := fleettest.NewOutlet(t, c.Place)
	w := c.Worker(t, "w", "--expose", o.Dir)
	dir := c.Tree(t, "d", "echo x >f")
	id := c.Submit(t, c.Plan(t, "apply: never\n"+fleettest.Resource(dir), "mkdir d; echo y >d/y; "+o.Gate()))
	c.Until(t, id, "step", fleettest.IsType(events.TypeStepStarted))
	views := c.LeftViews(t, "w")
	if len(views) == 0 {
		t.Fatal("no sandbox lies on the worker's disk")
	}
	for _, view := range views {
		inside, err := filepath.Glob(filepath.Join(view, "*"))
		fleettest.Must(t, err)
		for _, place := range append(inside, view) {
			fleettest.Must(t, os.Rename(place, place+".moved"))
			fleettest.Must(t, os.Symlink(keep, place))
		}
	}
	o.Open(t)
	c.Ends(t, id)
	fleettest.Unchanged(t, keep, before)
	w.Kill(t)
	c.Worker(t, "w", "--expose", o.Dir) // sweeps what the other left
	fleettest.Unchanged(t, keep, before)
}
