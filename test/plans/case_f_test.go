package plans

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

func TestCase_F1(t *testing.T) {
	t.Parallel()
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	c.Worker(t, "w", "--slots", "9")
	dir := c.Tree(t, "f1", "echo x >f")
	shapes := []struct {
		name, script string
		timesOut     bool
		out          string
	}{
		{"Plain", "sleep 25.0531", true, ""},
		{"NotLast", "sleep 25.0531; true", true, ""},
		{"Waited", "sleep 25.0531 & wait", true, ""},
		{"Subshell", "(sleep 25.0531)", true, ""},
		{"Pipe", "sleep 25.0531 | cat", true, ""},
		{"IgnoresTerm", "trap '' TERM; echo hi; sleep 25.0531; sleep 25.0531", true, "hi\n"},
		{"Nohup", "nohup sleep 25.0531 & echo hi", false, "hi\n"},
		{"Setsid", "setsid sleep 25.0531 & echo hi", false, "hi\n"},
		{"DoubleFork", "(setsid sh -c 'sleep 25.0531 & sleep 25.0531' &) ; echo hi", false, "hi\n"},
	}
	ids := make([]string, len(shapes))
	for i, s := range shapes {
		ids[i] = c.Submit(t, c.PlanOf(t, "apply: never\n"+fleettest.Resource(dir), "{timeout: 2s, run: "+fleettest.Quoted(s.script)+"}"))
	}
	for i, s := range shapes {
		t.Run(s.name, func(t *testing.T) {
			v := c.Ends(t, ids[i])
			step := v.Steps[0]
			took := time.Duration(*step.DurationMS) * time.Millisecond
			state, cause, least, most := "succeeded", "exit", time.Duration(0), 20*time.Second // what it left behind would take 25
			if s.timesOut {
				// The clock of a timeout begins a moment before the step's.
				state, cause, least = "failed", "timeout", 1900*time.Millisecond
			}
			if step.State != state || *step.Cause != cause || took < least || took > most {
				t.Errorf("got %s by %s after %s, want %s by %s after %s to %s", step.State, *step.Cause, took, state, cause, least, most)
			}
			if got := c.Do(t, "warmfleet", "plan", "logs", ids[i]); got != s.out {
				t.Errorf("output %q, want %q", got, s.out)
			}
		})
	}
	if n := fleettest.Running("25.0531"); n != 0 {
		t.Errorf("%d processes were left behind", n)
	}
	next := c.Submit(t, c.Plan(t, "apply: never\n"+fleettest.Resource(dir), "true"))
	c.Ended(t, next, events.StateExecuted)
}

func TestCase_F2(t *testing.T) {
	t.Parallel()
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	c.Worker(t, "w")
	dir := c.Tree(t, "f2", "echo x >f")
	long := strings.Repeat("0123456789abcdef", 5<<16) // 5 MiB
	for _, o := range []struct {
		name, script, want string
		code               int
	}{
		{"NoNewline", "printf abc", "abc", 0},
		{"LongLine", `head -c 70000 /dev/zero | tr '\0' x; echo; printf last`, strings.Repeat("x", 70000) + "\nlast", 0},
		{"Nothing", "true", "", 0},
		{"OnlyNewline", "echo", "\n", 0},
		{"AnyBytes", `printf 'a\r\b\000\377\033[31m\n\n'`, "a\r\b\x00\xff\x1b[31m\n\n", 0},
		{"FiveMB", "i=0; s=0123456789abcdef; while [ $i -lt 16 ]; do s=$s$s; i=$((i+1)); done; for i in 1 2 3 4 5; do printf %s $s; done; exit 3", long, 3},
	} {
		t.Run(o.name, func(t *testing.T) {
			id := c.Submit(t, c.Plan(t, "apply: never\n"+fleettest.Resource(dir), o.script))
			v := c.Ends(t, id)
			if got := v.Steps[0].ExitCode; got == nil || *got != o.code {
				t.Errorf("exit code %v, want %d", got, o.code)
			}
			r := c.Warmfleet(t, "plan", "logs", id, "--step", "step-1").Exits(t, 0)
			keptOf(t, r, o.want)
			followed := c.Warmfleet(t, "plan", "logs", id, "--follow").Exits(t, 0)
			if followed.Stdout != r.Stdout {
				t.Errorf("with --follow %d bytes, without %d", len(followed.Stdout), len(r.Stdout))
			}
		})
	}
	t.Run("WhileItRuns", func(t *testing.T) { readsWhileRunning(t, c, dir) })
}

