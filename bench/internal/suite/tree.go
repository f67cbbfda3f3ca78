package suite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/warmfleet/warmfleet/bench/internal/bench"
	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/pkg/sandbox"
)

// tree is a directory that sandboxes start from.
type tree struct {
	dir   string
	files int
	mb    int64
	// big, if not "", is the file that changes are made in; else they are made in files of their own.
	big string
}

func (t tree) String() string {
	if t.big != "" {
		return fmt.Sprintf("within a file of %d MB", t.mb)
	}
	return fmt.Sprintf("%d files, %d MB", t.files, t.mb)
}

// large tells whether the target ratios are about a tree of this size.
func (t tree) large() bool { return t.files > 1000 }

// slow tells whether those who copy or read the tree take seconds for it.
func (t tree) slow() bool { return t.large() || t.mb > 50 }

const (
	smallFiles = 100
	manyFiles  = 100_000
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

// smallTreeOf makes the small tree in a benchmark's directory.
func smallTreeOf(e *bench.Env) (tree, error) {
	dir := filepath.Join(e.Dir, "tree")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return tree{}, err
	}
	return smallTree(dir)
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

// histories are the trees whose checkpoints are compared with other ways to keep them.
func histories(ctx context.Context, e *bench.Env) ([]tree, error) {
	all, err := trees(ctx, e)
	if err != nil {
		return nil, err
	}
	big, err := bigTree(filepath.Join(e.Dir, "big"), pick(e, 2000, 16))
	if err != nil || e.Quick {
		return append(all, big), err
	}
	many, err := manyTree(filepath.Join(e.Dir, "many"))
	return append(all, many, big), err
}

// manyTree makes a tree of a hundred thousand small files.
func manyTree(dir string) (tree, error) {
	b := content(random(), smallSize)
	for i := range manyFiles {
		name := filepath.Join(dir, fmt.Sprintf("dir-%d", i/100), fmt.Sprintf("file-%d.txt", i))
		if i%100 == 0 {
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				return tree{}, err
			}
		}
		if err := os.WriteFile(name, b[:1+i*7919%2048], 0o644); err != nil {
			return tree{}, err
		}
	}
	return measure(dir)
}

// bigTree makes a tree of one file.
func bigTree(dir string, mb int) (t tree, err error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return tree{}, err
	}
	f, err := os.Create(filepath.Join(dir, bigName))
	if err != nil {
		return tree{}, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	r := random()
	for range mb {
		if _, err := f.Write(content(r, megabyte)); err != nil {
			return tree{}, err
		}
	}
	t, err = measure(dir)
	t.big = bigName
	return t, err
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

const bigName = "big.bin"

// edit is what a round of a benchmark changes in a tree.
type edit interface {
	// write makes it in a plain directory, writeIn in a sandbox.
	write(dir string) error
	writeIn(ctx context.Context, sb *sandbox.Sandbox) error
}

// edit makes a change of total bytes, in that many files where the tree takes files.
func (t tree) edit(r *rand.ChaCha8, total, files int) edit {
	if t.big == "" {
		return newChange(r, total, files)
	}
	const block = 4096
	places := t.mb*megabyte/block - int64(total/block)
	return spot{name: t.big, block: int64(r.Uint64() % uint64(max(places, 1))), content: content(r, total)}
}

// spot is a change within a file, from a block of 4096 bytes on.
type spot struct {
	name    string
	block   int64
	content []byte
}

func (s spot) write(dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, s.name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(s.content, s.block*4096)
	return errors.Join(err, f.Close())
}

func (s spot) writeIn(ctx context.Context, sb *sandbox.Sandbox) error {
	const patch = ".patch"
	if err := sb.WriteFile(ctx, isolate.FileWrite{Path: patch, Content: s.content}); err != nil {
		return err
	}
	script := fmt.Sprintf("dd if=%s of=%s bs=4096 seek=%d conv=notrunc status=none && rm %s", patch, s.name, s.block, patch)
	return execute(ctx, sb, "sh", "-c", script)
}

// change is files of a tree with their new content.
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
