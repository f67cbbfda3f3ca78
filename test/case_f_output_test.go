package test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/pkg/events"
)

// peakMemory is the most that a process had resident so far, in bytes.
func peakMemory(t testing.TB, pid int) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
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
	c := startCluster(t, ordinary(t))
	w := c.worker(t, "w")
	dir := c.tree(t, "f5", "echo x >f")
	c.ended(t, c.submit(t, c.plan(t, "apply: never\n"+resource(dir), "true")), events.StateExecuted)
	before := peakMemory(t, w.cmd.Process.Pid)
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
		texts = append(texts, "{id: "+s.name+", continue_on_error: true, timeout: 5m, run: "+quoted(s.script)+"}")
	}
	id := c.submit(t, c.planOf(t, "apply: never\n"+resource(dir), texts...))
	c.ended(t, id, events.StateExecuted)
	v := c.warmfleet(t, "plan", "show", id, "-o", "json").exits(t, 0).view(t)
	for i, s := range steps {
		if got := v.Steps[i].ExitCode; got == nil || *got != s.code {
			t.Errorf("%s: exit code %d, want %d", s.name, deref(got), s.code)
		}
		r := c.warmfleet(t, "plan", "logs", id, "--step", s.name).exits(t, 0)
		if s.want != "" {
			if r.stdout != s.want {
				t.Errorf("%s: got %q, want %q", s.name, r.stdout, s.want)
			}
			continue
		}
		note := fmt.Sprintf("[%d bytes of step %d left out]", s.bytes-int64(len(r.stdout)), i+1)
		if len(r.stdout) < 1<<20 || len(r.stdout) > 16<<20 || !strings.Contains(r.stderr, note) {
			t.Errorf("%s: %d bytes kept, stderr %q, want head and tail and %q", s.name, len(r.stdout), tail(r.stderr, 200), note)
		}
	}
	if grown := peakMemory(t, w.cmd.Process.Pid) - before; grown > 200<<20 {
		t.Errorf("the worker's memory grew by %d MiB, want 200 at most", grown>>20)
	}
}

// Case F6: what is long runs, or is refused when it is sent, by the name of its field.
func TestCase_F6(t *testing.T) {
	t.Parallel()
	c := startCluster(t, ordinary(t))
	c.worker(t, "w")
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
		{name: "Script200kB", step: "{run: " + quoted(comments(200_000)+"echo ok") + "}", says: "ok\n"},
		{name: "Script400kB", step: "{run: " + quoted(comments(400_000)+"cat; echo ok") + "}", says: "ok\n"},
		{name: "ScriptOfPerl", step: "{shell: [perl, -e], run: " + quoted(comments(200_000)+`print "ok\n"`) + "}", says: "ok\n"},
		{name: "Script3MB", step: "{run: " + quoted(comments(3_000_000)+"echo ok") + "}", refused: "more than 2097152 bytes"},
		{name: "Content5MB", step: "{write_file: {path: big, content: " + quoted(strings.Repeat("x", 5_000_000)) + "}}", refused: "more than 2097152 bytes"},
		{name: "Value200kB", head: "env: {LONG: " + quoted(strings.Repeat("x", 200_000)) + "}", step: "{run: 'echo ok'}", refused: "LONG"},
		{name: "Variables5000", head: variables(5000), step: `{run: "echo $LAST"}`, says: "y\n"},
		{name: "Message200kB", head: "commit: {message: " + quoted(strings.Repeat("x", 200_000)) + "}", step: "{run: 'echo ok'}", refused: "message"},
	} {
		t.Run(l.name, func(t *testing.T) {
			dir := c.tree(t, l.name, "echo x >f")
			r := c.warmfleet(t, "run", c.planOf(t, "apply: never\n"+l.head, l.step), "--path", dir, "-o", "json")
			if l.refused != "" && r.code == 2 {
				if !strings.Contains(r.stderr, l.refused) || len(r.stderr) > 2000 {
					t.Errorf("refused with %q, want a short line with %q", tail(r.stderr, 300), l.refused)
				}
				return
			}
			v := r.exits(t, 0).view(t)
			if l.says == "" {
				return
			}
			if got := c.do(t, "warmfleet", "plan", "logs", v.ID); got != l.says {
				t.Errorf("printed %q, want %q", tail(got, 100), l.says)
			}
		})
	}
	t.Run("Steps2000", func(t *testing.T) { manySteps(t, c) })
}

func manySteps(t *testing.T, c *cluster) {
	steps := slices.Repeat([]string{"{run: ':'}"}, 2000)
	dir := c.tree(t, "steps", "echo x >f")
	v := c.warmfleet(t, "run", c.planOf(t, "apply: never", steps...), "--path", dir, "-o", "json").exits(t, 0).view(t)
	if got := len(v.Steps); got != len(steps) {
		t.Errorf("got %d steps, want %d", got, len(steps))
	}
}
