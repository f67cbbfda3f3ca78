package fleettest

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// Outlet is a named pipe that steps see through --expose: what is written to it was done
// outside of every sandbox, and cannot be rolled back.
type Outlet struct {
	Dir, File string // of the pipe
	mu        sync.Mutex
	lines     []string
}

// NewOutlet makes an outlet, which a worker has to expose by its directory.
func NewOutlet(t *testing.T, p *Place) *Outlet {
	t.Helper()
	o := &Outlet{Dir: p.Path("outside")}
	o.File = filepath.Join(o.Dir, "pipe")
	Must(t, os.Mkdir(o.Dir, 0o755))
	Must(t, syscall.Mkfifo(o.File, 0o666))
	Must(t, os.Chmod(o.File, 0o666))
	f, err := os.OpenFile(o.File, os.O_RDWR, 0)
	Must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for s := bufio.NewScanner(f); s.Scan(); {
			o.mu.Lock()
			o.lines = append(o.lines, s.Text())
			o.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		f.Close()
		<-done
	})
	return o
}

// Got is all lines so far, with blanks between.
func (o *Outlet) Got() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Join(o.lines, " ")
}

// Open makes the file that steps wait for with Gate.
func (o *Outlet) Open(t *testing.T) {
	t.Helper()
	Must(t, os.WriteFile(filepath.Join(o.Dir, "gate"), nil, 0o644))
}

// Gate is shell that waits for Open.
func (o *Outlet) Gate() string { return "until [ -e " + o.Dir + "/gate ]; do sleep 0.05; done; " }
