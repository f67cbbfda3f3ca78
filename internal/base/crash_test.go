package base

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// victimEnv makes the test below the process that is killed: state directory and path.
const victimEnv = "BASE_TEST_VICTIM"

// Whenever a process is killed while it makes images, the next one is exact.
func TestStore_KilledAtAnyMoment(t *testing.T) {
	if victim := os.Getenv(victimEnv); victim != "" {
		w := &world{t: t}
		w.state, w.path, _ = strings.Cut(victim, "\n")
		w.open(Options{})
		for i := 0; ; i++ {
			w.write(fmt.Sprintf("d/f%d", i%5), fmt.Sprint(i))
			w.get(w.path).Release()
		}
	}
	w := newWorld(t, Options{})
	w.write("f", "x")
	const kills = 8
	for range kills {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestStore_KilledAtAnyMoment$")
		cmd.Env = append(os.Environ(), victimEnv+"="+w.state+"\n"+w.path)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		kill := time.AfterFunc(time.Duration(20+rand.IntN(300))*time.Millisecond, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		kill.Stop()
		w.open(Options{})
		b := w.get(w.path)
		w.wantExact(b.Chain)
		b.Release()
	}
	all, err := w.cache.Layers()
	if err != nil {
		t.Fatal(err)
	}
	known, err := w.Layers()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) > len(known)+kills {
		t.Errorf("%d layers for %d that are known: a kill left more than one", len(all), len(known))
	}
	if left, err := filepath.Glob(filepath.Join(w.state, "base", imagesDir, "*", ".tmp-*")); err != nil || len(left) != 0 {
		t.Errorf("left: %q, %v", left, err)
	}
}
