package gitrepo

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// kinds makes one path of each kind (case A4).
func kinds(t *testing.T) map[Kind]string {
	t.Helper()
	r := sample(t)
	top := t.TempDir()
	linked, bare, super := filepath.Join(top, "linked"), filepath.Join(top, "bare.git"), filepath.Join(top, "super")
	r.git("worktree", "add", "-q", "-b", "side", linked)
	r.git("clone", "-q", "--bare", r.dir, bare)
	r.git("clone", "-q", r.dir, super)
	if _, err := user(super, "submodule", "--quiet", "add", r.dir, "libs/sub"); err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(top, "folder")
	for _, name := range []string{"x", "y"} {
		r.git("clone", "-q", r.dir, filepath.Join(folder, name))
	}
	return map[Kind]string{
		KindWorkTree: r.dir, KindLinkedWorkTree: linked, KindBare: bare, KindNone: folder,
		KindSubmodule: filepath.Join(super, "libs/sub"), KindSubdirectory: filepath.Join(r.dir, "dir with space"),
		KindGitDir: filepath.Join(r.dir, ".git"),
	}
}

func TestGit_InspectKinds(t *testing.T) {
	git, err := FindGit()
	if err != nil {
		t.Fatal(err)
	}
	for want, path := range kinds(t) {
		t.Run(string(want), func(t *testing.T) {
			got, err := git.Inspect(t.Context(), path)
			if err != nil {
				t.Fatal(err)
			}
			if got.Kind != want {
				t.Errorf("got %s, want %s", got.Kind, want)
			}
			if want == KindNone || want == KindGitDir {
				return
			}
			if head, err := user(path, "rev-parse", "HEAD"); err != nil || got.Head != head || got.Modified+got.Untracked > 0 {
				t.Errorf("got head %s, %d modified, %d untracked; want %s, clean (%v)", got.Head, got.Modified, got.Untracked, head, err)
			}
		})
	}
}

// Case A4: each kind either gives a base or one plain error that names the strategy and the path.
func TestStore_FromPathKinds(t *testing.T) {
	s := newStore(t)
	for kind, path := range kinds(t) {
		t.Run(string(kind), func(t *testing.T) {
			b, err := s.FromPath(t.Context(), path, "")
			switch kind {
			case KindNone, KindSubdirectory, KindGitDir:
				if !errors.Is(err, ErrNotRepository) || !strings.Contains(err.Error(), "git_worktree") || !strings.Contains(err.Error(), path) {
					t.Fatalf("got %v, want ErrNotRepository with strategy and path", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer b.Release()
			if b.Bare != (kind == KindBare) {
				t.Errorf("bare: got %v", b.Bare)
			}
			head, err := user(path, "rev-parse", "HEAD")
			if err != nil {
				t.Fatal(err)
			}
			materialise(t, b.Chain).wantSound(head)
		})
	}
}

func TestGit_InspectStates(t *testing.T) {
	git, err := FindGit()
	if err != nil {
		t.Fatal(err)
	}
	r := newRepo(t)
	inspect := func() Info {
		t.Helper()
		before := listTree(t, r.dir, true)
		info, err := git.Inspect(t.Context(), r.dir)
		if err != nil {
			t.Fatal(err)
		}
		if after := listTree(t, r.dir, true); after != before {
			t.Errorf("inspecting changed the repository:\n%s\n--\n%s", before, after)
		}
		return info
	}
	if got := inspect(); !got.Unborn || got.Branch != "trunk" || got.Head != "" {
		t.Errorf("unborn: got %+v", got)
	}
	r.write("f", "1")
	r.write("g", "1")
	head := r.commit("c")
	r.write("f", "2")
	r.write("g", "1") // same content, new stat: an index refresh would be a write
	r.write("new/x", "")
	r.write("new/y", "")
	if got := inspect(); got.Modified != 1 || got.Untracked != 1 || got.Head != head || got.Detached {
		t.Errorf("dirty: got %+v", got)
	}
	r.git("checkout", "-q", "--detach")
	if got := inspect(); !got.Detached || got.Branch != "" || got.Head != head {
		t.Errorf("detached: got %+v", got)
	}
}

func TestGit_InspectBroken(t *testing.T) {
	git, err := FindGit()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if _, err := git.Inspect(t.Context(), filepath.Join(dir, "absent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent: got %v", err)
	}
	for name, text := range map[string]string{"gone": "gitdir: /nowhere/at/all\n", "no git directory": "gitdir: /\n", "junk": "hello\n"} {
		if err := os.WriteFile(filepath.Join(dir, ".git"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := git.Inspect(t.Context(), dir); err == nil || !strings.Contains(err.Error(), ".git") {
			t.Errorf("%s: got %v, want an error that names the .git file", name, err)
		}
	}
}

// A repository's own configuration and hooks must not start programs as the worker.
func TestStore_RunsNothingOfTheRepository(t *testing.T) {
	canary := filepath.Join(t.TempDir(), "CANARY")
	r := sample(t)
	r.write(".gitattributes", "* filter=evil diff=evil\n")
	head := r.commit("attributes")
	evil := "touch " + canary
	for _, key := range []string{
		"filter.evil.clean", "filter.evil.smudge", "filter.evil.process", "core.fsmonitor", "diff.evil.textconv",
		"core.sshCommand", "core.pager", "core.editor", "core.askPass", "core.alternateRefsCommand", "uploadpack.packObjectsHook",
		"credential.helper", "gpg.program",
	} {
		r.git("config", key, evil)
	}
	r.git("config", "filter.evil.required", "true")
	for _, hook := range []string{"post-checkout", "post-index-change", "reference-transaction", "pre-auto-gc"} {
		path := filepath.Join(r.dir, ".git/hooks", hook)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+evil+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r.write("a.txt", "dirty\n")
	r.write("run.sh", "#!/bin/sh\n") // same content, new stat: git compares through the clean filter
	s := newStore(t)
	if _, err := s.Inspect(t.Context(), r.dir); err != nil {
		t.Fatal(err)
	}
	sandbox := materialise(t, s.path(t, r.dir, "").Chain)
	b, err := s.FromURL(t.Context(), "file://"+r.dir, "")
	if err != nil {
		t.Fatal(err)
	}
	b.Release()
	if _, err := os.Stat(canary); err == nil {
		t.Fatal("a program of the repository ran")
	}
	sandbox.wantSound(head)
}
