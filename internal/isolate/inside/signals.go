package inside

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// lastSignal is _NSIG of the kernel on every architecture that is built for.
const lastSignal = 64

// ignoreSignals gives every signal its default disposition again. For process 1 of a
// process namespace the kernel drops such signals when they come from inside, also
// those that the Go runtime would take for a fault of its own (SIGSEGV sent with an
// arbitrary si_code). SIGURG stays the runtime's: it pre-empts goroutines with it.
// Commands so start with clean dispositions whatever the worker inherited.
func ignoreSignals() error {
	// struct kernel_sigaction: handler (SIG_DFL is 0), flags, restorer, mask.
	var action [4]uintptr
	for sig := 1; sig <= lastSignal; sig++ {
		s := syscall.Signal(sig)
		if s == unix.SIGKILL || s == unix.SIGSTOP || s == unix.SIGURG {
			continue
		}
		_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)), 0, lastSignal/8, 0, 0)
		if errno != 0 {
			return fmt.Errorf("reset signal %d: %w", sig, errno)
		}
	}
	return nil
}

// catchSignals is for an init without namespaces, which the kernel does not protect:
// it survives what can be caught.
func catchSignals() {
	drop := make(chan os.Signal, 16)
	signal.Notify(drop)
	go func() {
		for range drop {
		}
	}()
}
