package gitrepo

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/layer"
)

// repo is a repository of a test, driven by the real git as a user would.
type repo struct {
	t   *testing.T
	dir string
}

func newRepo(t *testing.T, args ...string) repo {
	t.Helper()
	r := repo{t, filepath.Join(t.TempDir(), "my repo")}
	if err := os.Mkdir(r.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	r.git(append([]string{"init", "-q", "-b", "trunk"}, args...)...)
	return r
}

// user runs git in dir as a user with an identity would, and returns its stdout.
func user(dir string, args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=T", "GIT_AUTHOR_EMAIL=t@example.com", "GIT_COMMITTER_NAME=T", "GIT_COMMITTER_EMAIL=t@example.com",
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=protocol.file.allow", "GIT_CONFIG_VALUE_0=always",
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %q in %s: %w: %s", args, dir, err, stderr.Bytes())
	}
	return strings.TrimRight(string(out), "\n"), nil
}

func (r repo) git(args ...string) string {
	r.t.Helper()
	out, err := user(r.dir, args...)
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

func (r repo) write(name, content string) {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

// commit commits everything in the work tree and returns the commit.
func (r repo) commit(message string) string {
	r.t.Helper()
	r.git("add", "-A")
	r.git("commit", "-q", "--allow-empty", "-m", message)
	return r.git("rev-parse", "HEAD")
}

// sample is a repository with two commits and one of each kind of entry.
func sample(t *testing.T) repo {
	t.Helper()
	r := newRepo(t)
	r.write("a.txt", "one\n")
	r.write("dir with space/b", "b\n")
	r.write("run.sh", "#!/bin/sh\n")
	r.write("empty", "")
	if err := os.Chmod(filepath.Join(r.dir, "run.sh"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("a.txt", filepath.Join(r.dir, "link")); err != nil {
		t.Fatal(err)
	}
	r.commit("one")
	r.write("a.txt", "two\n")
	r.commit("two")
	return r
}

// testStore is a store with a cache of its own.
type testStore struct {
	*Store
	cache *layer.Cache
}

func newStore(t *testing.T) testStore {
	t.Helper()
	return openTestStore(t, t.TempDir(), Options{})
}

func openTestStore(t *testing.T, dir string, o Options) testStore {
	t.Helper()
	cache, err := layer.OpenCache(filepath.Join(dir, "cache"), layer.Options{
		Owner: os.Getuid(), Trusted: os.Getuid() == 0, Log: zerolog.Nop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cache.Close() })
	o.Dir, o.Cache, o.Log = filepath.Join(dir, "git"), cache, zerolog.New(zerolog.NewTestWriter(t))
	s, err := OpenStore(o)
	if err != nil {
		t.Fatal(err)
	}
	return testStore{s, cache}
}

func (s testStore) path(t *testing.T, path, ref string) Base {
	t.Helper()
	b, err := s.FromPath(t.Context(), path, ref)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Release)
	return b
}

// materialise writes what a chain shows into a directory, times included: a sandbox without a mount.
func materialise(t *testing.T, chain layer.Chain) repo {
	t.Helper()
	r := repo{t, filepath.Join(t.TempDir(), "sandbox")}
	tree := layer.NewTree(chain)
	var dirs []layer.Entry
	err := tree.Walk(func(e layer.Entry) error {
		path := filepath.Join(r.dir, string(e.Path))
		switch e.Type {
		case layer.Dir:
			dirs = append(dirs, e)
			return os.Mkdir(path, 0o755)
		case layer.Symlink:
			if err := os.Symlink(string(e.Link), path); err != nil {
				return err
			}
		case layer.File:
			if err := writeEntry(tree, e, path); err != nil {
				return err
			}
		default:
			return fmt.Errorf("%q is a %s", e.Path, e.Type)
		}
		return setTime(path, e.MTime)
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func writeEntry(tree *layer.Tree, e layer.Entry, path string) error {
	src, err := tree.Open(e.Path)
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	dst, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fs.FileMode(e.Mode))
	if err != nil {
		return err
	}
	if _, err := io.Copy(dst, src); err != nil {
		return err
	}
	return dst.Close()
}

// wantSound checks that a sandbox is a healthy, clean repository at a commit whose index git trusts
// without reading a file.
func (r repo) wantSound(commit string) {
	r.t.Helper()
	if got := r.git("rev-parse", "HEAD"); got != commit {
		r.t.Errorf("HEAD: got %s, want %s", got, commit)
	}
	r.git("fsck", "--full", "--strict", "--connectivity-only")
	if got := r.git("diff-files"); got != "" {
		r.t.Errorf("stat data of the index does not match: %s", got)
	}
	if got := r.git("status", "--porcelain", "--ignored"); got != "" {
		r.t.Errorf("status: got %q, want clean", got)
	}
}

// listTree lists everything below dir with kinds, modes, contents and (if times) mtimes. Links are
// not followed; skip leaves a subtree out.
func listTree(t *testing.T, dir string, times bool, skip ...string) string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		for _, s := range skip {
			if rel == s {
				return filepath.SkipDir
			}
		}
		line, err := describe(path, d, times)
		lines = append(lines, rel+" "+line)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

func describe(path string, d fs.DirEntry, times bool) (string, error) {
	info, err := d.Info()
	if err != nil {
		return "", err
	}
	line := info.Mode().String()
	if times {
		line += info.ModTime().Format(" 15:04:05.000000000")
	}
	switch {
	case info.Mode().IsRegular():
		b, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		sum := sha256.Sum256(b)
		line += " " + hex.EncodeToString(sum[:])
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(path)
		if err != nil {
			return "", err
		}
		line += " " + target
	}
	return line, nil
}
