package isolate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate/inside"
)

// probeLimit bounds a whole probe, which takes about 100 ms, and two seconds where each command has a kernel of its own.
const probeLimit = 20 * time.Second

// Probe finds the best rung that works here and which guarantees hold on it, by doing:
// it starts a sandbox whose command tries to break out. scratch is a directory on the
// file system that will hold layers; it is made if missing, and left as it was found, but for what Config.Within
// says of it and the directory that holds it. An error means that the probe itself could not be done.
func Probe(ctx context.Context, scratch string) (Report, error) {
	return ProbeOf(ctx, scratch, Rungs()...)
}

// ProbeOf is Probe of the given rungs alone, the first of which that works is taken.
func ProbeOf(ctx context.Context, scratch string, rungs ...Rung) (Report, error) {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	if err := os.MkdirAll(scratch, 0o700); err != nil {
		return Report{}, fmt.Errorf("isolate: probe: %w", err)
	}
	dir, err := os.MkdirTemp(scratch, "probe-")
	if err != nil {
		return Report{}, fmt.Errorf("isolate: probe: %w", err)
	}
	defer removeAll(dir)
	var passed []error
	for _, r := range rungs {
		p := &probe{dir: filepath.Join(dir, string(r)), within: filepath.Dir(filepath.Clean(scratch)), rung: r, report: newReport()}
		err := p.start(ctx)
		switch {
		case err != nil && ctx.Err() != nil:
			return Report{}, fmt.Errorf("isolate: probe: %w", ctx.Err())
		case err != nil:
			passed = append(passed, fmt.Errorf("%s: %w", r, err))
			continue
		}
		err = p.run(ctx)
		p.init.Close()
		if err != nil {
			return Report{}, fmt.Errorf("isolate: probe %s: %w", r, err)
		}
		p.report.Rung = r
		if len(passed) > 0 {
			p.report.RungWhy, p.report.RungFix = explain(errors.Join(passed...))
		}
		return p.report, nil
	}
	return Unisolated(explain(errors.Join(passed...))), nil
}

// probe is one sandbox that is tried out.
type probe struct {
	dir    string
	within string
	rung   Rung
	init   *Init
	report Report
}

// start makes the sandbox with a workspace, if the rung works here.
func (p *probe) start(ctx context.Context) error {
	if err := os.Mkdir(p.dir, 0o755); err != nil {
		return err
	}
	for _, d := range []string{"lower", "upper", "work"} {
		if err := p.mkdir(d); err != nil {
			return err
		}
	}
	var err error
	if p.init, err = Start(ctx, Config{Rung: p.rung, Within: p.within}); err != nil {
		return err
	}
	if err = p.attach(ctx); err == nil {
		err = p.tryCommand(ctx)
	}
	if err != nil {
		p.init.Close()
	}
	return err
}

// attach gives the sandbox a workspace, an overlay if that works.
func (p *probe) attach(ctx context.Context) error {
	if !p.rung.Mounts() {
		p.report.OverlayWhy = "this rung has no mounts"
		return p.init.AttachDir(ctx, filepath.Join(p.dir, "lower"))
	}
	mounter, err := NewMounter(p.rung)
	if err != nil {
		return err
	}
	defer mounter.Close()
	if err := p.tryOverlay(ctx, mounter); err != nil {
		p.report.OverlayWhy = err.Error()
		return p.attachPlain(ctx, mounter)
	}
	p.report.Overlay = true
	return nil
}

// tryCommand runs one at all, which the places of commands are made for.
func (p *probe) tryCommand(ctx context.Context) error {
	r, err := p.init.Exec(ctx, Command{Argv: []string{selfExe, modeProbe, attemptFind, "sh"}})
	if err == nil && r.Cause == CauseStart {
		err = errors.New(r.StartError)
	}
	return err
}

func (p *probe) run(ctx context.Context) error {
	if err := p.tryBreakingOut(ctx); err != nil {
		return err
	}
	if err := p.tryOutliving(ctx); err != nil {
		return err
	}
	rung, err := p.rung.isolator()
	if err != nil {
		return err
	}
	rung.qualify(p.report)
	return p.init.Detach(ctx)
}

