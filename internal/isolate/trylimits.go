package isolate

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// What TryLimits allows and what its attempts ask for.
const (
	triedMemory    = 32 << 20 // bytes
	triedHog       = 96 << 20 // bytes
	triedProcesses = 24
	triedForks     = 64
	triedCPUs      = 0.1 // cores
	triedBurn      = 150 * time.Millisecond
	triedLoaded    = 2 * time.Second // on a busy machine, where the shorter one gets less than it is allowed
)

// LimitTrial says what TryLimits tries.
type LimitTrial struct {
	Rung  Rung
	Dir   string // an empty directory, which becomes a workspace
	Group Group  // closed when the trial ends; nil for none
	// Names are the guarantees to try: Memory, CPU and Pids of the group, or Pids without one, where the kernel
	// bounds processes (Report.ProcessLimit).
	Names []string
}

// TryLimits runs commands that ask for more than their limits, and says which limits did not hold and how that
// showed. An error means that it could not be tried.
func TryLimits(ctx context.Context, l LimitTrial) (broken map[string]string, err error) {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	i, err := Start(ctx, Config{Rung: l.Rung, Group: l.Group})
	if err != nil {
		return nil, fmt.Errorf("isolate: try limits: %w", err)
	}
	defer i.Close()
	if err := attachDir(ctx, i, l.Dir); err != nil {
		return nil, fmt.Errorf("isolate: try limits: %w", err)
	}
	broken = map[string]string{}
	for _, each := range []struct {
		name string
		try  func(context.Context) (string, error)
	}{{Memory, i.tryMemory}, {Pids, i.tryProcesses}, {CPU, i.tryCPU}} {
		if !slices.Contains(l.Names, each.name) {
			continue
		}
		how, err := each.try(ctx)
		if err != nil {
			return nil, fmt.Errorf("isolate: try limit of %s: %w", each.name, err)
		}
		if how != "" {
			broken[each.name] = how
		}
	}
	return broken, nil
}

// attachDir makes a directory the workspace, on any rung.
func attachDir(ctx context.Context, i *Init, dir string) error {
	if !i.config.Rung.Mounts() {
		return i.AttachDir(ctx, dir)
	}
	m, err := NewMounter(i.config.Rung)
	if err != nil {
		return err
	}
	defer m.Close()
	mount, err := m.Bind(ctx, Bind{Dir: dir})
	if err != nil {
		return err
	}
	defer mount.Close()
	return i.Attach(ctx, mount)
}

// try runs an attempt under limits and says what it printed and what they counted.
func (i *Init) try(ctx context.Context, l Limits, argv ...string) (Result, string, Exhausted, error) {
	var out bytes.Buffer
	c := Command{Argv: append([]string{selfExe, modeProbe}, argv...), Stdout: &out, Stderr: &out}
	if i.config.Group == nil {
		c.Processes = l.PIDs
	} else if err := i.config.Group.Set(l); err != nil {
		return Result{}, "", Exhausted{}, err
	}
	res, err := i.Exec(ctx, c)
	if err == nil && res.Cause != CauseExit && res.Cause != CauseSignal {
		err = fmt.Errorf("attempt %q ended by %s %s", argv[0], res.Cause, res.StartError)
	}
	var counted Exhausted
	if err == nil && i.config.Group != nil {
		counted, err = i.config.Group.Exhausted()
	}
	return res, strings.TrimSpace(out.String()), counted, err
}

func (i *Init) tryMemory(ctx context.Context) (string, error) {
	res, said, counted, err := i.try(ctx, Limits{Memory: triedMemory}, attemptHog, strconv.Itoa(triedHog))
	if err != nil || res.Signal == "KILL" && counted.Memory > 0 {
		return "", err
	}
	return fmt.Sprintf("a command got %d MB where %d were allowed %s", triedHog>>20, triedMemory>>20, said), nil
}

func (i *Init) tryProcesses(ctx context.Context) (string, error) {
	res, said, _, err := i.try(ctx, Limits{PIDs: triedProcesses}, attemptFork, strconv.Itoa(triedForks))
	if err != nil || res.ExitCode != nil && *res.ExitCode == exitStopped {
		return "", err
	}
	return fmt.Sprintf("where %d processes were allowed: %s", triedProcesses, said), nil
}

func (i *Init) tryCPU(ctx context.Context) (string, error) {
	said := ""
	for _, during := range []time.Duration{triedBurn, triedLoaded} {
		_, out, counted, err := i.try(ctx, Limits{CPUs: triedCPUs}, attemptBurn, during.String())
		if err != nil || counted.Throttled > 0 {
			return "", err
		}
		said = out
	}
	return strings.TrimSpace("a command that computes was not held back " + said), nil
}

// hog takes so many bytes of memory and uses them.
func hog(bytes string) string {
	n, err := strconv.Atoi(bytes)
	if err != nil {
		return err.Error()
	}
	memory, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return ""
	}
	for at := 0; at < n; at += os.Getpagesize() {
		memory[at] = 1
	}
	return bytes + " bytes could be used"
}

// fork starts processes until one is refused. They are no programs: nothing is executed in them.
func fork(count string) string {
	n, err := strconv.Atoi(count)
	if err != nil {
		return err.Error()
	}
	runtime.LockOSThread()
	for started := range n {
		pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if errno == 0 && pid == 0 {
			for {
				unix.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
			}
		}
		if errno == unix.EAGAIN && started > 0 {
			return ""
		}
		if errno != 0 {
			return "start a process: " + errno.Error()
		}
	}
	return count + " processes could be started"
}

// burn computes for a while.
func burn(during string) string {
	d, err := time.ParseDuration(during)
	if err != nil {
		return err.Error()
	}
	for end := time.Now().Add(d); time.Now().Before(end); {
	}
	return ""
}
