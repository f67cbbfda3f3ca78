package escape

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/sandboxtest"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/sandbox"
)

// Where attempts are made: columns of the table.
const (
	whereSandbox = "sandbox"    // as plans get one: namespaces, copy_on_write, no network
	whereNetwork = "network"    // the same with network: allow
	whereInPlace = "none"       // the same with strategy none: the original is the workspace
	whereBubble  = "bubblewrap" // the same as the first on that rung
	whereLand    = "landlock"   // and on that
	whereBare    = "bare"       // isolation off, as a worker runs it
	whereOff     = "off"        // plain fork and exec
)

// codeKilled is the exit code of an attempt that a signal ended; the filter of system calls does that.
const codeKilled = -1

// attemptLimit ends an attempt that hangs.
const attemptLimit = 30 * time.Second

// box is a place where attempts are made.
type box interface {
	name() string
	// open: nothing is promised here.
	open() bool
	exec(t *testing.T, attempt, facts string) (code int, output string, err error)
	// read and write are the file calls that steps and sessions have.
	read(name string) ([]byte, error)
	write(name, content string) error
	mountPoint(s scene) string
}

// boxes makes every kind of place that this user can have on this machine.
func boxes(t *testing.T, s scene) []box {
	t.Helper()
	tree := scratch(t)
	copyFile(t, "/proc/self/exe", filepath.Join(tree, "probe"), 0o755)
	must(t, os.WriteFile(filepath.Join(tree, "file"), []byte("content\n"), 0o644))
	bed := sandboxtest.New(t)
	chain, index := bed.Base(t, tree)
	must(t, os.Chmod(filepath.Dir(tree), 0o755))
	var all []box
	for _, spec := range []struct {
		where string
		sandbox.Spec
	}{
		{whereSandbox, sandbox.Spec{Strategy: sandbox.CopyOnWrite, Network: isolate.NetworkNone}},
		{whereNetwork, sandbox.Spec{Strategy: sandbox.CopyOnWrite, Network: isolate.NetworkAllow}},
		{whereInPlace, sandbox.Spec{Strategy: sandbox.None, Network: isolate.NetworkNone, Path: tree, Index: index}},
	} {
		spec.ID, spec.Chain = events.NewID(), chain
		b, err := sandbox.New(t.Context(), bed.Host, spec.Spec)
		must(t, err)
		t.Cleanup(func() {
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		})
		all = append(all, sandboxBox{where: spec.where, Sandbox: b})
	}
	all = append(all, fencedBox(t, tree, isolate.RungBubblewrap, whereBubble), fencedBox(t, tree, isolate.RungLandlock, whereLand))
	return append(all, bareBox(t, plainCopy(t, tree)), plainBox{dir: plainCopy(t, tree)})
}

// fencedBox is a sandbox as workers make it on a rung whose inits have no namespaces.
func fencedBox(t *testing.T, tree string, rung isolate.Rung, where string) box {
	t.Helper()
	bed := sandboxtest.On(t, rung)
	if got := bed.Host.Report.Rung; got != rung {
		t.Fatalf("%s does not work here: %+v", rung, bed.Host.Report)
	}
	chain, _ := bed.Base(t, tree)
	b, err := sandbox.New(t.Context(), bed.Host, sandbox.Spec{ID: events.NewID(), Chain: chain, Strategy: sandbox.CopyOnWrite, Network: isolate.NetworkNone})
	must(t, err)
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return sandboxBox{where: where, Sandbox: b}
}

func plainCopy(t *testing.T, tree string) string {
	t.Helper()
	dir := scratch(t)
	copyFile(t, filepath.Join(tree, "probe"), filepath.Join(dir, "probe"), 0o755)
	copyFile(t, filepath.Join(tree, "file"), filepath.Join(dir, "file"), 0o644)
	return dir
}

// sandboxBox is a sandbox as workers make it.
type sandboxBox struct {
	where string
	*sandbox.Sandbox
}

func (b sandboxBox) name() string            { return b.where }
func (b sandboxBox) open() bool              { return false }
func (b sandboxBox) mountPoint(scene) string { return isolate.SecretsDir }

func (b sandboxBox) exec(t *testing.T, attempt, facts string) (int, string, error) {
	return command(t, b.Exec, b.BaseEnv(), attempt, facts)
}

func (b sandboxBox) read(name string) ([]byte, error) {
	content, _, err := b.ReadFile(context.Background(), name, 1<<20)
	return content, err
}

func (b sandboxBox) write(name, content string) error {
	return b.WriteFile(context.Background(), isolate.FileWrite{Path: name, Content: []byte(content)})
}

type execFunc func(ctx context.Context, c isolate.Command) (isolate.Result, error)

func command(t *testing.T, run execFunc, env []string, attempt, facts string) (int, string, error) {
	t.Helper()
	var out bytes.Buffer
	r, err := run(t.Context(), isolate.Command{
		Argv: []string{"./probe", modeAttempt, attempt, facts}, Env: env, Stdout: &out, Stderr: &out, Timeout: attemptLimit, Grace: time.Millisecond,
	})
	switch {
	case err != nil:
		return 0, "", err
	case r.Cause == isolate.CauseSignal:
		return codeKilled, "killed by " + r.Signal, nil
	case r.ExitCode == nil:
		return 0, "", errors.New(string(r.Cause) + " " + r.StartError)
	}
	return *r.ExitCode, out.String(), nil
}

// initBox is an init without namespaces.
type initBox struct {
	*isolate.Init
	dir string
}

func bareBox(t *testing.T, dir string) box {
	t.Helper()
	i, err := isolate.Start(t.Context(), isolate.Config{Rung: isolate.RungBare})
	must(t, err)
	t.Cleanup(func() { i.Close() })
	must(t, i.AttachDir(t.Context(), dir))
	return initBox{Init: i, dir: dir}
}

func (b initBox) name() string              { return whereBare }
func (b initBox) open() bool                { return true }
func (b initBox) mountPoint(s scene) string { return filepath.Join(s.Dir, "mountpoint") }

func (b initBox) exec(t *testing.T, attempt, facts string) (int, string, error) {
	return command(t, b.Exec, b.BaseEnv(), attempt, facts)
}

func (b initBox) read(name string) ([]byte, error) {
	content, _, err := b.ReadFile(context.Background(), name, 1<<20)
	return content, err
}

func (b initBox) write(name, content string) error {
	return b.WriteFile(context.Background(), isolate.FileWrite{Path: name, Content: []byte(content)})
}

// plainBox is fork and exec, with files read and written by their names.
type plainBox struct{ dir string }

func (b plainBox) name() string              { return whereOff }
func (b plainBox) open() bool                { return true }
func (b plainBox) mountPoint(s scene) string { return filepath.Join(s.Dir, "mountpoint") }

func (b plainBox) exec(t *testing.T, attempt, facts string) (int, string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "./probe", modeAttempt, attempt, facts)
	cmd.Dir, cmd.Stdin = b.dir, os.Stdin
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		return 0, "", err
	}
	return cmd.ProcessState.ExitCode(), string(out), nil
}

func (b plainBox) read(name string) ([]byte, error) { return os.ReadFile(filepath.Join(b.dir, name)) }

func (b plainBox) write(name, content string) error {
	return os.WriteFile(filepath.Join(b.dir, name), []byte(content), 0o644)
}
