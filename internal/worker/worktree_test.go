package worker

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/gitrepo"
	"github.com/warmfleet/warmfleet/internal/sandboxtest"
)

// originOf runs git as a user in the remote of a test.
func originOf(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "user.name=T", "-c", "user.email=t@example.com", "-c", "init.defaultBranch=trunk"}, args...)...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// A sandbox is brought along by git inside of it, with nothing of the mirror in its sight.
func TestWorkTree_BringsASandbox(t *testing.T) {
	bed, remote := sandboxtest.New(t), t.TempDir()
	state := filepath.Join(t.TempDir(), "repos")
	store, err := gitrepo.OpenStore(gitrepo.Options{Dir: state, Cache: bed.Host.Cache, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	sandboxtest.Write(t, remote, map[string]string{"a": "one\n", "d/b": "b\n", ".gitignore": "out\n"})
	originOf(t, remote, "init", "-q")
	originOf(t, remote, "add", "-A")
	originOf(t, remote, "commit", "-q", "-m", "one")
	r := gitrepo.Remote{URL: remote}
	tip, err := store.Sync(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	base, err := store.FromMirror(t.Context(), r, tip)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(base.Release)
	sb := bed.Sandbox(t, base.Chain)
	sandboxtest.Run(t, sb, "echo built >out; echo changed >a")
	sandboxtest.Write(t, remote, map[string]string{"a": "two\n", "new/c": "c\n"})
	originOf(t, remote, "add", "-A")
	originOf(t, remote, "commit", "-q", "-m", "two")
	originOf(t, remote, "branch", "-m", "trunk", "main")
	started := time.Now()
	if tip, err = store.Sync(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	out, err := store.Bring(t.Context(), r, tip, workTree(sb))
	if err != nil || !out.Moved || out.Bytes == 0 || out.Commit != originOf(t, remote, "rev-parse", "main") {
		t.Fatalf("got %+v, %v", out, err)
	}
	t.Logf("sync and bring took %v", time.Since(started))
	got := sandboxtest.Run(t, sb, "cat a out new/c; git status --short --branch; git log -1 --format=%s origin/main; ! test -e .git/objects/info/alternates; ! test -e '"+state+"'")
	if want := "two\nbuilt\nc\n## main\ntwo\n"; got != want {
		t.Errorf("the sandbox: got %q, want %q", got, want)
	}
}

// A git that hangs in a sandbox ends with the context, and the cause is told.
func TestWorkTree_Hanging(t *testing.T) {
	dir := t.TempDir()
	sandboxtest.Write(t, dir, map[string]string{"a": "one\n"})
	originOf(t, dir, "init", "-q")
	bed := sandboxtest.New(t)
	chain, _ := bed.Base(t, dir)
	tree := workTree(bed.Sandbox(t, chain))
	why := errors.New("long enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 300*time.Millisecond, why)
	defer cancel()
	if _, err := tree.Git(ctx, gitrepo.SandboxGit{Args: []string{"-c", "alias.x=!sleep 1000", "x"}}); !errors.Is(err, why) {
		t.Errorf("got %v, want %v", err, why)
	}
	if ended, err := tree.Git(t.Context(), gitrepo.SandboxGit{Args: []string{"rev-parse", "--verify", "nothing"}}); err != nil || ended.ExitCode != 128 || ended.Stderr == "" {
		t.Errorf("got %+v, %v, want exit code 128 and a message", ended, err)
	}
}
