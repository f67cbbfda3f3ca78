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

// probeLimit bounds a whole probe, which takes about 100 ms.
const probeLimit = 5 * time.Second

// Probe finds the best rung that works here and which guarantees hold on it, by doing:
// it starts a sandbox whose command tries to break out. scratch is a directory on the
// file system that will hold layers; it is made if missing, and left as it was found. An
// error means that the probe itself could not be done.
func Probe(ctx context.Context, scratch string) (Report, error) {
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
	p := &probe{dir: dir, rung: RungUser, report: newReport()}
	if os.Geteuid() == 0 {
		p.rung = RungRoot
	}
	p.report.Rung = p.rung
	i, err := Start(ctx, Config{Rung: p.rung})
	if ctx.Err() != nil {
		return Report{}, fmt.Errorf("isolate: probe: %w", ctx.Err())
	}
	if err != nil {
		return Unisolated(explain(err)), nil
	}
	defer i.Close()
	p.init = i
	if err := p.run(ctx); err != nil {
		return Report{}, fmt.Errorf("isolate: probe: %w", err)
	}
	return p.report, nil
}

// probe is one sandbox that is tried out.
type probe struct {
	dir    string
	rung   Rung
	init   *Init
	report Report
}

func (p *probe) run(ctx context.Context) error {
	for _, d := range []string{"lower", "upper", "work"} {
		if err := p.mkdir(d); err != nil {
			return err
		}
	}
	mounter, err := NewMounter(p.rung)
	if err != nil {
		return err
	}
	defer mounter.Close()
	if err := p.tryOverlay(ctx, mounter); err != nil {
		p.report.OverlayWhy = err.Error()
		if err := p.attachPlain(ctx, mounter); err != nil {
			return err
		}
	} else {
		p.report.Overlay = true
	}
	if err := p.tryBreakingOut(ctx); err != nil {
		return err
	}
	if err := p.tryOutliving(ctx); err != nil {
		return err
	}
	return p.init.Detach(ctx)
}

func (p *probe) mkdir(name string) error {
	dir := filepath.Join(p.dir, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if p.rung == RungRoot {
		return os.Chown(dir, HostID, HostID)
	}
	return nil
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
	for _, try := range []struct{ guarantee, attempt, argument string }{
		{HiddenFiles, attemptRead, secret},
		{Writes, attemptWrite, secret},
		{HiddenEnv, attemptEnviron, strconv.Itoa(os.Getpid())},
		{Network, attemptConnect, strconv.Itoa(listener.port)},
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
		g := Guarantee{State: Enforced}
		if *result.ExitCode != exitStopped {
			g = Guarantee{State: Absent, Why: strings.TrimSpace(out.String()), Fix: "report this machine's kernel and set-up as a bug"}
		}
		p.report.Guarantees[try.guarantee] = g
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

// explain tells what forbids namespaces, and what to do about it.
func explain(err error) (why, fix string) {
	why = err.Error()
	switch {
	case sysctlIs("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1") && os.Geteuid() != 0:
		fix = "install an AppArmor profile with `userns,` for this program, or sysctl kernel.apparmor_restrict_unprivileged_userns=0"
	case sysctlIs("/proc/sys/kernel/unprivileged_userns_clone", "0") && os.Geteuid() != 0:
		fix = "sysctl kernel.unprivileged_userns_clone=1"
	case sysctlIs("/proc/sys/user/max_user_namespaces", "0"):
		fix = "sysctl user.max_user_namespaces=10000"
	case strings.Contains(why, "proc:"):
		fix = "a container masks /proc: run it with --security-opt systempaths=unconfined"
	default:
		fix = "in a container: allow user namespaces and mounts (--security-opt seccomp=unconfined --cap-add SYS_ADMIN), or run the worker on the host"
	}
	return why, fix
}

func sysctlIs(name, value string) bool {
	content, err := os.ReadFile(name)
	return err == nil && strings.TrimSpace(string(content)) == value
}
