package gitrepo

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMerger_Merge(t *testing.T) {
	r := newRepo(t)
	r.write(".gitattributes", "*.bin binary\n*.uni merge=union\n*.own merge=evil\n*.no -merge\n")
	git, err := FindGit()
	if err != nil {
		t.Fatal(err)
	}
	m, err := git.NewMerger(t.TempDir(), r.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	base := "1\n2\n3\n4\n5\n"
	for _, tc := range []struct {
		name, path, base, ours, theirs string
		want                           string
		clean                          bool
	}{
		{"Clean", "a", base, "one\n2\n3\n4\n5\n", "1\n2\n3\n4\nfive\n", "one\n2\n3\n4\nfive\n", true},
		{"LineEndsAreBytes", "a", "1\r\n2\n3\n4\n5", "one\r\n2\n3\n4\n5", "1\r\n2\n3\n4\nfive", "one\r\n2\n3\n4\nfive", true},
		{"Overlap", "a", base, "one\n2\n3\n4\n5\n", "eins\n2\n3\n4\n5\n", "", false},
		{"ToEmpty", "a", "1\n", "", "", "", true},
		{"Binary", "a", "1\x002\n", "1\x003\n", "1\x002\n3\n", "", false},
		{"BinaryByAttribute", "a.bin", base, "one\n2\n3\n4\n5\n", "1\n2\n3\n4\nfive\n", "", false},
		{"Forbidden", "sub/a.no", base, "one\n2\n3\n4\n5\n", "1\n2\n3\n4\nfive\n", "", false},
		{"Union", "a.uni", "1\n", "1\n2\n", "1\n3\n", "1\n2\n3\n", true},
		{"OwnProgramIsNotRun", "a.own", base, "one\n2\n3\n4\n5\n", "1\n2\n3\n4\nfive\n", "one\n2\n3\n4\nfive\n", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, clean, err := m.Merge(t.Context(), Versions{Path: tc.path, Base: []byte(tc.base), Ours: []byte(tc.ours), Theirs: []byte(tc.theirs)})
			if err != nil || clean != tc.clean || string(got) != tc.want {
				t.Errorf("got %q, %v, %v; want %q, %v", got, clean, err, tc.want, tc.clean)
			}
		})
	}
}

func TestHeadIn(t *testing.T) {
	r := sample(t)
	head := r.git("rev-parse", "HEAD")
	open := func(p string) (io.ReadCloser, error) { return os.Open(filepath.Join(r.dir, p)) }
	check := func(name, wantCommit, wantBranch string, want bool) {
		t.Helper()
		commit, branch, ok := HeadIn(open)
		if d := cmp.Diff([]any{commit, branch, ok}, []any{wantCommit, wantBranch, want}); d != "" {
			t.Errorf("%s (-got +want):\n%s", name, d)
		}
	}
	check("loose", head, "trunk", true)
	r.git("pack-refs", "--all")
	check("packed", head, "trunk", true)
	r.git("checkout", "-q", "--detach")
	check("detached", head, "", true)
	r.git("checkout", "-q", "--orphan", "new")
	check("unborn", "", "new", true)
	if err := os.RemoveAll(filepath.Join(r.dir, ".git")); err != nil {
		t.Fatal(err)
	}
	check("none", "", "", false)
}

func TestStore_Push(t *testing.T) {
	r := sample(t)
	remote := filepath.Join(t.TempDir(), "r.git")
	r.git("clone", "-q", "--bare", ".", remote)
	one, two := r.git("rev-parse", "HEAD~1"), r.git("rev-parse", "HEAD")
	r.write("c", "c\n")
	three := r.commit("three")
	s := newStore(t)
	push := func(branch, old, commit string) error {
		return s.Push(t.Context(), Push{To: Remote{URL: "file://" + remote}, Branch: branch, GitDir: filepath.Join(r.dir, ".git"), Commit: commit, Old: old})
	}
	tip := func(branch string) string {
		t.Helper()
		m, err := s.Tip(t.Context(), Remote{URL: "file://" + remote}, branch)
		if err != nil {
			t.Fatal(err)
		}
		return m.Commit
	}
	if err := push("trunk", one, three); !errors.Is(err, ErrRejected) || tip("trunk") != two {
		t.Errorf("a branch that is elsewhere: got %v, and it is at %s", err, tip("trunk"))
	}
	if err := push("trunk", "", three); !errors.Is(err, ErrRejected) {
		t.Errorf("a branch that must not exist: got %v", err)
	}
	if err := push("trunk", two, three); err != nil || tip("trunk") != three {
		t.Errorf("got %v, and the branch is at %s", err, tip("trunk"))
	}
	if err := push("trunk", two, three); err != nil {
		t.Errorf("the same again: %v", err)
	}
	if got := tip("feat/x"); got != "" {
		t.Errorf("a branch that is not there: got %q", got)
	}
	if err := push("feat/x", "", three); err != nil || tip("feat/x") != three {
		t.Errorf("a new branch: got %v", err)
	}
	hook := filepath.Join(remote, "hooks", "pre-receive")
	if err := os.WriteFile(hook, []byte("#!/bin/sh\necho not today\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := push("trunk", three, two); !errors.Is(err, ErrRejected) || !strings.Contains(err.Error(), "not today") {
		t.Errorf("a hook that refuses: got %v", err)
	}
	if err := os.RemoveAll(remote); err != nil {
		t.Fatal(err)
	}
	if err := push("trunk", three, two); err == nil || errors.Is(err, ErrRejected) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a remote that is gone: got %v", err)
	}
}
