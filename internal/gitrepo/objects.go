package gitrepo

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/warmfleet/warmfleet/internal/layer"
)

// packHeader is the length of a pack's header: signature, version, number of objects (gitformat-pack).
const packHeader = 12

// objectsDir is where a layer keeps objects.
func objectsDir(layerDir string) string { return filepath.Join(layerDir, ".git", "objects") }

func objectDirs(chain layer.Chain) []string {
	dirs := make([]string, len(chain))
	for i, l := range chain {
		dirs[i] = objectsDir(l.Dir)
	}
	return dirs
}

// hasCommit tells whether chain holds the commit. A pack of ours is made of all that is reachable
// from a commit, so what the commit needs is there too.
func (w workshop) hasCommit(ctx context.Context, chain layer.Chain, commit string) (bool, error) {
	if len(chain) == 0 {
		return false, nil
	}
	err := w.git.Run(ctx, Call{GitDir: w.dir, Alternates: objectDirs(chain), Args: []string{"cat-file", "-e", commit}})
	if ExitCode(err) == 1 {
		return false, nil
	}
	return err == nil, err
}

// addObjects makes a layer of the objects that src's commit needs and chain lacks; tips are commits
// that chain holds. Its cost follows the new objects. It reads the source's object directory as an
// alternate of a repository of ours, so the source's configuration is never loaded.
func (w workshop) addObjects(ctx context.Context, src source, chain layer.Chain, tips []string) (layer.Layer, error) {
	var revs strings.Builder
	fmt.Fprintf(&revs, "%s\n--not\n", src.commit)
	for _, t := range tips {
		fmt.Fprintln(&revs, t)
	}
	return w.pack(ctx, Call{
		GitDir: w.dir, Alternates: append([]string{src.objects}, objectDirs(chain)...),
		// No search for deltas: those of the source are used again, and loose objects are copied quickly.
		Config: []string{"pack.compression=1"},
		Args:   []string{"pack-objects", "--revs", "--stdout", "--window=0", "--delta-base-offset", "-q"},
		Stdin:  strings.NewReader(revs.String()),
	})
}

// mergeObjects makes one layer of the packs of chain.
func (w workshop) mergeObjects(ctx context.Context, chain layer.Chain) (layer.Layer, error) {
	var packs strings.Builder
	for _, dir := range objectDirs(chain) {
		found, err := filepath.Glob(filepath.Join(dir, "pack", "pack-*.pack"))
		if err != nil {
			return layer.Layer{}, err
		}
		for _, p := range found {
			fmt.Fprintln(&packs, filepath.Base(p))
		}
	}
	return w.pack(ctx, Call{
		GitDir: w.dir, Alternates: objectDirs(chain),
		Args:  []string{"pack-objects", "--stdin-packs", "--stdout", "--window=0", "--delta-base-offset", "-q"},
		Stdin: strings.NewReader(packs.String()),
	})
}

// pack runs a pack-objects and makes a layer of what it writes.
func (w workshop) pack(ctx context.Context, packer Call) (_ layer.Layer, err error) {
	staged, err := w.cache.Stage()
	if err != nil {
		return layer.Layer{}, err
	}
	defer discardOn(&err, staged)
	objects := objectsDir(staged.Dir())
	if err := os.MkdirAll(filepath.Join(objects, "pack"), 0o755); err != nil {
		return layer.Layer{}, err
	}
	if err := w.indexPack(ctx, packer, objects); err != nil {
		return layer.Layer{}, err
	}
	if err := finishTree(staged.Dir(), w.mtime); err != nil {
		return layer.Layer{}, err
	}
	return staged.Commit(layer.Meta{})
}

// indexPack pipes packer into index-pack, which checks every object and writes the pack with a
// .keep file: a `git gc` in a sandbox then leaves it alone instead of copying it.
func (w workshop) indexPack(ctx context.Context, packer Call, objects string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r, wr, err := os.Pipe()
	if err != nil {
		return err
	}
	packer.Stdout = wr
	packed := make(chan error, 1)
	go func() {
		err := w.git.Run(ctx, packer)
		packed <- errors.Join(err, wr.Close())
	}()
	err = w.receivePack(ctx, r, objects)
	// A packer whose reader is gone ends by SIGPIPE.
	if closeErr := r.Close(); err == nil {
		err = closeErr
	}
	if packErr := <-packed; packErr != nil {
		return packErr
	}
	return err
}

func (w workshop) receivePack(ctx context.Context, r io.Reader, objects string) error {
	header := make([]byte, packHeader)
	if _, err := io.ReadFull(r, header); err != nil {
		return fmt.Errorf("read pack: %w", err)
	}
	if binary.BigEndian.Uint32(header[8:]) == 0 {
		return errors.New("pack has no objects")
	}
	return w.git.Run(ctx, Call{
		GitDir: w.dir, Objects: objects,
		Args:   []string{"index-pack", "--stdin", "--keep=base"},
		Stdin:  io.MultiReader(bytes.NewReader(header), r),
		Stdout: io.Discard,
	})
}
