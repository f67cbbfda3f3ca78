package checkpoint

import (
	"os"

	"golang.org/x/sys/unix"
)

// unnamedFile is a file in dir that goes with its descriptor, so a process that dies leaves nothing of it.
func unnamedFile(dir string) (*os.File, error) {
	f, err := os.OpenFile(dir, os.O_RDWR|unix.O_TMPFILE, 0o600)
	if err == nil {
		return f, nil
	}
	// Not every file system has O_TMPFILE; what is left of the moment in between is an empty file.
	if f, err = os.CreateTemp(dir, "pack-*"); err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
