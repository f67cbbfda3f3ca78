package isolate_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/isolate/inside"
)

// Case F1: whatever the shape, a timeout holds, and what is left behind dies.
func TestInit_Exec_TimeoutShapes(t *testing.T) {
	b := newBox(t, isolate.Config{})
	timeout := plain{Code: -1, Cause: isolate.CauseTimeout}
	success := plain{Cause: isolate.CauseExit}
	for _, c := range []struct {
		script string
		want   plain
		output string
	}{
		{"sleep 25", timeout, ""},
		{"sleep 25; true", timeout, ""},
		{"sleep 25 & wait", timeout, ""},
		{"(sleep 25)", timeout, ""},
		{"sleep 25 | cat", timeout, ""},
		{"nohup sleep 25 &", success, ""},
		{"setsid sleep 25 & echo hi", success, "hi\n"},
		{"(setsid sh -c 'sleep 25 & sleep 25' &) ; echo hi", success, "hi\n"},
		{"(setsid sh -c 'sleep 25 & sleep 25' &) ; sleep 25", timeout, ""},
		{"trap '' TERM; while :; do sleep 1; done", timeout, ""},
		{"kill -STOP $$", timeout, ""},
		{"setsid sh -c 'trap \"\" TERM; while :; do :; done' & wait", timeout, ""},
	} {
		began := time.Now()
		out, r := b.sh(c.script, func(c *isolate.Command) { c.Timeout, c.Grace = time.Second, 200*time.Millisecond })
		if diff := cmp.Diff(plainOf(r), c.want); diff != "" {
			t.Errorf("%s (-got +want):\n%s", c.script, diff)
		}
		if out != c.output {
			t.Errorf("%s: got output %q, want %q", c.script, out, c.output)
		}
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("%s: took %v", c.script, took)
		}
		if left := inside.Descendants(b.Pid()); len(left) != 0 {
			t.Errorf("%s: got %d processes left", c.script, len(left))
		}
	}
}

// Case G2: the polite signal gets its grace in full, and does not turn a timeout into success.
func TestInit_Exec_Grace(t *testing.T) {
	b := newBox(t, isolate.Config{})
	for _, c := range []struct {
		script      string
		want        plain
		output      string
		least, most time.Duration
	}{
		{"trap 'sleep 0.3; echo bye; exit 0' TERM; sleep 60 & wait", plain{Cause: isolate.CauseTimeout}, "bye\n", 300 * time.Millisecond, 2 * time.Second},
		// The shell dies of the signal at once; what it runs, and what left its session, has the grace all the same.
		{"sh -c \"trap 'sleep 0.3; echo bye; exit 0' TERM; sleep 60 & wait\"; true", plain{Code: -1, Cause: isolate.CauseTimeout}, "bye\n", 400 * time.Millisecond, 2 * time.Second},
		{"setsid sh -c \"trap 'sleep 0.3; echo bye; exit 0' TERM; sleep 60 & wait\" & wait", plain{Code: -1, Cause: isolate.CauseTimeout}, "bye\n", 400 * time.Millisecond, 2 * time.Second},
		{"trap '' TERM; while :; do sleep 1; done", plain{Code: -1, Cause: isolate.CauseTimeout}, "", 1200 * time.Millisecond, 3 * time.Second},
	} {
		began := time.Now()
		out, r := b.sh(c.script, func(c *isolate.Command) { c.Timeout, c.Grace = 200*time.Millisecond, time.Second })
		took := time.Since(began)
		if plainOf(r) != c.want || out != c.output {
			t.Errorf("%s: got %+v, %q; want %+v, %q", c.script, plainOf(r), out, c.want, c.output)
		}
		if took < c.least || took > c.most {
			t.Errorf("%s: took %v, want %v to %v", c.script, took, c.least, c.most)
		}
	}
	if _, err := b.Exec(testContext(t), isolate.Command{Argv: []string{"true"}, Timeout: -1}); err == nil {
		t.Error("negative timeout: got no error")
	}
}

