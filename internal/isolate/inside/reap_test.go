package inside

import (
	"bufio"
	"os/exec"
	"slices"
	"testing"
)

// A shell that waits would exit by itself if its children were ended before it.
func TestOutsiders_ParentsFirst(t *testing.T) {
	cmd := exec.Command("sh", "-c", "for i in 1 2 3 4 5; do sh -c 'sleep 1000 & wait' & done; echo started; wait")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		treeReaper{}.killAll(func() map[int]bool { return nil }, func(int) {})
		cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("got %q, %v", line, err)
	}
	// What /proc is made into has no order, so one look may be right by chance.
	for range 10 {
		pids, _ := outsiders(nil)
		if len(pids) < 6 {
			t.Fatalf("got %d processes, want the shells at least", len(pids))
		}
		for at, pid := range pids {
			if parent, ok := ParentOf(pid); ok && slices.Index(pids, parent) > at {
				t.Fatalf("process %d comes before its parent %d in %v", pid, parent, pids)
			}
		}
	}
}
