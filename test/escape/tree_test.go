package escape

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate"
)

const (
	// workerRung makes a run of TestWorkerKilled the worker, on that rung.
	workerRung = "ESCAPE_WORKER"
	// outliving is how long something of a step may be there after its end, or after its worker's death.
	outliving = time.Second
)

// A shape is a way to leave a process behind; MARK stands for what is told of it.
type shape struct{ name, like, script string }

func shapes() []shape {
	return []shape{
		{"background", "codex#4337", "sleep MARK 1 & sleep 0.05"},
		{"setsid", "codex#4337", "setsid sleep MARK 1 & sleep 0.05"},
		{"nohup", "", "nohup sleep MARK 1 & sleep 0.05"},
		{"double fork", "docker-agent#2462", "(setsid sh -c 'sleep MARK 1 & exec true' &); sleep 0.05"},
		{"ignoring signals", "sandlock#238", "(trap '' TERM HUP INT QUIT USR1 USR2; setsid sleep MARK 1 &); sleep 0.05"},
		{"stopped", "", "setsid sleep MARK 1 & sleep 0.05; kill -STOP $!"},
		{"traced", "", "strace -f -o /dev/null sleep MARK 1 & (setsid strace -o /dev/null sleep MARK 1 &); (setsid sleep MARK 1 &); sleep 0.3"},
		{"forking on", "actions/runner#4601", "f() { i=0; while [ $i -lt 40 ]; do (setsid sleep MARK 1 &); sleep 0.02; i=$((i+1)); done; }; (f &); sleep 0.1"},
	}
}

func (s shape) with(mark string) string { return strings.ReplaceAll(s.script, "MARK", mark) }

// left waits until nothing with a mark is left, for as long as something may be.
func left(mark string) int { return leftAfter(outliving, mark) }

func leftAfter(wait time.Duration, mark string) int {
	n := 0
	within(wait, func() bool { n = len(survivors(mark)); return n == 0 })
	return n
}

// within waits for a condition and tells whether it came in time.
func within(limit time.Duration, holds func() bool) bool {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	end := time.After(limit)
	for !holds() {
		select {
		case <-tick.C:
		case <-end:
			return holds()
		}
	}
	return true
}

// treeAttempts leave processes behind.
func treeAttempts() []attempt {
	survive := func(s scene, _ box) (string, error) {
		defer endSurvivors(s.Mark)
		if n := left(s.Mark); n > 0 {
			return fmt.Sprintf("%d processes are left", n), nil
		}
		return "", errors.New("nothing is left")
	}
	var all []attempt
	for _, sh := range shapes() {
		all = append(all, attempt{name: "outlive the step: " + sh.name, like: sh.like, after: survive, try: func(s scene) (string, error) {
			// It is not the output that keeps the step from ending.
			cmd := exec.Command("/bin/sh", "-c", sh.with(s.Mark))
			return "left behind", cmd.Run()
		}})
	}
	return append(all, attempt{name: "outlive the step: vfork and a new session", after: survive, try: func(s scene) (string, error) {
		signal.Ignore(unix.SIGTERM, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT)
		_, err := os.StartProcess("/bin/sleep", []string{"sleep", s.Mark, "1"}, &os.ProcAttr{Sys: &syscall.SysProcAttr{Setsid: true}})
		return "left behind", err
	}})
}

// What a step made of itself dies with its worker, however that ends and whatever isolates.
func TestWorkerKilled(t *testing.T) {
	if rung := os.Getenv(workerRung); rung != "" {
		beWorker(t, isolate.Rung(rung))
		return
	}
	for _, rung := range append(isolate.Rungs(), isolate.RungBare) {
		t.Run(string(rung), func(t *testing.T) {
			mark, least := newMark(), len(shapes())
			defer endSurvivors(mark)
			// A busy machine may be late once.
			for range 3 {
				if n := killWorker(t, rung, mark, least); n == 0 {
					return
				}
			}
			t.Errorf("%d processes outlived their worker, three times over", len(survivors(mark)))
		})
	}
}

// killWorker kills a worker in the middle of a step and returns how many processes are left.
func killWorker(t *testing.T, rung isolate.Rung, mark string, least int) int {
	t.Helper()
	tmp := scratch(t)
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestWorkerKilled$")
	cmd.Env = append(os.Environ(), workerRung+"="+string(rung), "ESCAPE_MARK="+mark, "TMPDIR="+tmp)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	running := len(survivors(mark))
	must(t, errors.Join(cmd.Process.Kill(), err))
	wait := outliving
	if rung == isolate.RungLandlock || rung == isolate.RungBare {
		wait *= 10 // there the second is best effort, and that nothing is left is what counts
	}
	n := leftAfter(wait, mark)
	cmd.Wait()
	// Files have the time that a busy machine needs; none of them runs.
	if n == 0 && !within(10*outliving, func() bool { return len(glob(filepath.Join(tmp, "warmfleet-home-*", "*"))) == 0 }) {
		t.Error("what was in its HOME outlived the worker")
	}
	if line != "running\n" || running < least {
		t.Fatalf("got %q and %d processes, want at least %d", line, running, least)
	}
	return n
}

// beWorker runs a step that leaves every shape behind and goes on.
func beWorker(t *testing.T, rung isolate.Rung) {
	ctx := t.Context()
	i, err := isolate.Start(ctx, isolate.Config{Rung: rung, Within: os.TempDir()})
	must(t, err)
	dir := scratch(t)
	if !rung.Mounts() {
		must(t, os.Chown(dir, rung.Owner(), -1))
		must(t, i.AttachDir(ctx, dir))
	} else {
		m, err := isolate.NewMounter(rung)
		must(t, err)
		mount, err := m.Bind(ctx, isolate.Bind{Dir: dir})
		must(t, err)
		must(t, i.Attach(ctx, mount))
	}
	must(t, os.Chmod(dir, 0o777))
	var scripts []string
	for _, s := range shapes() {
		scripts = append(scripts, s.with(os.Getenv("ESCAPE_MARK")))
	}
	script := strings.Join(scripts, "\n") + "\ntrap '' TERM; touch started; while :; do sleep 1; done"
	i.Exec(ctx, isolate.Command{Argv: []string{"/bin/sh", "-c", script}, Env: i.BaseEnv(), Started: func() {
		if within(30*time.Second, func() bool { _, err := os.Stat(filepath.Join(dir, "started")); return err == nil }) {
			fmt.Println("running")
		}
	}})
}
