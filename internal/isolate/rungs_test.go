package isolate_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/isolate/inside"
)

// fences are the rungs that put each command of an init on the host behind a fence.
func fences() []isolate.Rung { return []isolate.Rung{isolate.RungBubblewrap, isolate.RungLandlock} }

func eachFence(t *testing.T, test func(*testing.T, isolate.Rung)) {
	for _, r := range fences() {
		t.Run(string(r), func(t *testing.T) { test(t, r) })
	}
}

// newFenced is an init with a directory as its workspace.
func newFenced(t *testing.T, c isolate.Config) (*isolate.Init, string) {
	t.Helper()
	within := tempDir(t)
	dir := filepath.Join(within, "closed", "work")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, filepath.Join(dir, "old"), "old\n")
	give(t, dir)
	c.Within = within
	i := start(t, c)
	if err := i.AttachDir(testContext(t), dir); err != nil {
		t.Fatal(err)
	}
	return i, dir
}

// Code, signal and cause are told apart behind a fence as they are without.
func TestFence_Exec(t *testing.T) {
	t.Setenv("CANARY_ENV", "canary-env")
	eachFence(t, func(t *testing.T, r isolate.Rung) {
		i, dir := newFenced(t, isolate.Config{Rung: r})
		shown := map[isolate.Rung]string{isolate.RungBubblewrap: "/workspace", isolate.RungLandlock: dir}[r]
		out, res := runScript(t, i, "pwd; env | grep CANARY; umask; cat old; echo x >made; echo x >$HOME/h; echo x >$TMPDIR/t; { head -1 </dev/tty; } 2>/dev/null; exit 3")
		if want := (plain{Code: 3, Cause: isolate.CauseExit}); out != shown+"\n0022\nold\n" || plainOf(res) != want {
			t.Errorf("got %q, %+v; want %+v", out, plainOf(res), want)
		}
		if got := owner(t, filepath.Join(dir, "made")); got != r.Owner() || got == 0 {
			t.Errorf("what a command made belongs to %d, want %d", got, r.Owner())
		}
		runScript(t, i, `mkdir sub; printf x >noexec; printf '#!/no/such\n' >bad; chmod +x bad; printf '#!/bin/sh\npwd\n' >sub/here; chmod +x sub/here; ln -s / out`)
		exit := func(code int) plain { return plain{Code: code, Cause: isolate.CauseExit} }
		failed := plain{Code: -1, Cause: isolate.CauseStart}
		for _, c := range []struct {
			argv []string
			dir  string
			want plain
			text string
		}{
			{[]string{"bash", "-c", "kill -9 $$"}, "", plain{Code: -1, Signal: "KILL", Cause: isolate.CauseSignal}, ""},
			{[]string{"bash", "-c", "kill -SEGV $$"}, "", plain{Code: -1, Signal: "SEGV", Cause: isolate.CauseSignal}, ""},
			{[]string{"bash", "-c", "exit 137"}, "", exit(137), ""},
			{[]string{"bash", "-c", "cat $HOME/h $TMPDIR/t"}, "", exit(0), "x\nx\n"},
			{[]string{"no-such"}, "", failed, `start "no-such": no such program`},
			{[]string{"./noexec"}, "", failed, `start "./noexec": not executable`},
			{[]string{"./bad"}, "", failed, `start "./bad": its interpreter "/no/such" does not exist`},
			{[]string{"true"}, "out/etc", failed, `open working directory "out/etc": leads out of the workspace`},
			{[]string{"./here"}, "./sub", exit(0), shown + "/sub\n"},
		} {
			out, res := runScript(t, i, "", func(cmd *isolate.Command) { cmd.Argv, cmd.Dir = c.argv, c.dir })
			if got := out + res.StartError; plainOf(res) != c.want || c.text != "" && got != c.text {
				t.Errorf("%q in %q: got %+v, %q; want %+v, %q", c.argv, c.dir, plainOf(res), got, c.want, c.text)
			}
		}
	})
}

func owner(t *testing.T, name string) int {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(name, &st); err != nil {
		t.Fatal(err)
	}
	return int(st.Uid)
}

