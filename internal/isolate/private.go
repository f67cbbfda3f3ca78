package isolate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// memoryDir holds files in memory on every common system.
const memoryDir = "/dev/shm"

// makePrivate makes what a hosted init has to itself on the host: a directory with HOME and a place for temporary
// files, and one in memory for secrets.
func (i *Init) makePrivate() error {
	var err error
	if i.private, err = os.MkdirTemp("", "warmfleet-home-"); err != nil {
		return err
	}
	if i.config.Rung == RungBare {
		return nil
	}
	dirs := []string{i.private, filepath.Join(i.private, "home"), filepath.Join(i.private, "tmp")}
	var fs unix.Statfs_t
	if unix.Statfs(memoryDir, &fs) == nil && fs.Type == unix.TMPFS_MAGIC {
		if i.secrets, err = os.MkdirTemp(memoryDir, "warmfleet-secrets-"); err != nil {
			return err
		}
		dirs = append(dirs, i.secrets)
	}
	owner := i.config.Rung.Owner()
	for _, d := range dirs {
		if err := os.Mkdir(d, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		if err := os.Chown(d, owner, owner); err != nil && os.Geteuid() == 0 {
			return err
		}
	}
	return nil
}

func (i *Init) removePrivate() {
	for _, dir := range []string{i.private, i.secrets} {
		if dir != "" {
			removeAll(dir)
		}
	}
}

// letPass opens the directories above a workspace to the group of the sandbox's user, for searching alone, where they
// are the worker's own (Config.Within) and closed.
func (i *Init) letPass(dir string) error {
	owner := i.config.Rung.Owner()
	if owner == os.Getuid() {
		return nil
	}
	for at := filepath.Dir(filepath.Clean(dir)); ; at = filepath.Dir(at) {
		var st unix.Stat_t
		if err := unix.Stat(at, &st); err != nil {
			return fmt.Errorf("look at %q: %w", at, err)
		}
		group := int(st.Gid) == owner && st.Mode&unix.S_IXGRP != 0
		if !group && (st.Mode&unix.S_IXOTH == 0 || int(st.Gid) == owner) && int(st.Uid) != owner {
			if !i.isWithin(at) {
				return fmt.Errorf("the user %d of sandboxes may not pass %q: use --state-dir to name a directory that everybody can reach", owner, at)
			}
			if err := errors.Join(os.Chown(at, -1, owner), os.Chmod(at, os.FileMode(st.Mode&0o777)|0o010)); err != nil {
				return fmt.Errorf("let the user of sandboxes pass %q: %w", at, err)
			}
		}
		if at == "/" || at == "." {
			return nil
		}
	}
}

func (i *Init) isWithin(dir string) bool {
	within := i.config.Within
	return within != "" && (dir == within || strings.HasPrefix(dir, within+"/"))
}
