package gitrepo

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

// victimEnv makes the test below the process that is killed: state directory and repository.
const victimEnv = "GITREPO_TEST_VICTIM"

// Case D2: whenever a process is killed while it makes bases, the next one works, and what it finds
// lying about is gone or known.
func TestStore_KilledAtAnyMoment(t *testing.T) {
	if victim := os.Getenv(victimEnv); victim != "" {
		dir, path, _ := strings.Cut(victim, "\n")
		s := openTestStore(t, dir, Options{MaxBases: 2})
		for i := 0; ; i = (i + 1) % 6 {
			s.path(t, path, fmt.Sprintf("HEAD~%d", i)).Release()
		}
	}
	r, dir := sample(t), t.TempDir()
	for i := range 6 {
		r.write(fmt.Sprintf("n%d", i), fmt.Sprint(i))
		r.commit(fmt.Sprint(i))
	}
	before := listTree(t, r.dir, true)
	const kills = 8
	for range kills {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestStore_KilledAtAnyMoment$")
		cmd.Env = append(os.Environ(), victimEnv+"="+dir+"\n"+r.dir)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		kill := time.AfterFunc(time.Duration(20+rand.IntN(400))*time.Millisecond, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		kill.Stop()
		b := openTestStore(t, dir, Options{MaxBases: 2}).path(t, r.dir, "")
		materialise(t, b.Chain).wantSound(b.Commit)
		b.Release()
	}
	if got := listTree(t, r.dir, true); got != before {
		t.Error("the original changed")
	}
	s := openTestStore(t, dir, Options{})
	all, err := s.cache.Layers()
	if err != nil {
		t.Fatal(err)
	}
	known, err := s.Layers()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) > len(known)+kills {
		t.Errorf("%d layers for %d that are known: a kill left more than one", len(all), len(known))
	}
	if left, err := filepath.Glob(filepath.Join(dir, "git", reposDir, "*", ".tmp-*")); err != nil || len(left) > kills {
		t.Errorf("left: %q, %v", left, err)
	}
}
