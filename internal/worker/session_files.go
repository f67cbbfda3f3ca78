package worker

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/pkg/api"
)

const (
	// maxUploads bounds how many files of a session are written in parts at a time, each on this worker's disk until it is whole.
	maxUploads = 4
	// uploadIdle is when one that stopped is thrown away; docs/sessions.md says so.
	uploadIdle = time.Minute
	// maxMode is all twelve permission bits.
	maxMode = 0o7777
)

// errUploads: maxUploads files are being written in parts already.
var errUploads = errors.New("worker: too many files are being written in parts")

// errPart: a part that does not go on with its upload.
var errPart = errors.New("worker: the upload does not go on with this")

// read serves a part of a file, also while writes wait for the gate.
func (s *liveSession) read(m *nats.Msg) error {
	var req api.SessionRead
	if err := decodeCall(m.Data, &req); err != nil {
		return err
	}
	if req.Offset < 0 || req.Limit < 0 {
		return unfit("read %q: offset %d, limit %d: neither may be below 0", req.Path, req.Offset, req.Limit)
	}
	name, err := sessionPath(req.Path)
	if err == nil && name == "" {
		err = unfit("read: the path is empty: name a file")
	}
	if err != nil {
		return err
	}
	limit := req.Limit
	if limit == 0 || limit > api.SessionReadLimit {
		limit = api.SessionReadLimit
	}
	part, err := s.box.sb.ReadPart(s.ctx, name, isolate.PartAt{Offset: req.Offset, Max: limit, Stamp: req.Stamp})
	if err != nil {
		return fileError("read", name, err)
	}
	if req.Limit == 0 && part.Size-req.Offset > limit {
		return fmt.Errorf("worker: read %q: %w: %d bytes are more than %d: read it in parts, by offset and limit", req.Path, isolate.ErrTooLarge, part.Size, limit)
	}
	s.used(false)
	h := nats.Header{}
	h.Set(api.HeaderSize, strconv.FormatInt(part.Size, 10))
	h.Set(api.HeaderMode, strconv.FormatUint(uint64(part.Mode.Perm()), 8))
	h.Set(api.HeaderStamp, part.Stamp)
	return s.respondParts(m, part.Data, h)
}

// write replaces a file once all of it is here.
func (s *liveSession) write(body []byte) (any, error) {
	var req api.SessionWrite
	if err := decodeCall(body, &req); err != nil {
		return nil, err
	}
	if req.Mode > maxMode {
		return nil, unfit("write %q: mode %#o: permission bits are at most %#o", req.Path, req.Mode, maxMode)
	}
	if req.Upload == "" && req.Offset != 0 {
		return nil, unfit("write %q: offset %d without an upload: give parts of a file the same one", req.Path, req.Offset)
	}
	name, err := sessionPath(req.Path)
	if err == nil && name == "" {
		err = unfit("write: the path is empty: name a file")
	}
	if err != nil {
		return nil, err
	}
	w := isolate.FileWrite{Path: name, Content: req.Data, Mode: req.Mode, MkdirAll: true}
	size := int64(len(req.Data))
	if req.Upload != "" {
		if err := s.box.sb.RoomFor(req.Path, req.Offset+size); err != nil {
			return nil, err // before its parts are kept on the worker's own disk
		}
		whole, n, err := s.collect(req)
		if whole == nil || err != nil {
			return api.Written{Size: n}, err
		}
		defer whole.Close()
		w.Content, w.From, size = nil, whole, n
	}
	s.used(true)
	return api.Written{Size: size}, fileError("write", name, s.box.sb.WriteFile(s.ctx, w))
}

// upload is a file that comes in parts, and that nothing but this descriptor leads to.
type upload struct {
	path string
	file *os.File
	size int64
	at   time.Time
}

