package isolate_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/isolate/inside"
)

func startDetached(t *testing.T, i *isolate.Init, script string) isolate.Detached {
	t.Helper()
	d, err := i.Start(testContext(t), isolate.Command{Argv: []string{"/bin/bash", "-c", script}, Env: i.BaseEnv()})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func detached(t *testing.T, i *isolate.Init) int {
	t.Helper()
	n, err := i.Detached(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// What a detached process started is spared with it; everything else dies with its command, as ever.
func TestInit_Start(t *testing.T) {
	eachRung(t, func(t *testing.T, i *isolate.Init) {
		d := startDetached(t, i, "echo out; echo err >&2; cat; (setsid sleep 61 &) ; sleep 62")
		sleepers := func(seconds string) (pids []int) {
			for _, pid := range inside.Descendants(i.Pid()) {
				line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				if err == nil && string(line) == "sleep\x00"+seconds+"\x00" {
					pids = append(pids, pid)
				}
			}
			return pids
		}
		count := func(seconds string) string { return fmt.Sprint(len(sleepers(seconds))) }
		eventually(t, "its children", func() bool { return count("61") == "1" && count("62") == "1" })
		if out, _ := runScript(t, i, "sort "+d.Log); out != "err\nout\n" {
			t.Errorf("log: got %q", out)
		}
		for range 3 {
			runScript(t, i, "sleep 63 & setsid sleep 63 & (setsid sh -c 'sleep 63 & sleep 63' &)")
			if got := count("63"); got != "0" {
				t.Errorf("left behind by a command: got %s processes", got)
			}
		}
		if _, r := runScript(t, i, "sleep 64", func(c *isolate.Command) { c.Timeout = 1e8 }); r.Cause != isolate.CauseTimeout {
			t.Errorf("got %+v, want a timeout", r)
		}
		if a, b, n := count("61"), count("62"), detached(t, i); a != "1" || b != "1" || n != 1 {
			t.Errorf("got %s and %s of its processes, %d detached; want 1 of each", a, b, n)
		}
		for _, pid := range slices.Concat(sleepers("62"), sleepers("61")) {
			if n := detached(t, i); n != 1 {
				t.Errorf("%d detached before the last has ended, want 1", n)
			}
			if err := unix.Kill(pid, unix.SIGTERM); err != nil {
				t.Error(err)
			}
		}
		eventually(t, "its end", func() bool { return detached(t, i) == 0 })
		eventually(t, "nothing left", func() bool { return len(inside.Descendants(i.Pid())) == 0 })
	})
}

func TestInit_Start_ForkBombBeside(t *testing.T) {
	b := newBox(t, isolate.Config{})
	startDetached(t, b.Init, "sleep 61")
	b.sh("f() { while :; do (setsid sh -c : &) ; done; }; f & f & f & sleep 0.3")
	if out, _ := b.sh("pgrep -f -c '^sleep 61$'; ps -e -o args= | grep -c -v -e ^warm -e detached -e '^sleep 61' -e grep -e 'ps -e' -e bash"); out != "1\n0\n" {
		t.Errorf("got %q, want only what was detached", out)
	}
}

func TestInit_Start_Refusals(t *testing.T) {
	eachRung(t, func(t *testing.T, i *isolate.Init) {
		ctx := testContext(t)
		for want, c := range map[string]isolate.Command{
			"no such program": {Argv: []string{"no-such"}},
			"empty command":   {},
			"no input":        {Argv: []string{"true"}, Stdin: strings.NewReader("")},
			"not the name":    {Argv: []string{"true"}, Secrets: map[string][]byte{"a/b": nil}},
			"working dir":     {Argv: []string{"true"}, Dir: "none"},
		} {
			if _, err := i.Start(ctx, c); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		}
		for range isolate.MaxDetached {
			startDetached(t, i, "exec sleep 60")
		}
		if _, err := i.Start(ctx, isolate.Command{Argv: []string{"true"}}); err == nil || !strings.Contains(err.Error(), "16 detached") {
			t.Errorf("one too many: got %v", err)
		}
		if n := detached(t, i); n != isolate.MaxDetached {
			t.Errorf("got %d", n)
		}
		pids := inside.Descendants(i.Pid())
		if err := i.Detach(ctx); err != nil {
			t.Fatal(err)
		}
		for _, pid := range pids {
			if err := unix.Kill(pid, 0); err != unix.ESRCH {
				t.Errorf("process %d: got %v, want it gone after Detach", pid, err)
			}
		}
		if n := detached(t, i); n != 0 {
			t.Errorf("after Detach: got %d", n)
		}
	})
}

// A supervisor runs init's program, which may belong to the sandbox's user: no way leads from the one to the other,
// not even before the supervisor has closed it. What the program is executed from may be gone.
func TestInit_Start_ProgramCannotBeChanged(t *testing.T) {
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, gone := range []string{"never", "meanwhile", "before"} {
		name := filepath.Join(tempDir(t), "program")
		if err := os.WriteFile(name, self, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		held, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer held.Close()
		remove := func(when string) {
			if gone != when {
				return
			}
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
		}
		remove("before")
		b := newBox(t, isolate.Config{Binary: fmt.Sprintf("/proc/self/fd/%d", held.Fd())})
		remove("meanwhile")
		// It takes what it finds in the moment between the start of a supervisor and its first steps.
		startDetached(t, b.Init, `perl -e 'while (1) { for (glob "/proc/[0-9]*") { chmod 0777, "$_/exe" if "$_" ne "/proc/$$" } }'`)
		for range 8 {
			startDetached(t, b.Init, "sleep 61")
		}
		fi, err := held.Stat()
		if err != nil {
			t.Fatal(err)
		}
		if got := fi.Mode(); got != 0o755 {
			t.Errorf("gone %s: the program's mode became %v", gone, got)
		}
	}
}
