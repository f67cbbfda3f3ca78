package test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/warmfleet/warmfleet/pkg/events"
)

// A worker that is killed while it builds an image leaves no process, and another makes the image.
func TestImage_WorkerKilledWhileBuilding(t *testing.T) {
	t.Parallel()
	c := startCluster(t, ordinary(t))
	dir := c.tree(t, "api", "git init -q -b trunk up; cd up; echo v1 >VERSION; git add .; "+gitIdentity+"commit -qm v1; git clone -q --bare . ../r.git")
	mark := fmt.Sprintf("86%d", os.Getpid())
	file := c.path("home", "pool.yaml")
	c.write(t, file, "version: 1\nname: api\nresource: {repo: "+quoted("file://"+filepath.Join(dir, "r.git"))+"}\nimage: {setup: ['sleep "+mark+" & sleep 4; cat VERSION >built']}\ntarget_size: 1\n")
	workers := map[string]*process{"wa": c.worker(t, "wa"), "wb": c.worker(t, "wb")}
	c.do(t, "warmfleet", "pool", "apply", file)
	var first, second string
	eventually(t, "a build", func() bool {
		first = c.imageWorker(t, "building")
		return first != "" && running(mark) > 0
	})
	workers[first].kill(t)
	eventually(t, "an image", func() bool {
		second = c.imageWorker(t, "built")
		return second != ""
	})
	if second == first || workers[second] == nil {
		t.Errorf("built by %q, want another than %s", second, first)
	}
	eventually(t, "end of what the killed worker ran", func() bool { return running(mark) == 0 })
	id := c.submit(t, c.plan(t, "apply: never\npool: api\n", "cat built"))
	c.ended(t, id, events.StateExecuted)
	if got := c.do(t, "warmfleet", "plan", "logs", id); got != "v1\n" {
		t.Errorf("a plan of the pool saw %q", got)
	}
}

// imageWorker is the worker of the last event of that type about an image, "" for none.
func (c *cluster) imageWorker(t testing.TB, typ string) (worker string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	records, err := c.fleet.Log.Follow(ctx, events.Filter{Subject: "fleet.evt.image.*." + typ, Mark: true})
	must(t, err)
	for r := range records {
		if r.Seq == 0 {
			break
		}
		worker = r.Event.Data.Worker
	}
	return worker
}
