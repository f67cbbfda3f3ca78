package isolate_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate"
)

// standIn is a testing.TB for the modes of the test binary, which are no tests.
type standIn struct {
	testing.TB
	cleanups []func()
}

func (s *standIn) Helper()                  {}
func (s *standIn) Context() context.Context { return context.Background() }
func (s *standIn) Cleanup(f func())         { s.cleanups = append(s.cleanups, f) }
func (s *standIn) Error(args ...any)        { fmt.Fprintln(os.Stderr, args...) }

func (s *standIn) Fatal(args ...any) {
	fmt.Fprintln(os.Stderr, args...)
	os.Exit(1)
}

func (s *standIn) Fatalf(format string, args ...any) { s.Fatal(fmt.Sprintf(format, args...)) }

func (s *standIn) done() {
	for n := len(s.cleanups) - 1; n >= 0; n-- {
		s.cleanups[n]()
	}
}

// probeMode prints what a probe finds.
func probeMode() int {
	r, err := isolate.Probe(context.Background(), os.TempDir())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
		return 1
	}
	return 0
}

// parentMode is a worker with a busy sandbox; it prints the init's process id once the
// tree runs, and goes on.
func parentMode() int {
	b := newBox(&standIn{}, isolate.Config{})
	b.sh("setsid sleep 1000 & (sleep 1000 &) ; trap '' TERM; touch started; sleep 1000", func(c *isolate.Command) {
		c.Started = func() {
			eventually(b.t, "the tree runs", func() bool {
				_, err := os.Stat(b.path("upper/started"))
				return err == nil
			})
			fmt.Println(b.Pid())
		}
	})
	return 0
}

// syncFilter puts a filter of system calls on every thread of this process.
func syncFilter(filter []unix.SockFilter) error {
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	runtime.LockOSThread()
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return errno
	}
	return nil
}
