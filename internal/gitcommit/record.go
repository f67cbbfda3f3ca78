package gitcommit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/warmfleet/warmfleet/internal/gitrepo"
	"github.com/warmfleet/warmfleet/internal/layer"
)

// copied is a directory with some paths of a tree in it, and with the files that decide how git records them.
type copied struct {
	dir     string
	digests map[layer.Path]string // of the regular files' bytes as they were copied
	entries map[layer.Path]layer.Entry
}

// ruleFiles are looked for in every directory above a path.
func ruleFiles() []string { return []string{".gitattributes", ".gitignore"} }

// copyOut copies paths of a tree, those of them that are files or links, with the rules that hold for them.
func (w *Workshop) copyOut(tree Tree, paths []layer.Path) (*copied, error) {
	c := &copied{dir: w.path("tree"), digests: map[layer.Path]string{}, entries: map[layer.Path]layer.Entry{}}
	if err := os.Mkdir(c.dir, 0o700); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(c.dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	seen := map[layer.Path]bool{}
	one := func(p layer.Path) error {
		if seen[p] {
			return nil
		}
		seen[p] = true
		return c.add(root, tree, p)
	}
	for _, p := range paths {
		if err := one(p); err != nil {
			return nil, fmt.Errorf("gitcommit: copy %q: %w", p, err)
		}
		for dir := path.Dir(string(p)); ; dir = path.Dir(dir) {
			if seen[layer.Path(dir+"/")] {
				break
			}
			seen[layer.Path(dir+"/")] = true
			for _, name := range ruleFiles() {
				if err := one(layer.Path(path.Join(dir, name))); err != nil {
					return nil, fmt.Errorf("gitcommit: copy %q: %w", path.Join(dir, name), err)
				}
			}
			if dir == "." {
				break
			}
		}
	}
	return c, nil
}

// add copies one path if it is a file or a link; everything else is nothing to git.
func (c *copied) add(root *os.Root, tree Tree, p layer.Path) error {
	e, err := tree.Lookup(p)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if e.Type != layer.File && e.Type != layer.Symlink {
		return nil
	}
	if err := root.MkdirAll(path.Dir(string(p)), 0o700); err != nil {
		return err
	}
	c.entries[p] = e
	if e.Type == layer.Symlink {
		return root.Symlink(string(e.Link), string(p))
	}
	r, err := tree.Open(p)
	if err != nil {
		return err
	}
	defer r.Close()
	mode := fs.FileMode(0o600)
	if e.Mode&0o100 != 0 {
		mode = 0o700
	}
	f, err := root.OpenFile(string(p), os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	h := sha256.New()
	_, err = io.Copy(io.MultiWriter(f, h), r)
	c.digests[p] = "sha256:" + hex.EncodeToString(h.Sum(nil))
	return errors.Join(err, f.Close())
}

// index makes an index file of a tree's entries.
func (w *Workshop) index(ctx context.Context, tree string) (string, error) {
	index := w.path("index")
	_, err := w.output(ctx, gitrepo.Call{Index: index, Args: []string{"read-tree", tree}})
	return index, err
}

// add records what a directory has at paths in an index; a path that is not there is removed from it.
func (w *Workshop) add(ctx context.Context, index, dir string, paths []layer.Path) error {
	var there, gone []layer.Path // for a directory in its place, update-index would fail
	for _, p := range paths {
		if fi, err := os.Lstat(filepath.Join(dir, string(p))); err == nil && !fi.IsDir() {
			there = append(there, p)
		} else {
			gone = append(gone, p)
		}
	}
	for args, paths := range map[string][]layer.Path{"--force-remove": gone, "--add": there} {
		if len(paths) == 0 {
			continue
		}
		_, err := w.output(ctx, gitrepo.Call{
			Index: index, WorkTree: dir, Args: []string{"update-index", "-z", "--replace", args, "--stdin"}, Stdin: list(paths),
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// staged lists an index's entries; those of a merge that is not finished have the mode "unmerged".
func (w *Workshop) staged(ctx context.Context, index string) (map[string]blob, error) {
	out, err := w.output(ctx, gitrepo.Call{Index: index, Args: []string{"ls-files", "-s", "-z"}})
	if err != nil {
		return nil, err
	}
	return parseStaged(out), nil
}

// parseStaged reads what `git ls-files -s -z` prints.
func parseStaged(out []byte) map[string]blob {
	all := map[string]blob{}
	for entry := range strings.SplitSeq(string(out), "\x00") {
		meta, name, ok := strings.Cut(entry, "\t")
		f := strings.Fields(meta)
		if !ok || len(f) != 3 {
			continue
		}
		all[name] = blob{f[0], f[1]}
		if f[2] != "0" {
			all[name] = blob{mode: "unmerged"}
		}
	}
	return all
}

// ignored are those of paths that git would not add. Paths that the index has are never ignored.
func (w *Workshop) ignored(ctx context.Context, index, dir string, paths []layer.Path) (map[layer.Path]bool, error) {
	all := map[layer.Path]bool{}
	if len(paths) == 0 {
		return all, nil
	}
	out, err := w.output(ctx, gitrepo.Call{
		Index: index, WorkTree: dir, Args: []string{"check-ignore", "-z", "--stdin"}, Stdin: list(paths),
	})
	if err != nil && gitrepo.ExitCode(err) != 1 {
		return nil, err
	}
	for p := range strings.SplitSeq(string(out), "\x00") {
		if p != "" {
			all[layer.Path(p)] = true
		}
	}
	return all, nil
}

// filtered are those of paths that git would pass through a program of the repository's configuration, or through git-lfs.
func (w *Workshop) filtered(ctx context.Context, index, dir string, paths []layer.Path) ([]layer.Path, error) {
	out, err := w.output(ctx, gitrepo.Call{
		Index: index, WorkTree: dir, Args: []string{"check-attr", "-z", "--stdin", "filter"}, Stdin: list(paths),
	})
	if err != nil {
		return nil, err
	}
	fields := strings.Split(string(out), "\x00")
	var found []layer.Path
	for i := 0; i+2 < len(fields); i += 3 {
		name := fields[i+2]
		for _, known := range append([]string{"lfs"}, w.facts.Filters...) {
			if name == known {
				found = append(found, layer.Path(fields[i]))
				break
			}
		}
	}
	return found, nil
}

// list is paths as git reads them with -z.
func list(paths []layer.Path) io.Reader {
	var b strings.Builder
	for _, p := range paths {
		b.WriteString(string(p))
		b.WriteByte(0)
	}
	return strings.NewReader(b.String())
}

// digestFile reads a file's digest and size.
func digestFile(name string) (string, int64, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", 0, err
	}
	digest, err := digestOf(f)
	return digest, info.Size(), err
}

func digestOf(r io.Reader) (string, error) {
	h := sha256.New()
	_, err := io.Copy(h, r)
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), err
}

// dirs gives the directories above a path, the nearest first, without the root.
func dirs(p string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for d := path.Dir(p); d != "."; d = path.Dir(d) {
			if !yield(d) {
				return
			}
		}
	}
}

// dirContent is content from a directory that only this process writes.
type dirContent string

// Open implements applier.Content.
func (d dirContent) Open(p layer.Path) (io.ReadCloser, error) {
	return os.Open(filepath.Join(string(d), string(p)))
}
