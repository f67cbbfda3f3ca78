package fleets

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// natsVersion is the version of the nats command line that these tests are for.
const natsVersion = "v0.5.0"

// natsCLI is the path of the nats command line; without it the test is skipped, loudly.
func natsCLI(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("nats")
	if err != nil {
		out, _ := exec.Command("go", "env", "GOPATH").Output()
		path = filepath.Join(strings.TrimSpace(string(out)), "bin", "nats")
	}
	out, err := exec.Command(path, "--version").CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != natsVersion {
		t.Skipf("NOTHING CHECKS THAT THE nats COMMAND LINE READS OUR STREAMS: %s is not version %s (%q, %v): "+
			"go install github.com/nats-io/natscli/nats@%s", path, natsVersion, out, err, natsVersion)
	}
	return path
}

// onTerminal runs a program that insists on a terminal, to its end, and returns what it printed.
func onTerminal(t *testing.T, p *fleettest.Place, name string, args ...string) string {
	t.Helper()
	master, slave := fleettest.Pty(t)
	cmd := p.Command(context.WithoutCancel(t.Context()), name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty = true, true
	proc := fleettest.Start(t, name, cmd)
	slave.Close()
	read := make(chan struct{})
	go func() {
		defer close(read)
		for buf := make([]byte, 1<<16); ; {
			n, err := master.Read(buf)
			proc.Output.Write(buf[:n])
			if err != nil {
				return
			}
		}
	}()
	proc.Exit(t, fleettest.Patience)
	<-read
	return proc.Output.String()
}

func TestInterop_NatsCommandLine(t *testing.T) {
	t.Parallel()
	nats := natsCLI(t)
	c := fleettest.StartCluster(t, fleettest.Self())
	o := fleettest.NewOutlet(t, c.Place)
	c.Worker(t, "w", "--expose", o.Dir)
	dir := c.Tree(t, "d", fleettest.SampleScript)

	// The documented submission, word for word.
	id := events.NewID()
	host := strings.TrimSpace(fleettest.Read(t, "/etc/machine-id"))
	plan := fmt.Sprintf(`{"version":1,"name":"n","resource":{"path":%q,"host":%q},"apply":"never","steps":[{"run":%q}]}`, dir, host, "echo x >new; "+o.Gate())
	c.Do(t, nats, "pub", "-J", "fleet.submit."+id, `{"v":1,"type":"warmfleet.submit.v1","plan":`+plan+`,"requested_by":"svc"}`)
	c.Until(t, id, "step started", fleettest.IsType(events.TypeStepStarted))

	t.Run("PagesCommands", func(t *testing.T) {
		out := onTerminal(t, c.Place, nats, "stream", "view", "FLEET_COMMANDS", "--raw")
		if !strings.Contains(out, `"warmfleet.command.v1"`) || !strings.Contains(out, id) {
			t.Errorf("the queued command is not shown: %s", out)
		}
	})
	o.Open(t)
	v := c.Ended(t, id, events.StateExecuted)

	t.Run("ListsStreams", func(t *testing.T) {
		got := strings.Fields(c.Do(t, nats, "stream", "ls", "-n", "-a"))
		for _, want := range []string{
			"FLEET_COMMANDS", "FLEET_DLQ", "FLEET_EVENTS", "FLEET_OUTPUT", "FLEET_SCHEDULES", "FLEET_SUBMISSIONS", "KV_FLEET_CHECKPOINTS",
			"KV_FLEET_IMAGES", "KV_FLEET_LEASES", "KV_FLEET_PLANS", "KV_FLEET_POOLS", "KV_FLEET_WORKERS", "OBJ_FLEET_LAYERS",
		} {
			if !slices.Contains(got, want) {
				t.Errorf("%s is missing in %q", want, got)
			}
		}
	})
	t.Run("PagesEvents", func(t *testing.T) {
		out := onTerminal(t, c.Place, nats, "stream", "view", "FLEET_EVENTS", "--raw", "--subject", "fleet.evt.plan."+id+".>")
		for _, r := range c.Records(t, id) {
			if !strings.Contains(out, r.Event.ID) {
				t.Errorf("event %s is not shown", r.Event.Kind())
			}
		}
		if got := c.Do(t, nats, "stream", "get", "FLEET_EVENTS", "1"); !strings.Contains(got, `"specversion":"1.0"`) {
			t.Errorf("stream get: %s", got)
		}
	})
	t.Run("FetchesLayers", func(t *testing.T) { fetchesLayers(t, c, nats, v) })
	t.Run("SeesServices", func(t *testing.T) {
		out := c.Do(t, nats, "micro", "ls")
		for _, name := range []string{" warmfleet ", " warmfleet-worker "} {
			if !strings.Contains(out, name) {
				t.Errorf("service %q is missing in\n%s", name, out)
			}
		}
		if got := c.Do(t, nats, "req", "fleet.api.plan.get", id, "--raw"); !strings.Contains(got, `"state":"executed"`) {
			t.Errorf("fleet.api.plan.get answers %s", got)
		}
	})
}

// fetchesLayers gets every layer of a checkpoint with nats object get; tar lists it.
func fetchesLayers(t *testing.T, c *fleettest.Cluster, nats string, v events.View) {
	last := v.Checkpoints[len(v.Checkpoints)-1]
	cp, err := c.Client.Checkpoint(t.Context(), last.ID)
	fleettest.Must(t, err)
	if len(cp.Layers) != 1 {
		t.Fatalf("layers %q, want one", cp.Layers)
	}
	file := c.Path("layer.tar.zst")
	c.Do(t, nats, "object", "get", "FLEET_LAYERS", cp.Layers[0], "-O", file, "--no-progress")
	if got := c.Do(t, "tar", "--zstd", "-tf", file); !slices.Contains(strings.Fields(got), "new") {
		t.Errorf("tar lists %q, want new among it", got)
	}
	if fi, err := os.Stat(file); err != nil || fi.Size() != last.SizeBytes {
		t.Errorf("fetched %v, %v, want %d bytes", fi.Size(), err, last.SizeBytes)
	}
}

// The nats context that `up` writes points at the fleet and is not selected.
func TestInterop_NatsContext(t *testing.T) {
	t.Parallel()
	nats := natsCLI(t)
	p := fleettest.NewPlace(t, fleettest.Self())
	p.Start(t, "up", "warmfleet", "up", "--workers", "0").Ready(t)
	p.Do(t, nats, "--context", "warmfleet-local", "stream", "info", "FLEET_EVENTS", "-j")
	if r := p.Run(t, nats, "stream", "info", "FLEET_EVENTS"); r.Code == 0 {
		t.Error("the context was selected")
	}
	env := p.Path("state", "warmfleet", "nats.env")
	p.Sh(t, p.Dir, "set -a; . "+env+"; set +a; "+nats+" stream info FLEET_EVENTS -j; warmfleet plan ls")
	if fi, err := os.Stat(env); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("nats.env: %v, %v, want mode 0600", fi.Mode(), err)
	}
	p.Do(t, "warmfleet", "plan", "ls", "--context", "warmfleet-local")
}