func TestInit_Exec_Cancel(t *testing.T) {
	b := newBox(t, isolate.Config{})
	ctx, cancel := context.WithCancel(testContext(t))
	r, err := b.Exec(ctx, isolate.Command{
		Argv: []string{"/bin/sh", "-c", "sleep 60 & setsid sleep 60"}, Env: b.BaseEnv(), Started: cancel,
	})
	if want := (plain{Code: -1, Cause: isolate.CauseCancelled}); err != nil || plainOf(r) != want {
		t.Errorf("got %+v, %v; want %+v", plainOf(r), err, want)
	}
	if r, err = b.Exec(ctx, isolate.Command{Argv: []string{"true"}}); err != nil || r.Cause != isolate.CauseCancelled {
		t.Errorf("cancelled before: got %+v, %v", r, err)
	}
	if out, r := b.sh("echo on"); out != "on\n" || r.Cause != isolate.CauseExit {
		t.Errorf("next command: got %q, %+v", out, r)
	}
}

// A cancel that comes while the command is being started is not forgotten.
func TestInit_Exec_CancelAtAnyMoment(t *testing.T) {
	b := newBox(t, isolate.Config{})
	for after := range 60 {
		ctx, cancel := context.WithCancel(testContext(t))
		time.AfterFunc(time.Duration(after)*50*time.Microsecond, cancel)
		began := time.Now()
		r, err := b.Exec(ctx, isolate.Command{Argv: []string{"/bin/sleep", "300"}, Env: b.BaseEnv(), Grace: time.Minute})
		if want := (plain{Code: -1, Cause: isolate.CauseCancelled}); err != nil || plainOf(r) != want {
			t.Fatalf("cancelled after %d times 50 us: got %+v, %v; want %+v", after, plainOf(r), err, want)
		}
		if took := time.Since(began); took > 30*time.Second {
			t.Fatalf("cancelled after %d times 50 us: SIGTERM was lost, it took SIGKILL to end it", after)
		}
		cancel()
	}
}

// Case F4: code, signal and cause are told apart.
func TestInit_Exec_Results(t *testing.T) {
	b := newBox(t, isolate.Config{})
	b.sh(`printf 'x' >noexec; printf '#!/no/such/interpreter\n' >badscript; chmod +x badscript; printf 'echo plain' >text; chmod +x text; mkdir sub; printf '#!/bin/sh\npwd\n' >sub/here; chmod +x sub/here; ln -s /usr out`)
	exit := func(code int) plain { return plain{Code: code, Cause: isolate.CauseExit} }
	sig := func(name string) plain { return plain{Code: -1, Signal: name, Cause: isolate.CauseSignal} }
	failed := plain{Code: -1, Cause: isolate.CauseStart}
	for _, c := range []struct {
		argv []string
		dir  string
		want plain
		text string // of the start error, or output
	}{
		{[]string{"bash", "-c", "kill -9 $$"}, "", sig("KILL"), ""},
		{[]string{"bash", "-c", "kill -TERM $$"}, "", sig("TERM"), ""},
		{[]string{"bash", "-c", "kill -SEGV $$"}, "", sig("SEGV"), ""},
		{[]string{"bash", "-c", "kill -9 0"}, "", sig("KILL"), ""},
		{[]string{"bash", "-c", "exit 255"}, "", exit(255), ""},
		{[]string{"bash", "-c", "exit 137"}, "", exit(137), ""},
		{[]string{"bash", "-c", "exit 124"}, "", exit(124), ""},
		{[]string{"bash", "-c", "./no-such 2>/dev/null"}, "", exit(127), ""},
		{[]string{"bash", "-c", "ulimit -v 50000; perl -e '$x = \"x\" x 200_000_000' 2>/dev/null || exit 1"}, "", exit(1), ""},
		{[]string{"no-such-program"}, "", failed, `start "no-such-program": no such program`},
		{[]string{"./no-such"}, "", failed, `start "./no-such": no such program`},
		{[]string{"./noexec"}, "", failed, `start "./noexec": not executable`},
		{[]string{"./badscript"}, "", failed, `start "./badscript": its interpreter "/no/such/interpreter" does not exist`},
		{[]string{"./text"}, "", failed, `start "./text": neither a program nor a script with an interpreter line`},
		{[]string{"."}, "", failed, `start ".": no such program`},
		{[]string{""}, "", failed, `start "": no such program`},
		{nil, "", failed, "empty command"},
		{[]string{"true"}, "no-such", failed, `open working directory "no-such": no such file or directory`},
		{[]string{"true"}, "old", failed, `open working directory "old": not a directory`},
		{[]string{"true"}, "out", failed, `open working directory "out": leads out of the workspace`},
		{[]string{"true", strings.Repeat("x", 200_000)}, "", failed, `start "/usr/bin/true": arguments and environment are too long for the system`},
		{[]string{"./here"}, "sub", exit(0), "/workspace/sub\n"},
		{[]string{"./here"}, "sub/../sub/", exit(0), "/workspace/sub\n"},
		{[]string{"./here"}, "../workspace/sub", failed, `open working directory "../workspace/sub": leads out of the workspace`},
	} {
		out, r := b.sh("", func(cmd *isolate.Command) {
			cmd.Argv, cmd.Dir, cmd.Env = c.argv, c.dir, []string{"PATH=/usr/bin"}
		})
		if got := plainOf(r); got != c.want {
			t.Errorf("%.80q in %q: got %+v, want %+v (%s%s)", c.argv, c.dir, got, c.want, out, r.StartError)
		}
		if got := out + r.StartError; c.text != "" && got != c.text {
			t.Errorf("%.80q in %q: got %q, want %q", c.argv, c.dir, got, c.text)
		}
	}
}

