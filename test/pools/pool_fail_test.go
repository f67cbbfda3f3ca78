package pools

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/warmfleet/warmfleet/internal/remotetest"
	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// beside starts a fleet with one worker and a pool that has to stay as it is while another one fails.
func beside(t *testing.T, flags ...string) *rig {
	t.Helper()
	c := startRig(t, fleettest.Ordinary(t))
	c.Worker(t, "w", flags...)
	c.pool(t, "good", c.upstream(t, "good", "echo good >v").url(), "target_size: 1")
	c.warm(t, "good", 1)
	return c
}

// goodIsWell fails the test unless the other pool starts plans warm and has nothing to complain about.
func (c *rig) goodIsWell(t *testing.T) {
	t.Helper()
	c.warm(t, "good", 1)
	if got, claim := c.ran(t, planIn("good"), "cat v"); got != "good\n" || claim.Source != events.SourceWarm {
		t.Errorf("the other pool: got %q, started %s, notes %q", got, claim.Source, claim.Notes)
	}
}

// failing waits until a pool says why it has no image, in one line with all words.
func (c *rig) failing(t *testing.T, name string, words ...string) api.Pool {
	t.Helper()
	p := c.says(t, name, words[0])
	for _, w := range words {
		if !strings.Contains(p.Error, w) || strings.Contains(p.Error, "\n") {
			t.Errorf("error %q, want one line with %q", p.Error, w)
		}
	}
	if shown := c.shown(t, name); shown.Error == "" || shown.State != "failing" && shown.State != "building" {
		t.Errorf("shown: state %s, error %q", shown.State, shown.Error)
	}
	return p
}

// A remote that cannot be reached is told with the reason and tried again with pauses, and all is well when it is there.
func TestPool_RemoteUnreachable(t *testing.T) {
	t.Parallel()
	c := beside(t)
	u := c.upstream(t, "late", "echo 1 >v")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fleettest.Must(t, err)
	closed := l.Addr().String()
	fleettest.Must(t, l.Close())
	fleettest.Must(t, os.Rename(u.bare, u.bare+".away"))
	began := time.Now()
	c.pool(t, "late", u.url(), "target_size: 1")
	c.pool(t, "closed", "http://"+closed+"/r.git", "")
	c.failing(t, "late", "last build failed", u.bare)
	c.failing(t, "closed", "last build failed", closed)
	id := c.Submit(t, c.Plan(t, planIn("late"), "cat v"))
	if e := c.Until(t, id, "a reason to wait", fleettest.IsType(events.TypeWaiting)); !strings.Contains(e.Data.Reason, u.bare) {
		t.Errorf("the plan waits for %q", e.Data.Reason)
	}
	c.goodIsWell(t)
	fleettest.Must(t, os.Rename(u.bare+".away", u.bare))
	if got, _ := c.printed(t, id); got != "1\n" {
		t.Errorf("once it was there: got %q", got)
	}
	c.warm(t, "late", 1)
	// Tried at once, after 10 s, and then with longer pauses.
	if n, most := c.asked(t, "late"), 2+int(time.Since(began)/(10*time.Second)); n < 2 || n > most {
		t.Errorf("%d builds were asked for, want 2 to %d", n, most)
	}
	c.goodIsWell(t)
}

// asked counts the builds that were asked for.
func (c *rig) asked(t *testing.T, pool string) int {
	t.Helper()
	s, err := c.Fleet.JetStream.Stream(t.Context(), c.Fleet.Subjects.EventsStream())
	fleettest.Must(t, err)
	info, err := s.Info(t.Context(), jetstream.WithSubjectFilter("fleet.evt.pool."+pool+".building"))
	fleettest.Must(t, err)
	return int(info.State.Subjects["fleet.evt.pool."+pool+".building"])
}

