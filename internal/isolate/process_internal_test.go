package isolate

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// A child lays a pipe of the runtime's over the descriptor above its highest file when lower ones were closed meanwhile, as
// others do all the time. A program at beyond is out of its way.
func TestBeyond(t *testing.T) {
	var open []*os.File
	for range 12 {
		null, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { null.Close() })
		open = append(open, null)
	}
	files := open[8:]
	highest := slices.MaxFunc(files, func(a, b *os.File) int { return int(a.Fd()) - int(b.Fd()) })
	startAt := func(want int) error {
		fd, err := unix.Open("/bin/true", unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if fd, err = raise(fd, want); err != nil || fd != want {
			t.Fatalf("descriptor %d: got %d: %v", want, fd, err)
		}
		defer unix.Close(fd)
		child, err := os.StartProcess(fmt.Sprintf("/proc/self/fd/%d", fd), []string{"true"}, &os.ProcAttr{Files: files})
		if err == nil {
			_, err = child.Wait()
		}
		return err
	}
	for _, hole := range open[:8] {
		hole.Close()
	}
	for fd := beyond(files); fd < beyond(files)+4; fd++ {
		if err := startAt(fd); err != nil {
			t.Errorf("highest file %d, program %d: %v", highest.Fd(), fd, err)
		}
	}
}
