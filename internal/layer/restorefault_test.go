package layer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/layer/layertest"
)

// spoilAll leaves a restore something of every kind to do.
func spoilAll(d string) error {
	return errors.Join(
		layertest.Write(d, "more/x/y", "y"), os.Symlink("/etc", d+"/more/link"), os.Chmod(d+"/more", 0o555),
		layertest.Write(d, "dir/extra", "e"), layertest.Socket(d+"/dir/s"),
		os.WriteFile(d+"/a.txt", []byte("ALPHA and more\n"), 0o644),
		os.Chmod(d+"/run.sh", 0o600), os.Chmod(d+"/empty", 0o500),
		layertest.Replace(d, "cur", "dir"), layertest.Replace(d, "odd", "link"), layertest.Replace(d, "other", "file"),
		os.Remove(d+"/pipe"), os.Remove(d+"/twin1"), os.Link(d+"/twin2", d+"/twin1"),
		layertest.BreakLink(d), os.Remove(d+"/dir/h3"), os.RemoveAll(d+"/dir/sub"),
		layertest.EditReadOnly(d), unix.Setxattr(d+"/dir", "user.more", []byte("m"), 0), os.Chmod(d, 0o700),
	)
}

func changedTree(t *testing.T) (dir string, c *Cache, l Layer, idx *Index) {
	t.Helper()
	dir, c = scratch(t), openTestCache(t, testOptions(t))
	seed(t, dir)
	l, idx, _, err := c.Capture(context.Background(), dir, nil)
	must(t, err)
	must(t, spoilAll(dir))
	return dir, c, l, idx
}

// A restore that fails at any of its steps changes nothing, and leaves nothing behind.
func TestCache_RestoreThatFailsChangesNothing(t *testing.T) {
	dir, c, l, idx := changedTree(t)
	before := take(t, dir)
	ours := errors.New("injected")
	steps := map[string]int{}
	for fail := 0; ; fail++ {
		n := 0
		c.opt.Hook = func(step string) error {
			if n++; n <= fail {
				return nil
			}
			steps[strings.Fields(step)[0]]++
			return fmt.Errorf("%w: %s", ours, step)
		}
		_, err := c.Restore(context.Background(), dir, idx, Chain{l})
		if err == nil {
			break
		}
		if !errors.Is(err, ours) || strings.Contains(err.Error(), "half restored") {
			t.Fatalf("step %d: error %v", fail, err)
		}
		sameSnapshot(t, fmt.Sprintf("after %v", err), take(t, dir), before, layertest.Options{})
	}
	for _, kind := range []string{"stage", "take", "place", "finish"} {
		if steps[kind] < 3 {
			t.Errorf("%d steps of kind %q failed, want several", steps[kind], kind)
		}
	}
	c.opt.Hook = nil
	want := scratch(t)
	_, err := c.Restore(context.Background(), want, nil, Chain{l})
	must(t, err)
	layertest.Compare(t, dir, want, layertest.Options{})
}

// What the file system refuses half-way, here to move a file that is immutable, is taken back as well.
func TestCache_RestoreOfAnImmutableFile(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: makes a file immutable")
	}
	for _, name := range []string{"a.txt", "zz-last"} {
		t.Run(name, func(t *testing.T) {
			dir, c, l, idx := changedTree(t)
			must(t, layertest.Write(dir, name, "cannot be replaced\n"))
			before := take(t, dir)
			must(t, setImmutable(dir+"/"+name, true))
			_, err := c.Restore(context.Background(), dir, idx, Chain{l})
			must(t, setImmutable(dir+"/"+name, false))
			if !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), name) {
				t.Fatalf("error %v, want EPERM that names %s", err, name)
			}
			sameSnapshot(t, "after "+err.Error(), take(t, dir), before, layertest.Options{})
		})
	}
}

// immutableFlag is FS_IMMUTABLE_FL of linux/fs.h.
const immutableFlag = 0x10

func setImmutable(path string, on bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	flags, err := unix.IoctlGetUint32(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil {
		return err
	}
	flags &^= immutableFlag
	if on {
		flags |= immutableFlag
	}
	return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, int(flags))
}

