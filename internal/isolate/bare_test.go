package isolate_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/isolate/inside"
)

func newBare(t *testing.T) (*isolate.Init, string) {
	t.Helper()
	i, dir := start(t, isolate.Config{Rung: isolate.RungBare}), tempDir(t)
	if err := i.AttachDir(testContext(t), dir); err != nil {
		t.Fatal(err)
	}
	return i, dir
}

func TestBare_Exec(t *testing.T) {
	t.Setenv("CANARY_ENV", "canary-env")
	i, dir := newBare(t)
	out, r := runScript(t, i, "pwd; env | grep CANARY; umask; echo x >made; test -d $HOME || echo no home; { head -1 </dev/tty; } 2>/dev/null; exit 3")
	if want := (plain{Code: 3, Cause: isolate.CauseExit}); out != dir+"\n0022\n" || plainOf(r) != want {
		t.Errorf("got %q, %+v; want %+v", out, plainOf(r), want)
	}
	if _, err := os.Stat(filepath.Join(dir, "made")); err != nil {
		t.Error(err)
	}
	for script, want := range map[string]plain{
		"kill -9 $$":                    {Code: -1, Signal: "KILL", Cause: isolate.CauseSignal},
		"sleep 25 & wait":               {Code: -1, Cause: isolate.CauseTimeout},
		"trap '' TERM; sleep 25; true":  {Code: -1, Cause: isolate.CauseTimeout},
		"setsid sleep 25 & echo hi":     {Cause: isolate.CauseExit},
		"(setsid sh -c 'sleep 25 &' &)": {Cause: isolate.CauseExit},
	} {
		began := time.Now()
		_, r := runScript(t, i, script, func(c *isolate.Command) { c.Timeout = time.Second })
		if plainOf(r) != want || time.Since(began) > 4*time.Second {
			t.Errorf("%s: got %+v in %v, want %+v", script, plainOf(r), time.Since(began), want)
		}
		if left := inside.Descendants(i.Pid()); len(left) != 0 {
			t.Errorf("%s: %d processes left", script, len(left))
		}
	}
}

func TestBare_Files(t *testing.T) {
	i, dir := newBare(t)
	ctx := testContext(t)
	if err := os.Symlink("/", filepath.Join(dir, "root")); err != nil {
		t.Fatal(err)
	}
	if err := i.WriteFile(ctx, isolate.FileWrite{Path: "root/tmp/file", Content: []byte("x"), MkdirAll: true}); !errors.Is(err, syscall.EXDEV) {
		t.Errorf("through a link that leads out: got %v", err)
	}
	if err := i.WriteFile(ctx, isolate.FileWrite{Path: "tmp/file", Content: []byte("x"), MkdirAll: true}); err != nil {
		t.Error(err)
	}
	if content, err := os.ReadFile(filepath.Join(dir, "tmp/file")); err != nil || string(content) != "x" {
		t.Errorf("got %q, %v; want the file inside", content, err)
	}
	if err := i.Detach(ctx); err != nil {
		t.Error(err)
	}
	if _, _, err := i.ReadFile(ctx, "tmp/file", 10); err == nil {
		t.Error("read after Detach: got no error")
	}
	if err := i.Attach(ctx, os.Stdin); err == nil {
		t.Error("Attach: got no error")
	}
}

func TestBare_Close(t *testing.T) {
	i, _ := newBare(t)
	var home string
	for _, e := range i.BaseEnv() {
		if value, ok := strings.CutPrefix(e, "HOME="); ok {
			home = value
		}
	}
	running := make(chan []int, 1)
	go i.Exec(testContext(t), isolate.Command{
		Argv: []string{"/bin/sh", "-c", "setsid sleep 60 & sleep 60"}, Env: i.BaseEnv(),
		Started: func() { running <- inside.Descendants(i.Pid()) },
	})
	pids := <-running
	if err := i.Close(); err != nil {
		t.Error(err)
	}
	for _, pid := range pids {
		if _, ok := inside.ParentOf(pid); ok {
			t.Errorf("process %d is still there", pid)
		}
	}
	if _, err := os.Stat(home); !os.IsNotExist(err) {
		t.Errorf("HOME: got %v, want it removed", err)
	}
}
