package gitrepo

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Versions are the three sides of a file that is merged, and its path, whose attributes decide how.
type Versions struct {
	Path               string
	Base, Ours, Theirs []byte
}

// Merger merges text files by content, as git does. It has a directory of its own, removed by Close, and reads of the work
// tree its attributes and nothing else.
type Merger struct {
	git      Git
	dir      string
	workTree string
}

// NewMerger makes a Merger for files of a work tree, with a directory in parent.
func (g Git) NewMerger(parent, workTree string) (*Merger, error) {
	dir, err := os.MkdirTemp(parent, "merge-")
	if err != nil {
		return nil, fmt.Errorf("gitrepo: merge files: %w", err)
	}
	m := &Merger{git: g, dir: dir, workTree: workTree}
	if err := skeleton(filepath.Join(dir, "git"), "sha1"); err != nil {
		return nil, fmt.Errorf("gitrepo: merge files: %w", err)
	}
	return m, nil
}

// Close removes the Merger's directory.
func (m *Merger) Close() error { return os.RemoveAll(m.dir) }

// Merge merges one file. It is false when changes overlap, when the file is binary, or when its attributes forbid a merge. No
// merge program of anybody's configuration runs.
func (m *Merger) Merge(ctx context.Context, v Versions) ([]byte, bool, error) {
	driver, err := m.driver(ctx, v.Path)
	if err != nil {
		return nil, false, fmt.Errorf("gitrepo: merge %q: %w", v.Path, err)
	}
	args := []string{"merge-file", "-p", "-q"}
	switch driver {
	case "unset", "binary":
		return nil, false, nil
	case "union":
		args = append(args, "--union")
	}
	for _, side := range []struct {
		name    string
		content []byte
	}{{"ours", v.Ours}, {"base", v.Base}, {"theirs", v.Theirs}} {
		if bytes.IndexByte(side.content, 0) >= 0 {
			return nil, false, nil
		}
		if err := os.WriteFile(filepath.Join(m.dir, side.name), side.content, 0o600); err != nil {
			return nil, false, fmt.Errorf("gitrepo: merge %q: %w", v.Path, err)
		}
	}
	out, err := m.git.Output(ctx, Call{GitDir: filepath.Join(m.dir, "git"), Dir: m.dir, Args: append(args, "ours", "base", "theirs")})
	if ExitCode(err) > 0 { // the number of conflicts, or 255 for what is no text
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("gitrepo: merge %q: %w", v.Path, err)
	}
	return out, true, nil
}

// driver is what the attribute merge of a path says.
func (m *Merger) driver(ctx context.Context, path string) (string, error) {
	out, err := m.git.Output(ctx, Call{
		GitDir: filepath.Join(m.dir, "git"), WorkTree: m.workTree, Config: []string{"core.bare=false"},
		Args: []string{"check-attr", "-z", "--stdin", "merge"}, Stdin: strings.NewReader(path + "\x00"),
	})
	if err != nil {
		return "", err
	}
	fields := strings.Split(string(out), "\x00")
	if len(fields) < 3 {
		return "", nil
	}
	return fields[2], nil
}
