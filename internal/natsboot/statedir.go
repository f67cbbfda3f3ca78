package natsboot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// StateDirEnv names the state directory when no flag does.
const StateDirEnv = "WARMFLEET_STATE_DIR"

// ErrNoStateDir says that there is no directory to keep state in. It is a usage error
// (exit 2): the message names --state-dir.
var ErrNoStateDir = errors.New("no usable state directory")

// StateDirError tells which directories were tried. It is an ErrNoStateDir.
type StateDirError struct {
	Tried []error // one for each candidate
}

func (e *StateDirError) Error() string {
	var why []string
	for _, err := range e.Tried {
		why = append(why, err.Error())
	}
	if len(why) == 0 {
		why = []string{"no home directory is known"}
	}
	return fmt.Sprintf("natsboot: %v: %s; name one with --state-dir", ErrNoStateDir, strings.Join(why, "; "))
}

// Is makes the error an ErrNoStateDir.
func (e *StateDirError) Is(target error) bool { return target == ErrNoStateDir }

// Unwrap returns what was wrong with each candidate.
func (e *StateDirError) Unwrap() []error { return e.Tried }

// StateDir returns the absolute path of the state directory, which exists and is private
// and writable when it returns. The first of these that is set is taken: flag (the value of
// --state-dir, "" when absent), WARMFLEET_STATE_DIR. With neither, the first that can be
// used: $XDG_STATE_HOME/warmfleet, $HOME/.local/state/warmfleet, the same below the home
// of the passwd entry. The error is a *StateDirError.
func StateDir(flag string) (string, error) {
	var tried []error
	for _, dir := range stateDirs(flag) {
		abs, err := filepath.Abs(dir)
		if err == nil {
			err = preparePrivate(abs)
		}
		if err == nil {
			return abs, nil
		}
		tried = append(tried, err)
	}
	return "", &StateDirError{Tried: tried}
}

// stateDirs are the candidates, best first.
func stateDirs(flag string) []string {
	if flag != "" {
		return []string{flag}
	}
	if dir := os.Getenv(StateDirEnv); dir != "" {
		return []string{dir}
	}
	var dirs []string
	// The XDG specification has relative paths ignored.
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		dirs = append(dirs, filepath.Join(dir, "warmfleet"))
	}
	if home := os.Getenv("HOME"); filepath.IsAbs(home) {
		dirs = append(dirs, filepath.Join(home, ".local/state/warmfleet"))
	}
	if u, err := user.LookupId(strconv.Itoa(os.Getuid())); err == nil && filepath.IsAbs(u.HomeDir) {
		dirs = append(dirs, filepath.Join(u.HomeDir, ".local/state/warmfleet"))
	}
	return dirs
}

// preparePrivate makes dir a directory of this user that nobody else may enter.
func preparePrivate(dir string) error {
	if err := checkLinks(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	fi, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if owner := ownerOf(fi); owner != os.Geteuid() {
		return fmt.Errorf("%s belongs to uid %d", dir, owner)
	}
	if fi.Mode().Perm() != 0o700 {
		if err := makePrivate(dir, fi); err != nil {
			return err
		}
	}
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return fmt.Errorf("%s is not writable: %w", dir, err)
	}
	return hideFromGit(dir)
}

// hideFromGit keeps what is ours out of the status and the commits of a work tree that a new state directory lies in.
func hideFromGit(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) > 0 {
		return err
	}
	return os.WriteFile(filepath.Join(dir, ".gitignore"), []byte("# everything here is warmfleet's own\n*\n"), 0o600)
}

// makePrivate takes the rights of others away, but only from a directory that is ours
// alone: --state-dir /tmp must not change /tmp.
func makePrivate(dir string, fi fs.FileInfo) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	_, err = os.Lstat(filepath.Join(dir, lockFile))
	if len(entries) == 0 || err == nil {
		return os.Chmod(dir, 0o700)
	}
	if fi.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s holds other files and others may write to it", dir)
	}
	return nil
}

// checkLinks refuses symbolic links on the way to dir that another user than this one and
// root could turn elsewhere.
func checkLinks(dir string) error {
	for p := dir; ; p = filepath.Dir(p) {
		fi, err := os.Lstat(p)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err == nil && fi.Mode()&fs.ModeSymlink != 0 {
			owner := ownerOf(fi)
			if owner != os.Geteuid() && (owner != 0 || p == dir) {
				return fmt.Errorf("%s is a symbolic link of uid %d", p, owner)
			}
		}
		if p == filepath.Dir(p) {
			return nil
		}
	}
}

// ownerOf returns the uid of a file, or -1 where files have none.
func ownerOf(fi fs.FileInfo) int {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return -1
}
