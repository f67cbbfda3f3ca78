package pools

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// A worker that is killed while it builds an image leaves no process, and another makes the image.
func TestImage_WorkerKilledWhileBuilding(t *testing.T) {
	t.Parallel()
	c := startRig(t, fleettest.Ordinary(t))
	dir := c.Tree(t, "api", "git init -q -b trunk up; cd up; echo v1 >VERSION; git add .; "+fleettest.GitIdentity+"commit -qm v1; git clone -q --bare . ../r.git")
	mark := fmt.Sprintf("86%d", os.Getpid())
	file := c.Path("home", "pool.yaml")
	c.Write(t, file, "version: 1\nname: api\nresource: {repo: "+fleettest.Quoted("file://"+filepath.Join(dir, "r.git"))+"}\nimage: {setup: ['sleep "+mark+" & sleep 4; cat VERSION >built']}\ntarget_size: 1\n")
	workers := map[string]*fleettest.Process{"wa": c.Worker(t, "wa"), "wb": c.Worker(t, "wb")}
	c.Do(t, "warmfleet", "pool", "apply", file)
	var first, second string
	fleettest.Eventually(t, "a build", func() bool {
		first = c.imageWorker(t, "building")
		return first != "" && fleettest.Running(mark) > 0
	})
	workers[first].Kill(t)
	fleettest.Eventually(t, "an image", func() bool {
		second = c.imageWorker(t, "built")
		return second != ""
	})
	if second == first || workers[second] == nil {
		t.Errorf("built by %q, want another than %s", second, first)
	}
	fleettest.Eventually(t, "end of what the killed worker ran", func() bool { return fleettest.Running(mark) == 0 })
	id := c.Submit(t, c.Plan(t, "apply: never\npool: api\n", "cat built"))
	c.Ended(t, id, events.StateExecuted)
	if got := c.Do(t, "warmfleet", "plan", "logs", id); got != "v1\n" {
		t.Errorf("a plan of the pool saw %q", got)
	}
}

// imageWorker is the worker of the last event of that type about an image, "" for none.
func (c *rig) imageWorker(t testing.TB, typ string) (worker string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	records, err := c.Fleet.Log.Follow(ctx, events.Filter{Subject: "fleet.evt.image.*." + typ, Mark: true})
	fleettest.Must(t, err)
	for r := range records {
		if r.Seq == 0 {
			break
		}
		worker = r.Event.Data.Worker
	}
	return worker
}
