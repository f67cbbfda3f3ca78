package gitrepo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Kind tells what a path is to git.
type Kind string

// The kinds of paths.
const (
	KindNone           Kind = "none"            // in no repository
	KindWorkTree       Kind = "work_tree"       // the top of a repository's main work tree
	KindLinkedWorkTree Kind = "linked_worktree" // the top of a work tree made by `git worktree add`
	KindSubmodule      Kind = "submodule"       // the top of a submodule's work tree
	KindBare           Kind = "bare"            // a repository without a work tree
	KindSubdirectory   Kind = "subdirectory"    // below the top of a work tree
	KindGitDir         Kind = "git_directory"   // the git directory of a work tree, or inside of one
)

// Info is what Inspect finds out about a path.
type Info struct {
	Kind Kind
	Path string
	// Root is the top of the work tree, for a bare repository the repository.
	Root string
	// GitDir is the real git directory, also where .git is a file; CommonDir is where its refs and
	// objects are, another one for a linked work tree only.
	GitDir, CommonDir string
	// Head is the commit, "" when Unborn. Branch is without refs/heads/, "" when Detached.
	Head, Branch     string
	Detached, Unborn bool
	// Modified counts tracked paths that differ from Head, Untracked paths that are neither tracked nor
	// ignored (a wholly untracked directory is one).
	Modified, Untracked int
}

// Inspect describes a path. It changes nothing, not even the index's cached times, and runs no
// filter. A repository that belongs to another user is read like one's own.
func (g Git) Inspect(ctx context.Context, path string) (Info, error) {
	info, err := locate(path)
	if err != nil {
		return info, err
	}
	if info.Kind == KindNone || info.Kind == KindGitDir {
		return info, nil
	}
	if info.Kind == KindBare {
		err = g.inspectHead(ctx, &info)
	} else {
		err = g.inspectWorkTree(ctx, &info)
	}
	if err != nil {
		return info, fmt.Errorf("gitrepo: inspect %q: %w", path, err)
	}
	return info, nil
}

// locate finds the repository of a path without running git.
func locate(path string) (Info, error) {
	info := Info{Kind: KindNone, Path: path}
	st, err := os.Stat(path)
	if err != nil {
		return info, fmt.Errorf("gitrepo: inspect: %w", err)
	}
	if !st.IsDir() {
		return info, fmt.Errorf("gitrepo: inspect %q: not a directory", path)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return info, fmt.Errorf("gitrepo: inspect: %w", err)
	}
	for dir := real; ; dir = filepath.Dir(dir) {
		found, err := probe(dir, &info)
		if err != nil {
			return info, fmt.Errorf("gitrepo: inspect %q: %w", path, err)
		}
		if found && dir != real {
			info.Kind = below(info.Kind)
		}
		if found || dir == filepath.Dir(dir) {
			return info, nil
		}
	}
}

// below is the kind of a path inside a path of kind k.
func below(k Kind) Kind {
	if k == KindBare || k == KindGitDir {
		return KindGitDir
	}
	return KindSubdirectory
}

// probe fills info if dir is the top of a work tree or a git directory.
func probe(dir string, info *Info) (bool, error) {
	if common, ok := gitDir(dir); ok {
		info.Kind, info.Root, info.GitDir, info.CommonDir = KindBare, dir, dir, common
		if filepath.Base(dir) == ".git" || common != dir {
			info.Kind = KindGitDir
		}
		return true, nil
	}
	dot := filepath.Join(dir, ".git")
	st, err := os.Stat(dot)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	real := dot
	if st.Mode().IsRegular() {
		if real, err = readPointer(dot); err != nil {
			return false, err
		}
	}
	if real, err = filepath.EvalSymlinks(real); err != nil {
		return false, err
	}
	common, ok := gitDir(real)
	if !ok && st.IsDir() {
		return false, nil // git looks further up too
	}
	if !ok {
		return false, fmt.Errorf("%q points to %q, which is no git directory", dot, real)
	}
	info.Root, info.GitDir, info.CommonDir = dir, real, common
	info.Kind = workTreeKind(real, common)
	return true, nil
}

