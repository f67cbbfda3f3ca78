package remotetest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// leftFor is how long gits may outlive what they worked for.
const leftFor = 5 * time.Second

// Gits lists the programs of this machine that work on a repository below dir.
func Gits(dir string) []string {
	var found []string
	all, _ := filepath.Glob("/proc/[0-9]*/environ") // the pattern is good
	for _, name := range all {
		b, err := os.ReadFile(name)
		if err != nil || !strings.Contains("\x00"+string(b), "\x00GIT_DIR="+dir+"/") {
			continue
		}
		argv, err := os.ReadFile(filepath.Join(filepath.Dir(name), "cmdline"))
		if err == nil && len(argv) > 0 {
			found = append(found, strings.ReplaceAll(string(argv), "\x00", " "))
		}
	}
	return found
}

// WantNoGit waits until no git works on a repository below dir.
func WantNoGit(t testing.TB, dir string) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(leftFor); ; <-tick.C {
		left := Gits(dir)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still running: %q", left)
		}
	}
}
