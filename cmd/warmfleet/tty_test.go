package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// pty opens a pseudo terminal.
func pty(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	n := 0
	if err == nil {
		n, err = unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	}
	if err == nil {
		slave, err = os.OpenFile(fmt.Sprint("/dev/pts/", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return master, slave
}

// program is this program as a person runs it, with a home of its own.
type program struct {
	t   *testing.T
	dir string
}

func (p program) command(args ...string) *exec.Cmd {
	self, err := os.Executable()
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	p.t.Cleanup(cancel)
	c := exec.CommandContext(ctx, self, args...)
	c.Args[0], c.Dir = "warmfleet", p.dir
	c.Env = []string{"HOME=" + p.dir, "PATH=" + os.Getenv("PATH"), "TMPDIR=" + p.t.TempDir(), "USER=tester", "TERM=xterm"}
	return c
}

// onTerminal runs it with stdout and stderr on a terminal, and returns what a person's terminal got.
func (p program) onTerminal(args ...string) string {
	p.t.Helper()
	master, slave := pty(p.t)
	defer master.Close()
	c := p.command(args...)
	c.Stdout, c.Stderr = slave, slave
	err := c.Start()
	slave.Close()
	if err != nil {
		p.t.Fatal(err)
	}
	var out bytes.Buffer
	out.ReadFrom(master) // ends with EIO when the last one has closed it
	if err := c.Wait(); err != nil {
		p.t.Fatalf("%v: %v\n%q", args, err, out.String())
	}
	return strings.ReplaceAll(out.String(), "\r\n", "\n")
}

func (p program) piped(args ...string) string {
	p.t.Helper()
	out, err := p.command(args...).Output()
	if err != nil {
		p.t.Fatalf("%v: %v", args, err)
	}
	return string(out)
}

// ours is what this program itself sends to a terminal: the live line and colours.
var ours = regexp.MustCompile("\r\x1b\\[K|\x1b\\[[0-9;]*m")

// What a step prints, and names that it makes up, are spelled out for people, everywhere, and stay as they are for programs.
func TestTerminal_CannotBeDriven(t *testing.T) {
	p := program{t, t.TempDir()}
	evil := "\x1b]52;c;ZXZpbA==\a\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\\u009b2J\xff\u202eend\x1b[2J"
	shown := `^[]52;c;ZXZpbA==^G^[]8;;http://evil^[\link^[]8;;^[\<U+009B>2J<ff><U+202E>end^[[2J`
	octal := ""
	for _, b := range []byte(evil) {
		octal += fmt.Sprintf(`\%03o`, b)
	}
	work := filepath.Join(p.dir, "work")
	if err := os.Mkdir(work, 0o755); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("version: 1\nname: evil\nresource: {path: work}\napply: manual\nsteps:\n  - id: say\n    run: |\n"+
		"      e=$(printf '%s')\n      printf '%%s\\n' \"$e\"\n      printf '%%s\\n' \"$e\" >file\n      printf x >\"$(printf 'n\\033[2J')\"\n", octal)
	if err := os.WriteFile(filepath.Join(p.dir, "plan.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	check := func(name, got string, want bool) {
		t.Helper()
		rest := ours.ReplaceAllString(got, "")
		if strings.ContainsAny(rest, "\x1b\a\u009b\u202e") || strings.Contains(rest, "\xff") {
			t.Errorf("%s: the terminal got %q", name, rest)
		}
		if want && !strings.Contains(rest, shown) {
			t.Errorf("%s: got %q, want %q in it", name, rest, shown)
		}
	}
	check("run", p.onTerminal("run", "plan.yaml"), true)
	id := strings.TrimSpace(p.piped("plan", "ls", "-o", "name"))
	check("logs", p.onTerminal("plan", "logs", id), true)
	check("diff", p.onTerminal("plan", "diff", id), true)
	check("diff --stat", p.onTerminal("plan", "diff", "--stat", id), false)
	check("show", p.onTerminal("plan", "show", id), false)
	check("events", p.onTerminal("plan", "events", id), false)
	check("events as JSON", p.onTerminal("plan", "events", "-o", "jsonl", id), false)
	if got, want := p.piped("plan", "logs", id), evil+"\n"; got != want {
		t.Errorf("piped: got %q, want %q", got, want)
	}
	if got, want := p.onTerminal("plan", "logs", "--raw", id), evil+"\n"; got != want {
		t.Errorf("--raw: got %q, want %q", got, want)
	}
}

// Every command writes to what output returns: a terminal that is made safe, or the exact bytes.
func TestOutput(t *testing.T) {
	master, slave := pty(t)
	defer master.Close()
	defer slave.Close()
	if w, ok := output(slave).(*tty); !ok || exact(w) != slave {
		t.Errorf("a terminal gets %T", output(slave))
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if got := output(w); got != w || exact(got) != w {
		t.Errorf("a pipe gets %T", got)
	}
}

// A cell of a table holds its text and nothing else.
func TestPrinter_Cells(t *testing.T) {
	var out bytes.Buffer
	s := sheet{header: []string{"A", "B"}, rows: [][]any{{"x\ny\x1b[2J", 1}}}
	if err := (printer{format: "table", w: &out}).list(s); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "A          B\nx^Jy^[[2J  1\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
