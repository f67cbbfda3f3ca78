package test

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
)

// Case B4. An archive that reaches outside is refused whole, by whoever restores, exports or compares it.
func TestCase_B4(t *testing.T) {
	eachAccount(t, func(t *testing.T, c *cluster) {
		dir := c.tree(t, "b4", "echo x >f")
		canary := c.tree(t, "canary", "echo precious >file; mkdir x; echo precious >x/b")
		before := snapshot(t, canary)
		v := c.warmfleet(t, "run", c.plan(t, "apply: never", "echo y >g"), "--path", dir, "-o", "json").exits(t, 0).view(t)
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
				id := c.plant(t, post, h.entries)
				if h.good {
					if got := c.sh(t, export(t, c, id), "cat f h1 h2; [ h1 -ef h2 ] && echo one"); got != "x\nevilevilone\n" {
						t.Errorf("exported: %q", got)
					}
					c.warmfleet(t, "checkpoint", "rollback", id, "--worker", "w").exits(t, 0)
					return
				}
				c.warmfleet(t, "checkpoint", "rollback", id, "--worker", "w").oneLine(t, 1, "corrupt")
				c.warmfleet(t, "checkpoint", "diff", id).oneLine(t, 1, "corrupt")
				r := c.warmfleet(t, "checkpoint", "export", id)
				r.oneLine(t, 1, "corrupt")
				if r.stdout != "" {
					t.Errorf("export wrote %d bytes of it", len(r.stdout))
				}
			})
		}
		unchanged(t, canary, before)
		// The one good checkpoint has a sandbox that is kept for an hour.
		if left := unfinished(t, c.path("w")); len(left) > 1 {
			t.Errorf("left behind: %v", left)
		}
	})
}

// plant stores an archive as the top layer of a checkpoint that is otherwise like another, and returns its id.
func (c *cluster) plant(t *testing.T, like string, entries []*tar.Header) string {
	t.Helper()
	var plain bytes.Buffer
	w := tar.NewWriter(&plain)
	for _, h := range entries {
		h.Format = tar.FormatPAX
		must(t, w.WriteHeader(h))
		_, err := w.Write([]byte("evil")[:h.Size])
		must(t, err)
	}
	must(t, w.Close())
	enc, err := zstd.NewWriter(nil)
	must(t, err)
	packed := enc.EncodeAll(plain.Bytes(), nil)
	ref := checkpoint.LayerRef{
		Name: fmt.Sprintf("sha256-%x.tar.zst", sha256.Sum256(plain.Bytes())), Size: int64(len(packed)), TarSize: int64(plain.Len()),
		Digest: fmt.Sprintf("sha256:%x", sha256.Sum256(packed)),
	}
	_, err = c.fleet.Store.Put(t.Context(), ref.Name, bytes.NewReader(packed))
	must(t, err)
	cp, err := checkpoint.Load(t.Context(), c.fleet.Checkpoints, like)
	must(t, err)
	cp.ID, cp.Layers = events.NewID(), []checkpoint.LayerRef{ref}
	b, err := json.Marshal(cp)
	must(t, err)
	_, err = c.fleet.Checkpoints.Create(t.Context(), cp.ID, b)
	must(t, err)
	return cp.ID
}

// Case B5. Whatever links lie in a sandbox, or in its place, removing it never touches what they lead to.
func TestCase_B5(t *testing.T) {
	eachAccount(t, func(t *testing.T, c *cluster) {
		keep := c.tree(t, "keep", "echo 1 >a; mkdir d; echo 2 >d/b; echo 3 >c")
		before := snapshot(t, keep)
		script := "rm -rf node_modules; ln -sn " + keep + " node_modules; ln -sfn / root; ln -sfn .. up; mkdir -p deep; ln -sfn " + keep + " deep/link; echo x >f"
		o := newOutlet(t, c.place)
		c.worker(t, "links", "--expose", o.dir)
		for _, strategy := range strategies {
			t.Run(strategy, func(t *testing.T) {
				dir := c.tree(t, "b5-"+strategy, "git init -q -b trunk .; mkdir node_modules; echo one >node_modules/f; git add -A; "+gitIdentity+"commit -qm one")
				head := "strategy: " + strategy + "\n" + applyFor(strategy) + "\n" + resource(dir)
				c.ends(t, c.submit(t, c.plan(t, head, script)))
				c.ends(t, c.submit(t, c.plan(t, head, script, "exit 3")))
				id := c.submit(t, c.plan(t, head, script, "until [ -e /never ]; do sleep 0.05; done"))
				c.until(t, id, "second step", all(isType(events.TypeStepStarted), ofStep("step-2")))
				c.do(t, "warmfleet", "plan", "cancel", id)
				c.ended(t, id, events.StateCancelled)
				unchanged(t, keep, before)
			})
		}
		t.Run("RootSwapped", func(t *testing.T) { swappedRoot(t, keep) })
		unchanged(t, keep, before)
	})
}

// swappedRoot puts links in the place of every directory of a sandbox just before it is removed.
func swappedRoot(t *testing.T, keep string) {
	before := snapshot(t, keep)
	c := startCluster(t, self())
	o := newOutlet(t, c.place)
	w := c.worker(t, "w", "--expose", o.dir)
	dir := c.tree(t, "d", "echo x >f")
	id := c.submit(t, c.plan(t, "apply: never\n"+resource(dir), "mkdir d; echo y >d/y; "+o.gate()))
	c.until(t, id, "step", isType(events.TypeStepStarted))
	views := leftViews(t, c, "w")
	if len(views) == 0 {
		t.Fatal("no sandbox lies on the worker's disk")
	}
	for _, view := range views {
		inside, err := filepath.Glob(filepath.Join(view, "*"))
		must(t, err)
		for _, place := range append(inside, view) {
			must(t, os.Rename(place, place+".moved"))
			must(t, os.Symlink(keep, place))
		}
	}
	o.open(t)
	c.ends(t, id)
	unchanged(t, keep, before)
	w.kill(t)
	c.worker(t, "w", "--expose", o.dir) // sweeps what the other left
	unchanged(t, keep, before)
}
