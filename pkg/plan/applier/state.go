package applier

import (
	"bytes"
	"maps"
	"time"

	"github.com/warmfleet/warmfleet/internal/layer"
)

// socket is the type of what no layer holds but an original may.
const socket layer.Type = "socket"

const (
	setIDs       = 0o6000
	capability   = "security.capability"
	aclAccess    = "system.posix_acl_access"
	aclDefault   = "system.posix_acl_default"
	workingMode  = 0o700 // of a new directory until everything is in it
	ownerWriteEx = 0o300
)

// state is what a path is, as far as an apply compares or sets it. It is stored in the journal: fields may be added, none renamed.
type state struct {
	Type  layer.Type `json:"type"`
	Mode  uint32     `json:"mode"`
	UID   int        `json:"uid"`
	GID   int        `json:"gid"`
	MTime time.Time  `json:"mtime"`
	Size  int64      `json:"size,omitempty"`
	// Link is a link's text, kept as a layer.Path for its JSON form, which holds any bytes.
	Link   layer.Path   `json:"link,omitempty"`
	Rdev   uint64       `json:"rdev,omitempty"`
	Digest string       `json:"digest,omitempty"`
	Xattrs layer.Xattrs `json:"xattrs,omitempty"`
	// ACLs are the POSIX ACLs: kept or set, never compared.
	ACLs layer.Xattrs `json:"acls,omitempty"`
	Ino  uint64       `json:"ino,omitempty"`
}

func stateOf(e *layer.Entry) *state {
	if e == nil {
		return nil
	}
	s := &state{
		Type: e.Type, Mode: e.Mode & 0o7777, UID: e.UID, GID: e.GID, MTime: e.MTime,
		Size: e.Size, Link: layer.Path(e.Link), Rdev: e.Rdev, Digest: e.Digest,
	}
	if s.Type == layer.Symlink {
		return s
	}
	for name, value := range e.Xattrs {
		s.setXattr(name, value)
	}
	return s
}

func (s *state) setXattr(name string, value []byte) {
	m := &s.Xattrs
	if name == aclAccess || name == aclDefault {
		m = &s.ACLs
	}
	if *m == nil {
		*m = map[string][]byte{}
	}
	(*m)[name] = value
}

// at is the state as an entry, nil for none.
func (s *state) at(p layer.Path) *layer.Entry {
	if s == nil {
		return nil
	}
	e := s.entry(p)
	return &e
}

func (s *state) entry(p layer.Path) layer.Entry {
	e := layer.Entry{
		Path: p, Type: s.Type, Mode: s.Mode, UID: s.UID, GID: s.GID, MTime: s.MTime,
		Link: layer.LinkText(s.Link), Rdev: s.Rdev, Digest: s.Digest,
	}
	if s.Type == layer.File {
		e.Size = s.Size
	}
	for _, m := range []map[string][]byte{s.Xattrs, s.ACLs} {
		for name, value := range m {
			if e.Xattrs == nil {
				e.Xattrs = map[string][]byte{}
			}
			e.Xattrs[name] = value
		}
	}
	return e
}

// sameContent compares what a path is and holds: type, bytes, link text, device number.
func sameContent(a, b *state) bool {
	if a.Type != b.Type {
		return false
	}
	switch a.Type {
	case layer.File:
		return a.Digest != "" && a.Digest == b.Digest
	case layer.Symlink:
		return a.Link == b.Link
	case layer.Char, layer.Block:
		return a.Rdev == b.Rdev
	case layer.Dir, layer.Fifo:
		return true
	default:
		return false
	}
}

// sameMode is true for links of any mode: theirs means nothing.
func sameMode(a, b *state) bool {
	return a.Mode == b.Mode || a.Type == layer.Symlink && b.Type == layer.Symlink
}

func sameXattrs(a, b *state) bool {
	return maps.EqualFunc(a.Xattrs, b.Xattrs, bytes.Equal)
}

func same(a, b *state) bool {
	return sameContent(a, b) && sameMode(a, b) && sameXattrs(a, b)
}
