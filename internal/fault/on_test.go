//go:build fault

package fault

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// passAll passes points in a process of its own.
func passAll(t *testing.T, env ...string) (out string, err error) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestPoints_Child$")
	cmd.Env = append(os.Environ(), append(env, "FAULT_CHILD=1")...)
	b, err := cmd.CombinedOutput()
	return string(b), err
}

func TestPoints_Child(t *testing.T) {
	if os.Getenv("FAULT_CHILD") == "" {
		return
	}
	At("one")
	AtEach("each", "kind")
	for range 3 {
		if err := Err("two"); err != nil {
			println("two:", err.Error(), errors.Is(err, syscall.ENOSPC))
		}
	}
	if err := Hook("hook")("do 000001"); err != nil {
		println("hook:", err.Error())
	}
	println("off:", Off("g1"), Off("g2"))
	os.Exit(0)
}

func TestPoints_TagObeysTheEnvironment(t *testing.T) {
	trace := t.TempDir() + "/trace"
	for _, tc := range []struct {
		name, env string
		killed    bool
		says      string
		times     int
	}{
		{"Nothing", "", false, "two:", 0},
		{"Kill", "WARMFLEET_FAULT=two:2:kill", true, "off:", 0},
		{"KillAtEach", "WARMFLEET_FAULT=each.kind:1:kill", true, "off:", 0},
		{"NeverPassed", "WARMFLEET_FAULT=two:4:kill", false, "off:", 1},
		{"Once", "WARMFLEET_FAULT=two:2:enospc", false, "no space left on device true", 1},
		{"FromThenOn", "WARMFLEET_FAULT=two:2+:enospc", false, "no space left on device true", 2},
		{"OtherError", "WARMFLEET_FAULT=hook.do:1:eio", false, "hook: write fault:hook.do: input/output error", 1},
		{"Guard", "WARMFLEET_BROKEN=g2,g3", false, "off: false true", 1},
		{"Trace", "WARMFLEET_FAULT_TRACE=" + trace, false, "off: false false", 1},
		{"Nonsense", "WARMFLEET_FAULT=two", false, "want NAME:N:HOW", 1},
		{"CannotFail", "WARMFLEET_FAULT=one:1:enospc", false, "nothing can fail at one", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out, err := passAll(t, tc.env)
			var exit *exec.ExitError
			killed := errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
			if killed != tc.killed {
				t.Errorf("killed: got %v, want %v (%v)", killed, tc.killed, err)
			}
			if got := strings.Count(out, tc.says); got != tc.times && !(tc.times == 1 && got > 1) {
				t.Errorf("it says %q %d times, want %d:\n%s", tc.says, got, tc.times, out)
			}
		})
	}
	b, err := os.ReadFile(trace)
	if want := "one 1 kill\neach.kind 1 kill\ntwo 1 err\ntwo 2 err\ntwo 3 err\nhook.do 1 err\n"; err != nil || string(b) != want {
		t.Errorf("trace: got %q, %v, want %q", b, err, want)
	}
}
