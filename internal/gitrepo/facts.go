package gitrepo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

// Facts are what work on the commits of a repository takes over of it. Everything else of its configuration stays behind.
type Facts struct {
	// Objects are its object directories.
	Objects []string
	// Format is sha1 or sha256.
	Format string
	// Core are "core.name=value" settings that decide how files are checked out and recorded.
	Core []string
	// Author is the identity in its own configuration, empty where it has none.
	Author Identity
	// Exclude, Attributes and Shallow are the files of these names in it.
	Exclude, Attributes, Shallow []byte
	// Filters are the names that its configuration has a filter program for.
	Filters []string
}

// FactsOf reads the facts of the repository that Inspect or Locate described.
func (g Git) FactsOf(ctx context.Context, i Info) (Facts, error) {
	f, err := g.factsOf(ctx, i)
	if err != nil {
		return f, fmt.Errorf("gitrepo: read %q: %w", i.Path, err)
	}
	return f, nil
}

func (g Git) factsOf(ctx context.Context, i Info) (Facts, error) {
	objects, err := filepath.EvalSymlinks(filepath.Join(i.CommonDir, "objects"))
	if err != nil {
		return Facts{}, err
	}
	s, err := g.settingsOf(ctx, i.GitDir, i.CommonDir)
	if err != nil {
		return Facts{}, err
	}
	f := Facts{Objects: []string{objects}, Core: s.core, Author: s.author, Exclude: s.exclude, Attributes: s.attributes}
	if f.Shallow, err = shallowOf(i.CommonDir); err != nil {
		return f, err
	}
	out, err := g.Output(ctx, Call{GitDir: i.GitDir, Args: []string{"rev-parse", "--show-object-format"}})
	if err != nil {
		return f, err
	}
	f.Format = strings.TrimSpace(string(out))
	off, err := g.filtersOff(ctx, i.GitDir)
	for _, setting := range off {
		name, _, _ := strings.Cut(setting, "=")
		name = strings.TrimPrefix(name, "filter.")
		if at := strings.LastIndexByte(name, '.'); at > 0 && !slices.Contains(f.Filters, name[:at]) {
			f.Filters = append(f.Filters, name[:at])
		}
	}
	return f, err
}

// FormatOf is the object format that the length of an object name tells.
func FormatOf(id string) string { return tip{commit: id}.format() }

// Resolve finds the commit of a full ref; ErrNoRef where it has none.
func (g Git) Resolve(ctx context.Context, gitDir, ref string) (string, error) {
	t, err := g.firstCommit(ctx, gitDir, ref)
	return t.commit, err
}

// Opener reads a regular file of a tree; fs.ErrNotExist where there is none.
type Opener func(path string) (io.ReadCloser, error)

// HeadIn reads what HEAD named when a tree was taken that has a git directory in it: the commit, "" for an unborn branch, and the
// branch, "" when detached. It is false where the tree has no git directory, or one of another form than files.
func HeadIn(open Opener) (commit, branch string, ok bool) {
	head, err := readIn(open, ".git/HEAD")
	if err != nil {
		return "", "", false
	}
	ref, symbolic := strings.CutPrefix(head, "ref: ")
	if !symbolic {
		return head, "", isObjectID(head)
	}
	branch, ok = strings.CutPrefix(ref, headsPrefix)
	if !ok {
		return "", "", false
	}
	loose, err := readIn(open, ".git/"+ref)
	if err == nil {
		return loose, branch, isObjectID(loose)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", "", false
	}
	if _, err := readIn(open, ".git/reftable/tables.list"); err == nil {
		return "", "", false
	}
	packed, err := readIn(open, ".git/packed-refs")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", "", false
	}
	return packedIn([]byte(packed), ref), branch, true
}

// maxRefFile bounds a file that refs are read from, in bytes.
const maxRefFile = 64 << 20

func readIn(open Opener, path string) (string, error) {
	r, err := open(path)
	if err != nil {
		return "", err
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, maxRefFile))
	return strings.TrimSpace(string(b)), err
}
