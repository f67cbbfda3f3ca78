package suite

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/warmfleet/warmfleet/bench/internal/bench"
)

// tree is a directory that sandboxes start from.
type tree struct {
	dir   string
	files int
	mb    int64
}

func (t tree) String() string { return fmt.Sprintf("%d files, %d MB", t.files, t.mb) }

const (
	smallFiles = 100
	smallSize  = 8 << 10 // bytes, on average that of a source file
	filesADir  = 20
)

// smallTree makes a tree of a hundred files.
func smallTree(dir string) (tree, error) {
	r := random()
	for i := range smallFiles {
		name := filepath.Join(dir, fmt.Sprintf("dir-%d", i/filesADir), fmt.Sprintf("file-%d.txt", i))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return tree{}, err
		}
		if err := os.WriteFile(name, content(r, smallSize), 0o644); err != nil {
			return tree{}, err
		}
	}
	return measure(dir)
}

// largeTree copies the Go distribution: about 15,000 files.
func largeTree(ctx context.Context, dir string) (tree, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return tree{}, fmt.Errorf("find a tree of 15,000 files: go env GOROOT: %w", err)
	}
	if err := tool(ctx, "", "cp", "-a", strings.TrimSpace(string(out))+"/.", dir); err != nil {
		return tree{}, err
	}
	return measure(dir)
}

// trees are those that a benchmark whose cost must not depend on the tree runs on.
func trees(ctx context.Context, e *bench.Env) ([]tree, error) {
	var all []tree
	for _, name := range []string{"small", "large"}[:pick(e, 2, 1)] {
		dir := filepath.Join(e.Dir, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, err
		}
		made, err := smallTree, error(nil)
		if name == "large" {
			made = func(dir string) (tree, error) { return largeTree(ctx, dir) }
		}
		t, err := made(dir)
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return all, nil
}

func measure(dir string) (tree, error) {
	t := tree{dir: dir}
	var size int64
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		t.files++
		size += info.Size()
		return nil
	})
	t.mb = size >> 20
	return t, err
}

// random is seeded: every run measures the same bytes.
func random() *rand.ChaCha8 { return rand.NewChaCha8([32]byte{'w', 'a', 'r', 'm'}) }

// content is half noise, half text: it compresses like what programs build, to a good half.
func content(r *rand.ChaCha8, size int) []byte {
	b := make([]byte, size)
	_, _ = r.Read(b[:size/2]) // never fails, says math/rand/v2
	const line = "the quick brown fox jumps over the lazy dog\n"
	for at := size / 2; at < size; {
		at += copy(b[at:], line)
	}
	return b
}

// change is what a round of a benchmark changes in a tree: path to new content.
type change map[string][]byte

const changedFiles = 16

// newChange makes a change of total bytes, spread over files that were not there, and
// replaces those of the change before.
func newChange(r *rand.ChaCha8, total, files int) change {
	c := change{}
	for i := range files {
		c[fmt.Sprintf("changed-%d/file-%d.bin", i%4, i)] = content(r, total/files)
	}
	return c
}

// write makes a change in a plain directory.
func (c change) write(dir string) error {
	for name, b := range c {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, b, 0o644); err != nil {
			return err
		}
	}
	return nil
}
