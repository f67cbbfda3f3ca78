package suite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/warmfleet/warmfleet/bench/internal/bench"
	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/sandbox"
)

// work is a command that makes many system calls, done in a sandbox and in a plain copy of its tree.
type work struct{ what, program, script string }

const (
	// syscallRatio is what a sandbox may add.
	syscallRatio = 1.05
	// goPackages is how many packages the build compiles each time.
	goPackages = 20
)

// works leave out nothing that a command line of a person would have.
var works = [...]work{
	{"git status", "git", "git status --short"},
	{"find", "find", "find . -type f -newer go.mod -print"},
	{"a Go build", "go", `for f in module/p*/p.go; do echo "const Round$(date +%N) = 1" >>$f; done && cd module && GOCACHE=$PWD/../.cache go build -o ../program .`},
}

// syscalls measures them on an overlay and without one: the sandbox is one thing, the file system another.
func syscalls(ctx context.Context, e *bench.Env) error {
	dir := filepath.Join(e.Dir, "syscalls")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := syscallTree(ctx, e, dir); err != nil {
		return err
	}
	plain := dir + "-plain"
	if err := tool(ctx, "/", "cp", "-a", dir, plain); err != nil {
		return err
	}
	g, err := newEngine(ctx, filepath.Join(e.Dir, "syscalls-state"), inMemory())
	if err != nil {
		return err
	}
	defer g.close()
	t, err := measure(dir)
	if err != nil {
		return err
	}
	merged, _, err := g.onTree(ctx, t)
	if err != nil {
		return err
	}
	defer merged.Close()
	g.host.Layers = layer.Choice{Driver: layer.Copy}
	copied, _, err := g.onTree(ctx, t)
	if err != nil {
		return err
	}
	defer copied.Close()
	places := []place{{"in a sandbox", merged}, {"in a sandbox without overlayfs", copied}}
	for _, w := range works {
		if err = w.measure(ctx, e, t, places, plain); err != nil {
			return err
		}
	}
	return nil
}

// place is a sandbox and what rows call it.
type place struct {
	what string
	sb   *sandbox.Sandbox
}

func (p place) run(ctx context.Context, script string) error {
	res, err := p.sb.Exec(ctx, isolate.Command{Argv: append(shell(), script), Env: append(p.sb.BaseEnv(), goEnv()...)})
	if err == nil && (res.ExitCode == nil || *res.ExitCode != 0) {
		err = fmt.Errorf("%s %s: %s %s", script, p.what, res.Cause, res.StartError)
	}
	return err
}

func goEnv() []string { return []string{"GOTOOLCHAIN=local", "GOPROXY=off", "GOFLAGS=-mod=mod"} }

func (w work) measure(ctx context.Context, e *bench.Env, t tree, in []place, plain string) error {
	what := func(p place) string { return fmt.Sprintf("%s %s (%s)", w.what, p.what, t) }
	if !installed(w.program) {
		return e.Skip(what(in[0]), w.program+" is not installed")
	}
	var timed []bench.Timed
	for _, p := range in {
		timed = append(timed, func(ctx context.Context) (time.Duration, error) {
			return bench.Time(func() error { return p.run(ctx, w.script) })
		})
	}
	// What the sandboxes' commands have in their environment, so that all do the same.
	env := append(append(os.Environ(), in[0].sb.BaseEnv()...), goEnv()...)
	env = append(env, "HOME="+plain, "TMPDIR="+os.TempDir())
	argv := append(shell(), w.script)
	got, err := bench.InTurn(ctx, pick(e, 20, 2), append(timed, func(ctx context.Context) (time.Duration, error) {
		c := exec.CommandContext(ctx, argv[0], argv[1:]...)
		c.Dir, c.Env = plain, env
		return bench.Time(c.Run)
	})...)
	if err != nil {
		return err
	}
	for i, p := range in {
		err = errors.Join(err, e.Add(bench.Result{
			What: what(p), Ours: got[i], Peer: "the same in a plain copy", Theirs: got[len(in)], Target: bench.Target{Ratio: syscallRatio},
		}))
	}
	return err
}

// syscallTree makes a git work tree with many files and a Go module of packages that are compiled each time.
func syscallTree(ctx context.Context, e *bench.Env, dir string) error {
	var err error
	if e.Quick {
		_, err = smallTree(dir)
	} else {
		_, err = largeTree(ctx, dir)
	}
	if err != nil {
		return err
	}
	files := change{"go.mod": []byte("module none\n\ngo 1.24\n"), "module/go.mod": []byte("module bench\n\ngo 1.24\n"), ".gitignore": []byte("/module\n/program\n/.cache\n")}
	main := "package main\n\nimport (\n"
	for i := range goPackages {
		name := fmt.Sprintf("p%d", i)
		main += fmt.Sprintf("\t_ \"bench/%s\"\n", name)
		files["module/"+name+"/p.go"] = []byte("package " + name + "\n\nimport \"fmt\"\n\nfunc F() { fmt.Println(1) }\n")
	}
	files["module/main.go"] = []byte(main + ")\n\nfunc main() {}\n")
	if err := files.write(dir); err != nil || !installed("git") {
		return err
	}
	return errors.Join(
		tool(ctx, dir, "git", "init", "-q"), tool(ctx, dir, "git", "add", "-A"),
		tool(ctx, dir, "git", "-c", "user.name=bench", "-c", "user.email=bench@localhost", "commit", "-q", "-m", "bench"),
	)
}
