//go:build fault

package fault

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Enabled tells whether the program was built with the tag "fault".
const Enabled = true

// At is a point where the process may die.
func At(name string) { here().pass(name, "kill") }

// AtEach is At of the point "name.of", for a place that many things pass.
func AtEach(name, of string) { here().pass(name+"."+of, "kill") }

// Err is a point where the process may die, or the operation that follows fail with the returned error.
func Err(name string) error {
	if err := here().pass(name, "err"); err != nil {
		return &os.PathError{Op: "write", Path: "fault:" + name, Err: err}
	}
	return nil
}

// Hook is Err for steps that have names of their own: the point is "name." and the step's name without its numbers,
// in words joined by dashes.
func Hook(name string) func(step string) error {
	return func(step string) error {
		words := strings.FieldsFunc(step, func(r rune) bool { return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') })
		return Err(name + "." + strings.Join(words, "-"))
	}
}

// Off tells whether the guard is to be left out.
func Off(name string) bool { return here().broken[name] }

// plan is what the environment asks of this process.
type plan struct {
	name  string
	n     int
	more  bool // every passage from the n-th on
	how   string
	trace *os.File

	broken map[string]bool

	mu     sync.Mutex
	passed map[string]int
}

var here = sync.OnceValue(func() *plan {
	p := &plan{passed: map[string]int{}, broken: map[string]bool{}}
	for _, name := range strings.Split(os.Getenv("WARMFLEET_BROKEN"), ",") {
		p.broken[name] = true
	}
	if err := p.parse(os.Getenv("WARMFLEET_FAULT")); err != nil {
		panic(err) // a test that asks for nonsense must not pass
	}
	if file := os.Getenv("WARMFLEET_FAULT_TRACE"); file != "" {
		var err error
		if p.trace, err = os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666); err != nil {
			panic(err)
		}
	}
	return p
})

func (p *plan) parse(text string) error {
	if text == "" {
		return nil
	}
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return fmt.Errorf("fault: WARMFLEET_FAULT is %q, want NAME:N:HOW", text)
	}
	n, more := strings.CutSuffix(parts[1], "+")
	var err error
	p.name, p.more, p.how = parts[0], more, parts[2]
	if p.n, err = strconv.Atoi(n); err != nil || p.n < 1 {
		return fmt.Errorf("fault: WARMFLEET_FAULT is %q: %q is no passage", text, parts[1])
	}
	if p.how != "kill" && errno(p.how) == 0 {
		return fmt.Errorf("fault: WARMFLEET_FAULT is %q: %q is no way to fail", text, p.how)
	}
	return nil
}

// errno is the error that an operation fails with, 0 for none of that name.
func errno(how string) unix.Errno {
	switch how {
	case "enospc":
		return unix.ENOSPC
	case "eio":
		return unix.EIO
	}
	return 0
}

// pass counts a passage and does what is asked of it.
func (p *plan) pass(name, kind string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.passed[name]++
	n := p.passed[name]
	if p.trace != nil {
		if _, err := fmt.Fprintf(p.trace, "%s %d %s\n", name, n, kind); err != nil {
			panic(err)
		}
	}
	if name != p.name || n != p.n && !(p.more && n > p.n) {
		return nil
	}
	if p.how != "kill" {
		if kind != "err" {
			panic("fault: nothing can fail at " + name)
		}
		return errno(p.how)
	}
	// Under the lock: no other point is passed meanwhile.
	if err := unix.Kill(unix.Getpid(), unix.SIGKILL); err != nil {
		panic(err)
	}
	select {}
}
