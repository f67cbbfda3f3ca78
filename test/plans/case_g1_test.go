package plans

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// withMark are the processes of this machine that have a variable in their environment.
func withMark(mark string) int {
	n := 0
	names, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, name := range names {
		if env, err := os.ReadFile(name); err == nil && bytes.Contains(append([]byte{0}, env...), []byte("\x00MARK="+mark+"\x00")) {
			n++
		}
	}
	return n
}

// zombiesBelow counts the dead processes that a process, or one that came of it, has not reaped.
func zombiesBelow(root int) int {
	parents, dead := map[int]int{}, []int{}
	names, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range names {
		stat, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		parents[pid], _ = strconv.Atoi(fields[1])
		if fields[0] == "Z" {
			dead = append(dead, pid)
		}
	}
	n := 0
	for _, pid := range dead {
		for at := pid; at > 1; at = parents[at] {
			if at == root {
				n++
				break
			}
		}
	}
	return n
}

// g1Shape is what a step makes of itself, and how many of its processes there are at least.
type g1Shape struct {
	name, script string
	processes    int
	bomb         bool
}

func g1Shapes(port int) []g1Shape {
	server := fmt.Sprintf(`perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(LocalAddr => "127.0.0.1:%d", Listen => 5, ReuseAddr => 1) or die; sleep 600'`, port)
	return []g1Shape{
		{"Server", "setsid sh -c 'while :; do sleep 1; done' & " + server + " & (sleep 600) & wait", 4, false},
		{"ForksOn", "while :; do (setsid sleep 600 &); sleep 0.01; done", 30, false},
		{"DoubleFork", "(setsid sh -c 'setsid sleep 600 & sleep 600 &' &); sleep 600", 3, false},
		{"Ignores", "trap '' TERM HUP INT QUIT USR1; (trap '' TERM; setsid sleep 600 & sleep 600 &); while :; do sleep 1; done", 4, false},
		{"Stopped", "setsid sleep 600 & setsid sh -c 'kill -STOP $$' & sleep 0.2; kill -STOP $!; sleep 600", 3, false},
		{"Traced", "strace -f -o /dev/null sh -c 'sleep 600; :' & (setsid strace -o /dev/null sleep 600 &); wait; sleep 600", 3, false},
		{"Bomb", "f() { while :; do (setsid sleep 600 &); done; }; f & f & f & sleep 600", 30, true},
	}
}

// Case G1: a plan that is cancelled, timed out or over has no process left, no port and no zombie, whatever its steps were made of; and it can
// be run again. Without isolation the same, but for what forks faster than it can be looked at.
func TestCase_G1_NothingIsLeft(t *testing.T) {
	t.Parallel()
	for _, a := range fleettest.Accounts(t) {
		for _, isolation := range []string{"required", "off"} {
			t.Run(a.Name+"/"+isolation, func(t *testing.T) {
				t.Parallel()
				c := fleettest.StartCluster(t, a)
				w := c.Worker(t, "w", "--grace", "300ms", "--isolation", isolation)
				dir := c.Tree(t, "g1", "echo a >a")
				port := freePort(t)
				for i, s := range g1Shapes(port) {
					if s.bomb && isolation == "off" {
						continue // best effort there, as docs/security.md says
					}
					t.Run(s.name, func(t *testing.T) {
						for _, by := range []string{"Cancel", []string{"Timeout", "End"}[i%2]} {
							s.endsWhole(t, c, g1Run{w, dir, by})
							if l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", port)); err != nil {
								t.Errorf("%s: the port is taken: %v", by, err)
							} else {
								l.Close()
							}
						}
					})
				}
			})
		}
	}
}

// g1Run is where a plan is run, and by what it is ended.
type g1Run struct {
	w       *fleettest.Process
	dir, by string
}

// endsWhole runs a plan until its processes run, ends it, and looks for what is left.
func (s g1Shape) endsWhole(t *testing.T, c *fleettest.Cluster, r g1Run) {
	t.Helper()
	by := r.by
	mark := events.NewID()
	step := "{id: tree, run: " + fleettest.Quoted(s.script) + "}"
	switch by {
	case "Timeout":
		step = "{id: tree, timeout: 2s, run: " + fleettest.Quoted(s.script) + "}"
	case "End": // the first process ends by itself
		step = "{id: tree, run: " + fleettest.Quoted("{ "+s.script+"\n} & sleep 1") + "}"
	}
	id := c.Submit(t, c.PlanOf(t, "apply: never\nnetwork: allow\nlimits: {pids: 200}\nenv: {MARK: "+mark+"}\n"+fleettest.Resource(r.dir), step))
	most := 0
	fleettest.Eventually(t, "the step's processes", func() bool {
		most = max(most, withMark(mark))
		return most >= s.processes || by != "Cancel" && c.Count(t, id, fleettest.IsFinal) > 0
	})
	want := map[string]string{"Cancel": events.StateCancelled, "Timeout": events.StateFailed, "End": events.StateExecuted}[by]
	if by == "Cancel" {
		c.Do(t, "warmfleet", "plan", "cancel", id)
	}
	v := c.Ends(t, id)
	if n := withMark(mark); n > 0 {
		t.Errorf("%s: %d processes are left after the final event", by, n)
	}
	if v.State != want && by != "End" { // a bomb may meet its limit
		t.Errorf("%s: got state %s, want %s\n%s", by, v.State, want, c.Story(t, id))
	}
	if most < s.processes && by == "Cancel" {
		t.Errorf("%s: saw %d processes, want %d at least", by, most, s.processes)
	}
	fleettest.Eventually(t, "the end of zombies", func() bool { return zombiesBelow(r.w.Cmd.Process.Pid) == 0 })
}

// freePort is a port of the loopback that nobody listens on.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fleettest.Must(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
