package suite

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/otiai10/copy"

	"github.com/warmfleet/warmfleet/bench/internal/bench"
)

// other is another way to keep the state of a tree.
type other struct {
	name  string
	ratio float64 // ours should take no more of its time; 0 is no target
	time  bench.Timed
}

// rival is a tree of its own that is changed by as much as ours each round, and kept in other ways.
type rival struct {
	dir, work string
	edit      func() edit
}

// others are what is installed, each ready for its first round.
func others(ctx context.Context, t tree, dir string) ([]other, error) {
	r := random()
	v := rival{dir: dir, work: filepath.Join(dir, "work"), edit: func() edit { return t.edit(r, megabyte, changedFiles) }}
	if err := tool(ctx, dir, "cp", "-a", t.dir, v.work); err != nil {
		return nil, err
	}
	to := filepath.Join(dir, "copied")
	all := []other{
		{"otiai10/copy of the tree", 1.0 / 300, v.copied(to, func(context.Context) error { return copy.Copy(v.work, to) })},
		{"cp -a of the tree", 0, v.copied(to, func(ctx context.Context) error { return tool(ctx, dir, "cp", "-a", v.work, to) })},
	}
	reflink := func(ctx context.Context) error { return tool(ctx, dir, "cp", "-a", "--reflink=always", v.work, to) }
	if reflink(ctx) == nil {
		all = append(all, other{"cp -a --reflink of the tree", 0, v.copied(to, reflink)})
	}
	if err := os.RemoveAll(to); err != nil {
		return nil, err
	}
	if installed("tar") && installed("zstd") {
		all = append(all, other{"tar | zstd -1 of the tree", 0, v.changed(func(ctx context.Context) error {
			return tool(ctx, v.work, "sh", "-c", "tar -cf - . | zstd -1 -q -f -o ../tree.tar.zst")
		})})
	}
	for _, add := range []func(context.Context) (*other, error){v.git, v.restic} {
		o, err := add(ctx)
		if err != nil {
			return nil, err
		}
		if o != nil {
			all = append(all, *o)
		}
	}
	return all, nil
}

// changed measures keep after a change.
func (v rival) changed(keep func(ctx context.Context) error) bench.Timed {
	return func(ctx context.Context) (time.Duration, error) {
		if err := v.edit().write(v.work); err != nil {
			return 0, err
		}
		return bench.Time(func() error { return keep(ctx) })
	}
}

// copied measures a copy to a place that is emptied again.
func (v rival) copied(to string, keep func(ctx context.Context) error) bench.Timed {
	return func(ctx context.Context) (time.Duration, error) {
		d, err := v.changed(keep)(ctx)
		return d, errors.Join(err, os.RemoveAll(to))
	}
}

func (v rival) git(ctx context.Context) (*other, error) {
	if !installed("git") {
		return nil, nil
	}
	repo := filepath.Join(v.dir, "repo.git")
	git := func(ctx context.Context, args ...string) error {
		return tool(ctx, v.work, "git", append([]string{"--git-dir", repo, "--work-tree", v.work}, args...)...)
	}
	index := func(ctx context.Context) error {
		return errors.Join(git(ctx, "add", "-A", "-f"), git(ctx, "write-tree"))
	}
	if err := errors.Join(git(ctx, "init", "-q"), index(ctx)); err != nil {
		return nil, err
	}
	return &other{"git add and write-tree", 1.0 / 10, v.changed(index)}, nil
}

func (v rival) restic(ctx context.Context) (*other, error) {
	if !installed("restic") {
		return nil, nil
	}
	repo := filepath.Join(v.dir, "restic")
	restic := func(ctx context.Context, args ...string) error {
		c := exec.CommandContext(ctx, "restic", append([]string{"--repo", repo, "--no-cache", "-q"}, args...)...)
		c.Dir, c.Env = v.work, append(os.Environ(), "RESTIC_PASSWORD=bench")
		return c.Run()
	}
	backup := func(ctx context.Context) error { return restic(ctx, "backup", ".") }
	if err := errors.Join(restic(ctx, "init"), backup(ctx)); err != nil {
		return nil, err
	}
	return &other{"restic, incremental", 1.0 / 50, v.changed(backup)}, nil
}

// compressed is the size in bytes of what an edit writes, as zstd -1 makes it.
func compressed(e edit) int {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		panic("zstd: " + err.Error()) // only options that do not exist do that
	}
	defer enc.Close()
	var all []byte
	switch e := e.(type) {
	case spot:
		all = e.content
	case change:
		for _, b := range e {
			all = append(all, b...)
		}
	}
	return len(enc.EncodeAll(all, nil))
}
