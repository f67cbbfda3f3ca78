package isolate_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/warmfleet/warmfleet/internal/isolate"
)

// What was detached does nothing between Pause and Resume, and goes on afterwards; what had been stopped before stays so.
func TestInit_Pause(t *testing.T) {
	t.Run("Namespaces", func(t *testing.T) {
		b := newBox(t, isolate.Config{})
		testPause(t, b.Init, b.path("upper"))
	})
	t.Run("Bare", func(t *testing.T) {
		i, dir := newBare(t)
		testPause(t, i, dir)
	})
}

func testPause(t *testing.T, i *isolate.Init, dir string) {
	t.Helper()
	ctx := testContext(t)
	read := func(name string) string {
		b, _ := os.ReadFile(filepath.Join(dir, name))
		return string(b)
	}
	startDetached(t, i, "n=0; while :; do n=$((n+1)); echo $n >>n; done")
	startDetached(t, i, "(setsid sh -c 'while :; do echo x >>forked; /bin/true; done' &); echo $$ >stopped; kill -STOP $$; echo x >continued")
	eventually(t, "their work", func() bool { return read("n") != "" && read("stopped") != "" && read("forked") != "" })
	for range 3 {
		if err := i.Pause(ctx); err != nil {
			t.Fatal(err)
		}
		before := read("n") + read("forked")
		for range 200 {
			if read("n")+read("forked") != before {
				t.Fatal("something runs while everything is stopped")
			}
		}
		if err := i.Resume(ctx); err != nil {
			t.Fatal(err)
		}
		eventually(t, "they go on", func() bool { return len(read("n")+read("forked")) > len(before) })
	}
	if got := read("continued"); got != "" {
		t.Errorf("a process that was stopped before went on: %q", got)
	}
	if out, _ := runScript(t, i, "echo still here"); out != "still here\n" {
		t.Errorf("a command afterwards: got %q", out)
	}
	if err := i.Detach(ctx); err != nil { // they would fill what is removed
		t.Error(err)
	}
}