// Cases F2 and F5: output is bytes, in any amount and shape.
func TestInit_Exec_Output(t *testing.T) {
	b := newBox(t, isolate.Config{})
	for _, c := range []struct {
		script string
		want   string
		code   int
	}{
		{"head -c 5000000 /dev/zero | tr '\\0' x; exit 3", strings.Repeat("x", 5_000_000), 3},
		{"printf abc", "abc", 0},
		{"head -c 70000 /dev/zero | tr '\\0' x; echo; echo last", strings.Repeat("x", 70_000) + "\nlast\n", 0},
		{"true", "", 0},
		{"echo", "\n", 0},
		{`printf '\0\377\376\r\033[1m'`, "\x00\xff\xfe\r\x1b[1m", 0},
		{"echo one; echo two >&2; echo three", "one\ntwo\nthree\n", 0},
	} {
		out, r := b.sh(c.script)
		if out != c.want || plainOf(r).Code != c.code {
			t.Errorf("%s: got %d bytes %.40q, code %d; want %d bytes, code %d", c.script, len(out), out, plainOf(r).Code, len(c.want), c.code)
		}
	}
	hash := sha256.New()
	var errors bytes.Buffer
	_, r := b.sh("yes | head -c 200M; echo end >&2", func(c *isolate.Command) { c.Stdout, c.Stderr = hash, &errors })
	want := sha256.New()
	io.Copy(want, strings.NewReader(strings.Repeat("y\n", 100<<20)))
	if plainOf(r).Code != 0 || !bytes.Equal(hash.Sum(nil), want.Sum(nil)) || errors.String() != "end\n" {
		t.Errorf("200 MiB: got %+v, other stream %q", plainOf(r), errors.String())
	}
}

// failingWriter takes a little and then refuses.
type failingWriter struct{ left int }

func (w *failingWriter) Write(p []byte) (int, error) {
	if w.left -= len(p); w.left < 0 {
		return 0, errors.New("full")
	}
	return len(p), nil
}

func TestInit_Exec_FailingWriter(t *testing.T) {
	b := newBox(t, isolate.Config{})
	_, r := b.sh("yes | head -c 10M; exit 7", func(c *isolate.Command) { c.Stdout = &failingWriter{left: 100_000} })
	if want := (plain{Code: 7, Cause: isolate.CauseExit}); plainOf(r) != want {
		t.Errorf("got %+v, want %+v", plainOf(r), want)
	}
}

// Case F3: nothing waits for a person.
func TestInit_Exec_NoInput(t *testing.T) {
	b := newBox(t, isolate.Config{})
	for script, want := range map[string]plain{
		"cat":                        {Cause: isolate.CauseExit},
		"read x":                     {Code: 1, Cause: isolate.CauseExit},
		"head -1 </dev/tty":          {Code: 1, Cause: isolate.CauseExit},
		"tty":                        {Code: 1, Cause: isolate.CauseExit},
		"read x <&1":                 {Code: 1, Cause: isolate.CauseExit},
		"exec <>/dev/ptmx; true":     {Cause: isolate.CauseExit},
		"git --no-pager log 2>&1 ||": {Code: 2, Cause: isolate.CauseExit},
	} {
		_, r := b.sh(script, func(c *isolate.Command) { c.Timeout = 5 * time.Second })
		if got := plainOf(r); got != want {
			t.Errorf("%s: got %+v, want %+v", script, got, want)
		}
	}
}

