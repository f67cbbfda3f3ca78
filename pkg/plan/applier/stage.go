package applier

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/fault"
	"github.com/warmfleet/warmfleet/internal/layer"
)

const copyChunk = 128 << 10

// Stage writes the new content beside the original and the journal that names every operation, and returns when both
// are on disk. On an error, a full disk for example, nothing of it is left and the original is as it was.
func (s *Session) Stage(ctx context.Context, p Preview) error {
	if s.phase != phaseOpen || p.req.Plan == "" {
		return fmt.Errorf("applier: stage: %w", ErrOrder)
	}
	s.journal = &journal{Version: journalVersion, Plan: p.req.Plan, Epoch: p.req.Epoch, Ops: p.ops, Extras: p.req.Extras}
	if len(p.req.Extras) > 0 {
		s.journal.Version = extrasVersion
	}
	s.state = statePrepared
	s.phase = phaseStaged
	if err := s.stageAll(ctx, p); err != nil {
		return errors.Join(err, s.discard())
	}
	return nil
}

// discard removes the journal and then the stage of an apply that has not changed the original, or does not any more.
func (s *Session) discard() error {
	if err := s.forgetExtras(); err != nil {
		return err
	}
	stage := s.journal.stage()
	if err := s.forget(); err != nil {
		return err
	}
	s.phase = phaseOpen // the rest would be swept by the next Open
	return errors.Join(removeAt(s.jdir, journalTmp), s.removeStage(stage))
}

func (s *Session) stageAll(ctx context.Context, p Preview) error {
	name := s.journal.stage()
	if err := unix.Mkdirat(int(s.jdir.Fd()), name, workingMode); err != nil {
		return fmt.Errorf("applier: create stage: %w", err)
	}
	dir, err := openat(s.jdir, name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return fmt.Errorf("applier: open stage: %w", err)
	}
	defer dir.Close()
	st := &stager{dir: dir, tree: s.tree, content: p.req.Content, each: len(s.journal.Ops) <= syncEach}
	if err := st.probe(); err != nil {
		return err
	}
	for i := range s.journal.Ops {
		o := &s.journal.Ops[i]
		if !o.staged() {
			continue
		}
		if err := s.hook("stage " + o.Slot); err != nil {
			return err
		}
		if err := st.make(ctx, o); err != nil {
			return fmt.Errorf("applier: stage %q: %w", o.Path, err)
		}
	}
	s.lost = st.lost
	if err := s.hook("sync stage"); err != nil {
		return err
	}
	if err := st.sync(); err != nil {
		return err
	}
	if err := s.hook("write journal"); err != nil {
		return err
	}
	return s.prepare()
}

// stager fills a stage.
type stager struct {
	dir     *os.File
	tree    *tree // of the original
	content Content
	each    bool // few files: each is synced by itself
	lost    []layer.Lost
}

// syncEach is up to how many operations are synced one by one. The whole file system at once costs less for many, but
// waits for all that others write to it.
const syncEach = 64

func (s *stager) sync() error {
	err := s.dir.Sync()
	if !s.each {
		err = unix.Syncfs(int(s.dir.Fd()))
	}
	if err != nil {
		return fmt.Errorf("applier: sync stage: %w", err)
	}
	return nil
}

// probe finds out whether this file system can exchange two files, before anything relies on it.
func (s *stager) probe() error {
	// A default ACL of the root would be inherited by everything staged.
	err := unix.Removexattr(reopen(s.dir), aclDefault)
	if err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.ENOTSUP) {
		return fmt.Errorf("applier: probe stage: %w", err)
	}
	fd := int(s.dir.Fd())
	for _, name := range []string{"probe-a", "probe-b"} {
		if err := unix.Mknodat(fd, name, unix.S_IFREG|0o600, 0); err != nil {
			return fmt.Errorf("applier: probe stage: %w", err)
		}
	}
	err = unix.Renameat2(fd, "probe-a", fd, "probe-b", unix.RENAME_EXCHANGE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.ENOTSUP) {
		err = fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	if err != nil {
		return fmt.Errorf("applier: probe stage: %w", err)
	}
	return errors.Join(removeAt(s.dir, "probe-a"), removeAt(s.dir, "probe-b"))
}

