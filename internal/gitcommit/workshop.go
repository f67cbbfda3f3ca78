// Package gitcommit makes the commit of what a sandbox changed, and brings it to a branch of a
// repository at a path: the commit that `git add` of the changed files and `git commit` would make in the sandbox,
// merged with where the branch is by now.
//
// A Workshop computes, in a git directory of its own: it reads objects of the repository, and of its configuration only what
// decides how bytes are recorded. So no hook, filter, merge driver, signing program or file system monitor of a repository runs. What is
// written into a repository (objects, a ref) is written by git as the owner of that repository. Where the branch is checked out, its
// index and ref are extra changes of the applier's journal (see Extras), made under git's own index.lock.
//
// The package knows git, layers' changes and the applier. It must not know plans, events, workers or NATS, nor
// how anything comes to a remote.
package gitcommit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/warmfleet/warmfleet/internal/gitrepo"
	"github.com/warmfleet/warmfleet/internal/layer"
)

// Tree is one side of what a sandbox changed.
type Tree interface {
	// Lookup describes a path; fs.ErrNotExist where there is none.
	Lookup(p layer.Path) (layer.Entry, error)
	// Open reads a regular file.
	Open(p layer.Path) (io.ReadCloser, error)
}

// Refusal says why a commit cannot be brought to its branch as things are; people can mend it, and nothing was changed.
type Refusal struct {
	// Code is for programs.
	Code string
	// What is refused: a file, a branch or a directory. Why says the rest, with what to do.
	What, Why string
}

// The codes of refusals.
const (
	CodeInProgress = "git_in_progress" // a merge, rebase, cherry-pick, revert or bisect is not finished
	CodeCheckedOut = "checked_out"     // the branch is checked out in another work tree
	CodeLocked     = "index_locked"    // another git process holds the index
	CodeNoBranch   = "no_branch"       // HEAD names no branch, and none was asked for
	CodeGone       = "branch_gone"     // the branch that the sandbox started from is gone
	CodeRef        = "ref_refused"     // git refuses the branch, or to write it
	CodeWrite      = "not_writable"    // this process may not write into the repository
)

func (r *Refusal) Error() string { return r.What + ": " + r.Why }

func refuse(code, what, format string, args ...any) error {
	return &Refusal{Code: code, What: what, Why: fmt.Sprintf(format, args...)}
}

// Workshop is where commits are made. It is not safe for concurrent use.
type Workshop struct {
	git   gitrepo.Git
	facts gitrepo.Facts
	dir   string
	n     int // of files and directories made so far
	empty string
}

// OpenWorkshop makes a workshop in a new directory below parent, which Close removes.
func OpenWorkshop(ctx context.Context, git gitrepo.Git, parent string, facts gitrepo.Facts) (*Workshop, error) {
	dir, err := os.MkdirTemp(parent, "commit-")
	if err != nil {
		return nil, fmt.Errorf("gitcommit: open workshop: %w", err)
	}
	w := &Workshop{git: git, facts: facts, dir: dir}
	if err := w.prepare(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("gitcommit: open workshop: %w", err), w.Close())
	}
	return w, nil
}

// Close removes the workshop with all objects that were not stored elsewhere.
func (w *Workshop) Close() error { return os.RemoveAll(w.dir) }

// GitDir is a git directory that has every commit made here. Alternates are the object directories it needs beside its own.
func (w *Workshop) GitDir() string { return filepath.Join(w.dir, "git") }

// Borrow adds an object directory that commits to come may need.
func (w *Workshop) Borrow(objects string) {
	if !slices.Contains(w.facts.Objects, objects) {
		w.facts.Objects = append(w.facts.Objects, objects)
	}
}

// Alternates are the object directories that commits made here need besides GitDir's.
func (w *Workshop) Alternates() []string { return w.facts.Objects }

