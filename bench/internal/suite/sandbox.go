package suite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/bench/internal/bench"
	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/sandbox"
	"github.com/warmfleet/warmfleet/pkg/warmpool"
)

// truth is the command that does nothing.
const truth = "/bin/true"

// Command measures one more command in a sandbox that runs already.
func Command() bench.Benchmark { return bench.Benchmark{Name: "command", Run: command} }

func command(ctx context.Context, e *bench.Env) error {
	g, sb, err := smallSandbox(ctx, e)
	if err != nil {
		return err
	}
	defer g.close()
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

func smallSandbox(ctx context.Context, e *bench.Env) (*engine, *sandbox.Sandbox, error) {
	t, g, err := smallEngine(ctx, e)
	if err != nil {
		return nil, nil, err
	}
	sb, _, err := g.onTree(ctx, t)
	if err != nil {
		g.close()
	}
	return g, sb, err
}

func smallEngine(ctx context.Context, e *bench.Env) (tree, *engine, error) {
	dir := filepath.Join(e.Dir, "tree")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return tree{}, nil, err
	}
	t, err := smallTree(dir)
	if err != nil {
		return tree{}, nil, err
	}
	g, err := newEngine(ctx, filepath.Join(e.Dir, "state"), inMemory())
	return t, g, err
}

// Sandbox measures making sandboxes.
func Sandbox() bench.Benchmark { return bench.Benchmark{Name: "sandbox", Run: sandboxes} }

func sandboxes(ctx context.Context, e *bench.Env) error {
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
	if err := coldSandboxes(ctx, e, g, b.Chain, t.dir); err != nil {
		return err
	}
	return warmSandboxes(ctx, e, g, b.Chain)
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
	if len(got) < 3 {
		return e.Skip(cold, peer+" is not installed")
	}
	lean := "the lean init"
	if _, err := os.Stat(filepath.Join(e.Bin, "warmfleet-init")); err != nil {
		lean = "no lean init here"
	}
	return errors.Join(
		e.Add(bench.Result{What: cold + " (" + lean + ")", Ours: got[0], Peer: peer, Theirs: got[2], Target: target}),
		e.Add(bench.Result{What: "the same with this executable as init", Ours: got[1], Peer: peer, Theirs: got[2]}),
		e.Add(bench.Result{What: "cold sandbox, its removal included", Ours: whole[1:], Peer: peer, Theirs: got[2]}),
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

// warmSandboxes measures what a claim costs when an init waits: the claim itself, and a
// whole sandbox made of what was claimed.
func warmSandboxes(ctx context.Context, e *bench.Env, g *engine, chain layer.Chain) error {
	const target = 2
	pool := warmpool.New(warmpool.Config[*isolate.Init]{
		Target: target, Log: zerolog.Nop(), Make: func(ctx context.Context) (*isolate.Init, error) { return g.start(ctx, "") },
	})
	life, stop := context.WithCancel(ctx)
	defer pool.Wait()
	defer stop()
	go pool.Run(life)
	var claims, ready bench.Samples
	for range pick(e, 200, 3) {
		for pool.Stats().Idle < target {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			time.Sleep(time.Millisecond)
		}
		host := g.host
		host.Init = func(context.Context, string, bool) (*isolate.Init, error) {
			start := time.Now()
			i, ok := pool.Claim()
			claims.Take(time.Since(start))
			if !ok {
				return nil, fmt.Errorf("the pool was empty")
			}
			return i, nil
		}
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
	return errors.Join(
		e.Add(bench.Result{What: "warm claim inside the worker", Ours: claims, Target: bench.Target{P50: 1}}),
		e.Add(bench.Result{What: "warm claim, base mounted, ready for commands", Ours: ready}),
	)
}
