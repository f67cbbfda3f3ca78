package test

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/warmfleet/warmfleet/pkg/events"
)

// as returns the place with the credentials of a role of deploy/nats.conf.
func (p *place) as(d deployed, role string) *place {
	return p.with("NATS_URL="+d.url, "NATS_USER="+role, "NATS_PASSWORD=secretOf"+role)
}

// A fleet on the server of deploy/nats.conf, each process as the user of its role.
func TestDeployedConf_RunsAFleet(t *testing.T) {
	cli := natsCLI(t)
	d := startDeployed(t)
	c := &cluster{place: newPlace(t, self())}
	c.connect(t, d.url, nats.UserInfo("operator", "secretOfoperator"), nats.CustomInboxPrefix("_INBOX_operator"))
	c.as(d, "scheduler").start(t, "scheduler", "scheduler").ready(t)
	plain := c.place
	c.place = plain.as(d, "worker")
	c.worker(t, "w")
	c.place = plain.as(d, "operator")
	dir := c.tree(t, "d", sampleScript)
	publisher, observer := plain.as(d, "publisher"), plain.as(d, "observer")

	id := events.NewID()
	host := strings.TrimSpace(read(t, "/etc/machine-id"))
	body := `{"v":1,"type":"warmfleet.submit.v1","plan":{"version":1,"resource":{"path":` + quoted(dir) + `,"host":"` + host + `"},"apply":"manual",` +
		`"steps":[{"run":"echo x >new; echo said","checkpoint":true},{"run":"rm src/b.txt"}]},"requested_by":"svc"}`
	publisher.do(t, cli, "--inbox-prefix", "_INBOX_publisher", "pub", "-J", "fleet.submit."+id, body)
	c.until(t, id, "awaiting approval", isType(events.TypeAwaitingApproval))

	for who, p := range map[string]*place{"publisher": publisher, "observer": observer} {
		out := p.do(t, cli, "--inbox-prefix", "_INBOX_"+who, "req", "fleet.api.plan.get", id, "--raw")
		if !strings.Contains(out, `"state":"awaiting_approval"`) {
			t.Errorf("%s: fleet.api.plan.get answers %s", who, out)
		}
		p.run(t, cli, "--inbox-prefix", "_INBOX_"+who, "--timeout", "1s", "req", "fleet.api.plan.approve", id)
	}
	if v := events.BuildView(c.records(t, id)); v.State != events.StateAwaitingApproval {
		t.Fatalf("publisher or observer approved: the plan is %s", v.State)
	}
	if out := observer.do(t, cli, "--inbox-prefix", "_INBOX_observer", "stream", "get", "FLEET_EVENTS", "-S", "fleet.evt.plan."+id+".accepted"); !strings.Contains(out, id) {
		t.Errorf("the observer reads %s", out)
	}

	flags := []string{"--inbox-prefix", "_INBOX_operator"}
	operator := func(args ...string) string { return c.do(t, "warmfleet", append(args, flags...)...) }
	if out := operator("plan", "diff", id); !strings.Contains(out, "b/new") {
		t.Errorf("plan diff: %s", out)
	}
	if out := operator("plan", "logs", id); out != "said\n" {
		t.Errorf("plan logs: %q", out)
	}
	operator("plan", "approve", id)
	v := c.ended(t, id, events.StateApplied)
	c.once(t, id, 2) // to run, then to apply
	want := c.tree(t, "want", sampleScript+"echo x >new; rm src/b.txt")
	sameTree(t, dir, want)
	operator("plan", "events", id)
	operator("worker", "show", "w")
	operator("checkpoint", "rollback", v.Checkpoints[1].ID, "--worker", "w")
	if out := operator("checkpoint", "export", v.Checkpoints[1].ID); !strings.Contains(out, "new") {
		t.Errorf("checkpoint export wrote %d bytes without the file", len(out))
	}
	c.queueEmptiesFor(t, d)
}

// queueEmptiesFor waits for an empty queue as the scheduler sees it.
func (c *cluster) queueEmptiesFor(t *testing.T, d deployed) {
	t.Helper()
	js := d.as(t, "scheduler").js
	eventually(t, "an empty queue of commands", func() bool {
		s, err := js.Stream(t.Context(), c.fleet.Subjects.CommandsStream())
		return err == nil && s.CachedInfo().State.Msgs == 0
	})
}
