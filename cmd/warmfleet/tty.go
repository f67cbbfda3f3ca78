package main

import (
	"io"
	"os"
	"sync"

	"github.com/mattn/go-isatty"

	"github.com/warmfleet/warmfleet/internal/termsafe"
)

// tty is a terminal that a person looks at. Whatever is written to it is made safe to show first, so nothing that a step, a
// plan or a repository chose can act on it; only our own colours and cursor moves go to file itself.
type tty struct {
	file *os.File
	mu   sync.Mutex
	safe *termsafe.Writer
}

// output is where a standard stream's data goes: where that is a terminal through a tty, else as it is.
func output(f *os.File) io.Writer {
	if !terminal(f) {
		return f
	}
	return &tty{file: f, safe: termsafe.NewWriter(f)}
}

func (t *tty) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.safe.Write(p)
}

func (t *tty) flush() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.safe.Flush()
}

// exact is where bytes go that are to stay as they are, because somebody asked for that.
func exact(w io.Writer) io.Writer {
	if t, ok := w.(*tty); ok {
		return t.file
	}
	return w
}

// terminal tells whether a file is one a person looks at.
func terminal(f *os.File) bool { return isatty.IsTerminal(f.Fd()) }
