package layertest

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// JournalDir is the directory that no layer keeps (layer.JournalDir).
const JournalDir = ".warmfleet-apply"

// Step is something that a sandbox may do to the seeded tree at dir.
type Step func(dir string) error

// Steps are what the conformance suite does; their keys name its tests.
func Steps() map[string]Step {
	all := map[string]Step{
		"Nothing":        func(string) error { return nil },
		"EditFile":       func(d string) error { return Write(d, "a.txt", "edited\n") },
		"EditInReadOnly": func(d string) error { return EditReadOnly(d) },
		"AppendDeep":     func(d string) error { return Write(d, "dir/sub/z", "longer content than before\n") },
		"TouchOnly":      func(d string) error { return os.Chtimes(d+"/a.txt", time.Time{}, time.Unix(1000, 7)) },
		"OpenNoWrite":    openNoWrite,
		"SameSizeSameTime": func(d string) error {
			return KeepTime(d+"/a.txt", func() error { return os.WriteFile(d+"/a.txt", []byte("ALPHA\n"), 0o644) })
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
		"FileToDir":     func(d string) error { return Replace(d, "a.txt", "dir") },
		"FileToLink":    func(d string) error { return Replace(d, "a.txt", "link") },
		"DirToFile":     func(d string) error { return Replace(d, "dir", "file") },
		"DirToLink":     func(d string) error { return Replace(d, "dir", "link") },
		"LinkToFile":    func(d string) error { return Replace(d, "cur", "file") },
		"LinkToDir":     func(d string) error { return Replace(d, "cur", "dir") },
		"Retarget":      func(d string) error { return Replace(d, "cur", "link") },
		"RenameFile":    func(d string) error { return os.Rename(d+"/a.txt", d+"/dir/b.txt") },
		"NewFiles":      newFiles,
		"WriteLinked":   func(d string) error { return AppendTo(d + "/h1") },
		"WriteLinkedGone": func(d string) error {
			return errors.Join(AppendTo(d+"/h1"), os.Remove(d+"/h1"))
		},
		"BreakLink":  BreakLink,
		"AddLink":    func(d string) error { return os.Link(d+"/h1", d+"/empty/h4") },
		"LinkPlain":  func(d string) error { return os.Link(d+"/a.txt", d+"/dir/a2") },
		"RemoveLink": func(d string) error { return os.Remove(d + "/h1") },
		"Sparse":     func(d string) error { return Sparse(d + "/dir/sparse") },
		"Socket":     func(d string) error { return Socket(d + "/dir/new.sock") },
		"Fifo":       func(d string) error { return unix.Mkfifo(d+"/dir/q", 0o640) },
		"EditReadOnlyAgain": func(d string) error {
			return errors.Join(os.Chmod(d+"/ro", 0o755), Write(d, "ro/g", "newer"), os.RemoveAll(d+"/ro/f"), Write(d, "ro/f", "f again"), os.Chmod(d+"/ro", 0o555))
		},
		"RemoveReadOnly": func(d string) error { return errors.Join(os.Chmod(d+"/ro", 0o755), os.RemoveAll(d+"/ro")) },
		"JournalDir":     func(d string) error { return Write(d, JournalDir+"/x", "x") },
		"RemoveSpecial":  func(d string) error { return os.RemoveAll(d + "/odd") },
	}
	maps.Copy(all, renames())
	return all
}

// renames are of directories that came with the base: EXDEV where overlayfs has no redirects.
func renames() map[string]Step {
	return map[string]Step{
		"RenameDir":       func(d string) error { return os.Rename(d+"/dir", d+"/dir2") },
		"RenameDirDown":   func(d string) error { return os.Rename(d+"/dir", d+"/empty/dir") },
		"RenameDirTwice":  renameTwice,
		"SwapDirs":        swapDirs,
		"RenameAndChange": renameAndChange,
		"RenameNested":    renameNested,
		"RenameOverOld":   renameOverOld,
		"RenameWithLinks": func(d string) error { return errors.Join(os.Rename(d+"/dir", d+"/dir2"), AppendTo(d+"/h1")) },
		"RenameThenLink":  func(d string) error { return errors.Join(AppendTo(d+"/h1"), os.Rename(d+"/dir", d+"/empty/n")) },
		"RenameLinkedDir": func(d string) error { return os.Rename(d+"/dir", d+"/empty/n") },
		"RenameThenOpaque": func(d string) error {
			return errors.Join(os.Rename(d+"/dir/sub", d+"/sub2"), os.RemoveAll(d+"/dir"), os.Mkdir(d+"/dir", 0o755))
		},
	}
}

// RunStep runs a step by name, or "write PATH CONTENT", "append PATH", "remove PATH", "mkdir PATH", "chmod PATH", "rename PATH TO",
// "link PATH TO".
func RunStep(step, dir string) error {
	if do, ok := Steps()[step]; ok {
		return do(dir)
	}
	words := strings.Fields(step)
	switch words[0] {
	case "write":
		return Write(dir, words[1], words[2])
	case "remove":
		return os.RemoveAll(filepath.Join(dir, words[1]))
	case "mkdir":
		return os.Mkdir(filepath.Join(dir, words[1]), 0o755)
	case "append":
		return AppendTo(filepath.Join(dir, words[1]))
	case "chmod":
		return os.Chmod(filepath.Join(dir, words[1]), 0o700)
	case "rename":
		return os.Rename(filepath.Join(dir, words[1]), filepath.Join(dir, words[2]))
	case "link":
		return os.Link(filepath.Join(dir, words[1]), filepath.Join(dir, words[2]))
	}
	return errors.New("no step " + step)
}

// NeedsRedirect tells which steps an overlay of an ordinary user answers with EXDEV.
func NeedsRedirect(step string) bool {
	_, ok := renames()[step]
	return ok
}

// Write makes a file with its parents.
func Write(dir, name, content string) error {
	p := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		return err
	}
	return os.WriteFile(p, []byte(content), 0o644)
}

