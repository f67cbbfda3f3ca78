package layer

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// steps are what a sandbox may do to a tree; their keys name the tests.
var steps = map[string]func(dir string) error{
	"Nothing":        func(string) error { return nil },
	"EditFile":       func(d string) error { return write(d, "a.txt", "edited\n") },
	"EditInReadOnly": func(d string) error { return editReadOnly(d) },
	"AppendDeep":     func(d string) error { return write(d, "dir/sub/z", "longer content than before\n") },
	"TouchOnly":      func(d string) error { return os.Chtimes(d+"/a.txt", time.Time{}, time.Unix(1000, 7)) },
	"OpenNoWrite":    openNoWrite,
	"SameSizeSameTime": func(d string) error {
		return keepTime(d+"/a.txt", func() error { return os.WriteFile(d+"/a.txt", []byte("ALPHA\n"), 0o644) })
	},
	"ChmodOnly":     func(d string) error { return os.Chmod(d+"/a.txt", 0o600) },
	"ChmodNone":     func(d string) error { return errors.Join(os.Chmod(d+"/a.txt", 0), os.Chmod(d+"/dir", 0)) },
	"ChmodRoot":     func(d string) error { return os.Chmod(d, 0o700) },
	"Xattrs":        changeXattrs,
	"DeleteFile":    func(d string) error { return os.Remove(d + "/a.txt") },
	"DeleteDir":     func(d string) error { return os.RemoveAll(d + "/dir") },
	"DeleteAll":     deleteAll,
	"RecreateDir":   recreateDir,
	"MakeAndDelete": makeAndDelete,
	"FileToDir":     func(d string) error { return replace(d, "a.txt", "dir") },
	"FileToLink":    func(d string) error { return replace(d, "a.txt", "link") },
	"DirToFile":     func(d string) error { return replace(d, "dir", "file") },
	"DirToLink":     func(d string) error { return replace(d, "dir", "link") },
	"LinkToFile":    func(d string) error { return replace(d, "cur", "file") },
	"LinkToDir":     func(d string) error { return replace(d, "cur", "dir") },
	"Retarget":      func(d string) error { return replace(d, "cur", "link") },
	"RenameFile":    func(d string) error { return os.Rename(d+"/a.txt", d+"/dir/b.txt") },
	"NewFiles":      newFiles,
	"WriteLinked":   func(d string) error { return appendTo(d + "/h1") },
	"WriteLinkedGone": func(d string) error {
		return errors.Join(appendTo(d+"/h1"), os.Remove(d+"/h1"))
	},
	"BreakLink":     breakLink,
	"AddLink":       func(d string) error { return os.Link(d+"/h1", d+"/empty/h4") },
	"LinkPlain":     func(d string) error { return os.Link(d+"/a.txt", d+"/dir/a2") },
	"RemoveLink":    func(d string) error { return os.Remove(d + "/h1") },
	"Sparse":        func(d string) error { return sparse(d + "/dir/sparse") },
	"Socket":        func(d string) error { return socket(d + "/dir/new.sock") },
	"Fifo":          func(d string) error { return unix.Mkfifo(d+"/dir/q", 0o640) },
	"JournalDir":    func(d string) error { return write(d, JournalDir+"/x", "x") },
	"RemoveSpecial": func(d string) error { return os.RemoveAll(d + "/odd") },

	// Renames of directories that came with the base: EXDEV where overlayfs has no redirects.
	"RenameDir":       func(d string) error { return os.Rename(d+"/dir", d+"/dir2") },
	"RenameDirDown":   func(d string) error { return os.Rename(d+"/dir", d+"/empty/dir") },
	"RenameDirTwice":  renameTwice,
	"SwapDirs":        swapDirs,
	"RenameAndChange": renameAndChange,
	"RenameNested":    renameNested,
	"RenameOverOld":   renameOverOld,
	"RenameWithLinks": func(d string) error { return errors.Join(os.Rename(d+"/dir", d+"/dir2"), appendTo(d+"/h1")) },
	"RenameThenLink":  func(d string) error { return errors.Join(appendTo(d+"/h1"), os.Rename(d+"/dir", d+"/empty/n")) },
	"RenameLinkedDir": func(d string) error { return os.Rename(d+"/dir", d+"/empty/n") },
	"RenameThenOpaque": func(d string) error {
		return errors.Join(os.Rename(d+"/dir/sub", d+"/sub2"), os.RemoveAll(d+"/dir"), os.Mkdir(d+"/dir", 0o755))
	},
}