// Whatever a command made of itself ends with it, politely first.
func TestFence_TreeKill(t *testing.T) {
	eachFence(t, func(t *testing.T, r isolate.Rung) {
		i, _ := newFenced(t, isolate.Config{Rung: r})
		for script, want := range map[string]plain{
			"sleep 25 & wait":               {Code: -1, Cause: isolate.CauseTimeout},
			"trap '' TERM; sleep 25; true":  {Code: -1, Cause: isolate.CauseTimeout},
			"trap 'exit 7' TERM; sleep 25":  {Code: 7, Cause: isolate.CauseTimeout},
			"setsid sleep 25 & echo hi":     {Cause: isolate.CauseExit},
			"(setsid sh -c 'sleep 25 &' &)": {Cause: isolate.CauseExit},
			// What asks it to end is not the command.
			"sleep 25 & kill -TERM $PPID; exit 4": {Code: 4, Cause: isolate.CauseExit},
		} {
			limit := time.Second
			if want.Cause == isolate.CauseExit {
				limit = 20 * time.Second // a start alone may take a second on a busy machine
			}
			began := time.Now()
			_, res := runScript(t, i, script, func(c *isolate.Command) { c.Timeout = limit })
			if plainOf(res) != want || time.Since(began) > 10*time.Second {
				t.Errorf("%s: got %+v in %v, want %+v", script, plainOf(res), time.Since(began), want)
			}
			if left := inside.Descendants(i.Pid()); len(left) != 0 {
				t.Errorf("%s: %d processes left", script, len(left))
			}
		}
		const graceful = "sh -c \"trap 'sleep 0.3; echo bye; exit 0' TERM; sleep 60 & wait\"; true"
		if out, _ := runScript(t, i, graceful, func(c *isolate.Command) { c.Timeout = time.Second }); out != "bye\n" {
			t.Errorf("what a command runs was not given its grace: got %q", out)
		}
		d := startDetached(t, i, "sleep 71")
		_, res := runScript(t, i, "sleep 72", func(c *isolate.Command) { c.Timeout = time.Second })
		if left := inside.Descendants(i.Pid()); res.Cause != isolate.CauseTimeout || len(left) == 0 || detached(t, i) != 1 {
			t.Errorf("beside what is detached (%+v): got %+v and %d processes", d, res, len(left))
		}
		if err := i.Detach(testContext(t)); err != nil {
			t.Fatal(err)
		}
		if left := inside.Descendants(i.Pid()); len(left) != 0 {
			t.Errorf("after Detach %d processes are left", len(left))
		}
	})
}

func TestFence_Secrets(t *testing.T) {
	eachFence(t, func(t *testing.T, r isolate.Rung) {
		i, _ := newFenced(t, isolate.Config{Rung: r})
		got, _ := runScript(t, i, `cd $WARMFLEET_SECRETS; stat -c '%n %a' *; cat A; stat -f -c %T .; env | grep -c canary; cat /proc/1/environ /proc/$PPID/environ 2>/dev/null | grep -c canary`,
			with(map[string]string{"A": "canary-a\n", "EMPTY": ""}))
		if want := "A 400\nEMPTY 400\ncanary-a\ntmpfs\n0\n0\n"; got != want {
			t.Errorf("got:\n%swant:\n%s", got, want)
		}
		keeper, err := i.Start(testContext(t), isolate.Command{
			Argv: []string{"/bin/sh", "-c", "echo $WARMFLEET_SECRETS >where; exec sleep 60"}, Env: i.BaseEnv(), Secrets: map[string][]byte{"A": []byte("canary-b")},
		})
		if err != nil {
			t.Fatal(err)
		}
		out := ""
		eventually(t, "it says where", func() bool {
			out, _ = runScript(t, i, "cat where")
			return out != ""
		})
		if got, _ := runScript(t, i, "cat "+strings.TrimSpace(out)+"/A; ls "+filepath.Dir(strings.TrimSpace(out))); strings.Contains(got, "canary") {
			t.Errorf("another command reads the secret of %+v: %q", keeper, got)
		}
		script := isolate.Command{Argv: []string{"/bin/sh"}, Env: i.BaseEnv(), Script: []byte("exit 5")}
		if res, err := i.Exec(testContext(t), script); err != nil || plainOf(res).Code != 5 {
			t.Errorf("script: got %+v, %v", res, err)
		}
	})
}

func TestFence_NetworkAndExpose(t *testing.T) {
	const script = "exec 2>/dev/null; exec 3<>/dev/udp/127.0.0.1/9 && echo net; ls /var/lib | grep -c dpkg; ls /var/cache | grep -c apt; getent hosts localhost | wc -l"
	eachFence(t, func(t *testing.T, r isolate.Rung) {
		i, _ := newFenced(t, isolate.Config{Rung: r, Network: isolate.NetworkAllow, Expose: []string{"/var/lib"}})
		if got, _ := runScript(t, i, script); got != "net\n1\n0\n1\n" {
			t.Errorf("allow: got %q", got)
		}
		i, _ = newFenced(t, isolate.Config{Rung: r})
		if got, _ := runScript(t, i, "bash -c '"+script+"'; ls /var/lib 2>/dev/null"); strings.Contains(got, "dpkg") {
			t.Errorf("not shown: got %q", got)
		}
		for name, c := range map[string]isolate.Config{"a list": {Network: isolate.NetworkProxy}, "caches": {Caches: []isolate.Cache{{Name: "c"}}}} {
			c.Rung = r
			if _, err := isolate.Start(testContext(t), c); !errors.Is(err, isolate.ErrBare) {
				t.Errorf("%s: got %v, want %v", name, err, isolate.ErrBare)
			}
		}
		if r == isolate.RungBubblewrap {
			if _, err := isolate.Start(testContext(t), isolate.Config{Rung: r, Expose: []string{"/var/tmp"}}); err == nil {
				t.Error("a directory below one that commands write is shown")
			}
		}
	})
}

