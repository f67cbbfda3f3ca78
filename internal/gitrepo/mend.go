package gitrepo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// errDamaged reports a mirror that lacks what it should have.
var errDamaged = errors.New("the mirror is damaged")

const (
	// doubtFile in a mirror's home asks the next fetch to check it first.
	doubtFile = "doubt"
	// checkLimit bounds that check; a mirror too large for it counts as sound.
	checkLimit = 2 * time.Minute
)

// mending runs work on the mirror. Where it fails for what a killed git left, or because the mirror is damaged, it is run
// again without that, or on a mirror that is made anew; the old one stays in place until the new one is whole.
func (f fetcher) mending(ctx context.Context, format string, work func(fetcher) error) error {
	doubt := filepath.Join(f.home, doubtFile)
	if _, err := os.Lstat(doubt); err == nil && !f.sound(ctx) || !f.isFormat(format) {
		return f.rebuild(ctx, format, work)
	}
	if err := skeleton(f.dir, format); err != nil {
		return err
	}
	err := work(f)
	if err == nil || ctx.Err() != nil || !errors.Is(err, errDamaged) && (ExitCode(err) <= 0 || errors.Is(err, ErrDenied)) {
		return err
	}
	removed, lockErr := removeLocks(f.dir)
	if lockErr != nil {
		return fmt.Errorf("%w: %w", err, lockErr)
	}
	if removed > 0 {
		err = work(f)
	}
	if err == nil || ctx.Err() != nil || f.sound(ctx) {
		return err
	}
	return f.rebuild(ctx, format, work)
}

// sound tells whether all that the mirror's refs need is there.
func (f fetcher) sound(ctx context.Context) bool {
	limited, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	err := f.git.Run(limited, Call{GitDir: f.dir, Args: []string{"fsck", "--connectivity-only", "--no-dangling", "--no-progress"}})
	return ExitCode(err) <= 0
}

// isFormat tells whether the mirror has the remote's object format, or does not exist.
func (f fetcher) isFormat(format string) bool {
	have, err := os.ReadFile(filepath.Join(f.dir, "config"))
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	return strings.Contains(string(have), "objectformat = sha256") == (format == "sha256")
}

// rebuild makes the mirror anew beside the old one and puts it in its place.
func (f fetcher) rebuild(ctx context.Context, format string, work func(fetcher) error) error {
	fresh, old := f, f.dir+".old"
	fresh.dir = f.dir + ".new"
	if err := errors.Join(os.RemoveAll(fresh.dir), os.RemoveAll(old)); err != nil {
		return err
	}
	f.log.Warn().Str("remote", f.remote.url).Msg("a mirror is damaged and is fetched anew")
	if err := skeleton(fresh.dir, format); err != nil {
		return err
	}
	if err := work(fresh); err != nil {
		return err
	}
	if err := os.Rename(f.dir, old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(fresh.dir, f.dir); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(f.home, doubtFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(old)
}

// doubt asks the next fetch of a remote to check its mirror, if a git that read it failed.
func (s *Store) doubt(r remote, err error) {
	if ExitCode(err) <= 0 {
		return
	}
	if err := os.WriteFile(filepath.Join(s.mirrorHome(r), doubtFile), nil, 0o600); err != nil {
		s.opt.Log.Warn().Err(err).Str("remote", r.url).Msg("mark a mirror as doubtful")
	}
}

// removeLocks removes what killed gits left and returns how many: the mirror's own lock is held, so nobody else uses them.
func removeLocks(dir string) (int, error) {
	n := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == "objects":
			return filepath.SkipDir
		case !d.IsDir() && strings.HasSuffix(d.Name(), ".lock"):
			n++
			return os.Remove(path)
		}
		return nil
	})
	return n, err
}
