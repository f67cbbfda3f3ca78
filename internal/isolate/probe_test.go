package isolate_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/internal/isolate"
)

func TestProbe(t *testing.T) {
	scratch := t.TempDir()
	began := time.Now()
	r, err := isolate.Probe(testContext(t), scratch)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("took %v", time.Since(began))
	want := isolate.Report{Rung: rung(), Overlay: true, Guarantees: map[string]isolate.Guarantee{}}
	for _, name := range []string{isolate.Writes, isolate.HiddenFiles, isolate.TreeKill, isolate.HiddenEnv, isolate.Network, isolate.UnixSockets, isolate.Processes} {
		want.Guarantees[name] = isolate.Guarantee{State: isolate.Enforced}
	}
	want.Guarantees[isolate.KernelSurface] = r.Guarantees[isolate.KernelSurface]
	if got := r.Guarantees[isolate.KernelSurface]; got.State != isolate.BestEffort || got.Why == "" || got.Fix == "" {
		t.Errorf("%s: got %+v, want best effort with why and fix", isolate.KernelSurface, got)
	}
	for _, name := range []string{isolate.Memory, isolate.CPU, isolate.Pids, isolate.Disk} {
		if got := r.Guarantees[name]; got.State != isolate.Absent || got.Why == "" || got.Fix == "" {
			t.Errorf("%s: got %+v, want absent with why and fix", name, got)
		}
		want.Guarantees[name] = r.Guarantees[name]
	}
	if diff := cmp.Diff(r, want); diff != "" {
		t.Errorf("report (-got +want):\n%s", diff)
	}
	if got := r.Unmet(isolate.NetworkNone); got != nil {
		t.Errorf("Unmet: got %v, want none", got)
	}
	left, err := os.ReadDir(scratch)
	if err != nil || len(left) != 0 {
		t.Errorf("scratch after probe: got %v, %v; want nothing", left, err)
	}
}

// Where temporary files go may be far down: the address of a socket there would be too long.
func TestProbe_LongTemporaryDirectory(t *testing.T) {
	long := filepath.Join(t.TempDir(), strings.Repeat("long", 25))
	if err := os.Mkdir(long, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", long)
	r, err := isolate.Probe(testContext(t), t.TempDir())
	if err != nil || r.Rung != rung() || r.Guarantees[isolate.UnixSockets].State != isolate.Enforced {
		t.Errorf("got %+v, %v", r, err)
	}
	if left, err := os.ReadDir(long); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// Where user namespaces are forbidden to everybody, as in a sandbox of ours, Landlock is what is left.
func TestProbe_NamespacesForbidden(t *testing.T) {
	b := newBox(t, isolate.Config{})
	out, r := b.sh("", func(c *isolate.Command) {
		c.Argv, c.Env = []string{"/proc/self/exe"}, append(c.Env, modeVariable+"=probe")
	})
	var report isolate.Report
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("%v: %q %+v", err, out, r)
	}
	if report.Rung != isolate.RungLandlock || report.Overlay || report.OverlayWhy == "" {
		t.Errorf("got %+v, want landlock", report)
	}
	for _, passed := range []isolate.Rung{isolate.RungUser, isolate.RungBubblewrap} {
		if !strings.Contains(report.RungWhy, string(passed)+": ") {
			t.Errorf("why it is no better one: got %q, want a word of %s", report.RungWhy, passed)
		}
	}
	want := []string{isolate.Writes, isolate.TreeKill} // its user is the worker's
	if diff := cmp.Diff(report.Unmet(isolate.NetworkNone), want); diff != "" {
		t.Errorf("unmet (-got +want):\n%s", diff)
	}
	for _, name := range want {
		if g := report.Guarantees[name]; g.Why == "" || g.Fix == "" {
			t.Errorf("%s: got %+v, want why and fix", name, g)
		}
	}
	if got := report.Guarantees[isolate.TreeKill].State; got != isolate.BestEffort {
		t.Errorf("tree_kill: got %s", got)
	}
}

// An overlay can't have its upper on an overlay; everything else holds all the same.
func TestProbe_OverlayUnusable(t *testing.T) {
	b := newBox(t, isolate.Config{})
	ctx := testContext(t)
	if err := b.Detach(ctx); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() != 0 {
		t.Skip("an ordinary user can't reach its overlay by a path")
	}
	mount, err := b.mounter.Overlay(ctx, b.overlay())
	if err != nil {
		t.Fatal(err)
	}
	defer mount.Close()
	r, err := isolate.Probe(ctx, fmt.Sprintf("/proc/self/fd/%d", mount.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if r.Overlay || r.OverlayWhy == "" || r.Unmet(isolate.NetworkNone) != nil {
		t.Errorf("got %+v, want all guarantees and no overlay", r)
	}
	t.Log(r.OverlayWhy)
}
