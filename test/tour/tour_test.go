// Package tour runs the tour of README.md as it stands there, so that it stays true.
package tour

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write what is seen into README.md instead of comparing")

const (
	readme = "../../README.md"
	// limit bounds the whole tour on a busy machine.
	limit = 5 * time.Minute
	// mark stands between the outputs of two commands; no command prints it.
	mark = "\x1e"
)

// command is one command of a console block and what the block says it prints.
type command struct {
	line   int // in the file
	text   string
	output []string
}

// commands reads the console blocks: "$ " begins a command, "> " goes on with it, and the
// rest is its output.
func commands(t *testing.T, text string) []command {
	t.Helper()
	var all []command
	inside := false
	for i, line := range strings.Split(text, "\n") {
		switch {
		case line == "```console":
			inside = true
		case line == "```":
			inside = false
		case !inside:
		case strings.HasPrefix(line, "$ "):
			all = append(all, command{line: i + 1, text: line[2:]})
		case strings.HasPrefix(line, "> ") || line == ">":
			last := &all[len(all)-1]
			last.text += "\n" + strings.TrimPrefix(strings.TrimPrefix(line, ">"), " ")
		default:
			last := &all[len(all)-1]
			last.output = append(last.output, line)
		}
	}
	if len(all) < 10 {
		t.Fatalf("README.md has %d commands: the tour is gone", len(all))
	}
	return all
}

func TestTour_ReadmePrintsWhatIsSeen(t *testing.T) {
	text, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	env := environment(t)
	var run []command
	for _, c := range commands(t, string(text)) {
		switch {
		case strings.HasPrefix(c.text, "go build"): // done by environment
		case strings.Contains(c.text, "layer") && lacks("nats"), strings.HasPrefix(c.text, "nats ") && lacks("nats"):
			t.Logf("README.md:%d is left out: there is no nats command line", c.line)
		case strings.HasPrefix(c.text, "tar --zstd") && lacks("zstd"):
			t.Logf("README.md:%d is left out: there is no zstd", c.line)
		default:
			run = append(run, c)
		}
	}
	got := outputs(t, env, run)
	if *update {
		if err := os.WriteFile(readme, []byte(rewritten(string(text), run, got)), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	for i, c := range run {
		if diff := cmp.Diff(normal(c.output), normal(got[i])); diff != "" {
			t.Errorf("README.md:%d: $ %s\nprints (-README +now):\n%s\nas it is:\n%s", c.line, c.text, diff, strings.Join(got[i], "\n"))
		}
	}
}

// rewritten is the file with each command's output replaced.
func rewritten(text string, run []command, got [][]string) string {
	lines := strings.Split(text, "\n")
	var out []string
	for i, c := range run {
		from := 0
		if i > 0 {
			from = run[i-1].end()
		}
		out = append(out, lines[from:c.end()-len(c.output)]...)
		out = append(out, got[i]...)
	}
	return strings.Join(append(out, lines[run[len(run)-1].end():]...), "\n")
}

// end is the index of the first line after the command and its output.
func (c command) end() int { return c.line + strings.Count(c.text, "\n") + len(c.output) }

func lacks(program string) bool {
	_, err := exec.LookPath(program)
	return err != nil
}

// environment builds the programs and gives them directories of their own.
func environment(t *testing.T) []string {
	t.Helper()
	dir, err := os.MkdirTemp("", "warmfleet-tour-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Log(err)
		}
	})
	bin := filepath.Join(dir, "bin")
	build := exec.Command("go", "build", "-o", bin+"/", "./cmd/...")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	env := []string{
		"PATH=" + bin + ":" + os.Getenv("PATH"), "LANG=C.UTF-8", "USER=reader", "GIT_CONFIG_NOSYSTEM=1",
	}
	for name, sub := range map[string]string{"HOME": "home", "XDG_STATE_HOME": "state", "XDG_CONFIG_HOME": "config", "TMPDIR": "tmp"} {
		path := filepath.Join(dir, sub)
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
		env = append(env, name+"="+path)
	}
	return env
}

// outputs runs the commands in one shell and returns what each printed.
func outputs(t *testing.T, env []string, run []command) [][]string {
	t.Helper()
	var script strings.Builder
	for _, c := range run {
		fmt.Fprintf(&script, "%s\nprintf '%s'\n", c.text, mark)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var out bytes.Buffer
	sh := exec.CommandContext(ctx, "bash", "-c", script.String())
	sh.Env, sh.Dir, sh.Stdout, sh.Stderr = env, t.TempDir(), &out, &out
	sh.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	everything := func() error { return syscall.Kill(-sh.Process.Pid, syscall.SIGKILL) }
	sh.Cancel, sh.WaitDelay = everything, 5*time.Second
	err := sh.Run()
	everything() // what the tour started in the background and did not end
	parts := strings.Split(out.String(), mark)
	if err != nil || len(parts) != len(run)+1 {
		t.Fatalf("%v after %d of %d commands:\n%s", err, len(parts)-1, len(run), out.String())
	}
	var all [][]string
	for _, p := range parts[:len(run)] {
		var lines []string
		for line := range strings.Lines(p) {
			if !strings.HasPrefix(line, "bash: ") { // the shell tells of the worker that was killed
				lines = append(lines, strings.TrimRight(line, " \n"))
			}
		}
		all = append(all, lines)
	}
	return all
}

// varying is what differs from run to run, and between kinds of users.
var varying = []struct {
	pattern *regexp.Regexp
	text    string
}{
	{regexp.MustCompile(`\b[0-9A-HJKMNP-TV-Z]{26}\b`), "ID"},
	{regexp.MustCompile(`\bsha256-[0-9a-f]{64}\b`), "DIGEST"},
	{regexp.MustCompile(`\b[0-9.]+m?s\b`), "TIME"},
	{regexp.MustCompile(`\b\d\d:\d\d:\d\d\.\d+\b`), "CLOCK"},
	{regexp.MustCompile(`\b\d+ k?B\b`), "SIZE"},
	{regexp.MustCompile(`namespaces-(root|user)`), "ISOLATION"},
	{regexp.MustCompile(`\bw[12]\b`), "WORKER"},
	{regexp.MustCompile(` +`), " "},
}

// normal is output without what varies.
func normal(lines []string) []string {
	out := []string{}
	for _, line := range lines {
		for _, v := range varying {
			line = v.pattern.ReplaceAllString(line, v.text)
		}
		if !strings.HasPrefix(line, " driver:") { // an ordinary user is told one thing more
			out = append(out, strings.TrimRight(line, " "))
		}
	}
	return out
}
