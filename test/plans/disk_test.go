package plans

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// smallExt4 mounts a file system of 512 MiB, of which a worker keeps a twentieth, for the place's account.
func smallExt4(t *testing.T, p *fleettest.Place, at string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can mount a small file system")
	}
	images, err := os.MkdirTemp("/dev/shm", "reserve")
	fleettest.Must(t, err)
	t.Cleanup(func() { fleettest.Must(t, os.RemoveAll(images)) })
	image := filepath.Join(images, "image")
	fleettest.Must(t, os.WriteFile(image, nil, 0o600))
	fleettest.Must(t, os.Truncate(image, 512<<20))
	fleettest.Must(t, os.Mkdir(at, 0o755))
	for _, args := range [][]string{{"mkfs.ext4", "-q", "-F", "-m", "0", image}, {"mount", "-o", "loop", image, at}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	fleettest.UnmountAfter(t, at)
	p.Own(t, at)
}

// A step without a limit that would fill the disk of server and worker is ended for that: the server goes on storing, and
// another plan that runs beside it is done.
func TestReserve_Runaway(t *testing.T) {
	for _, a := range fleettest.Accounts(t) {
		t.Run(a.Name, func(t *testing.T) {
			c := &fleettest.Cluster{Place: fleettest.NewPlace(t, a)}
			smallExt4(t, c.Place, c.Path("ctl"))
			c.Serve(t, "--workers", "1", "--allow-path", c.Path("work"))
			t.Cleanup(func() { c.Up.Kill(t) })
			dir := c.Tree(t, "d", "echo x >f")
			const beside = "i=0; while [ ! -e stop ] && [ $i -lt 60 ]; do echo $i; head -c 20k /dev/urandom >s$i; i=$((i+1)); sleep 0.1; done"
			good := c.Submit(t, c.Plan(t, "apply: never\n"+fleettest.Resource(dir), beside))
			c.Until(t, good, "its step", fleettest.IsType(events.TypeStepStarted))
			bad := c.Submit(t, c.Plan(t, "apply: never\n"+fleettest.Resource(dir), "cat /dev/zero >fill"))
			v := c.Ended(t, bad, events.StateFailed)
			if s := v.Steps[0]; fleettest.Deref(s.Cause) != "disk" || !strings.Contains(fleettest.Deref(v.Error), "disk from filling up") || strings.Contains(fleettest.Deref(v.Error), "\n") {
				t.Errorf("cause %q, error %q, want one line about the disk", fleettest.Deref(s.Cause), fleettest.Deref(v.Error))
			}
			c.Ended(t, good, events.StateExecuted)
			c.Ended(t, c.Submit(t, c.Plan(t, "apply: never\n"+fleettest.Resource(dir), "head -c 1M /dev/zero >some")), events.StateExecuted)
			if n := ofWorker(t, c, events.WorkerPaused); n == 0 || n != ofWorker(t, c, events.WorkerResumed) {
				t.Errorf("paused %d times, resumed %d", n, ofWorker(t, c, events.WorkerResumed))
			}
		})
	}
}

// ofWorker counts the events of a type about workers.
func ofWorker(t *testing.T, c *fleettest.Cluster, typ string) int {
	t.Helper()
	stream, err := c.Fleet.JetStream.Stream(t.Context(), c.Fleet.Subjects.EventsStream())
	fleettest.Must(t, err)
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter("fleet.evt."+events.NounWorker+".*."+typ))
	fleettest.Must(t, err)
	n := 0
	for _, count := range info.State.Subjects {
		n += int(count)
	}
	return n
}

// While less than the reserve is free nothing is begun, and people see why.
func TestReserve_Pauses(t *testing.T) {
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	smallExt4(t, c.Place, c.Path("w"))
	c.Worker(t, "w")
	dir := c.Tree(t, "d", "echo x >f")
	release := fleettest.FillTo(t, c.Path("w"), 20<<20)
	shown := func() (w events.Worker) {
		fleettest.Must(t, json.Unmarshal([]byte(c.Do(t, "warmfleet", "worker", "show", "w", "-o", "json")), &w))
		return w
	}
	fleettest.Eventually(t, "the worker to say that it is paused", func() bool { return strings.Contains(shown().Paused, "kept free") })
	if out := c.Do(t, "warmfleet", "worker", "ls"); !strings.Contains(out, "paused") {
		t.Errorf("worker ls does not say it:\n%s", out)
	}
	id := c.Submit(t, c.Plan(t, "apply: never\n"+fleettest.Resource(dir), "true"))
	e := c.Until(t, id, "that it waits", fleettest.IsType(events.TypeWaiting))
	if !strings.Contains(e.Data.Reason, "worker w is paused") || !strings.Contains(e.Data.Reason, "kept free") {
		t.Errorf("it waits for %q", e.Data.Reason)
	}
	release()
	c.Ended(t, id, events.StateExecuted)
	fleettest.Eventually(t, "the worker to go on", func() bool { return shown().Paused == "" })
}

// A worker that is killed while a plan has a disk of its own leaves no loop device, mount or file of it.
func TestDisk_KilledWorkerLeavesNothing(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root mounts images")
	}
	c := fleettest.StartCluster(t, fleettest.Self())
	w := c.Worker(t, "w")
	dir := c.Tree(t, "d", "echo x >f")
	id := c.Submit(t, c.Plan(t, "apply: never\nlimits: {disk_gb: 0.1}\n"+fleettest.Resource(dir), "head -c 10M /dev/zero >some; echo written; sleep 600"))
	c.Until(t, id, "its step", fleettest.IsType(events.TypeStepStarted))
	if got := c.Count(t, id, func(e events.Event) bool { return e.Data.Guarantees["disk"] == "enforced" }); got != 1 {
		t.Errorf("the claim does not say that the limit is enforced:\n%s", c.Story(t, id))
	}
	loops := func() int {
		ctx, cancel := context.WithTimeout(t.Context(), fleettest.Patience)
		defer cancel()
		out, err := exec.CommandContext(ctx, "losetup", "-a").Output()
		fleettest.Must(t, err)
		return strings.Count(string(out), c.Path("w"))
	}
	fleettest.Eventually(t, "a loop device", func() bool { return loops() == 1 })
	w.Kill(t)
	fleettest.Eventually(t, "no loop device", func() bool { return loops() == 0 })
	for _, name := range []string{"scratch", "layers/staging"} {
		images, err := filepath.Glob(c.Path("w", name, "disk-*"))
		if err != nil || len(images) > 0 {
			t.Errorf("left: %q, %v", images, err)
		}
	}
	c.Do(t, "warmfleet", "plan", "cancel", id)
	c.Worker(t, "w")
	c.Ended(t, id, events.StateCancelled)
}
