package objectstore

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	"golang.org/x/sys/unix"
)

// Dir is a Store in a directory, for one host or a shared file system:
//
//	data/<name>@<ulid>   the bytes, written once
//	info/<name>.json     the record: which data file, size, digest
//
// A "/" of a name is "%" on disk. Several processes may use one directory.
type Dir struct {
	data, info string
}

// dirInfo is the stored record. Fields may be added, none renamed.
type dirInfo struct {
	File   string `json:"file"`
	Size   int64  `json:"size"`
	Digest string `json:"digest"`
}

const infoSuffix = ".json"

var errGone = fmt.Errorf("%w: its bytes are gone", ErrCorrupt)

// NewDir opens the store in dir, which is created with mode 0700 when absent.
func NewDir(dir string) (*Dir, error) {
	d := &Dir{data: filepath.Join(dir, "data"), info: filepath.Join(dir, "info")}
	for _, sub := range []string{d.data, d.info} {
		if err := os.MkdirAll(sub, 0o700); err != nil {
			return nil, fmt.Errorf("objectstore: create directory: %w", err)
		}
	}
	return d, nil
}

// Put implements Store.
func (d *Dir) Put(ctx context.Context, name string, r io.Reader) (Info, error) {
	info, err := d.stat(name)
	if err == nil {
		return info, nil
	}
	if !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrCorrupt) {
		return Info{}, failed("put", name, err)
	}
	rec, err := d.writeData(ctx, name, r)
	if err != nil {
		return Info{}, failed("put", name, fullDisk(err))
	}
	if err := d.writeInfo(name, rec); err != nil {
		return Info{}, failed("put", name, errors.Join(fullDisk(err), os.Remove(filepath.Join(d.data, rec.File))))
	}
	return d.Stat(ctx, name)
}

// Get implements Store.
func (d *Dir) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	info, rec, err := d.read(name)
	if err != nil {
		return nil, failed("get", name, err)
	}
	f, err := os.Open(filepath.Join(d.data, rec.File))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, failed("get", name, errGone)
	}
	if err != nil {
		return nil, failed("get", name, err)
	}
	src := struct {
		io.Reader
		io.Closer
	}{&contextReader{ctx, f}, f}
	return newVerifier(src, info), nil
}

// Stat implements Store.
func (d *Dir) Stat(_ context.Context, name string) (Info, error) {
	info, err := d.stat(name)
	if err != nil {
		return Info{}, failed("stat", name, err)
	}
	return info, nil
}

func (d *Dir) stat(name string) (Info, error) {
	info, rec, err := d.read(name)
	if err != nil {
		return Info{}, err
	}
	fi, err := os.Stat(filepath.Join(d.data, rec.File))
	if errors.Is(err, fs.ErrNotExist) {
		return Info{}, errGone
	}
	if err != nil {
		return Info{}, err
	}
	if fi.Size() != info.Size {
		return Info{}, fmt.Errorf("%w: %d of %d bytes", ErrCorrupt, fi.Size(), info.Size)
	}
	return info, nil
}

// Delete implements Store.
func (d *Dir) Delete(_ context.Context, name string) error {
	_, rec, err := d.read(name)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil && !errors.Is(err, ErrCorrupt) {
		return failed("delete", name, err)
	}
	if err := os.Remove(d.infoPath(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return failed("delete", name, err)
	}
	if rec.File == "" {
		return nil
	}
	if err := os.Remove(filepath.Join(d.data, rec.File)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return failed("delete", name, err)
	}
	return nil
}

// List implements Store.
func (d *Dir) List(context.Context) ([]Info, error) {
	entries, err := os.ReadDir(d.info)
	if err != nil {
		return nil, fmt.Errorf("objectstore: list: %w", err)
	}
	var infos []Info
	for _, e := range entries {
		file, ok := strings.CutSuffix(e.Name(), infoSuffix)
		if !ok {
			continue
		}
		info, _, err := d.read(strings.ReplaceAll(file, "%", "/"))
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("objectstore: list: %w", err)
		}
		infos = append(infos, info)
	}
	slices.SortFunc(infos, byName)
	return infos, nil
}

