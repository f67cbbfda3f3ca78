package layer

import (
	"encoding/gob"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/layer/layertest"
)

// overlayChild, in the environment, makes the test binary mount a view, run a step in it, and report.
const overlayChild = "WARMFLEET_LAYER_TEST_CHILD"

// childJob is what the child has to do; childReport is what it saw in the mount afterwards.
type childJob struct {
	Mount   Mount
	Trusted bool
	Step    string
	At, Out string
}

type childReport struct {
	Snapshot layertest.Snapshot
	Err      string
}

func TestMain(m *testing.M) {
	if job := os.Getenv(overlayChild); job != "" {
		if err := runChild(job); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func runChild(file string) error {
	var job childJob
	if err := readGob(file, &job); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make private: %w", err)
	}
	if err := mountOverlay(job); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	var report childReport
	if err := runStep(job.Step, job.At); err != nil {
		report.Err = err.Error()
	}
	snap, err := layertest.Take(job.At)
	if err != nil {
		return err
	}
	report.Snapshot = snap
	return errors.Join(writeGob(job.Out, report), unix.Unmount(job.At, 0))
}

// mountOverlay is what a worker does: fsopen, one lowerdir+ a layer, the options of its kind.
func mountOverlay(job childJob) error {
	fd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	set := func(key, value string) {
		if err == nil {
			if err = unix.FsconfigSetString(fd, key, value); err != nil {
				err = fmt.Errorf("%s=%s: %w", key, value, err)
			}
		}
	}
	for _, l := range job.Mount.Lowers {
		set("lowerdir+", l)
	}
	set("upperdir", job.Mount.Upper)
	set("workdir", job.Mount.Work)
	if job.Trusted {
		set("redirect_dir", "on")
		set("index", "on")
		set("metacopy", "off")
	} else if err == nil {
		err = unix.FsconfigSetFlag(fd, "userxattr")
	}
	if err != nil {
		return err
	}
	if err := unix.FsconfigCreate(fd); err != nil {
		return err
	}
	mfd, err := unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(mfd)
	return unix.MoveMount(mfd, "", unix.AT_FDCWD, job.At, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// inOverlay mounts an overlay view, runs a step in it, and gives what the mount showed before it went.
func inOverlay(t *testing.T, o Options, m Mount, step string) layertest.Snapshot {
	t.Helper()
	dir := scratch(t)
	job := childJob{Mount: m, Trusted: o.Trusted, Step: step, At: filepath.Join(dir, "m"), Out: filepath.Join(dir, "out")}
	must(t, os.Mkdir(job.At, 0o755))
	must(t, writeGob(filepath.Join(dir, "job"), job))
	exe, err := os.Executable()
	must(t, err)
	cmd := exec.Command(exe)
	// Under the race detector a process waits a second before it ends, unless told otherwise.
	cmd.Env = append(os.Environ(), overlayChild+"="+filepath.Join(dir, "job"), "GORACE=atexit_sleep_ms=0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	if !o.Trusted {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("run %q in overlay: %v\n%s", step, err, out)
	}
	var r childReport
	must(t, readGob(job.Out, &r))
	if r.Err != "" {
		t.Fatalf("step %q: %s", step, r.Err)
	}
	return r.Snapshot
}

func readGob(file string, v any) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	return gob.NewDecoder(f).Decode(v)
}

func writeGob(file string, v any) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(gob.NewEncoder(f).Encode(v), f.Close())
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// testOptions are those of whoever runs the tests.
func testOptions(t testing.TB) Options {
	t.Helper()
	return Options{Owner: os.Getuid(), Trusted: os.Getuid() == 0, Log: zerolog.New(zerolog.NewTestWriter(t))}
}

func openTestCache(t testing.TB, o Options) *Cache {
	t.Helper()
	c, err := OpenCache(filepath.Join(scratch(t), "cache"), o)
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()) })
	return c
}
