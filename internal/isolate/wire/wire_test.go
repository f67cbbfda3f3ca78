package wire_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/internal/isolate/wire"
)

// pair returns two connected ends.
func pair(t *testing.T) (*wire.Conn, *wire.Conn) {
	t.Helper()
	a, file, err := wire.Pair()
	if err != nil {
		t.Fatal(err)
	}
	b, err := wire.NewConn(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		a.Close()
		b.Close()
	})
	return a, b
}

func TestConn_RoundTrip(t *testing.T) {
	odd := "\x00\xff 'quoted'\n"
	for _, c := range []struct{ sent, got wire.Body }{
		{&wire.Spec{Version: 7, Hosted: true, Network: true, Expose: []string{"/a", odd}, Mounted: true, Caches: []string{"npm"}, Scratch: -1, NoSetuid: true, Doors: 1, Listen: 3128, Whole: true}, &wire.Spec{}},
		{&wire.Ready{Version: 1 << 60}, &wire.Ready{}},
		{&wire.Attach{Dir: odd}, &wire.Attach{}},
		{&wire.Exec{Argv: []string{"a", "", odd}, Env: []string{}, Dir: "d", Stdin: 3, Stdout: 1, Stderr: 2, Notify: true, Log: "l", Secrets: []wire.Secret{{Name: "n", Value: []byte("v")}}, SecretsDir: "s", Processes: 9}, &wire.Exec{}},
		{&wire.Signal{Exec: 3, Kill: true}, &wire.Signal{}},
		{&wire.Exited{Status: 256, Terminated: true, Nanos: 5, Start: odd, Left: 4}, &wire.Exited{}},
		{&wire.File{Path: odd, Max: 9, Mode: 0o7777, MkdirAll: true, Content: []byte(odd), Part: true, Offset: -1, Stamp: odd, From: true}, &wire.File{}},
		{&wire.Content{Mode: 1, Data: []byte(strings.Repeat("x", 300<<10)), Size: 1 << 40, Stamp: odd}, &wire.Content{}},
		{&wire.Info{Name: odd, Mode: 1, Size: 2, ModTimeNs: -3}, &wire.Info{}},
		{&wire.Infos{Entries: []wire.Info{{Name: "a"}, {Name: "b", Size: 1}}}, &wire.Infos{}},
		{&wire.Changes{List: []wire.File{{Path: odd, Mode: 0o100644, Content: []byte(odd)}, {Path: "gone", Content: []byte{}}}}, &wire.Changes{}},
		{&wire.Overlay{Lowers: []string{"/l"}, Upper: "u", Work: "w", Volatile: true}, &wire.Overlay{}},
		{&wire.Bind{Dir: "/d"}, &wire.Bind{}},
		{&wire.Failure{Text: odd, Errno: 2}, &wire.Failure{}},
	} {
		t.Run(fmt.Sprintf("%T", c.sent), func(t *testing.T) {
			a, b := pair(t)
			var wg sync.WaitGroup
			wg.Go(func() {
				if err := a.Send(42, wire.KindExec, c.sent); err != nil {
					t.Error(err)
				}
			})
			frame, err := b.Recv()
			wg.Wait()
			if err != nil {
				t.Fatal(err)
			}
			if err := frame.Decode(c.got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.got, c.sent); diff != "" || frame.ID != 42 || frame.Kind != wire.KindExec {
				t.Errorf("frame %d of kind %d (-got +want):\n%s", frame.ID, frame.Kind, diff)
			}
			for cut := range min(len(frame.Body), 100) {
				// Whatever is missing, it is an error or a shorter message, never a panic.
				_ = wire.Frame{Body: frame.Body[:cut]}.Decode(c.got)
			}
		})
	}
}

// Descriptors arrive with their own frame, also when many frames are under way.
func TestConn_Files(t *testing.T) {
	a, b := pair(t)
	const frames = 50
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := range frames {
			file, err := os.CreateTemp(t.TempDir(), "")
			if err != nil {
				t.Error(err)
				return
			}
			fmt.Fprint(file, n)
			fds := make([]int, n%3)
			for i := range fds {
				fds[i] = int(file.Fd())
			}
			if err := a.Send(uint64(n), wire.KindMount, &wire.Bind{Dir: strings.Repeat("x", n*5000)}, fds...); err != nil {
				t.Error(err)
			}
			file.Close()
		}
		a.Close()
	})
	for n := range frames {
		frame, err := b.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if len(frame.Files) != n%3 {
			t.Fatalf("frame %d: got %d files, want %d", n, len(frame.Files), n%3)
		}
		for _, f := range frame.Files {
			content := make([]byte, 10)
			size, _ := f.ReadAt(content, 0)
			if got := string(content[:size]); got != fmt.Sprint(n) {
				t.Errorf("frame %d: got file %q", n, got)
			}
		}
		frame.Close()
	}
	if _, err := b.Recv(); err != io.EOF {
		t.Errorf("after the end: got %v, want EOF", err)
	}
	wg.Wait()
}

func TestConn_Limits(t *testing.T) {
	a, b := pair(t)
	if err := a.Send(1, wire.KindRead, &wire.Content{Data: make([]byte, wire.MaxBody+1)}); err == nil {
		t.Error("too large a frame: got no error")
	}
	if err := a.Send(1, wire.KindRead, nil, make([]int, 300)...); err == nil {
		t.Error("too many descriptors: got no error")
	}
	b.Close()
	if err := a.Send(1, wire.KindRead, nil); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("other end gone: got %v, want EPIPE", err)
	}
}

func TestConn_Wait(t *testing.T) {
	a, b := pair(t)
	if b.Wait(time.Millisecond) {
		t.Error("nothing was sent: got something")
	}
	if err := a.Send(1, wire.KindDone, nil); err != nil {
		t.Fatal(err)
	}
	if !b.Wait(time.Minute) {
		t.Error("after a frame: got nothing")
	}
	if _, err := b.Recv(); err != nil {
		t.Fatal(err)
	}
	a.Close()
	if !b.Wait(time.Minute) {
		t.Error("after the other end's end: got nothing")
	}
}

func TestFailure_Is(t *testing.T) {
	if err := (&wire.Failure{Text: "x", Errno: uint64(syscall.ENOENT)}); !errors.Is(err, fs.ErrNotExist) {
		t.Error("ENOENT is not fs.ErrNotExist")
	}
	if errors.Is(&wire.Failure{Text: "x"}, fs.ErrNotExist) {
		t.Error("a failure without errno is something")
	}
}
