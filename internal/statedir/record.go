// Package statedir holds what packages need that keep data in a directory of a worker:
// files that are whole or absent, locks between processes, marks of use that a killed
// process cannot leave behind, and one piece of work shared by many callers.
//
// It knows files and goroutines. It must not know layers, git or plans.
package statedir

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// ErrDamaged reports a file whose checksum does not match its content.
var ErrDamaged = errors.New("damaged")

// tempPrefix begins the names of files that are being written; one that is found at start is a crash's.
const tempPrefix = ".tmp-"

// WriteFile replaces the file at path by what write produces, in one step: after a crash at any
// moment the old content or the new one is there, whole.
func WriteFile(path string, write func(io.Writer) error) error {
	return writeFile(path, write, true)
}

// WriteFileUnsynced is WriteFile for what can be made again: it does not wait for the disk, and
// after a crash of the machine the file may be damaged, which its reader has to notice.
func WriteFileUnsynced(path string, write func(io.Writer) error) error {
	return writeFile(path, write, false)
}

func writeFile(path string, write func(io.Writer) error, sync bool) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, tempPrefix+"*")
	if err != nil {
		return fmt.Errorf("statedir: write %q: %w", path, err)
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(f.Name())
			err = fmt.Errorf("statedir: write %q: %w", path, err)
		}
	}()
	if err := write(f); err != nil {
		return err
	}
	if sync {
		if err := f.Sync(); err != nil {
			return err
		}
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil || !sync {
		return err
	}
	return SyncDir(dir)
}

// SyncDir makes renames and removals in dir durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("statedir: sync %q: %w", dir, err)
	}
	defer func() { _ = d.Close() }()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("statedir: sync %q: %w", dir, err)
	}
	return nil
}

// SweepTemp removes what writers that were killed left in dir. Only for a directory in which nobody
// writes: call it with the directory's lock held.
func SweepTemp(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("statedir: sweep %q: %w", dir, err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), tempPrefix) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("statedir: sweep %q: %w", dir, err)
		}
	}
	return nil
}

// WriteRecord stores v as JSON under a checksum line, as WriteFile does.
func WriteRecord(path string, v any) error { return writeRecord(path, v, true) }

// WriteRecordUnsynced is WriteRecord without waiting for the disk; see WriteFileUnsynced.
func WriteRecordUnsynced(path string, v any) error { return writeRecord(path, v, false) }

func writeRecord(path string, v any, sync bool) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("statedir: encode %q: %w", path, err)
	}
	return writeFile(path, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "%s\n%s", checksum(body), body)
		return err
	}, sync)
}

// ReadRecord reads what WriteRecord stored into v. Errors: fs.ErrNotExist, ErrDamaged.
func ReadRecord(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("statedir: read %q: %w", path, err)
	}
	sum, body, ok := bytes.Cut(b, []byte("\n"))
	if !ok || string(sum) != checksum(body) {
		return fmt.Errorf("statedir: read %q: %w", path, ErrDamaged)
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("statedir: read %q: %w: %w", path, ErrDamaged, err)
	}
	return nil
}

func checksum(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}