// A credential that the remote does not take is told without it, before there is an image and after; mended, the pool goes on by itself.
func TestPool_WrongToken(t *testing.T) {
	t.Parallel()
	const wrong, right = "T0ken-wrong", "T0ken-right"
	c := beside(t)
	u := c.upstream(t, "locked", "echo 1 >v")
	server := remotetest.Serve(t, filepath.Dir(u.bare), right)
	file := c.Path("home", "token")
	token := func(value string) {
		c.Write(t, file, remotetest.User+":"+value+"\n")
		fleettest.Must(t, os.Chmod(file, 0o600))
	}
	token(wrong)
	c.pool(t, "locked", server.URL+"/r.git", "target_size: 1\ntoken: {file: "+fleettest.Quoted(file)+"}")
	p := c.failing(t, "locked", "denies access", "check the token", server.URL)
	said := p.Error
	c.goodIsWell(t)
	token(right)
	c.warm(t, "locked", 1)
	server.Require("another")
	_, text := c.failed(t, c.Submit(t, c.Plan(t, planIn("locked"), "cat v")))
	if !strings.Contains(text, "denies access") || !strings.Contains(text, "check the token") {
		t.Errorf("plan: error %q", text)
	}
	said += text + c.says(t, "locked", "denies access").Error
	c.goodIsWell(t)
	token("another")
	c.warm(t, "locked", 1)
	commit := u.push(t, "echo 2 >v")
	if got, claim := c.ran(t, planIn("locked"), whereScript); got != where("trunk", commit, "2") || claim.Source != events.SourceWarm {
		t.Errorf("with the right one again: got %q, started %s", got, claim.Source)
	}
	if strings.Contains(said, "T0ken") {
		t.Errorf("a token is in %q", said)
	}
	if got := c.Sh(t, c.Dir, "grep -rl T0ken . | grep -v '^./home/token$' || :"); got != "" {
		t.Errorf("a token is in files: %s", got)
	}
}

// An image that is deleted under its pool is made again; what is warm of it goes on meanwhile.
func TestPool_ImageDeleted(t *testing.T) {
	t.Parallel()
	c := beside(t)
	u := c.upstream(t, "lost", "echo 1 >v")
	c.pool(t, "lost", u.url(), "target_size: 1")
	was := c.warm(t, "lost", 1)
	c.Do(t, "warmfleet", "image", "rm", "--force", was.Image)
	if got, _ := c.ran(t, planIn("lost"), "cat v"); got != "1\n" {
		t.Errorf("got %q", got)
	}
	c.goodIsWell(t)
	c.pools(t, "lost", "another image", func(p api.Pool) bool {
		return p.Image != was.Image && p.Warm == 1 && p.Error == "" && p.State == "ready"
	})
	c.Worker(t, "w2") // which has nothing of it
	c.Do(t, "warmfleet", "pool", "apply", c.poolFile(t, "lost", u.url(), "max_staleness: 0s\ntarget_size: 2"))
	p := c.pools(t, "lost", "one warm on each worker", func(p api.Pool) bool { return p.Workers["w"].Idle == 1 && p.Workers["w2"].Idle == 1 })
	if p.Error != "" {
		t.Errorf("error %q", p.Error)
	}
}

// A disk that is full when a pool is refilled is told with the reason; pools of other workers do not notice, and when there is room
// again all is well by itself.
func TestPool_FullDisk(t *testing.T) {
	t.Parallel()
	c := beside(t, "--pools", "good")
	disk := c.Place.SmallDisk(t, "24m")
	w := c.Start(t, "small", "worker", "--name", "small", "--state-dir", filepath.Join(disk, "w"), "--pools", "full").Ready(t)
	t.Cleanup(func() { w.Kill(t) })
	u := c.upstream(t, "full", "echo 1 >v")
	c.pool(t, "full", u.url(), "target_size: 1")
	c.warm(t, "full", 1)
	u.push(t, "head -c 300000 /dev/urandom >noise; echo 2 >v") // which all made from now on have to get
	c.ran(t, planIn("full"), "cat v")
	c.pools(t, "full", "another warm one", func(p api.Pool) bool { return p.Hits == 1 && p.Warm == 1 && p.Error == "" })
	fleettest.FillDisk(t, disk)
	c.Do(t, "warmfleet", "pool", "apply", c.poolFile(t, "full", u.url(), "max_staleness: 10m\ntarget_size: 3"))
	p := c.says(t, "full", "o space left")
	if !strings.Contains(p.Error, "worker small: ") || strings.Contains(p.Error, "\n") || p.Warm != 1 {
		t.Errorf("%d warm, error %q, want one line with the worker, and the one that was there", p.Warm, p.Error)
	}
	c.goodIsWell(t)
	fleettest.Must(t, os.Remove(filepath.Join(disk, "filler")))
	c.warm(t, "full", 3)
	if got, claim := c.ran(t, planIn("full"), "cat v"); got != "2\n" || claim.Source != events.SourceWarm {
		t.Errorf("with room again: got %q, started %s", got, claim.Source)
	}
}