// runStep runs a step by name, or "write PATH CONTENT", "remove PATH", "mkdir PATH".
func runStep(step, dir string) error {
	if do, ok := steps[step]; ok {
		return do(dir)
	}
	words := strings.Fields(step)
	switch words[0] {
	case "write":
		return write(dir, words[1], words[2])
	case "remove":
		return os.RemoveAll(filepath.Join(dir, words[1]))
	case "mkdir":
		return os.Mkdir(filepath.Join(dir, words[1]), 0o755)
	}
	return errors.New("no step " + step)
}

// needsRedirect tells which steps a userxattr overlay answers with EXDEV.
func needsRedirect(step string) bool {
	return strings.HasPrefix(step, "RenameDir") || strings.HasPrefix(step, "Swap") || step == "RenameAndChange" ||
		strings.HasPrefix(step, "RenameNested") || strings.HasPrefix(step, "RenameOver") ||
		strings.HasPrefix(step, "RenameWith") || strings.HasPrefix(step, "RenameThen") || step == "RenameLinkedDir"
}

func write(dir, name, content string) error {
	p := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		return err
	}
	return os.WriteFile(p, []byte(content), 0o644)
}

func appendTo(p string) error {
	f, err := os.OpenFile(p, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString("more\n")
	return errors.Join(err, f.Close())
}

func keepTime(p string, do func() error) error {
	info, err := os.Stat(p)
	if err != nil {
		return err
	}
	return errors.Join(do(), os.Chtimes(p, time.Time{}, info.ModTime()))
}

func openNoWrite(d string) error {
	f, err := os.OpenFile(d+"/dir/x", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

func editReadOnly(d string) error {
	return errors.Join(os.Chmod(d+"/ro", 0o755), os.Remove(d+"/ro/f"), write(d, "ro/g", "new"), os.Chmod(d+"/ro", 0o555))
}

func changeXattrs(d string) error {
	return errors.Join(
		unix.Setxattr(d+"/a.txt", "user.new", []byte("a\x00b"), 0),
		unix.Setxattr(d+"/dir/x", "user.kept", []byte("changed"), 0),
		unix.Removexattr(d+"/dir", "user.dir"),
		unix.Setxattr(d+"/empty", "user.overlay.opaque", []byte("y"), 0))
}

func deleteAll(d string) error {
	entries, err := os.ReadDir(d)
	for _, e := range entries {
		p := filepath.Join(d, e.Name())
		if e.IsDir() {
			openUp(p)
		}
		err = errors.Join(err, os.RemoveAll(p))
	}
	return err
}

// openUp makes directories removable for an ordinary user.
func openUp(dir string) {
	os.Chmod(dir, 0o755)
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			openUp(filepath.Join(dir, e.Name()))
		}
	}
}

func recreateDir(d string) error {
	return errors.Join(os.RemoveAll(d+"/dir"), os.Mkdir(d+"/dir", 0o750), write(d, "dir/only", "only\n"))
}

func makeAndDelete(d string) error {
	return errors.Join(write(d, "tmp/x", "x"), os.RemoveAll(d+"/tmp"))
}

func replace(d, name, kind string) error {
	p := filepath.Join(d, name)
	if err := os.RemoveAll(p); err != nil {
		return err
	}
	switch kind {
	case "dir":
		return write(d, name+"/in", "in\n")
	case "link":
		return os.Symlink("../outside", p)
	}
	return write(d, name, "file now\n")
}

func newFiles(d string) error {
	return errors.Join(
		write(d, "new/a/b.txt", "b\n"), write(d, "new/-rf", "dash"), write(d, "new/.wh.a", "not a whiteout"),
		write(d, "new/\xff\xfe", "bytes"), write(d, "new/new\nline", "line"),
		os.Chmod(d+"/new/a/b.txt", 0o4751), os.Symlink("nowhere", d+"/new/dangling"),
		os.Link(d+"/new/a/b.txt", d+"/new/c"), os.Chmod(d+"/new/a", 0o555))
}

func breakLink(d string) error {
	b, err := os.ReadFile(d + "/h2")
	return errors.Join(err, os.Remove(d+"/h2"), os.WriteFile(d+"/h2", b, 0o644))
}

func sparse(p string) error {
	f, err := os.Create(p)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte("middle"), 1<<20)
	return errors.Join(err, f.Truncate(3<<20), f.Close())
}