func oneLine(err error) string {
	if err == nil {
		return ""
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}

func (p *probe) mkdir(name string) error {
	dir := filepath.Join(p.dir, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	owner := p.rung.Owner()
	if owner == os.Getuid() {
		return nil
	}
	err := os.Chown(dir, owner, owner)
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("user id %d, which sandboxes of root have, %s", owner, unmapped)
	}
	return err
}

// tryOverlay leaves an overlay attached that a write went through: a mount that
// succeeds can still be read-only.
func (p *probe) tryOverlay(ctx context.Context, m Mounter) error {
	mount, err := m.Overlay(ctx, Overlay{
		Lowers: []string{filepath.Join(p.dir, "lower")},
		Upper:  filepath.Join(p.dir, "upper"),
		Work:   filepath.Join(p.dir, "work"),
	})
	if err != nil {
		return err
	}
	err = p.init.Attach(ctx, mount)
	mount.Close()
	if err != nil {
		return err
	}
	err = p.init.WriteFile(ctx, FileWrite{Path: "written", Content: []byte("x")})
	if err == nil {
		_, err = os.Stat(filepath.Join(p.dir, "upper", "written"))
	}
	if err != nil {
		return errors.Join(err, p.init.Detach(ctx))
	}
	return nil
}

func (p *probe) attachPlain(ctx context.Context, m Mounter) error {
	mount, err := m.Bind(ctx, Bind{Dir: filepath.Join(p.dir, "lower")})
	if err != nil {
		return err
	}
	defer mount.Close()
	return p.init.Attach(ctx, mount)
}

// tryBreakingOut runs each attempt as a command and notes whether it was stopped.
func (p *probe) tryBreakingOut(ctx context.Context) error {
	secret := filepath.Join(p.dir, "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o666); err != nil {
		return err
	}
	listener, err := listenLoopback()
	if err != nil {
		return err
	}
	defer unix.Close(listener.fd)
	socket, closeSockets, err := listenSockets()
	if err != nil {
		return err
	}
	defer closeSockets()
	for _, try := range []struct {
		guarantee, attempt, argument string
		worked                       State
	}{
		{HiddenFiles, attemptRead, secret, Absent},
		{Writes, attemptModes, secret, BestEffort},
		{Writes, attemptWrite, secret, Absent},
		{HiddenEnv, attemptEnviron, strconv.Itoa(os.Getpid()), Absent},
		{Network, attemptConnect, strconv.Itoa(listener.port), Absent},
		{UnixSockets, attemptSocket, socket, Absent},
		{Processes, attemptProcess, strconv.Itoa(os.Getpid()), Absent},
	} {
		var out bytes.Buffer
		result, err := p.init.Exec(ctx, Command{
			Argv: []string{selfExe, modeProbe, try.attempt, try.argument}, Stdout: &out, Stderr: &out,
		})
		if err != nil {
			return err
		}
		if result.ExitCode == nil {
			return fmt.Errorf("attempt %q ended by %s %s%s", try.attempt, result.Cause, result.Signal, result.StartError)
		}
		switch _, had := p.report.Guarantees[try.guarantee]; {
		case *result.ExitCode != exitStopped:
			p.report.Guarantees[try.guarantee] = Guarantee{State: try.worked, Why: strings.TrimSpace(out.String()), Fix: p.fix()}
		case !had:
			p.report.Guarantees[try.guarantee] = Guarantee{State: Enforced}
		}
	}
	return nil
}

// tryOutliving starts a process that leaves its parent, group and session.
func (p *probe) tryOutliving(ctx context.Context) error {
	result, err := p.init.Exec(ctx, Command{Argv: []string{selfExe, modeProbe, attemptOutlive, "again"}})
	if err != nil {
		return err
	}
	if result.ExitCode == nil || *result.ExitCode != 0 {
		return fmt.Errorf("attempt %q could not be made: %s %s", attemptOutlive, result.Cause, result.StartError)
	}
	g := Guarantee{State: Enforced}
	if left := inside.Descendants(p.init.Pid()); len(left) > 0 {
		g = Guarantee{State: Absent, Why: fmt.Sprintf("process %d outlived its command", left[0])}
	}
	p.report.Guarantees[TreeKill] = g
	return nil
}

// fix is what to do about a way out.
func (p *probe) fix() string {
	if p.rung == RungLandlock {
		return landlockFix
	}
	return "report this machine's kernel and set-up as a bug"
}

// listenSockets listens on a Unix socket with a path that anybody may use, and on one with its name alone.
func listenSockets() (name string, end func(), err error) {
	dir, err := shortTempDir()
	if err != nil {
		return "", nil, err
	}
	name = filepath.Join(dir, "socket")
	var open []int
	end = func() {
		for _, fd := range open {
			unix.Close(fd)
		}
		os.RemoveAll(dir)
	}
	for _, address := range []string{name, "@" + name} {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			open = append(open, fd)
			err = unix.Bind(fd, &unix.SockaddrUnix{Name: address})
		}
		if err == nil {
			err = unix.Listen(fd, 1)
		}
		if err != nil {
			end()
			return "", nil, fmt.Errorf("listen on %q: %w", address, err)
		}
	}
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(name, 0o666)); err != nil {
		end()
		return "", nil, err
	}
	return name, end, nil
}

