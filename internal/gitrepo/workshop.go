package gitrepo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/layer"
)

// settleTime keeps the times of checked-out files clear of the present, in seconds: a step that
// rewrites a file with as many bytes in the second of its mtime would go unnoticed by git.
const settleTime = 10

// workshop is where layers of one source are made: a git directory of our own with the source's
// object format and shallow boundary and no objects, refs or foreign settings. Its user holds the
// lock of the source's record.
type workshop struct {
	git   Git
	cache *layer.Cache
	dir   string
	mtime time.Time // of every file made
}

// openWorkshop makes or completes the git directory.
func openWorkshop(git Git, cache *layer.Cache, dir string, src source) (workshop, error) {
	w := workshop{git: git, cache: cache, dir: dir}
	for _, d := range []string{"objects", "refs", "info"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			return w, fmt.Errorf("gitrepo: open workshop: %w", err)
		}
	}
	files := []privateFile{
		{"HEAD", []byte("ref: refs/heads/none\n")},
		{"config", []byte(formatSection(src.format()))},
		{"info/attributes", src.attributes},
	}
	if src.shallow != nil {
		files = append(files, privateFile{"shallow", src.shallow})
	}
	if err := writeFiles(dir, files); err != nil {
		return w, fmt.Errorf("gitrepo: open workshop: %w", err)
	}
	return w, nil
}

// formatSection is the start of a repository's config file.
func formatSection(format string) string {
	if format == "sha256" {
		return "[core]\n\trepositoryformatversion = 1\n\tbare = false\n[extensions]\n\tobjectformat = sha256\n"
	}
	return "[core]\n\trepositoryformatversion = 0\n\tbare = false\n"
}

type privateFile struct {
	name    string
	content []byte
}

func writeFiles(dir string, files []privateFile) error {
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(dir, f.name), f.content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// commitTime is when the commit was made, kept clear of the present and of times before 1970.
func (w workshop) commitTime(ctx context.Context, commit string, objects []string) (time.Time, error) {
	out, err := w.git.Output(ctx, Call{GitDir: w.dir, Alternates: objects, Args: []string{"cat-file", "commit", commit}})
	if err != nil {
		return time.Time{}, err
	}
	head, _, _ := bytes.Cut(out, []byte("\n\n"))
	for line := range strings.SplitSeq(string(head), "\n") {
		f := strings.Fields(line)
		if len(f) < 3 || f[0] != "committer" {
			continue
		}
		sec, err := strconv.ParseInt(f[len(f)-2], 10, 64)
		if err != nil {
			break
		}
		return time.Unix(max(1, min(sec, time.Now().Unix()-settleTime)), 0), nil
	}
	return time.Unix(1, 0), nil
}

// finishTree gives everything below dir its final mode, time and owner: git's own depend on the
// umask, the clock and who runs it.
func finishTree(dir string, mtime time.Time) error {
	own, err := ownerOf(dir)
	if err != nil {
		return err
	}
	objects := objectsDir(dir) + string(filepath.Separator)
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if err := finish(path, info, finalMode(info.Mode(), strings.HasPrefix(path, objects)), own); err != nil {
			return err
		}
		return setTime(path, mtime)
	})
	if err != nil {
		return fmt.Errorf("gitrepo: finish layer: %w", err)
	}
	return nil
}

// owner is whom files are given to; uid -1 leaves them alone.
type owner struct{ uid, gid int }

// ownerOf is the owner of the layers of a cache, which a staged directory already has.
func ownerOf(staged string) (owner, error) {
	var st unix.Stat_t
	if err := unix.Lstat(staged, &st); err != nil {
		return owner{}, fmt.Errorf("gitrepo: stat %q: %w", staged, err)
	}
	if os.Geteuid() != 0 || st.Uid == 0 {
		return owner{-1, -1}, nil
	}
	return owner{int(st.Uid), int(st.Gid)}, nil
}

func finalMode(m fs.FileMode, object bool) fs.FileMode {
	switch {
	case m.IsDir():
		return 0o755
	case object:
		return 0o444
	case m.Perm()&0o100 != 0:
		return 0o755
	}
	return 0o644
}

func finish(path string, info fs.FileInfo, mode fs.FileMode, own owner) error {
	if own.uid >= 0 {
		if err := os.Lchown(path, own.uid, own.gid); err != nil {
			return err
		}
	}
	if t := info.Mode().Type(); (t == 0 || t == fs.ModeDir) && info.Mode().Perm() != mode {
		if err := os.Chmod(path, mode); err != nil {
			return err
		}
	}
	return nil
}

func setTime(path string, mtime time.Time) error {
	ts := []unix.Timespec{unix.NsecToTimespec(mtime.UnixNano()), unix.NsecToTimespec(mtime.UnixNano())}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, path, ts, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &fs.PathError{Op: "set time", Path: path, Err: err}
	}
	return nil
}

// copyFile copies a small file.
func copyFile(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o644)
}

// discardOn discards a staged layer if the work on it failed.
func discardOn(err *error, staged *layer.Staged) {
	if *err != nil {
		*err = errors.Join(*err, staged.Discard())
	}
}
