package isolate

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate/inside"
)

// How a process of ours is told what it is: its whole argument vector, together with the
// control socket as descriptor 3. Environment variables have no say.
const (
	processName = "warmfleet-init"
	modeInit    = "init"
	modeMounter = "mounter"
	modeHolder  = "holder"
	modeProbe   = "probe" // runs as a command: its program is the init's own
	controlFD   = 3
)

// Main runs what this process was started as, if that is one of ours, and then does not return: an init, a mounter, a namespace
// holder, an attempt of a probe, or a program that starts a command in its place. It must be the first statement of every main that may start
// sandboxes, and of TestMain.
func Main() {
	if len(os.Args) == 4 && os.Args[0] == selfExe && os.Args[1] == modeProbe {
		os.Exit(attempt(os.Args[2], os.Args[3]))
	}
	if len(os.Args) > 3 && os.Args[0] == selfExe && os.Args[1] == inside.ModeDetached {
		os.Exit(inside.Supervise(os.Args[2:]))
	}
	if len(os.Args) > 3 && os.Args[0] == selfExe && os.Args[1] == inside.ModeLaunch {
		os.Exit(inside.Launch(os.Args[2:]))
	}
	if len(os.Args) > 2 && os.Args[0] == inside.FencedPath && os.Args[1] == inside.ModeStrong {
		os.Exit(inside.Strong(os.Args[2:]))
	}
	if len(os.Args) == 2 && os.Args[0] == selfExe && os.Args[1] == inside.ModeGuest {
		os.Exit(inside.Guest())
	}
	if len(os.Args) > 3 && os.Args[0] == selfExe && os.Args[1] == inside.ModeConfine {
		os.Exit(inside.Confine(os.Args[2:]))
	}
	if len(os.Args) == 2 && os.Args[0] == inside.FencedPath && os.Args[1] == inside.ModeFenced {
		os.Exit(inside.Fenced())
	}
	if len(os.Args) != 2 || os.Args[0] != processName || !isControl(controlFD) {
		return
	}
	unix.CloseOnExec(controlFD)
	inside.CloseInherited(controlFD)
	control := os.NewFile(controlFD, "control")
	switch os.Args[1] {
	case modeInit:
		runtime.LockOSThread()
		os.Exit(inside.Run(control))
	case modeMounter:
		os.Exit(serveMounter(control))
	case modeHolder:
		// Nothing to do but exist until the other end is closed.
		control.Read(make([]byte, 1))
		os.Exit(0)
	}
}

func isControl(fd int) bool {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	return err == nil && domain == unix.AF_UNIX
}
