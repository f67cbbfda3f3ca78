package suite

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/warmfleet/warmfleet/bench/internal/bench"
	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/layer"
)

// truth is the command that does nothing.
const truth = "/bin/true"

// Exec measures running commands.
func Exec() bench.Benchmark { return bench.Benchmark{Name: "exec", Run: execs} }

func execs(ctx context.Context, e *bench.Env) error {
	t, g, err := smallEngine(ctx, e)
	if err != nil {
		return err
	}
	defer g.close()
	b, err := g.bases.FromPath(ctx, t.dir)
	if err != nil {
		return err
	}
	defer b.Release()
	for _, measure := range []func() error{
		func() error { return oneMore(ctx, e, g, t) },
		func() error { return coldSandboxes(ctx, e, g, b.Chain, t.dir) },
		func() error { return waitingInits(ctx, e, g, b.Chain) },
		func() error { return syscalls(ctx, e) },
		func() error { return output(ctx, e, t) },
		func() error { return doctor(ctx, e) },
	} {
		if err := measure(); err != nil {
			return err
		}
	}
	return nil
}

// oneMore measures one more command in a sandbox that runs already.
func oneMore(ctx context.Context, e *bench.Env, g *engine, t tree) error {
	sb, _, err := g.onTree(ctx, t)
	if err != nil {
		return err
	}
	defer sb.Close()
	got, err := bench.InTurn(ctx, pick(e, 1000, 20),
		func(ctx context.Context) (time.Duration, error) {
			return bench.Time(func() error { return execute(ctx, sb, truth) })
		},
		func(context.Context) (time.Duration, error) {
			return bench.Time(exec.Command(truth).Run)
		})
	if err != nil {
		return err
	}
	return e.Add(bench.Result{
		What: "one more command in a warm sandbox", Ours: got[0], Peer: "fork and exec of the same", Theirs: got[1],
		Target: bench.Target{Ratio: 1.3},
	})
}

func smallEngine(ctx context.Context, e *bench.Env) (tree, *engine, error) {
	t, err := smallTreeOf(e)
	if err != nil {
		return tree{}, nil, err
	}
	g, err := newEngine(ctx, filepath.Join(e.Dir, "state"), inMemory())
	return t, g, err
}

// live makes a sandbox, uses it once and throws it away; first and whole are the times until
// the command had ended and until nothing was left.
func (g *engine) live(ctx context.Context, chain layer.Chain, binary string) (first, whole time.Duration, err error) {
	host := g.host
	host.Init = func(ctx context.Context, _ string, _ bool) (*isolate.Init, error) { return g.start(ctx, binary) }
	start := time.Now()
	sb, err := g.make(ctx, chain, host)
	if err != nil {
		return 0, 0, err
	}
	err = execute(ctx, sb, truth)
	first = time.Since(start)
	err = errors.Join(err, sb.Close())
	return first, time.Since(start), err
}

func coldSandboxes(ctx context.Context, e *bench.Env, g *engine, chain layer.Chain, dir string) error {
	whole := bench.Samples{}
	what := []bench.Timed{
		func(ctx context.Context) (time.Duration, error) {
			first, all, err := g.live(ctx, chain, "")
			whole.Take(all)
			return first, err
		},
		func(ctx context.Context) (time.Duration, error) {
			first, _, err := g.live(ctx, chain, "/proc/self/exe")
			return first, err
		},
	}
	const peer = "bubblewrap"
	if installed("bwrap") {
		what = append(what, func(ctx context.Context) (time.Duration, error) {
			return bench.Time(func() error { return tool(ctx, "/", "bwrap", bwrapArgs(dir)...) })
		})
	}
	got, err := bench.InTurn(ctx, pick(e, 200, 3), what...)
	if err != nil {
		return err
	}
	target := bench.Target{Ratio: 1.5}
	if os.Getuid() == 0 {
		target.Ratio = 2.5
	}
	const cold = "cold sandbox, cached base, until a command has run"
	var theirs bench.Samples
	if len(got) < 3 {
		if err := e.Skip(peer+", which a cold sandbox is compared with", "not installed"); err != nil {
			return err
		}
	} else {
		theirs = got[2]
	}
	lean := "the lean init"
	if _, err := os.Stat(filepath.Join(e.Bin, "warmfleet-init")); err != nil {
		lean = "no lean init here"
	}
	return errors.Join(
		e.Add(bench.Result{What: cold + " (" + lean + ")", Ours: got[0], Peer: peer, Theirs: theirs, Target: target}),
		e.Add(bench.Result{What: "the same with this executable as init", Ours: got[1], Peer: peer, Theirs: theirs}),
		e.Add(bench.Result{What: "cold sandbox, its removal included", Ours: whole[1:], Peer: peer, Theirs: theirs}),
	)
}

// bwrapArgs are a bubblewrap command line that gives what a sandbox of ours gives, as far as it
// can: it has no overlay before 0.11, so the tree is bound.
func bwrapArgs(dir string) []string {
	return []string{
		"--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session", "--hostname", "sandbox", "--cap-drop", "ALL",
		"--clearenv", "--setenv", "PATH", "/usr/bin:/bin", "--setenv", "HOME", "/tmp",
		"--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/sbin", "/sbin", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64",
		"--ro-bind-try", "/etc/alternatives", "/etc/alternatives", "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache", "--ro-bind-try", "/etc/ssl", "/etc/ssl",
		"--ro-bind-try", "/etc/passwd", "/etc/passwd", "--ro-bind-try", "/etc/group", "/etc/group", "--ro-bind-try", "/etc/nsswitch.conf", "/etc/nsswitch.conf",
		"--ro-bind-try", "/etc/hosts", "/etc/hosts", "--ro-bind-try", "/etc/localtime", "/etc/localtime",
		"--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/dev/shm",
		"--bind", dir, "/workspace", "--chdir", "/workspace", "--remount-ro", "/", "--", truth,
	}
}

// waitingInits measures making a sandbox of an init that was started before.
func waitingInits(ctx context.Context, e *bench.Env, g *engine, chain layer.Chain) error {
	var ready bench.Samples
	for range pick(e, 200, 3) {
		waiting, err := g.start(ctx, "")
		if err != nil {
			return err
		}
		host := g.host
		host.Init = func(context.Context, string, bool) (*isolate.Init, error) { return waiting, nil }
		start := time.Now()
		sb, err := g.make(ctx, chain, host)
		if err != nil {
			return err
		}
		ready.Take(time.Since(start))
		if err := sb.Close(); err != nil {
			return err
		}
	}
	return e.Add(bench.Result{What: "sandbox of a waiting init, base mounted, ready for commands", Ours: ready})
}