// A worker that is killed with warm sandboxes leaves no process, and no directory once it is back; another worker makes up for it, and
// what idled on it is handed to nobody.
func TestPool_KilledWorker(t *testing.T) {
	t.Parallel()
	c := startRig(t, fleettest.Ordinary(t))
	u := c.upstream(t, "kill", "echo 1 >v")
	a := c.Worker(t, "wa")
	c.Worker(t, "wb")
	c.pool(t, "kill", u.url(), "target_size: 4")
	c.pools(t, "kill", "two warm on each", func(p api.Pool) bool { return p.Workers["wa"].Idle == 2 && p.Workers["wb"].Idle == 2 })
	old, inits := c.LeftViews(t, "wa"), descendants(t, a.Cmd.Process.Pid)
	if len(old) < 2 || len(inits) < 2 {
		t.Fatalf("views %q, processes %q of two warm sandboxes", old, inits)
	}
	a.Kill(t)
	killed := time.Now()
	fleettest.Eventually(t, "the end of its inits", func() bool { return !slices.ContainsFunc(inits, fleettest.Exists) })
	if took := time.Since(killed); took > 2*time.Second {
		t.Errorf("its inits ended after %v", took)
	}
	for range 3 {
		if got, claim := c.ran(t, planIn("kill"), "cat v"); got != "1\n" || claim.Worker != "wb" {
			t.Errorf("got %q from %s", got, claim.Worker)
		}
	}
	c.pools(t, "kill", "four warm on the other", func(p api.Pool) bool { return p.Workers["wb"].Idle == 4 && p.Warm == 4 && len(p.Workers) == 1 })
	a = c.Worker(t, "wa")
	c.pools(t, "kill", "two warm on each again", func(p api.Pool) bool { return p.Workers["wa"].Idle == 2 && p.Workers["wb"].Idle == 2 })
	for _, dir := range old {
		if fleettest.Exists(dir) {
			t.Errorf("%s is left of the killed one", dir)
		}
	}
	a.Signal(t, 15)
	a.Exit(t, fleettest.Patience)
	if left := leavings(t, c.Path("wa")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// Idle sandboxes follow the remote, so that a claim has little to do.
func TestPool_FreshWhileIdle(t *testing.T) {
	t.Parallel()
	c := startRig(t, fleettest.Ordinary(t))
	c.Worker(t, "w")
	u := c.upstream(t, "idle", "echo 1 >v")
	c.pool(t, "idle", u.url(), "target_size: 2")
	c.warm(t, "idle", 2)
	commit := ""
	for i := range 3 {
		commit = u.push(t, fmt.Sprintf("echo %d >v", i))
	}
	fleettest.Eventually(t, "the idle ones at the newest commit", func() bool {
		all, err := c.Client.Workers(t.Context())
		return err == nil && len(all) == 1 && all[0].Warm["idle"].Commit == commit && all[0].Warm["idle"].Behind == 0
	})
	p := c.warm(t, "idle", 2)
	if p.Hits+p.Misses != 0 || p.Wasted != 0 || p.StalenessMS > 30_000 {
		t.Errorf("%d claims, %d wasted, staleness %d ms", p.Hits+p.Misses, p.Wasted, p.StalenessMS)
	}
	fleettest.Must(t, os.Rename(u.bare, u.bare+".away")) // nothing needs to be fetched any more
	c.Do(t, "warmfleet", "pool", "apply", c.poolFile(t, "idle", u.url(), "max_staleness: 10m\ntarget_size: 2"))
	if got, claim := c.ran(t, planIn("idle"), whereScript); got != where("trunk", commit, "2") || claim.Source != events.SourceWarm || claim.Behind != nil {
		t.Errorf("got %q, started %s, behind %v", got, claim.Source, claim.Behind)
	}
}

// Plans go to the worker that has a warm one.
func TestPool_WarmWorkersPreferred(t *testing.T) {
	t.Parallel()
	c := startRig(t, fleettest.Ordinary(t))
	c.Worker(t, "wa")
	c.Worker(t, "wb")
	u := c.upstream(t, "prefer", "echo 1 >v")
	c.Do(t, "warmfleet", "pool", "apply", c.poolFile(t, "prefer", u.url(), "target_size: 1"))
	const plans = 20
	warm, file := 0, c.Plan(t, planIn("prefer"), "cat v")
	for i := range plans {
		c.pools(t, "prefer", "another warm one", func(p api.Pool) bool { return p.Hits+p.Misses == int64(i) && p.Warm == 1 })
		if _, claim := c.printed(t, c.Submit(t, file)); claim.Source == events.SourceWarm {
			warm++
		}
	}
	if warm < plans*9/10 {
		t.Errorf("%d of %d plans started warm while a worker had a warm one idle", warm, plans)
	}
}