// killedRestore, in the environment, says what a process has to restore and at which step to die.
const killedRestore = "WARMFLEET_LAYER_TEST_KILL"

// A restore that is killed at any of its steps is completed by the next one.
func TestCache_RestoreThatIsKilledIsCompleted(t *testing.T) {
	if job := os.Getenv(killedRestore); job != "" {
		restoreAndDie(t, job)
		return
	}
	dir, c, l, idx := changedTree(t)
	steps := 0
	c.opt.Hook = func(string) error { steps++; return nil }
	_, err := c.Restore(context.Background(), dir, idx, Chain{l})
	must(t, err)
	for die := range steps + 1 {
		t.Run("Step"+strconv.Itoa(die), func(t *testing.T) {
			t.Parallel()
			killedRestoreIsCompleted(t, die, die < steps)
		})
	}
}

// killedRestoreIsCompleted runs a restore in a process that kills itself before a step, if it has so many.
func killedRestoreIsCompleted(t *testing.T, die int, dies bool) {
	dir, c, l, idx := changedTree(t)
	want := scratch(t)
	_, err := c.Restore(context.Background(), want, nil, Chain{l})
	must(t, err)
	file := filepath.Join(scratch(t), "index")
	var b bytes.Buffer
	must(t, idx.Encode(&b))
	must(t, os.WriteFile(file, b.Bytes(), 0o600))
	cmd := exec.Command(must1(os.Executable()), "-test.run=^TestCache_RestoreThatIsKilledIsCompleted$")
	cmd.Env = append(os.Environ(), killedRestore+"="+strings.Join([]string{strconv.Itoa(die), dir, c.dir, l.ID, file}, "\n"), "GORACE=atexit_sleep_ms=0")
	out, err := cmd.CombinedOutput()
	if killed := err != nil && strings.Contains(err.Error(), "killed"); killed != dies || err != nil && !killed {
		t.Fatalf("the restore ended with %v, want it killed: %v\n%s", err, dies, out)
	}
	_, err = c.Restore(context.Background(), dir, idx, Chain{l})
	must(t, err)
	layertest.Compare(t, dir, want, layertest.Options{})
}

func restoreAndDie(t *testing.T, job string) {
	f := strings.Split(job, "\n")
	die, err := strconv.Atoi(f[0])
	must(t, err)
	o, n := testOptions(t), 0
	o.Hook = func(string) error {
		if n++; n > die {
			return unix.Kill(os.Getpid(), unix.SIGKILL)
		}
		return nil
	}
	c, err := OpenCache(f[2], o)
	must(t, err)
	l, err := c.Get(f[3])
	must(t, err)
	b, err := os.ReadFile(f[4])
	must(t, err)
	idx, err := DecodeIndex(bytes.NewReader(b))
	must(t, err)
	_, err = c.Restore(context.Background(), f[1], idx, Chain{l})
	must(t, errors.Join(err, c.Close()))
}

func must1[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// A step may leave anything at the place where a restore stages (strategy none): it is no part of the tree.
func TestCache_RestoreWhereTheJournalIsSomethingElse(t *testing.T) {
	outside := scratch(t)
	for name, spoil := range map[string]func(string) error{
		"File":   func(p string) error { return os.WriteFile(p, nil, 0) },
		"Link":   func(p string) error { return os.Symlink(outside, p) },
		"Fifo":   func(p string) error { return unix.Mkfifo(p, 0o600) },
		"Closed": func(p string) error { return os.Mkdir(p, 0) },
		"Old": func(p string) error {
			return errors.Join(os.MkdirAll(p+"/restore-01ARZ3NDEKTSV4RRFFQ69G5FAV/5", 0o755), os.Chmod(p+"/restore-01ARZ3NDEKTSV4RRFFQ69G5FAV", 0o500))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, dir, l, idx := captured(t)
			must(t, write(dir, "f", "changed"))
			must(t, spoil(filepath.Join(dir, JournalDir)))
			_, err := c.Restore(context.Background(), dir, idx, Chain{l})
			must(t, err)
			if got := take(t, dir); len(got) != 4 {
				t.Fatalf("got %v, want the root, f, d and d/g", got)
			}
			if len(take(t, outside)) != 1 {
				t.Fatal("something was made outside")
			}
		})
	}
}