// Only directories of the worker's own are opened to a sandbox's user, and to be searched alone.
func TestFence_AttachDir(t *testing.T) {
	eachFence(t, func(t *testing.T, r isolate.Rung) {
		_, dir := newFenced(t, isolate.Config{Rung: r})
		closed := filepath.Dir(dir)
		var st unix.Stat_t
		if err := unix.Stat(closed, &st); err != nil {
			t.Fatal(err)
		}
		want := map[bool]uint32{true: 0o710, false: 0o700}[os.Getuid() == 0]
		if got := st.Mode & 0o777; got != want || want == 0o710 && (st.Gid != isolate.HostID || st.Uid != 0) {
			t.Errorf("the directory above a workspace has mode %o of %d:%d, want %o", got, st.Uid, st.Gid, want)
		}
		foreign := filepath.Join(tempDir(t), "work")
		if err := os.Mkdir(foreign, 0o700); err != nil {
			t.Fatal(err)
		}
		give(t, foreign)
		err := start(t, isolate.Config{Rung: r}).AttachDir(testContext(t), foreign)
		if (err != nil) != (os.Getuid() == 0) {
			t.Errorf("in a closed directory that is not the worker's to open: got %v", err)
		}
	})
}

// A command's processes are counted in its own user namespace, where there is one.
func TestFence_ProcessLimit(t *testing.T) {
	dir := tempDir(t)
	give(t, dir)
	broken, err := isolate.TryLimits(testContext(t), isolate.LimitTrial{Rung: isolate.RungBubblewrap, Dir: dir, Names: []string{isolate.Pids}})
	if err != nil || len(broken) > 0 {
		t.Errorf("got %v, %v", broken, err)
	}
}

func TestProbe_Fences(t *testing.T) {
	enforced := isolate.Guarantee{State: isolate.Enforced}
	eachFence(t, func(t *testing.T, r isolate.Rung) {
		report, err := isolate.ProbeOf(testContext(t), t.TempDir(), r)
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]isolate.State{}
		for _, name := range []string{isolate.Writes, isolate.HiddenFiles, isolate.TreeKill, isolate.HiddenEnv, isolate.Network, isolate.UnixSockets, isolate.Processes} {
			want[name] = isolate.Enforced
		}
		if r == isolate.RungLandlock {
			want[isolate.TreeKill], want[isolate.UnixSockets], want[isolate.Processes] = isolate.BestEffort, isolate.Absent, isolate.Absent
			if os.Getuid() != 0 {
				want[isolate.Writes] = isolate.BestEffort
			}
		}
		if report.Rung != r || report.Overlay {
			t.Fatalf("got %+v", report)
		}
		for name, state := range want {
			if got := report.Guarantees[name]; got.State != state || got != enforced && (got.Why == "" || got.Fix == "") {
				t.Errorf("%s: got %+v, want %s", name, got, state)
			}
		}
	})
}

// Where namespaces are denied to this program and allowed to bubblewrap, as some hosts have it, the probe takes that.
func TestProbe_NamespacesDeniedToUs(t *testing.T) {
	cmd := exec.CommandContext(testContext(t), "/proc/self/exe")
	cmd.Env = append(os.Environ(), modeVariable+"=denied", "TMPDIR="+openDir(t))
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var report isolate.Report
	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatalf("%v: %q", err, out)
	}
	if report.Rung != isolate.RungBubblewrap || !strings.Contains(report.RungWhy, string(rung())) || report.RungFix == "" || len(report.Unmet(isolate.NetworkNone)) > 0 {
		t.Errorf("got %+v, want bubblewrap, why no better one, and all that is required", report)
	}
	if report.OverlayWhy == "" {
		t.Error("no word of why there are no overlays")
	}
}

func openDir(t *testing.T) string {
	t.Helper()
	dir := tempDir(t)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// deniedMode probes behind a filter that refuses user namespaces to programs that start others as Go does, with a
// descriptor of the process; bubblewrap does not.
func deniedMode() int {
	const offsetNumber, offsetFlags, allow, refuse = 0, 16, 0x7fff0000, 0x00050000
	load, equal, set := uint16(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS), uint16(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K), uint16(unix.BPF_JMP|unix.BPF_JSET|unix.BPF_K)
	filter := []unix.SockFilter{
		{Code: load, K: offsetNumber},
		{Code: equal, K: unix.SYS_CLONE, Jf: 4},
		{Code: load, K: offsetFlags},
		{Code: set, K: unix.CLONE_NEWUSER, Jf: 2},
		{Code: set, K: unix.CLONE_PIDFD, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: refuse | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: allow},
	}
	if err := install(filter); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return probeMode()
}

func install(filter []unix.SockFilter) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	return syncFilter(filter)
}