// AppendTo adds a line to a file.
func AppendTo(p string) error {
	f, err := os.OpenFile(p, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString("more\n")
	return errors.Join(err, f.Close())
}

// KeepTime puts a file's time of modification back after do.
func KeepTime(p string, do func() error) error {
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

// EditReadOnly changes what a directory without write permission holds.
func EditReadOnly(d string) error {
	return errors.Join(os.Chmod(d+"/ro", 0o755), os.Remove(d+"/ro/f"), Write(d, "ro/g", "new"), os.Chmod(d+"/ro", 0o555))
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
	return errors.Join(os.RemoveAll(d+"/dir"), os.Mkdir(d+"/dir", 0o750), Write(d, "dir/only", "only\n"))
}

func makeAndDelete(d string) error {
	return errors.Join(Write(d, "tmp/x", "x"), os.RemoveAll(d+"/tmp"))
}

// Replace makes something of another kind of name: dir, link or file.
func Replace(d, name, kind string) error {
	p := filepath.Join(d, name)
	if err := os.RemoveAll(p); err != nil {
		return err
	}
	switch kind {
	case "dir":
		return Write(d, name+"/in", "in\n")
	case "link":
		return os.Symlink("../outside", p)
	}
	return Write(d, name, "file now\n")
}

func newFiles(d string) error {
	return errors.Join(
		Write(d, "new/a/b.txt", "b\n"), Write(d, "new/-rf", "dash"), Write(d, "new/.wh.a", "not a whiteout"),
		Write(d, "new/\xff\xfe", "bytes"), Write(d, "new/new\nline", "line"),
		os.Chmod(d+"/new/a/b.txt", 0o4751), os.Symlink("nowhere", d+"/new/dangling"),
		os.Link(d+"/new/a/b.txt", d+"/new/c"), os.Chmod(d+"/new/a", 0o555))
}

// BreakLink makes h2 a file of its own.
func BreakLink(d string) error {
	b, err := os.ReadFile(d + "/h2")
	return errors.Join(err, os.Remove(d+"/h2"), os.WriteFile(d+"/h2", b, 0o644))
}

// Sparse makes a file of 3 MiB with a few bytes in the middle.
func Sparse(p string) error {
	f, err := os.Create(p)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte("middle"), 1<<20)
	return errors.Join(err, f.Truncate(3<<20), f.Close())
}

// Socket leaves a socket at p.
func Socket(p string) error {
	dir, err := os.Open(filepath.Dir(p))
	if err != nil {
		return err
	}
	defer dir.Close()
	// By descriptor: bind has room for 108 bytes of path.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(p))})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	return l.Close()
}

func renameTwice(d string) error {
	return errors.Join(os.Rename(d+"/dir", d+"/d2"), os.Rename(d+"/d2", d+"/empty/d3"), os.Rename(d+"/empty/d3", d+"/d4"))
}

func swapDirs(d string) error {
	return errors.Join(os.Rename(d+"/dir", d+"/t"), os.Rename(d+"/other", d+"/dir"), os.Rename(d+"/t", d+"/other"))
}

func renameAndChange(d string) error {
	return errors.Join(os.Rename(d+"/dir", d+"/dir2"), os.Remove(d+"/dir2/x"), Write(d, "dir2/sub/z", "changed\n"),
		Write(d, "dir2/sub/new", "new\n"), os.Mkdir(d+"/dir", 0o700), Write(d, "dir/x", "another\n"))
}

func renameNested(d string) error {
	return errors.Join(os.Rename(d+"/dir/sub", d+"/dir/sub2"), os.Rename(d+"/dir", d+"/dir2"), os.Rename(d+"/dir2/sub2", d+"/out"))
}

func renameOverOld(d string) error {
	return errors.Join(os.Rename(d+"/dir", d+"/dir2"), os.Rename(d+"/other", d+"/dir"), AppendTo(d+"/h1"))
}

// Seed makes the tree that the steps change.
func Seed(t testing.TB, dir string) {
	t.Helper()
	must(t, Write(dir, "a.txt", "alpha\n"))
	must(t, Write(dir, "dir/x", "x\n"))
	must(t, Write(dir, "dir/sub/z", "z\n"))
	must(t, Write(dir, "dir/sub/deep/w", "w\n"))
	must(t, Write(dir, "other/o", "o\n"))
	must(t, Write(dir, "run.sh", "#!/bin/sh\n"))
	must(t, os.Chmod(dir+"/run.sh", 0o755))
	must(t, os.Mkdir(dir+"/empty", 0o755))
	must(t, os.Symlink("dir", dir+"/cur"))
	must(t, os.Symlink("nowhere", dir+"/dangling"))
	must(t, Write(dir, "h1", "linked\n"))
	must(t, os.Link(dir+"/h1", dir+"/h2"))
	must(t, os.Link(dir+"/h1", dir+"/dir/h3"))
	must(t, Sparse(dir+"/holes"))
	must(t, unix.Mkfifo(dir+"/pipe", 0o600))
	must(t, Write(dir, "twin1", "twin"))
	must(t, Write(dir, "twin2", "twin"))
	must(t, Write(dir, "odd/-rf", "dash"))
	must(t, Write(dir, "odd/.wh.x", "not a whiteout"))
	must(t, Write(dir, "odd/\xff\xfe", "bytes"))
	must(t, Write(dir, "odd/a-b", "sorts before a/b"))
	must(t, Write(dir, "odd/a/b", "b"))
	must(t, Write(dir, "odd/new\nline", "line"))
	must(t, Write(dir, "suid", "s"))
	must(t, os.Chmod(dir+"/suid", 0o755|os.ModeSetuid))
	must(t, unix.Setxattr(dir+"/dir/x", "user.kept", []byte{0, 1, 2}, 0))
	must(t, unix.Setxattr(dir+"/dir", "user.dir", []byte("d"), 0))
	must(t, Write(dir, "ro/f", "read only"))
	must(t, os.Chmod(dir+"/ro/f", 0o444))
	must(t, Write(dir, "closed/f", "hidden"))
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
