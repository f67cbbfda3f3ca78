package gitrepo

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestStore_BringFollowsCommits(t *testing.T) {
	f := follow(t, "")
	f.fresh()
	if err := os.WriteFile(filepath.Join(f.tree.dir, "built"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	f.tree.write("a.txt", "changed by a build step\n")
	f.remote.write("new dir/file", "n\n")
	want := f.remote.commit("three")
	tip := f.fresh()
	if tip.Commit != want || tip.Branch != "trunk" {
		t.Errorf("tip: got %+v, want %s on trunk", tip, want)
	}
	if _, err := os.Stat(filepath.Join(f.tree.dir, "built")); err != nil {
		t.Errorf("an untracked file of the image is gone: %v", err)
	}
	got, err := f.store.Bring(t.Context(), f.r, tip, localTree{dir: f.tree.dir})
	if err != nil || got.Moved || got.Bytes != 0 {
		t.Errorf("bring again: got %+v, %v, want nothing moved", got, err)
	}
	if known, ok := f.store.Known(f.r); !ok || known != tip {
		t.Errorf("Known: got %+v, %v, want %+v", known, ok, tip)
	}
	if n, err := f.store.Behind(t.Context(), f.r, f.remote.git("rev-parse", "HEAD~2"), tip.Commit); n != 2 || err != nil {
		t.Errorf("Behind: got %d, %v, want 2", n, err)
	}
}

// The repository in a sandbox becomes what a clone of the remote is, whatever it was.
func TestStore_BringMakesAClone(t *testing.T) {
	f := follow(t, "")
	f.remote.git("branch", "feat/x", "HEAD~1")
	f.remote.git("tag", "-a", "-m", "annotated", "v1")
	f.wantClone()
	f.tree.git("branch", "mine")
	f.tree.git("tag", "local")
	f.remote.git("branch", "-m", "trunk", "mine/too") // mine is in its way
	f.remote.git("branch", "-m", "feat/x", "feat")
	f.remote.git("tag", "-f", "-m", "moved", "v1", "HEAD~1")
	f.wantClone()
	f.remote.git("checkout", "-q", "--detach")
	f.remote.commit("on no branch")
	f.wantClone()
	f.r.Ref = "feat"
	f.fresh()
	f.r.Ref = "v1"
	f.fresh()
	f.remote.git("checkout", "-q", "feat")
	f.r.Ref = ""
	f.wantClone()
}

// wantClone brings the tree along and compares it to a clone.
func (f followed) wantClone() {
	f.t.Helper()
	f.fresh()
	clone := repo{f.t, filepath.Join(f.t.TempDir(), "clone")}
	if _, err := user(f.t.TempDir(), "clone", "-q", "--no-local", f.remote.dir, clone.dir); err != nil {
		f.t.Fatal(err)
	}
	list := func(r repo) string {
		head, _ := user(r.dir, "symbolic-ref", "-q", "HEAD")
		return "HEAD " + head + " " + r.git("rev-parse", "HEAD") + "\n" + r.git("for-each-ref", "--format=%(refname) %(objectname) %(symref)")
	}
	if diff := cmp.Diff(list(clone), list(f.tree)); diff != "" {
		f.t.Errorf("the tree is no clone (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(listTree(f.t, clone.dir, false, ".git"), listTree(f.t, f.tree.dir, false, ".git")); diff != "" {
		f.t.Errorf("files (-want +got):\n%s", diff)
	}
}

// What is there costs two gits in the sandbox, five commits five; untracked and ignored files stay.
func TestStore_BringIsCheap(t *testing.T) {
	f := follow(t, "")
	f.remote.write(".gitignore", "out/\n")
	f.remote.commit("ignore")
	f.fresh()
	f.tree.write("out/built", "x")
	f.tree.write("untracked", "x")
	for _, text := range []string{"1", "2", "3", "4", "5"} {
		f.remote.write("a.txt", text)
		f.remote.commit(text)
	}
	tip, err := f.store.Sync(t.Context(), f.r)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range [][]string{
		{"warmfleet-script", "status", "index-pack", "update-ref", "reset", "status"},
		{"warmfleet-script", "status"},
	} {
		var ran []string
		out, err := f.store.Bring(t.Context(), f.r, tip, localTree{dir: f.tree.dir, ran: &ran})
		if err != nil || out.Moved != (len(want) > 2) || out.Moved != (out.Bytes > 0) {
			t.Errorf("got %+v, %v", out, err)
		}
		if diff := cmp.Diff(want, ran); diff != "" {
			t.Error(diff)
		}
	}
	f.fresh()
	if got := f.tree.git("status", "--porcelain", "--ignored"); got != "?? untracked\n!! out/" {
		t.Errorf("status: got %q, want the untracked and the ignored file", got)
	}
}

// What a killed or half-done git left holds nothing up.
func TestStore_BringLeftovers(t *testing.T) {
	f := follow(t, "")
	f.fresh()
	f.tree.git("checkout", "-q", "-b", "other", "HEAD~1")
	f.tree.write("a.txt", "other\n")
	f.tree.commit("other")
	if _, err := user(f.tree.dir, "rebase", "trunk"); err == nil {
		t.Fatal("the rebase did not stop")
	}
	for _, name := range []string{"index.lock", "HEAD.lock", "config.lock", "packed-refs.lock", "refs/heads/trunk.lock", "refs/remotes/origin/trunk.lock"} {
		overwrite(t, filepath.Join(f.tree.dir, ".git", name), "")
	}
	f.remote.write("a.txt", "three\n")
	f.remote.commit("three")
	f.fresh()
	if got := f.tree.git("status"); strings.Contains(got, "rebas") || strings.Contains(got, "onflict") {
		t.Errorf("status: %s", got)
	}
}

// What a build left in the sandbox's repository changes nothing about where a sync ends, and no program of it runs.
func TestStore_BringHostileTree(t *testing.T) {
	canary := filepath.Join(t.TempDir(), "canary")
	for name, harm := range hostilities(canary) {
		t.Run(name, func(t *testing.T) {
			f := follow(t, "")
			f.remote.write(".gitattributes", "*.txt filter=x\n")
			f.remote.commit("attributes")
			f.fresh()
			harm(f.tree)
			f.remote.write("b.txt", "three\n")
			f.remote.commit("three")
			tip, err := f.store.Sync(t.Context(), f.r)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.store.Bring(t.Context(), f.r, tip, localTree{dir: f.tree.dir}); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(listTree(t, f.remote.dir, false, ".git"), listTree(t, f.tree.dir, false, ".git")); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
			if _, err := os.Stat(canary); err == nil {
				t.Error("a program of the sandbox's repository ran")
			}
		})
	}
}

// configured makes a harm of settings, private one of a file in the git directory.
func configured(pairs ...string) func(repo) {
	return func(r repo) {
		for i := 0; i < len(pairs); i += 2 {
			r.git("config", pairs[i], pairs[i+1])
		}
	}
}

func private(name, text string) func(repo) {
	return func(r repo) { overwrite(r.t, filepath.Join(r.dir, ".git", name), text) }
}

func hooks(touch string) func(repo) {
	return func(r repo) {
		for _, name := range []string{"post-checkout", "reference-transaction", "post-index-change"} {
			overwrite(r.t, filepath.Join(r.dir, ".git", "hooks", name), "#!/bin/sh\n"+touch+"\n")
			if err := os.Chmod(filepath.Join(r.dir, ".git", "hooks", name), 0o755); err != nil {
				r.t.Fatal(err)
			}
		}
		r.git("config", "core.hooksPath", filepath.Join(r.dir, ".git", "hooks"))
	}
}

func hostilities(canary string) map[string]func(repo) {
	touch := "touch " + canary
	return map[string]func(repo){
		"Hooks":   hooks(touch),
		"Monitor": configured("core.fsmonitor", touch),
		"Alias":   configured("alias.warmfleet-script", "!"+touch),
		"Pager":   configured("core.pager", touch, "pager.status", touch, "pager.warmfleet-script", touch),
		"WorkTree": func(r repo) {
			r.git("config", "core.worktree", r.t.TempDir())
			r.git("config", "core.bare", "true")
		},
		"LyingFilter": func(r repo) {
			blob := r.git("rev-parse", "HEAD:a.txt")
			overwrite(r.t, filepath.Join(r.dir, "a.txt"), "changed\n")
			r.git("config", "filter.x.clean", touch+"; git cat-file blob "+blob)
			r.git("config", "filter.x.smudge", touch+"; echo smudged")
			r.git("config", "filter.x.required", "true")
		},
		"AssumeUnchanged": func(r repo) {
			r.git("update-index", "--assume-unchanged", "a.txt")
			overwrite(r.t, filepath.Join(r.dir, "a.txt"), "changed\n")
		},
		"SkipWorkTree": func(r repo) {
			r.git("update-index", "--skip-worktree", "a.txt")
			overwrite(r.t, filepath.Join(r.dir, "a.txt"), "changed\n")
		},
		"Sparse": func(r repo) {
			r.git("sparse-checkout", "set", "--cone", "dir with space")
		},
		"Attributes":  private("info/attributes", "*.txt text eol=crlf working-tree-encoding=UTF-16\n"),
		"LineEndings": configured("core.autocrlf", "true", "core.eol", "crlf"),
		"FileMode":    func(r repo) { configured("core.fileMode", "false")(r); chmod(r, "run.sh", 0o644) },
		"Alternates":  private("objects/info/alternates", "/nonexistent\n"),
		"CommonDir":   private("commondir", "/nonexistent\n"),
		"Grafts":      private("info/grafts", strings.Repeat("0", 40)+"\n"),
		"IgnoreStat": func(r repo) {
			configured("core.ignoreStat", "true")(r)
			overwrite(r.t, filepath.Join(r.dir, "a.txt"), "changed\n")
		},
		"Split":        func(r repo) { r.git("update-index", "--split-index") },
		"Replace":      func(r repo) { r.git("replace", "HEAD", "HEAD~1") },
		"TreeInTheWay": func(r repo) { r.write("b.txt/untracked", "x") },
		"LinkInTheWay": func(r repo) {
			if err := os.Symlink("/nonexistent", filepath.Join(r.dir, "b.txt")); err != nil {
				r.t.Fatal(err)
			}
		},
	}
}

func chmod(r repo, name string, mode os.FileMode) {
	if err := os.Chmod(filepath.Join(r.dir, name), mode); err != nil {
		r.t.Fatal(err)
	}
}

// lyingTree says yes to a command and does not do it.
type lyingTree struct {
	localTree
	skip string
}

func (l lyingTree) Git(ctx context.Context, c SandboxGit) (Ended, error) {
	if c.Args[0] == l.skip {
		return Ended{}, nil
	}
	return l.localTree.Git(ctx, c)
}

// A sandbox that says that all is well is not called fresh for that.
func TestStore_BringLiesAreSeen(t *testing.T) {
	for _, skip := range []string{"index-pack", "update-ref", "reset"} {
		t.Run(skip, func(t *testing.T) {
			f := follow(t, "")
			f.fresh()
			f.remote.write("a.txt", "three\n")
			f.remote.commit("three")
			tip, err := f.store.Sync(t.Context(), f.r)
			if err != nil {
				t.Fatal(err)
			}
			_, err = f.store.Bring(t.Context(), f.r, tip, lyingTree{localTree{dir: f.tree.dir}, skip})
			if err == nil || skip != "index-pack" && !errors.Is(err, ErrNotBrought) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want one line", err)
			}
		})
	}
}

// A tree that lies about what it has ends in an error, never in a stale tree that is called fresh.
func TestStore_BringLyingTree(t *testing.T) {
	f := follow(t, "")
	f.remote.commit("three")
	tip, err := f.store.Sync(t.Context(), f.r)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(f.tree.dir, ".git", "objects")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(f.tree.dir, ".git", "objects", "pack"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := f.store.Bring(t.Context(), f.r, tip, localTree{dir: f.tree.dir}); err == nil {
		t.Error("a work tree without objects was called fresh")
	}
}

// What a sync does not fill in is named.
func TestStore_BringNotes(t *testing.T) {
	f := follow(t, "")
	sub := sample(t)
	f.remote.git("submodule", "--quiet", "add", sub.dir, "sub")
	f.remote.write(".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n")
	pointer := "version https://git-lfs.github.com/spec/v1\noid sha256:" + strings.Repeat("a", 64) + "\nsize 1\n"
	f.remote.write("x.bin", pointer)
	f.remote.commit("parts elsewhere")
	f.fresh()
	tip, _ := f.store.Known(f.r)
	out, err := f.store.Bring(t.Context(), f.r, tip, localTree{dir: f.tree.dir})
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"submodules", "LFS"} {
		if !slices.ContainsFunc(out.Notes, func(n string) bool { return strings.Contains(n, word) }) {
			t.Errorf("notes: got %q, want one on %s", out.Notes, word)
		}
	}
	if got, err := os.ReadFile(filepath.Join(f.tree.dir, "x.bin")); string(got) != pointer {
		t.Errorf("x.bin: got %q, %v, want the pointer", got, err)
	}
}