// Sweep implements Sweeper: data files without a record, and temporary records.
func (d *Dir) Sweep(_ context.Context, olderThan time.Duration) (int, error) {
	now, err := d.clock()
	if err != nil {
		return 0, fmt.Errorf("objectstore: sweep: %w", err)
	}
	removed := 0
	for _, dir := range []string{d.data, d.info} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return removed, fmt.Errorf("objectstore: sweep: %w", err)
		}
		for _, e := range entries {
			fi, err := e.Info()
			if err != nil || now.Sub(fi.ModTime()) < olderThan || d.owned(dir, e.Name()) {
				continue
			}
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return removed, fmt.Errorf("objectstore: sweep: %w", err)
			}
			removed++
		}
	}
	return removed, nil
}

// owned reports whether a file of the store is a record, or the bytes of one.
func (d *Dir) owned(dir, file string) bool {
	if dir == d.info {
		return strings.HasSuffix(file, infoSuffix)
	}
	name, _, _ := strings.Cut(file, "@")
	_, rec, err := d.read(strings.ReplaceAll(name, "%", "/"))
	if err != nil {
		return !errors.Is(err, ErrNotFound)
	}
	return rec.File == file
}

// clock is the present time of the file system that stamps the files; a shared one may
// disagree with this host.
func (d *Dir) clock() (time.Time, error) {
	f, err := os.CreateTemp(d.info, "clock-")
	if err != nil {
		return time.Time{}, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return time.Time{}, err
	}
	return fi.ModTime(), nil
}

func (d *Dir) infoPath(name string) string {
	return filepath.Join(d.info, strings.ReplaceAll(name, "/", "%")+infoSuffix)
}

// read returns the record of name.
func (d *Dir) read(name string) (Info, dirInfo, error) {
	if err := ValidName(name); err != nil {
		return Info{}, dirInfo{}, err
	}
	f, err := os.Open(d.infoPath(name))
	if errors.Is(err, fs.ErrNotExist) {
		return Info{}, dirInfo{}, ErrNotFound
	}
	if err != nil {
		return Info{}, dirInfo{}, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return Info{}, dirInfo{}, err
	}
	var rec dirInfo
	if err := json.NewDecoder(f).Decode(&rec); err != nil || rec.File != filepath.Base(rec.File) {
		return Info{}, dirInfo{}, fmt.Errorf("%w: its record does not parse", ErrCorrupt)
	}
	return Info{Name: name, Size: rec.Size, Digest: rec.Digest, ModTime: fi.ModTime().UTC()}, rec, nil
}

// writeData stores and syncs the bytes in a file of their own.
func (d *Dir) writeData(ctx context.Context, name string, r io.Reader) (dirInfo, error) {
	rec := dirInfo{File: strings.ReplaceAll(name, "/", "%") + "@" + ulid.Make().String()}
	h := sha256.New()
	err := writeSynced(filepath.Join(d.data, rec.File), func(w io.Writer) error {
		n, err := io.Copy(io.MultiWriter(w, h), &contextReader{ctx, r})
		rec.Size = n
		return err
	})
	rec.Digest = digestString(h.Sum(nil))
	return rec, err
}

// writeInfo commits an object: its record appears whole, or not at all.
func (d *Dir) writeInfo(name string, rec dirInfo) error {
	tmp := filepath.Join(d.info, "tmp-"+ulid.Make().String())
	err := writeSynced(tmp, func(w io.Writer) error { return json.NewEncoder(w).Encode(rec) })
	if err != nil {
		return err
	}
	if err := os.Rename(tmp, d.infoPath(name)); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return syncDir(d.info)
}

// writeSynced creates path, which must not exist, and returns once its content and its
// directory entry would survive a power cut. On error nothing is left.
func writeSynced(path string, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(write(f), f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// fullDisk makes the errors of a file system without room ErrFull.
func fullDisk(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	return err
}
