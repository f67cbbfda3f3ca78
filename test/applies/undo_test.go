package applies

import (
	"os"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/internal/layer/layertest"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

const undoScript = `echo one >a; ln a a2; echo gone >gone; chmod 640 gone; mkdir -p sub/deep; echo in >sub/deep/in; ln -s a link; echo run >run; chmod 755 run
for i in $(seq 80); do echo $i >f$i; done; touch -d '2001-02-03 04:05:06.123456789' a gone run sub/deep/in f*`

const undoChange = `sed -i s/one/ONE/ a; rm gone; rm -r sub; echo file >sub; ln -sfn run link; chmod 644 run; mkdir n; echo n >n/f; for i in $(seq 80); do echo changed >f$i; done`

// Killed at any moment of an undo, by the next worker it is done once and whole.
func TestUndo_KilledWorker(t *testing.T) {
	t.Parallel()
	eachUndo(t, func(t *testing.T, c *fleettest.Cluster, w *fleettest.Process, dir, id string, before layertest.Snapshot) {
		c.Start(t, "undo", "warmfleet", "plan", "undo", id)
		fleettest.Eventually(t, "the undo to begin, or to end", func() bool {
			return fleettest.Exists(dir+"/.warmfleet-apply/journal.applying") || c.Count(t, id, fleettest.IsType(events.TypeRolledBack)) > 0
		})
		w.Kill(t)
		c.Worker(t, "heir")
		fleettest.Eventually(t, "the end of the undo", func() bool { return c.Count(t, id, fleettest.IsType(events.TypeRolledBack)) > 0 })
		fleettest.Eventually(t, "the end of the journal", func() bool { return !fleettest.Exists(dir + "/.warmfleet-apply") })
		if d := layertest.Diff(fleettest.Snapshot(t, dir), before, layertest.Options{NoDirTimes: true}); d != "" {
			t.Errorf("undone (-got +want):\n%s", d)
		}
		if n := c.Count(t, id, fleettest.IsType(events.TypeRolledBack)); n != 1 {
			t.Errorf("it was recorded %d times", n)
		}
	})
}

// eachUndo runs do after a plan was applied, with what was there before.
func eachUndo(t *testing.T, do func(t *testing.T, c *fleettest.Cluster, w *fleettest.Process, dir, id string, before layertest.Snapshot)) {
	all := []fleettest.Account{fleettest.Self()}
	if os.Getuid() == 0 {
		all = append(all, fleettest.Ordinary(t))
	}
	for _, a := range all {
		t.Run(a.Name, func(t *testing.T) {
			t.Parallel()
			c := fleettest.StartCluster(t, a)
			w := c.Worker(t, "w")
			dir := c.Tree(t, "d", undoScript)
			before := fleettest.Snapshot(t, dir)
			id := c.Submit(t, c.Plan(t, "apply: auto\n"+fleettest.Resource(dir), undoChange))
			c.Ended(t, id, events.StateApplied)
			do(t, c, w, dir, id, before)
		})
	}
}

// New privileges are a conflict unless the plan says that it means them. An ordinary user can't make devices at all.
func TestAllowSpecial(t *testing.T) {
	t.Parallel()
	fleettest.EachAccount(t, func(t *testing.T, c *fleettest.Cluster) {
		dir := c.Tree(t, "d", "echo x >tool; chmod 755 tool; echo y >other")
		const change = "chmod 4755 tool; echo z >other"
		refused := c.Ends(t, c.Submit(t, c.Plan(t, "apply: auto\n"+fleettest.Resource(dir), change)))
		if refused.State != events.StateConflict || len(refused.Conflicts) != 1 {
			t.Fatalf("state %s, conflicts %v", refused.State, refused.Conflicts)
		}
		x := refused.Conflicts[0]
		if x.Path != "tool" || x.Kind != "special" || x.Base.Mode != "0755" || x.Ours.Mode != "4755" || x.Theirs.Mode != "0755" {
			t.Errorf("conflict %+v, base %+v, ours %+v, theirs %+v", x, x.Base, x.Ours, x.Theirs)
		}
		if got := c.Sh(t, dir, "stat -c %a tool; cat other"); got != "755\ny\n" {
			t.Errorf("after the refusal: %q", got)
		}
		id := c.Submit(t, c.Plan(t, "apply: auto\nallow_special: true\n"+fleettest.Resource(dir), change))
		c.Ended(t, id, events.StateApplied)
		if got := c.Sh(t, dir, "stat -c %a tool; cat other"); got != "4755\nz\n" {
			t.Errorf("allowed: %q", got)
		}
		c.Do(t, "warmfleet", "plan", "undo", id)
		if got := c.Sh(t, dir, "stat -c %a tool; cat other"); got != "755\ny\n" {
			t.Errorf("undone: %q", got)
		}
		device := c.Ends(t, c.Submit(t, c.Plan(t, "apply: auto\nallow_special: true\n"+fleettest.Resource(dir), "mknod dev c 1 3")))
		if device.State != events.StateFailed || !strings.Contains(c.Do(t, "warmfleet", "plan", "logs", device.ID), "Operation not permitted") {
			t.Errorf("a step made a device: %s", device.State)
		}
	})
}