// collect keeps a part of an upload; whole, from its start, is nil until it is the last. A part that comes twice is kept
// once. One that does not go on with the upload is refused and changes nothing: it may be another writer's.
func (s *liveSession) collect(req api.SessionWrite) (whole *os.File, size int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.uploads[req.Upload]
	if u == nil {
		if req.Offset != 0 {
			return nil, 0, fmt.Errorf("%w: part of %q at %d of upload %q, which has none yet, or stopped for %s: begin at 0", errPart, req.Path, req.Offset, req.Upload, uploadIdle)
		}
		if u, err = s.openUpload(req); err != nil {
			return nil, 0, err
		}
	}
	if err := u.follows(req); err != nil {
		return nil, u.size, err
	}
	u.at = time.Now()
	end := req.Offset + int64(len(req.Data))
	if end > api.SessionFileLimit {
		s.dropUpload(req.Upload)
		return nil, 0, fmt.Errorf("worker: write %q: %w: a session writes at most %d bytes", req.Path, isolate.ErrTooLarge, int64(api.SessionFileLimit))
	}
	if req.Offset == u.size {
		if _, err := u.file.WriteAt(req.Data, u.size); err != nil {
			s.dropUpload(req.Upload)
			return nil, 0, fmt.Errorf("worker: keep a part of %q: %w", req.Path, err)
		}
		u.size = end
	}
	if !req.Last {
		return nil, u.size, nil
	}
	delete(s.uploads, req.Upload)
	return u.file, u.size, nil
}

// follows tells whether a part is the upload's next, or says again what it has.
func (u *upload) follows(req api.SessionWrite) error {
	size := int64(len(req.Data))
	switch {
	case req.Path != u.path:
		return fmt.Errorf("%w: part of %q in upload %q, which is of %q: use another upload", errPart, req.Path, req.Upload, u.path)
	case req.Offset == u.size:
		return nil
	case req.Offset < 0, req.Offset > u.size, size > u.size-req.Offset, req.Last && size < u.size-req.Offset:
		return fmt.Errorf("%w: part of %q at %d, the next is at %d: go on there, or use another upload", errPart, req.Path, req.Offset, u.size)
	}
	had := make([]byte, size)
	if _, err := u.file.ReadAt(had, req.Offset); err != nil {
		return fmt.Errorf("worker: read a part of %q again: %w", req.Path, err)
	}
	if !bytes.Equal(had, req.Data) {
		return fmt.Errorf("%w: part of %q at %d came before with other bytes: use another upload", errPart, req.Path, req.Offset)
	}
	return nil
}

// openUpload makes room for another upload. The lock is held.
func (s *liveSession) openUpload(req api.SessionWrite) (*upload, error) {
	s.dropIdleUploads()
	if len(s.uploads) >= maxUploads {
		return nil, fmt.Errorf("%w: %q would be one more than %d: end one, or wait %s for one that stopped", errUploads, req.Path, maxUploads, uploadIdle)
	}
	f, err := os.CreateTemp(filepath.Join(s.w.cfg.StateDir, "scratch"), "upload-")
	if err == nil {
		err = os.Remove(f.Name()) // so that nothing of it is left when this worker dies
	}
	if err != nil {
		return nil, fmt.Errorf("worker: keep parts of %q: %w", req.Path, err)
	}
	u := &upload{path: req.Path, file: f}
	s.uploads[req.Upload] = u
	return u, nil
}

// dropIdleUploads forgets those that stopped. While calls wait for their turn, the last part of any may be one of them. The
// lock is held.
func (s *liveSession) dropIdleUploads() {
	if s.gate.Waiting() > 0 {
		return
	}
	for id, u := range s.uploads {
		if time.Since(u.at) > uploadIdle {
			s.dropUpload(id)
		}
	}
}

// dropUpload forgets an upload. The lock is held.
func (s *liveSession) dropUpload(id string) {
	if u := s.uploads[id]; u != nil {
		u.file.Close()
		delete(s.uploads, id)
	}
}
