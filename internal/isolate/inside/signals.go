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

// Dispositions of the kernel, and the runtime's own.
const (
	actDefault = 0 // SIG_DFL
	actIgnore  = 1 // SIG_IGN
)

// ignoreSignals makes process 1 deaf to what commands can send, also to SIGSEGV and its
// like sent by sigqueue, which the Go runtime would take for a fault of its own (a real
// fault still ends the process). Default dispositions would not do, although the kernel
// protects process 1 of a namespace: while one thread blocks a signal and another does
// not, as the runtime does at every new thread, a signal with a fatal default kills.
func ignoreSignals() error {
	// The runtime resets in commands what it handles itself; the two that it leaves
	// ignored when the worker was started so must become its own first.
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT)
	for sig := syscall.Signal(1); sig <= lastSignal; sig++ {
		action := uintptr(actIgnore)
		switch sig {
		case unix.SIGKILL, unix.SIGSTOP, unix.SIGURG: // the runtime pre-empts with SIGURG
			continue
		case unix.SIGCHLD, unix.SIGCONT, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU:
			action = actDefault // not fatal
		}
		if err := setSignal(sig, action); err != nil {
			return err
		}
	}
	return nil
}

// withLibrarySignals calls fork while the signals of C libraries, which the runtime does
// not reset in a child, have their defaults: a command would start with them ignored.
// Nothing that could send one runs before the fork.
func withLibrarySignals(fork func() (int, error)) (int, error) {
	set := func(action uintptr) error {
		for sig := syscall.Signal(32); sig <= 34; sig++ {
			if err := setSignal(sig, action); err != nil {
				return err
			}
		}
		return nil
	}
	if err := set(actDefault); err != nil {
		return 0, err
	}
	pid, err := fork()
	if ignoreErr := set(actIgnore); err == nil {
		err = ignoreErr
	}
	return pid, err
}

func setSignal(sig syscall.Signal, action uintptr) error {
	// struct kernel_sigaction: handler, flags, restorer, mask.
	act := [4]uintptr{action}
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&act)), 0, lastSignal/8, 0, 0)
	if errno != 0 {
		return fmt.Errorf("set disposition of signal %d: %w", sig, errno)
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