func (s *stager) make(ctx context.Context, o *op) error {
	if o.linkTo != nil {
		o.Ino = o.linkTo.Ino
		return unix.Linkat(int(s.dir.Fd()), o.linkTo.Slot, int(s.dir.Fd()), o.Slot, 0)
	}
	if o.linkFrom != "" {
		return s.linkOriginal(o)
	}
	w, err := s.create(ctx, o)
	if err != nil {
		return err
	}
	defer w.Close()
	lost, ino, err := dress(s.dir, o.Slot, o.New)
	o.Ino = ino
	for _, what := range lost {
		s.lost = append(s.lost, layer.Lost{Path: o.Path, What: what})
	}
	if err == nil && s.each && o.New.Type == layer.File {
		err = w.Sync()
	}
	return err
}

// create makes what an operation puts, with working permissions, and returns it open.
func (s *stager) create(ctx context.Context, o *op) (*os.File, error) {
	if o.New.Type == layer.File {
		return s.createFile(ctx, o)
	}
	fd, err := int(s.dir.Fd()), error(nil)
	switch o.New.Type {
	case layer.Dir:
		err = unix.Mkdirat(fd, o.Slot, workingMode)
	case layer.Symlink:
		err = unix.Symlinkat(string(o.New.Link), fd, o.Slot)
	case layer.Fifo:
		err = unix.Mknodat(fd, o.Slot, unix.S_IFIFO|0o600, 0)
	case layer.Char:
		err = unix.Mknodat(fd, o.Slot, unix.S_IFCHR|0o600, int(o.New.Rdev))
	case layer.Block:
		err = unix.Mknodat(fd, o.Slot, unix.S_IFBLK|0o600, int(o.New.Rdev))
	}
	if err != nil {
		return nil, err
	}
	return openat(s.dir, o.Slot, unix.O_PATH)
}

func (s *stager) createFile(ctx context.Context, o *op) (*os.File, error) {
	var r io.ReadCloser = io.NopCloser(bytes.NewReader(o.content))
	if o.content == nil {
		var err error
		if r, err = s.content.Open(o.Path); err != nil {
			return nil, err
		}
	}
	defer r.Close()
	w, err := openat(s.dir, o.Slot, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return nil, err
	}
	digest, size, err := copySparse(ctx, w, r)
	if err == nil && digest != o.New.Digest && !fault.Off("applier.content-digest") {
		err = fmt.Errorf("%w: got %s, want %s", ErrContent, digest, o.New.Digest)
	}
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	o.New.Size = size
	return w, nil
}

// copySparse copies r to the empty file w, leaving holes for whole chunks of zeros, and digests it on the way.
func copySparse(ctx context.Context, w *os.File, r io.Reader) (digest string, size int64, err error) {
	h, buf, zeros := sha256.New(), make([]byte, copyChunk), make([]byte, copyChunk)
	for {
		if err := ctx.Err(); err != nil {
			return "", 0, err
		}
		n, err := io.ReadFull(r, buf)
		h.Write(buf[:n])
		if n > 0 && !bytes.Equal(buf[:n], zeros[:n]) {
			if _, err := w.WriteAt(buf[:n], size); err != nil {
				return "", 0, err
			}
		}
		size += int64(n)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return "sha256:" + hex.EncodeToString(h.Sum(nil)), size, w.Truncate(size)
		}
		if err != nil {
			return "", 0, err
		}
	}
}

// dress gives a staged name the owner, attributes, mode and time of want. The order matters: a change of owner clears
// bits and capabilities, and a mode is limited by an ACL that comes after it.
func dress(dir *os.File, name string, want *state) (lost []string, ino uint64, err error) {
	f, err := openat(dir, name, unix.O_PATH)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	owner, err := chown(f, want)
	if err != nil {
		return nil, 0, fmt.Errorf("change owner: %w", err)
	}
	if owner != "" {
		lost = append(lost, owner)
	}
	for _, m := range []map[string][]byte{want.ACLs, want.Xattrs} {
		for attr, value := range m {
			err := setXattrs(f, nil, map[string][]byte{attr: value})
			if errors.Is(err, unix.ENOTSUP) {
				lost = append(lost, "attribute "+attr)
				delete(m, attr) // the journal tells what is there
				continue
			}
			if err != nil {
				return nil, 0, err
			}
		}
	}
	if err := chmod(f, want); err != nil {
		return nil, 0, fmt.Errorf("change mode: %w", err)
	}
	if err := setMTime(dir, name, want.MTime); err != nil {
		return nil, 0, fmt.Errorf("set time: %w", err)
	}
	st, err := statOf(f)
	if err != nil {
		return nil, 0, err
	}
	return lost, st.Ino, nil
}