func workTreeKind(gitDirPath, common string) Kind {
	if common != gitDirPath {
		return KindLinkedWorkTree
	}
	for dir := filepath.Dir(gitDirPath); dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if filepath.Base(dir) != "modules" {
			continue
		}
		if _, ok := gitDir(filepath.Dir(dir)); ok {
			return KindSubmodule
		}
	}
	return KindWorkTree
}

// readPointer reads the git directory out of a .git file.
func readPointer(dot string) (string, error) {
	b, err := os.ReadFile(dot)
	if err != nil {
		return "", err
	}
	target, ok := strings.CutPrefix(strings.TrimRight(string(b), "\r\n"), "gitdir: ")
	if !ok {
		return "", fmt.Errorf("%q is no pointer to a git directory", dot)
	}
	if !filepath.IsAbs(target) {
		target = filepath.Join(filepath.Dir(dot), target)
	}
	if _, err := os.Stat(target); err != nil {
		return "", fmt.Errorf("%q points to a git directory that is not there: %w", dot, err)
	}
	return target, nil
}

// gitDir tells whether dir is a git directory, by the rule git uses, and where its common directory is.
func gitDir(dir string) (common string, ok bool) {
	if st, err := os.Lstat(filepath.Join(dir, "HEAD")); err != nil || st.IsDir() {
		return "", false
	}
	common = dir
	if b, err := os.ReadFile(filepath.Join(dir, "commondir")); err == nil {
		common = strings.TrimRight(string(b), "\r\n")
		if !filepath.IsAbs(common) {
			common = filepath.Join(dir, common)
		}
		if common, err = filepath.EvalSymlinks(common); err != nil {
			return "", false
		}
	}
	for _, name := range []string{"objects", "refs"} {
		if st, err := os.Stat(filepath.Join(common, name)); err != nil || !st.IsDir() {
			return "", false
		}
	}
	return common, true
}

func (g Git) inspectHead(ctx context.Context, info *Info) error {
	tip, err := g.resolve(ctx, info.GitDir, "")
	if errors.Is(err, ErrUnborn) {
		info.Unborn, info.Branch = true, tip.branch
		return nil
	}
	info.Head, info.Branch, info.Detached = tip.commit, tip.branch, tip.branch == ""
	return err
}

func (g Git) inspectWorkTree(ctx context.Context, info *Info) error {
	off, err := g.filtersOff(ctx, info.GitDir)
	if err != nil {
		return err
	}
	out, err := g.Output(ctx, Call{
		GitDir: info.GitDir, WorkTree: info.Root, Config: off,
		Args: []string{
			"--no-optional-locks", "status", "--porcelain=v2", "-z", "--branch",
			"--untracked-files=normal", "--no-renames", "--ignore-submodules=dirty",
		},
	})
	if err != nil {
		return err
	}
	for line := range bytes.SplitSeq(out, []byte{0}) {
		info.take(string(line))
	}
	return nil
}

// take reads one line of `git status --porcelain=v2 --branch`.
func (i *Info) take(line string) {
	kind, rest, _ := strings.Cut(line, " ")
	switch kind {
	case "1", "2", "u":
		i.Modified++
	case "?":
		i.Untracked++
	case "#":
		name, value, _ := strings.Cut(rest, " ")
		switch {
		case name == "branch.oid" && value == "(initial)":
			i.Unborn = true
		case name == "branch.oid":
			i.Head = value
		case name == "branch.head" && value == "(detached)":
			i.Detached = true
		case name == "branch.head":
			i.Branch = value
		}
	}
}

// filtersOff are settings that switch the repository's own filter programs off: they would run as us.
func (g Git) filtersOff(ctx context.Context, dir string) ([]string, error) {
	out, err := g.Output(ctx, Call{GitDir: dir, Args: []string{"config", "-z", "--name-only", "--get-regexp", `^filter\.`}})
	if ExitCode(err) == 1 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var off []string
	for key := range bytes.SplitSeq(out, []byte{0}) {
		i := bytes.LastIndexByte(key, '.')
		if i < 0 {
			continue
		}
		name := string(key[:i])
		off = append(off, name+".clean=", name+".smudge=", name+".process=", name+".required=false")
	}
	return off, nil
}