// Case G1: a whole forest dies with its command, however it is made.
func TestInit_Exec_TreeKill(t *testing.T) {
	b := newBox(t, isolate.Config{})
	forest := `for i in $(seq 60); do setsid sh -c '(sleep 600 &) ; exec sleep 600' & (setsid sleep 600 &) & done; `
	count := func() int { return len(inside.Descendants(b.Pid())) }
	_, r := b.sh(forest+"wait", func(c *isolate.Command) {
		c.Timeout = 2 * time.Second
		c.Started = func() { eventually(t, "183 processes run", func() bool { return count() >= 181 }) }
	})
	if r.Cause != isolate.CauseTimeout || count() != 0 {
		t.Errorf("got %s with %d processes left", r.Cause, count())
	}
	bomb := "f() { while :; do (setsid sleep 30 &); done; }; f & f & sleep 30"
	_, r = b.sh(bomb, func(c *isolate.Command) { c.Timeout, c.Grace = 300*time.Millisecond, time.Millisecond })
	if r.Cause != isolate.CauseTimeout || count() != 0 {
		t.Errorf("fork bomb: got %s with %d processes left", r.Cause, count())
	}
	if out, _ := b.sh("ps ax | grep -c [d]efunct"); out != "0\n" {
		t.Errorf("zombies: got %s", out)
	}
}

// A descriptor that was passed out of the sandbox must not hold the end of output.
func TestInit_Exec_EscapedOutput(t *testing.T) {
	b := newBox(t, isolate.Config{})
	var out bytes.Buffer
	var keep *os.File
	_, r := b.sh("echo before; sleep 0.3; echo after", func(c *isolate.Command) {
		c.Stdout, c.Stderr = &out, nil
		c.Started = func() {
			pids := inside.Descendants(b.Pid())
			if len(pids) == 0 {
				t.Error("no process")
				return
			}
			var err error
			if keep, err = os.OpenFile(fmt.Sprintf("/proc/%d/fd/1", pids[0]), os.O_WRONLY, 0); err != nil {
				t.Error(err)
			}
		}
	})
	defer keep.Close()
	if got := out.String(); got != "before\nafter\n" || r.Cause != isolate.CauseExit {
		t.Errorf("got %q, %+v", got, r)
	}
}

// slowWriter holds up its first write.
type slowWriter struct {
	buf  bytes.Buffer
	hold <-chan time.Time
}

func (w *slowWriter) Write(p []byte) (int, error) {
	if w.hold != nil {
		<-w.hold
		w.hold = nil
	}
	return w.buf.Write(p)
}

// A writer slower than the grace for output loses nothing.
func TestInit_Exec_SlowWriter(t *testing.T) {
	b := newBox(t, isolate.Config{})
	out := &slowWriter{hold: time.After(1500 * time.Millisecond)}
	_, r := b.sh("echo one; sleep 0.1; head -c 50000 /dev/zero; echo two", func(c *isolate.Command) { c.Stdout, c.Stderr = out, nil })
	if got, want := out.buf.Len(), 4+50_000+4; got != want || plainOf(r).Code != 0 {
		t.Errorf("got %d bytes, want %d (%+v)", got, want, plainOf(r))
	}
}

func TestInit_Exec_Queue(t *testing.T) {
	b := newBox(t, isolate.Config{})
	results := make(chan error)
	for n := range 8 {
		go func() {
			var out bytes.Buffer
			r, err := b.Exec(testContext(t), isolate.Command{
				Argv: []string{"/bin/sh", "-c", fmt.Sprintf("mkdir lock && sleep 0.02 && rmdir lock && echo 1; exit %d", n)}, Env: b.BaseEnv(), Stdout: &out,
			})
			if err == nil && (plainOf(r).Code != n || out.String() != "1\n") {
				err = fmt.Errorf("command %d: got %+v, %q", n, plainOf(r), out.String())
			}
			results <- err
		}()
	}
	for range 8 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
}
