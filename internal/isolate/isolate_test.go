package isolate_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/internal/isolate"
)

// modeVariable makes the test binary something else than tests, in a process of its own.
const modeVariable = "ISOLATE_TEST_MODE"

func TestMain(m *testing.M) {
	isolate.Main()
	switch mode := os.Getenv(modeVariable); mode {
	case "":
		os.Exit(m.Run())
	case "probe":
		os.Exit(probeMode())
	case "denied":
		os.Exit(deniedMode())
	case "parent":
		os.Exit(parentMode())
	case "terminal":
		os.Exit(terminalMode())
	case "setuid":
		os.Exit(setuidMode())
	default:
		fmt.Fprintf(os.Stderr, "unknown mode %q\n", mode)
		os.Exit(2)
	}
}

// rung is the one that this user can have.
func rung() isolate.Rung {
	if os.Getuid() == 0 {
		return isolate.RungRoot
	}
	return isolate.RungUser
}

// hostID is who owns a sandbox's files on the host.
func hostID() int {
	if os.Getuid() == 0 {
		return isolate.HostID
	}
	return os.Getuid()
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// tempDir is a directory that can be removed whatever the overlay left in it.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "isolate-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				os.Chmod(p, 0o700)
			}
			return nil
		})
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func mustWrite(t testing.TB, name, content string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// give makes everything in dir the sandbox's.
func give(t testing.TB, dir string) {
	t.Helper()
	if os.Getuid() != 0 {
		return
	}
	err := filepath.Walk(dir, func(p string, _ os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(p, isolate.HostID, isolate.HostID)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func start(t testing.TB, c isolate.Config) *isolate.Init {
	t.Helper()
	if c.Rung == "" {
		c.Rung = rung()
	}
	i, err := isolate.Start(testContext(t), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { i.Close() })
	return i
}

func newMounter(t testing.TB) isolate.Mounter {
	t.Helper()
	m, err := isolate.NewMounter(rung())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// box is a sandbox with an overlay as workspace.
type box struct {
	*isolate.Init
	t       testing.TB
	dir     string // holds lower, upper, work
	mounter isolate.Mounter
}

func newBox(t testing.TB, c isolate.Config) *box {
	t.Helper()
	b := &box{t: t, dir: tempDir(t), mounter: newMounter(t)}
	b.Init = start(t, c)
	for _, d := range []string{"lower/dir", "upper", "work"} {
		if err := os.MkdirAll(filepath.Join(b.dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range map[string]string{"old": "old\n", "gone": "gone\n", "dir/file": "file\n"} {
		mustWrite(t, filepath.Join(b.dir, "lower", name), content)
	}
	give(t, b.dir)
	b.attach()
	return b
}

func (b *box) path(name string) string { return filepath.Join(b.dir, name) }

func (b *box) overlay() isolate.Overlay {
	return isolate.Overlay{Lowers: []string{b.path("lower")}, Upper: b.path("upper"), Work: b.path("work")}
}

func (b *box) attach() {
	b.t.Helper()
	ctx := testContext(b.t)
	mount, err := b.mounter.Overlay(ctx, b.overlay())
	if err != nil {
		b.t.Fatal(err)
	}
	err = b.Attach(ctx, mount)
	mount.Close()
	if err != nil {
		b.t.Fatal(err)
	}
}

// sh runs a script and returns its output, both kinds, and its result.
func (b *box) sh(script string, change ...func(*isolate.Command)) (string, isolate.Result) {
	b.t.Helper()
	return runScript(b.t, b.Init, script, change...)
}

func runScript(t testing.TB, i *isolate.Init, script string, change ...func(*isolate.Command)) (string, isolate.Result) {
	t.Helper()
	var out bytes.Buffer
	c := isolate.Command{Argv: []string{"/bin/bash", "-c", script}, Env: i.BaseEnv(), Stdout: &out, Stderr: &out}
	for _, f := range change {
		f(&c)
	}
	r, err := i.Exec(testContext(t), c)
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return out.String(), r
}

// plain is a result that can be compared.
type plain struct {
	Code   int // -1: none
	Signal string
	Cause  isolate.Cause
}

func plainOf(r isolate.Result) plain {
	p := plain{Code: -1, Signal: r.Signal, Cause: r.Cause}
	if r.ExitCode != nil {
		p.Code = *r.ExitCode
	}
	return p
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(20 * time.Second)
	for !condition() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("not in time: %s", what)
		}
	}
}
