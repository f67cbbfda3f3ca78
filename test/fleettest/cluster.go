package fleettest

import (
	"os"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/warmfleet/warmfleet/internal/fleet"
	"github.com/warmfleet/warmfleet/pkg/client"
)

// Cluster is a fleet of processes: `warmfleet up --workers 0`, and workers that a test adds.
// Commands of the place use its server.
type Cluster struct {
	*Place
	Client *client.Client
	Fleet  *fleet.Fleet
	Up     *Process
}

// StartCluster starts server and scheduler in a new place of an account.
func StartCluster(t testing.TB, a Account) *Cluster {
	t.Helper()
	c := &Cluster{Place: NewPlace(t, a)}
	c.Serve(t)
	return c
}

// Serve starts server and scheduler on the cluster's state directory and connects to it.
func (c *Cluster) Serve(t testing.TB, flags ...string) {
	t.Helper()
	c.ServeBy(t, c.Place, "warmfleet", flags...)
}

// ServeBy is serve with a program, and in an environment, of the caller's choice.
func (c *Cluster) ServeBy(t testing.TB, p *Place, program string, flags ...string) {
	t.Helper()
	args := append([]string{"up", "--workers", "0", "--state-dir", c.Path("ctl")}, flags...)
	c.Up = p.Start(t, "up", program, args...).Ready(t)
	env := ReadEnv(t, c.Path("ctl", "nats.env"))
	c.Place = c.With("NATS_URL="+env["NATS_URL"], "NATS_USER="+env["NATS_USER"], "NATS_PASSWORD="+env["NATS_PASSWORD"])
	c.Connect(t, env["NATS_URL"], nats.UserInfo(env["NATS_USER"], env["NATS_PASSWORD"]))
}

// Connect opens the test's own handle on the fleet.
func (c *Cluster) Connect(t testing.TB, url string, opts ...nats.Option) {
	t.Helper()
	nc, err := nats.Connect(url, opts...)
	Must(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	Must(t, err)
	c.Fleet, err = fleet.Open(t.Context(), js, fleet.Options{})
	Must(t, err)
	c.Client, err = client.New(nc, "")
	Must(t, err)
}

// ReadEnv reads nats.env as a shell that sources it would.
func ReadEnv(t testing.TB, file string) map[string]string {
	t.Helper()
	b, err := os.ReadFile(file)
	Must(t, err)
	env := map[string]string{}
	for line := range strings.Lines(string(b)) {
		name, value, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
		if ok {
			env[name] = strings.Trim(value, `'"`)
		}
	}
	return env
}

// NATS is the URL of the cluster's server.
func (c *Cluster) NATS() string {
	for _, pair := range c.Env {
		if url, ok := strings.CutPrefix(pair, "NATS_URL="); ok {
			return url
		}
	}
	return ""
}

// Worker starts a worker with a state directory of its own that allows everything below work.
func (c *Cluster) Worker(t testing.TB, name string, flags ...string) *Process {
	t.Helper()
	args := append([]string{"--name", name, "--state-dir", c.Path(name), "--slots", "4", "--allow-path", c.Path("work")}, flags...)
	return c.Start(t, name, "worker", args...).Ready(t)
}

// Submit submits a plan file and returns the plan's id.
func (c *Cluster) Submit(t testing.TB, file string, flags ...string) string {
	t.Helper()
	return strings.TrimSpace(c.Do(t, "warmfleet", append([]string{"submit", file}, flags...)...))
}