func socket(p string) error {
	// bind has room for 108 bytes of path
	if err := os.Chdir(filepath.Dir(p)); err != nil {
		return err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Base(p)})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	return errors.Join(l.Close(), os.Chdir("/"))
}

func renameTwice(d string) error {
	return errors.Join(os.Rename(d+"/dir", d+"/d2"), os.Rename(d+"/d2", d+"/empty/d3"), os.Rename(d+"/empty/d3", d+"/d4"))
}

func swapDirs(d string) error {
	return errors.Join(os.Rename(d+"/dir", d+"/t"), os.Rename(d+"/other", d+"/dir"), os.Rename(d+"/t", d+"/other"))
}

func renameAndChange(d string) error {
	return errors.Join(os.Rename(d+"/dir", d+"/dir2"), os.Remove(d+"/dir2/x"), write(d, "dir2/sub/z", "changed\n"),
		write(d, "dir2/sub/new", "new\n"), os.Mkdir(d+"/dir", 0o700), write(d, "dir/x", "another\n"))
}

func renameNested(d string) error {
	return errors.Join(os.Rename(d+"/dir/sub", d+"/dir/sub2"), os.Rename(d+"/dir", d+"/dir2"), os.Rename(d+"/dir2/sub2", d+"/out"))
}

func renameOverOld(d string) error {
	return errors.Join(os.Rename(d+"/dir", d+"/dir2"), os.Rename(d+"/other", d+"/dir"), appendTo(d+"/h1"))
}

// seed makes the tree that steps change.
func seed(t testing.TB, dir string) {
	t.Helper()
	must(t, write(dir, "a.txt", "alpha\n"))
	must(t, write(dir, "dir/x", "x\n"))
	must(t, write(dir, "dir/sub/z", "z\n"))
	must(t, write(dir, "dir/sub/deep/w", "w\n"))
	must(t, write(dir, "other/o", "o\n"))
	must(t, write(dir, "run.sh", "#!/bin/sh\n"))
	must(t, os.Chmod(dir+"/run.sh", 0o755))
	must(t, os.Mkdir(dir+"/empty", 0o755))
	must(t, os.Symlink("dir", dir+"/cur"))
	must(t, os.Symlink("nowhere", dir+"/dangling"))
	must(t, write(dir, "h1", "linked\n"))
	must(t, os.Link(dir+"/h1", dir+"/h2"))
	must(t, os.Link(dir+"/h1", dir+"/dir/h3"))
	must(t, sparse(dir+"/holes"))
	must(t, unix.Mkfifo(dir+"/pipe", 0o600))
	must(t, write(dir, "twin1", "twin"))
	must(t, write(dir, "twin2", "twin"))
	must(t, write(dir, "odd/-rf", "dash"))
	must(t, write(dir, "odd/.wh.x", "not a whiteout"))
	must(t, write(dir, "odd/\xff\xfe", "bytes"))
	must(t, write(dir, "odd/a-b", "sorts before a/b"))
	must(t, write(dir, "odd/a/b", "b"))
	must(t, write(dir, "odd/new\nline", "line"))
	must(t, write(dir, "suid", "s"))
	must(t, os.Chmod(dir+"/suid", 0o755|os.ModeSetuid))
	must(t, unix.Setxattr(dir+"/dir/x", "user.kept", []byte{0, 1, 2}, 0))
	must(t, unix.Setxattr(dir+"/dir", "user.dir", []byte("d"), 0))
	must(t, write(dir, "ro/f", "read only"))
	must(t, os.Chmod(dir+"/ro/f", 0o444))
	must(t, write(dir, "closed/f", "hidden"))
	must(t, os.Chmod(dir+"/closed/f", 0))
	must(t, os.Chmod(dir+"/closed", 0))
	must(t, os.Chmod(dir+"/ro", 0o555))
	for _, old := range []string{"a.txt", "dir/x", "h1", "pipe", "empty", "twin1", "twin2"} {
		must(t, os.Chtimes(filepath.Join(dir, old), time.Time{}, time.Unix(1_600_000_000, 123_456_789)))
	}
	ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: 1_500_000_000, Nsec: 987_654_321}}
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, dir+"/cur", ts, unix.AT_SYMLINK_NOFOLLOW))
	must(t, os.Chtimes(dir, time.Time{}, time.Unix(-5, 5)))
}