// keptOf checks stored output: all of it, or its head and tail with a note on what lies between.
func keptOf(t *testing.T, r fleettest.Result, want string) {
	t.Helper()
	if r.Stdout == want {
		return
	}
	const head = 1 << 20
	got := r.Stdout
	if len(want) <= head || len(got) <= head || got[:head] != want[:head] || !strings.HasSuffix(want, got[head:]) {
		t.Fatalf("stored %d bytes of %d, not its head and tail: %q", len(got), len(want), fleettest.Tail(got, 100))
	}
	if note := fmt.Sprintf("[%d bytes of step 1 left out]", len(want)-len(got)); !strings.Contains(r.Stderr, note) {
		t.Errorf("stderr %q does not say %q", r.Stderr, note)
	}
}

// readsWhileRunning looks at a plan that prints one endless line, and cancels it.
func readsWhileRunning(t *testing.T, c *fleettest.Cluster, dir string) {
	id := c.Submit(t, c.Plan(t, "apply: never\n"+fleettest.Resource(dir), "while :; do printf xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done"))
	c.Until(t, id, "step started", fleettest.IsType(events.TypeStepStarted))
	fleettest.Eventually(t, "output of a step that goes on", func() bool {
		return strings.HasPrefix(c.Do(t, "warmfleet", "plan", "logs", id), "xxxx")
	})
	if v := c.Warmfleet(t, "plan", "show", id, "-o", "json").Exits(t, 0).View(t); v.State != events.StateRunning || v.Steps[0].State != "running" {
		t.Errorf("shown as %s, step %s", v.State, v.Steps[0].State)
	}
	c.Do(t, "warmfleet", "plan", "cancel", id)
	c.Ended(t, id, events.StateCancelled)
}

const f3Script = `
git init -q -b trunk .
for i in $(seq 500); do printf 'commit refs/heads/trunk\ncommitter t <t@example.com> %d +0000\ndata 2\nc\n\n' $((1700000000 + i)); done | git fast-import --quiet
git reset -q --hard; echo x >f; git add f; git -c user.name=t -c user.email=t@example.com commit -qm f`

func TestCase_F3(t *testing.T) {
	t.Parallel()
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	terminal := workerOnTerminal(t, c)
	dir := c.Tree(t, "f3", f3Script)
	steps := []struct {
		name, script string
		fails        bool
	}{
		{"cat", "cat", false},
		{"read", "read x", true},
		{"commit", "git config user.name t; git config user.email t@example.com; echo y >f; git commit -a", true},
		{"rebase", "git checkout -q f; git rebase -i HEAD~1", true},
		{"log", "git log", false},
		{"python", "python3 -c 'input()'", true},
		{"tty", "head -1 </dev/tty", true},
	}
	var texts []string
	for _, s := range steps {
		texts = append(texts, "{id: "+s.name+", continue_on_error: true, timeout: 20s, run: "+fleettest.Quoted(s.script)+"}")
	}
	id := c.Submit(t, c.PlanOf(t, "apply: never\nstrategy: git_worktree\n"+fleettest.Resource(dir), texts...))
	v := c.Ended(t, id, events.StateExecuted)
	for i, s := range steps {
		got := v.Steps[i]
		if (got.State == "failed") != s.fails || *got.Cause != "exit" || *got.DurationMS > 10_000 {
			t.Errorf("step %s: %s by %s after %d ms", s.name, got.State, *got.Cause, *got.DurationMS)
		}
	}
	for name, url := range silentRemotes(t) {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			r := c.Warmfleet(t, "run", c.Plan(t, "apply: never", "true"), "--repo", url, "-o", "json").Exits(t, 3)
			if v := r.View(t); v.Error == nil || time.Since(start) > 40*time.Second {
				t.Errorf("error %v after %s, want one within seconds", v.Error, time.Since(start))
			}
		})
	}
	for _, asked := range []string{"sername", "assword", "yes/no", "fingerprint"} {
		if strings.Contains(terminal(), asked) {
			t.Errorf("the terminal shows %q:\n%s", asked, terminal())
		}
	}
}

