package fleets

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// as returns the place with the credentials of a role of deploy/nats.conf.
func as(p *fleettest.Place, d deployed, role string) *fleettest.Place {
	return p.With("NATS_URL="+d.url, "NATS_USER="+role, "NATS_PASSWORD=secretOf"+role)
}

// A fleet on the server of deploy/nats.conf, each process as the user of its role.
func TestDeployedConf_RunsAFleet(t *testing.T) {
	cli := natsCLI(t)
	d := startDeployed(t)
	c := &fleettest.Cluster{Place: fleettest.NewPlace(t, fleettest.Self())}
	c.Connect(t, d.url, nats.UserInfo("operator", "secretOfoperator"), nats.CustomInboxPrefix("_INBOX_operator"))
	as(c.Place, d, "scheduler").Start(t, "scheduler", "scheduler").Ready(t)
	plain := c.Place
	c.Place = as(plain, d, "worker")
	c.Worker(t, "w")
	c.Place = as(plain, d, "operator")
	dir := c.Tree(t, "d", fleettest.SampleScript)
	publisher, observer := as(plain, d, "publisher"), as(plain, d, "observer")

	id := events.NewID()
	host := strings.TrimSpace(fleettest.Read(t, "/etc/machine-id"))
	body := `{"v":1,"type":"warmfleet.submit.v1","plan":{"version":1,"resource":{"path":` + fleettest.Quoted(dir) + `,"host":"` + host + `"},"apply":"manual",` +
		`"steps":[{"run":"echo x >new; echo said","checkpoint":true},{"run":"rm src/b.txt"}]},"requested_by":"svc"}`
	publisher.Do(t, cli, "--inbox-prefix", "_INBOX_publisher", "pub", "-J", "fleet.submit."+id, body)
	c.Until(t, id, "awaiting approval", fleettest.IsType(events.TypeAwaitingApproval))

	for who, p := range map[string]*fleettest.Place{"publisher": publisher, "observer": observer} {
		out := p.Do(t, cli, "--inbox-prefix", "_INBOX_"+who, "req", "fleet.api.plan.get", id, "--raw")
		if !strings.Contains(out, `"state":"awaiting_approval"`) {
			t.Errorf("%s: fleet.api.plan.get answers %s", who, out)
		}
		p.Run(t, cli, "--inbox-prefix", "_INBOX_"+who, "--timeout", "1s", "req", "fleet.api.plan.approve", id)
	}
	if v := events.BuildView(c.Records(t, id)); v.State != events.StateAwaitingApproval {
		t.Fatalf("publisher or observer approved: the plan is %s", v.State)
	}
	if out := observer.Do(t, cli, "--inbox-prefix", "_INBOX_observer", "stream", "get", "FLEET_EVENTS", "-S", "fleet.evt.plan."+id+".accepted"); !strings.Contains(out, id) {
		t.Errorf("the observer reads %s", out)
	}

	flags := []string{"--inbox-prefix", "_INBOX_operator"}
	operator := func(args ...string) string { return c.Do(t, "warmfleet", append(args, flags...)...) }
	if out := operator("plan", "diff", id); !strings.Contains(out, "b/new") {
		t.Errorf("plan diff: %s", out)
	}
	if out := operator("plan", "logs", id); out != "said\n" {
		t.Errorf("plan logs: %q", out)
	}
	operator("plan", "approve", id)
	v := c.Ended(t, id, events.StateApplied)
	c.Once(t, id, 2) // to run, then to apply
	want := c.Tree(t, "want", fleettest.SampleScript+"echo x >new; rm src/b.txt")
	fleettest.SameTree(t, dir, want)
	operator("plan", "events", id)
	operator("worker", "show", "w")
	operator("checkpoint", "rollback", v.Checkpoints[1].ID, "--worker", "w")
	if out := operator("checkpoint", "export", v.Checkpoints[1].ID); !strings.Contains(out, "new") {
		t.Errorf("checkpoint export wrote %d bytes without the file", len(out))
	}
	queueEmptiesFor(t, c, d)
}

// queueEmptiesFor waits for an empty queue as the scheduler sees it.
func queueEmptiesFor(t *testing.T, c *fleettest.Cluster, d deployed) {
	t.Helper()
	js := d.as(t, "scheduler").js
	fleettest.Eventually(t, "an empty queue of commands", func() bool {
		s, err := js.Stream(t.Context(), c.Fleet.Subjects.CommandsStream())
		return err == nil && s.CachedInfo().State.Msgs == 0
	})
}
