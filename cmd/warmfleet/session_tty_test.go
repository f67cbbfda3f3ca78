package main

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// What a session's commands print, and what its files hold and are called, cannot drive a person's terminal unless that person
// asks for it; a pipe has every byte.
func TestTerminal_SessionsCannotDriveIt(t *testing.T) {
	p := program{t, t.TempDir()}
	work := filepath.Join(p.dir, "work")
	if err := os.Mkdir(work, 0o755); err != nil {
		t.Fatal(err)
	}
	up := p.command("up", "--allow-path", work)
	stderr, err := up.StderrPipe()
	if err == nil {
		err = up.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		up.Process.Signal(syscall.SIGTERM)
		up.Wait()
		exec.Command("chmod", "-R", "u+rwX", p.dir).Run() // an overlay's own directory has no permissions
	})
	if line, err := bufio.NewReader(stderr).ReadString('\n'); !strings.HasPrefix(line, "ready") {
		t.Fatalf("up: got %q, %v", line, err)
	}
	evil, shown := "\x1b[2Jx\a\xff\n", "^[[2Jx^G<ff>\n"
	id := strings.TrimSpace(p.piped("session", "start", "--path", work, "-o", "name"))
	say := []string{"session", "exec", id, "--", "printf", `\033[2Jx\007\377\n`}
	loud := []string{"session", "exec", id, "--raw", "--", "printf", `\033[2Jx\007\377\n`}
	p.piped("session", "exec", id, "--", "sh", "-c", `printf '\033[2Jx\007\377\n' >f; mkdir d; >"d/$(printf 'n\033[2J')"`)
	for _, tc := range []struct {
		name string
		run  func(...string) string
		args []string
		want string
	}{
		{"exec on a terminal", p.onTerminal, say, shown},
		{"exec --raw on a terminal", p.onTerminal, loud, evil},
		{"exec on a pipe", p.piped, say, evil},
		{"read on a terminal", p.onTerminal, []string{"session", "read", id, "f"}, shown},
		{"read --raw on a terminal", p.onTerminal, []string{"session", "read", "--raw", id, "f"}, evil},
		{"read on a pipe", p.piped, []string{"session", "read", id, "f"}, evil},
		{"list on a terminal", p.onTerminal, []string{"session", "list", id, "d", "-o", "name"}, `"n\x1b[2J"` + "\n"},
	} {
		if got := tc.run(tc.args...); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.want)
		}
	}
}
