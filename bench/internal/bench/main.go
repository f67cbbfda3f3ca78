package bench

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/warmfleet/warmfleet/internal/layer"
)

const (
	// childVar is set for a process that runs one benchmark; it names the benchmark's directory.
	childVar = "WARMFLEET_BENCH_DIR"
	// rowsFD is where such a process writes its rows.
	rowsFD = 3
	// stopTimeout bounds the orderly end of an interrupted benchmark.
	stopTimeout = 15 * time.Second
)

// options are the command line's.
type options struct{ json, quick bool }

// Main runs the benchmarks, each in a process of its own so that none finds the heap, the
// server or the sandboxes of another, prints their rows and returns the exit code.
func Main(benchmarks ...Benchmark) int {
	var o options
	flag.BoolVar(&o.json, "json", false, "print one JSON object a row")
	flag.BoolVar(&o.quick, "quick", false, "take few samples: only shows that everything runs")
	flag.Parse()
	dir := os.Getenv(childVar)
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP}
	if dir == "" { // a child has connections, and one whose other end is gone is no reason to stop
		signals = append(signals, syscall.SIGPIPE)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	defer stop()
	run := func() error { return parent(ctx, o, benchmarks) }
	if dir != "" {
		run = func() error { return child(ctx, dir, o, benchmarks) }
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	return 0
}

// child runs the benchmark that the only argument names.
func child(ctx context.Context, dir string, o options, benchmarks []Benchmark) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	syscall.CloseOnExec(rowsFD)
	rows := json.NewEncoder(os.NewFile(rowsFD, "rows"))
	for _, b := range benchmarks {
		if b.Name != flag.Arg(0) {
			continue
		}
		e := &Env{Dir: dir, Bin: filepath.Dir(self), Quick: o.quick, name: b.Name, emit: func(r Row) error { return rows.Encode(r) }}
		if err := b.Run(ctx, e); err != nil {
			return fmt.Errorf("%s: %w", b.Name, err)
		}
		return nil
	}
	return fmt.Errorf("no benchmark %q", flag.Arg(0))
}

// parent runs every benchmark and prints all rows, those of a failed one included.
func parent(ctx context.Context, o options, benchmarks []Benchmark) error {
	dir, err := os.MkdirTemp("", "warmfleet-bench-")
	if err != nil {
		return err
	}
	defer layer.RemoveTree(dir)
	if err := os.Chmod(dir, 0o711); err != nil { // sandboxes of root have another user id
		return err
	}
	machine := Machine(dir)
	bin, err := programs(ctx, filepath.Join(dir, "bin"))
	if err != nil {
		return err
	}
	var rows []Row
	var failed []error
	for _, b := range benchmarks {
		fmt.Fprintf(os.Stderr, "%s ...\n", b.Name)
		got, err := runChild(ctx, filepath.Join(dir, b.Name), bin, b.Name, o)
		rows, failed = append(rows, got...), append(failed, err)
	}
	if o.json {
		fmt.Fprintln(os.Stderr, machine)
		failed = append(failed, printJSON(os.Stdout, rows))
	} else {
		printTable(os.Stdout, machine, rows)
	}
	return errors.Join(failed...)
}

// programs puts this executable, and where it can be built what the fleet starts, into a directory.
func programs(ctx context.Context, dir string) (self string, err error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	args := []string{"build", "-buildvcs=false", "-o", dir + "/"}
	for _, name := range []string{"warmfleet", "warmfleet-init", "worker"} {
		args = append(args, "github.com/warmfleet/warmfleet/cmd/"+name)
	}
	build := exec.CommandContext(ctx, "go", args...)
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "bench: going on with this executable as init, %v: %s\n", err, out)
	}
	self = filepath.Join(dir, "bench")
	in, err := os.Open("/proc/self/exe")
	if err != nil {
		return "", err
	}
	defer in.Close()
	out, err := os.OpenFile(self, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		return "", err
	}
	_, err = io.Copy(out, in)
	return self, errors.Join(err, out.Close())
}

// runChild runs one benchmark in a process group of its own and removes what it leaves.
func runChild(ctx context.Context, dir, self, name string, o options) (rows []Row, err error) {
	if err := os.Mkdir(dir, 0o711); err != nil {
		return nil, err
	}
	defer layer.RemoveTree(dir)
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer read.Close()
	c := exec.CommandContext(ctx, self, fmt.Sprintf("-quick=%v", o.quick), name)
	c.Env = append(os.Environ(), childVar+"="+dir)
	c.Stdout, c.Stderr, c.ExtraFiles = os.Stderr, os.Stderr, []*os.File{write}
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel, c.WaitDelay = func() error { return c.Process.Signal(os.Interrupt) }, stopTimeout
	err = c.Start()
	write.Close()
	if err != nil {
		return nil, err
	}
	defer syscall.Kill(-c.Process.Pid, syscall.SIGKILL) // workers it may have left
	dec := json.NewDecoder(read)
	for {
		var r Row
		if dec.Decode(&r) != nil {
			break
		}
		rows = append(rows, r)
	}
	if err := c.Wait(); err != nil {
		return rows, fmt.Errorf("%s: %w", name, err)
	}
	return rows, nil
}