func (w *Workshop) prepare(ctx context.Context) error {
	for _, name := range []string{"objects", "refs", "info"} {
		if err := os.MkdirAll(filepath.Join(w.GitDir(), name), 0o700); err != nil {
			return err
		}
	}
	config := "[core]\n\trepositoryformatversion = 0\n\tbare = false\n"
	if w.facts.Format == "sha256" {
		config = "[core]\n\trepositoryformatversion = 1\n\tbare = false\n[extensions]\n\tobjectformat = sha256\n"
	}
	for name, content := range map[string][]byte{
		"config": []byte(config), "HEAD": []byte("ref: refs/heads/none\n"), "shallow": w.facts.Shallow,
		"info/exclude": w.facts.Exclude, "info/attributes": w.facts.Attributes,
	} {
		if content == nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(w.GitDir(), name), content, 0o600); err != nil {
			return err
		}
	}
	var err error
	w.empty, err = w.line(ctx, gitrepo.Call{Args: []string{"hash-object", "-t", "tree", "-w", "--stdin"}, Stdin: strings.NewReader("")})
	return err
}

// path gives a name for one more file or directory.
func (w *Workshop) path(kind string) string {
	w.n++
	return filepath.Join(w.dir, kind+"-"+strconv.Itoa(w.n))
}

// output runs git in the workshop.
func (w *Workshop) output(ctx context.Context, c gitrepo.Call) ([]byte, error) {
	c.GitDir, c.Alternates = w.GitDir(), w.facts.Objects
	c.Config = append(append([]string{}, w.facts.Core...), c.Config...)
	return w.git.Output(ctx, c)
}

// line is output without the end of its only line.
func (w *Workshop) line(ctx context.Context, c gitrepo.Call) (string, error) {
	out, err := w.output(ctx, c)
	return strings.TrimRight(string(out), "\n\x00"), err
}

// treeOf is a commit's tree, the empty one for "".
func (w *Workshop) treeOf(ctx context.Context, commit string) (string, error) {
	if commit == "" {
		return w.empty, nil
	}
	out, err := w.line(ctx, gitrepo.Call{
		Args: []string{"cat-file", "--batch-check=%(objectname) %(objecttype)"}, Stdin: strings.NewReader(commit + "^{tree}\n"),
	})
	if err != nil {
		return "", err
	}
	id, ok := strings.CutSuffix(out, " tree")
	if !ok {
		return "", fmt.Errorf("gitcommit: read commit %s: it is not in the repository", commit)
	}
	return id, nil
}

// blob is what git records of a path: "" mode for nothing.
type blob struct{ mode, id string }

const (
	modeFile    = "100644"
	modeExec    = "100755"
	modeLink    = "120000"
	modeGitlink = "160000"
)

// change is one path that differs between two trees.
type change struct {
	path   string
	before blob
	after  blob
}

func zero(id string) bool { return strings.Trim(id, "0") == "" }

// diff lists the paths that differ between two trees, submodules included.
func (w *Workshop) diff(ctx context.Context, from, to string) ([]change, error) {
	out, err := w.output(ctx, gitrepo.Call{Args: []string{"diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", "--full-index", from, to}})
	if err != nil {
		return nil, err
	}
	return parseRaw(out)
}

// parseRaw reads raw output of a diff with -z: ":<mode> <mode> <id> <id> <status>\0<path>\0".
func parseRaw(out []byte) ([]change, error) {
	fields := bytes.Split(bytes.TrimSuffix(out, []byte{0}), []byte{0})
	if len(out) == 0 {
		return nil, nil
	}
	var all []change
	for i := 0; i+1 < len(fields); i += 2 {
		f := strings.Fields(strings.TrimPrefix(string(fields[i]), ":"))
		if len(f) != 5 {
			return nil, fmt.Errorf("gitcommit: read a difference: %q", fields[i])
		}
		c := change{path: string(fields[i+1]), before: blob{f[0], f[2]}, after: blob{f[1], f[3]}}
		if zero(c.before.mode) {
			c.before = blob{}
		}
		if zero(c.after.mode) {
			c.after = blob{}
		}
		all = append(all, c)
	}
	return all, nil
}