// shortTempDir makes a directory in which a socket can be bound: an address has room for 107 bytes (unix(7)), however long TMPDIR is.
func shortTempDir() (string, error) {
	const most = 107 - len("@/socket")
	var errs []error
	for _, base := range []string{os.TempDir(), "/tmp", "/dev/shm"} {
		dir, err := os.MkdirTemp(base, "probe-")
		if err == nil && len(dir) <= most {
			return dir, nil
		}
		if err == nil {
			err = os.Remove(dir)
		}
		errs = append(errs, err)
	}
	return "", fmt.Errorf("no directory for a socket, its path would be too long or can't be made: %w", errors.Join(errs...))
}

type loopbackListener struct{ fd, port int }

func listenLoopback() (loopbackListener, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return loopbackListener{}, err
	}
	err = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	if err == nil {
		err = unix.Listen(fd, 1)
	}
	var name unix.Sockaddr
	if err == nil {
		name, err = unix.Getsockname(fd)
	}
	bound, ok := name.(*unix.SockaddrInet4)
	if err != nil || !ok {
		unix.Close(fd)
		return loopbackListener{}, fmt.Errorf("listen on loopback: %w", err)
	}
	return loopbackListener{fd: fd, port: bound.Port}, nil
}

// removeAll also removes the overlay's work directory, which has no permissions.
func removeAll(dir string) {
	filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			os.Chmod(name, 0o700)
		}
		return nil
	})
	os.RemoveAll(dir)
}

// unmapped says why root of a user namespace with few ids, as in a rootless container, has none for sandboxes.
const unmapped = "is not mapped in the user namespace of the worker"

// explain tells what forbids namespaces, and what to do about it.
func explain(err error) (why, fix string) {
	why = oneLine(err)
	switch {
	case sysctlIs("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1") && os.Geteuid() != 0:
		fix = "install an AppArmor profile with `userns,` for this program, or sysctl kernel.apparmor_restrict_unprivileged_userns=0"
	case sysctlIs("/proc/sys/kernel/unprivileged_userns_clone", "0") && os.Geteuid() != 0:
		fix = "sysctl kernel.unprivileged_userns_clone=1"
	case sysctlIs("/proc/sys/user/max_user_namespaces", "0"):
		fix = "sysctl user.max_user_namespaces=10000"
	case strings.Contains(why, "no space left on device"):
		fix = "more user namespaces than are allowed here, or nested deeper: raise sysctl user.max_user_namespaces, or run the worker outside of the sandbox that it is in"
	case strings.Contains(why, unmapped):
		fix = "run the worker as an ordinary user there, or where all user ids are mapped: on the host, or in a container of the host's root without a user namespace of its own"
	case strings.Contains(why, "proc:"):
		fix = "a container masks /proc: run it with --security-opt systempaths=unconfined"
	default:
		fix = "in a container: allow user namespaces and mounts (--security-opt seccomp=unconfined --cap-add SYS_ADMIN), or run the worker on the host"
	}
	if strings.Contains(why, "bubblewrap is not installed") {
		fix += "; or install bubblewrap, which some hosts let have user namespaces all the same"
	}
	return why, fix
}

func sysctlIs(name, value string) bool {
	content, err := os.ReadFile(name)
	return err == nil && strings.TrimSpace(string(content)) == value
}