// workerOnTerminal starts a worker with a terminal for everything, and returns what it shows.
func workerOnTerminal(t *testing.T, c *fleettest.Cluster) func() string {
	t.Helper()
	master, slave := fleettest.Pty(t)
	cmd := c.Command(context.WithoutCancel(t.Context()), "worker", "--name", "w", "--state-dir", c.Path("w"), "--allow-path", c.Path("work"))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty = true, true
	p := fleettest.Start(t, "w", cmd)
	slave.Close()
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			p.Output.Write(bytes.ReplaceAll(buf[:n], []byte("\r"), nil))
			if err != nil {
				return
			}
		}
	}()
	p.Ready(t)
	return p.Output.String
}

// silentRemotes are repositories that want something a person would have to type.
func silentRemotes(t *testing.T) map[string]string {
	t.Helper()
	locked := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	t.Cleanup(locked.Close)
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	fleettest.Must(t, err)
	t.Cleanup(func() { mute.Close() })
	go func() {
		for {
			conn, err := mute.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(conn, "SSH-2.0-mute\r\n")
			conn.Read(make([]byte, 4096))
			conn.Close()
		}
	}()
	return map[string]string{"Unauthorized": locked.URL + "/r.git", "UnknownHost": "ssh://git@" + mute.Addr().String() + "/r.git"}
}

func TestCase_F4(t *testing.T) {
	t.Parallel()
	c := fleettest.StartCluster(t, fleettest.Ordinary(t))
	c.Worker(t, "w")
	dir := c.Tree(t, "f4", "echo plain >noexec; printf '#!/no/such/interpreter\\n' >orphan; chmod 755 orphan")
	steps := []struct {
		name, step    string
		codes         []int // possible exit codes; none: no exit code
		signal, cause string
	}{
		{"kill", `run: "kill -9 $$"`, nil, "KILL", "signal"},
		{"term", `run: "kill -TERM $$"`, nil, "TERM", "signal"},
		{"exit255", `run: "exit 255"`, []int{255}, "", "exit"},
		{"exit137", `run: "exit 137"`, []int{137}, "", "exit"},
		{"missing", `run: "no-such-program"`, []int{127}, "", "exit"},
		{"noshell", `shell: [/no/such/shell, -c], run: "true"`, nil, "", "start"},
		{"noexec", `run: "./noexec"`, []int{126}, "", "exit"},
		{"noexecshell", `shell: [./noexec], run: "true"`, nil, "", "start"},
		{"orphan", `run: "./orphan"`, []int{126, 127}, "", "exit"},
		{"orphanshell", `shell: [./orphan], run: "true"`, nil, "", "start"},
		{"memory", `run: "ulimit -v 50000; head -c 300000000 /dev/zero | tail >/dev/null"`, []int{1, 2}, "", "exit"},
		{"group", `run: "kill -9 0"`, nil, "KILL", "signal"},
		{"timeout", `timeout: 1s, run: "sleep 30"`, nil, "", "timeout"},
	}
	var texts []string
	for _, s := range steps {
		texts = append(texts, "{id: "+s.name+", continue_on_error: true, "+s.step+"}")
	}
	v := c.Warmfleet(t, "run", c.PlanOf(t, "apply: never", texts...), "--path", dir, "-o", "json").Exits(t, 0).View(t)
	finished := map[string]events.Data{}
	for _, r := range c.Records(t, v.ID) {
		if r.Event.Kind() == events.TypeStepFinished {
			finished[r.Event.Data.Step] = r.Event.Data
		}
	}
	for i, s := range steps {
		t.Run(s.name, func(t *testing.T) {
			got, e := v.Steps[i], finished[s.name]
			if got.State != "failed" || *got.Cause != s.cause || e.Cause != s.cause {
				t.Errorf("%s by %s (event: %s), want failed by %s", got.State, *got.Cause, e.Cause, s.cause)
			}
			checkEnd(t, "shown", got.ExitCode, s.codes)
			checkEnd(t, "event", e.ExitCode, s.codes)
			if signal := fleettest.Deref(got.Signal); s.cause != "timeout" && (signal != s.signal || e.Signal != s.signal) {
				t.Errorf("signal %q (event: %q), want %q", signal, e.Signal, s.signal)
			}
		})
	}
}

func checkEnd(t *testing.T, where string, code *int, want []int) {
	t.Helper()
	for _, w := range want {
		if code != nil && *code == w {
			return
		}
	}
	if code != nil || want != nil {
		t.Errorf("%s: exit code %v, want one of %v", where, fleettest.Deref(code), want)
	}
}
