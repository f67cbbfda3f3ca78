package plans

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// peakMemory is the most that a process had resident so far, in bytes.
func peakMemory(t testing.TB, pid int) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	fleettest.Must(t, err)
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	var kilobytes int64
	if _, err := fmt.Sscan(rest, &kilobytes); err != nil {
		t.Fatalf("peak memory of process %d: %v", pid, err)
	}
	return kilobytes << 10
}

// Case F5: output of any size and of any bytes: flat memory, a visible mark where it is cut, the exit code as it was.
func TestCase_F5(t *testing.T) {
	t.Parallel()
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	w := c.Worker(t, "w")
	dir := c.Tree(t, "f5", "echo x >f")
	c.Ended(t, c.Submit(t, c.Plan(t, "apply: never\n"+fleettest.Resource(dir), "true")), events.StateExecuted)
	before := peakMemory(t, w.Cmd.Process.Pid)
	steps := []struct {
		name, script string
		code         int
		bytes        int64 // printed
		want         string
	}{
		{"huge", "head -c 1G /dev/zero | tr '\\0' y; exit 3", 3, 1 << 30, ""},
		{"random", "head -c 200M /dev/urandom; exit 4", 4, 200 << 20, ""},
		{"bytes", `printf '\0\377\376'; exit 5`, 5, 3, "\x00\xff\xfe"},
		{"colours", `printf '\033[31mred\033[0m\rover\n\303'`, 0, 20, "\x1b[31mred\x1b[0m\rover\n\xc3"},
		{"both", "head -c 60M /dev/zero & head -c 60M /dev/zero >&2; wait", 0, 120 << 20, ""},
	}
	var texts []string
	for _, s := range steps {
		texts = append(texts, "{id: "+s.name+", continue_on_error: true, timeout: 5m, run: "+fleettest.Quoted(s.script)+"}")
	}
	id := c.Submit(t, c.PlanOf(t, "apply: never\n"+fleettest.Resource(dir), texts...))
	for _, s := range steps {
		c.Until(t, id, "the end of step "+s.name, fleettest.All(fleettest.IsType(events.TypeStepFinished), fleettest.OfStep(s.name)))
	}
	c.Ended(t, id, events.StateExecuted)
	v := c.Warmfleet(t, "plan", "show", id, "-o", "json").Exits(t, 0).View(t)
	for i, s := range steps {
		if got := v.Steps[i].ExitCode; got == nil || *got != s.code {
			t.Errorf("%s: exit code %d, want %d", s.name, fleettest.Deref(got), s.code)
		}
		r := c.Warmfleet(t, "plan", "logs", id, "--step", s.name).Exits(t, 0)
		if s.want != "" {
			if r.Stdout != s.want {
				t.Errorf("%s: got %q, want %q", s.name, r.Stdout, s.want)
			}
			continue
		}
		note := fmt.Sprintf("[%d bytes of step %d left out]", s.bytes-int64(len(r.Stdout)), i+1)
		if len(r.Stdout) < 1<<20 || len(r.Stdout) > 16<<20 || !strings.Contains(r.Stderr, note) {
			t.Errorf("%s: %d bytes kept, stderr %q, want head and tail and %q", s.name, len(r.Stdout), fleettest.Tail(r.Stderr, 200), note)
		}
	}
	if grown := peakMemory(t, w.Cmd.Process.Pid) - before; grown > 200<<20 {
		t.Errorf("the worker's memory grew by %d MiB, want 200 at most", grown>>20)
	}
}

// Case F6: what is long runs, or is refused when it is sent, by the name of its field.
func TestCase_F6(t *testing.T) {
	t.Parallel()
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	c.Worker(t, "w")
	comments := func(size int) string { return strings.Repeat("# 34567890123456789\n", size/20) }
	variables := func(n int) string {
		var b strings.Builder
		b.WriteString("env: {")
		for i := range n {
			fmt.Fprintf(&b, "V%d: x, ", i)
		}
		return b.String() + "LAST: y}"
	}
	for _, l := range []struct {
		name, head, step string
		refused          string // a part of the message, which names the field, or the size of the whole
		says             string
	}{
		{name: "Script200kB", step: "{run: " + fleettest.Quoted(comments(200_000)+"echo ok") + "}", says: "ok\n"},
		{name: "Script400kB", step: "{run: " + fleettest.Quoted(comments(400_000)+"cat; echo ok") + "}", says: "ok\n"},
		{name: "ScriptOfPerl", step: "{shell: [perl, -e], run: " + fleettest.Quoted(comments(200_000)+`print "ok\n"`) + "}", says: "ok\n"},
		{name: "Script3MB", step: "{run: " + fleettest.Quoted(comments(3_000_000)+"echo ok") + "}", refused: "more than 2097152 bytes"},
		{name: "Content5MB", step: "{write_file: {path: big, content: " + fleettest.Quoted(strings.Repeat("x", 5_000_000)) + "}}", refused: "more than 2097152 bytes"},
		{name: "Value200kB", head: "env: {LONG: " + fleettest.Quoted(strings.Repeat("x", 200_000)) + "}", step: "{run: 'echo ok'}", refused: "LONG"},
		{name: "Variables5000", head: variables(5000), step: `{run: "echo $LAST"}`, says: "y\n"},
		{name: "Message200kB", head: "commit: {message: " + fleettest.Quoted(strings.Repeat("x", 200_000)) + "}", step: "{run: 'echo ok'}", refused: "message"},
	} {
		t.Run(l.name, func(t *testing.T) {
			dir := c.Tree(t, l.name, "echo x >f")
			r := c.Warmfleet(t, "run", c.PlanOf(t, "apply: never\n"+l.head, l.step), "--path", dir, "-o", "json")
			if l.refused != "" && r.Code == 2 {
				if !strings.Contains(r.Stderr, l.refused) || len(r.Stderr) > 2000 {
					t.Errorf("refused with %q, want a short line with %q", fleettest.Tail(r.Stderr, 300), l.refused)
				}
				return
			}
			v := r.Exits(t, 0).View(t)
			if l.says == "" {
				return
			}
			if got := c.Do(t, "warmfleet", "plan", "logs", v.ID); got != l.says {
				t.Errorf("printed %q, want %q", fleettest.Tail(got, 100), l.says)
			}
		})
	}
	t.Run("Steps2000", func(t *testing.T) { manySteps(t, c) })
}

func manySteps(t *testing.T, c *fleettest.Cluster) {
	steps := slices.Repeat([]string{"{run: ':'}"}, 2000)
	dir := c.Tree(t, "steps", "echo x >f")
	v := c.Warmfleet(t, "run", c.PlanOf(t, "apply: never", steps...), "--path", dir, "-o", "json").Exits(t, 0).View(t)
	if got := len(v.Steps); got != len(steps) {
		t.Errorf("got %d steps, want %d", got, len(steps))
	}
}
