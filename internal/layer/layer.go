// Package layer holds file trees as chains of layers: what a sandbox starts from,
// what each checkpoint adds, and how both become tarballs and come back.
//
// A layer on disk is a closed overlayfs upper directory: it names only what changed,
// deletions are whiteouts, replaced directories are opaque, and nothing in it depends on
// the layers below (no redirects, every alias of a hard link is present). A chain is
// layers from the bottom up; the first ones are its base.
//
// The package knows files, extended attributes and tar. It must not know plans,
// checkpoints' records, NATS, processes or namespaces.
package layer

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// JournalDir is the directory in the root of an original that an apply stages in.
// No capture, copy, difference or commit includes it.
const JournalDir = ".warmfleet-apply"

// Self is the owner of files that belong to whoever runs the sandbox, on any host.
const Self = -1

// Path is a path relative to the root of a tree, slash separated, without a leading "./".
// The root itself is ".". It is bytes: any byte but NUL may occur.
type Path string

// LinkText is the text of a symbolic link: bytes, as a Path, that may name anything.
type LinkText string

// Xattrs are extended attributes by name; names are bytes, as a Path.
type Xattrs map[string][]byte

// bytesEscape introduces bytes that are not UTF-8 in JSON; NUL occurs in no path, link or name, so it is unambiguous.
const bytesEscape = "\x00b64:"

// escapeBytes writes UTF-8 as it is and other bytes as an escape plus base64.
func escapeBytes(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return bytesEscape + base64.StdEncoding.EncodeToString([]byte(s))
}

func unescapeBytes(s string) (string, error) {
	enc, escaped := strings.CutPrefix(s, bytesEscape)
	if !escaped {
		return s, nil
	}
	raw, err := base64.StdEncoding.DecodeString(enc)
	if err != nil {
		return "", fmt.Errorf("layer: decode %q: %w", s, err)
	}
	return string(raw), nil
}

// MarshalText writes UTF-8 paths as they are and others as an escape plus base64.
func (p Path) MarshalText() ([]byte, error) { return []byte(escapeBytes(string(p))), nil }

// UnmarshalText reads what MarshalText wrote.
func (p *Path) UnmarshalText(b []byte) error {
	s, err := unescapeBytes(string(b))
	*p = Path(s)
	return err
}

// MarshalText is like that of a Path.
func (l LinkText) MarshalText() ([]byte, error) { return []byte(escapeBytes(string(l))), nil }

// UnmarshalText reads what MarshalText wrote.
func (l *LinkText) UnmarshalText(b []byte) error {
	s, err := unescapeBytes(string(b))
	*l = LinkText(s)
	return err
}

// MarshalJSON writes an object, whose keys are like Paths.
func (x Xattrs) MarshalJSON() ([]byte, error) {
	escaped := make(map[string][]byte, len(x))
	for name, value := range x {
		escaped[escapeBytes(name)] = value
	}
	return json.Marshal(escaped)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (x *Xattrs) UnmarshalJSON(b []byte) error {
	var escaped map[string][]byte
	if err := json.Unmarshal(b, &escaped); err != nil || escaped == nil {
		*x = nil
		return err
	}
	*x = make(Xattrs, len(escaped))
	for key, value := range escaped {
		name, err := unescapeBytes(key)
		if err != nil {
			return err
		}
		(*x)[name] = value
	}
	return nil
}

// Type is the kind of a path.
type Type string

// The kinds of paths a layer can hold. Sockets are skipped and listed in Lost.
const (
	File    Type = "file"
	Dir     Type = "dir"
	Symlink Type = "symlink"
	Fifo    Type = "fifo"
	Char    Type = "char"
	Block   Type = "block"
)

// Entry describes one path of a tree. Its JSON form is stored: fields may be added, none renamed.
type Entry struct {
	Path Path `json:"path"`
	Type Type `json:"type"`
	// Mode holds the twelve Unix permission bits (07777), setuid, setgid and sticky included.
	Mode uint32 `json:"mode"`
	// UID and GID are numbers on the host the file came from, or Self.
	UID   int       `json:"uid"`
	GID   int       `json:"gid"`
	MTime time.Time `json:"mtime"`
	// Size is the length of a regular file in bytes, 0 otherwise.
	Size int64 `json:"size"`
	// Link is the text of a symbolic link, never followed.
	Link LinkText `json:"link,omitempty"`
	// Rdev is the device number of a Char or Block.
	Rdev uint64 `json:"rdev,omitempty"`
	// Xattrs are the extended attributes that are kept: user.*, security.capability, POSIX ACLs.
	Xattrs Xattrs `json:"xattrs,omitempty"`
	// HardLink is the first path (in byte order) of the entry's hard-link group, "" if it is alone or the first.
	HardLink Path `json:"hard_link,omitempty"`
	// Digest is "sha256:<hex>" of a regular file's content where it was computed, else "".
	Digest string `json:"digest,omitempty"`
}

// Lost names something of a tree that a layer could not keep, and what it was.
type Lost struct {
	Path Path   `json:"path"`
	What string `json:"what"`
}

// Layer is a closed layer in a cache.
type Layer struct {
	// ID names the directory in the cache of this worker; it means nothing elsewhere.
	ID string `json:"id"`
	// Dir is the overlay-form directory on this worker.
	Dir string `json:"-"`
	// Name is the stored name, "sha256-<hex of the uncompressed tar>.tar.zst", "" until packed.
	Name string `json:"name,omitempty"`
	// TarSize and Size are the bytes of the tar and of its compressed form, 0 until packed.
	TarSize int64 `json:"tar_size,omitempty"`
	Size    int64 `json:"size,omitempty"`
	// Digest is "sha256:<hex>" of the compressed bytes, "" until packed.
	Digest string `json:"digest,omitempty"`
	Lost   []Lost `json:"lost,omitempty"`
	// Live: Dir is not in the cache but an original that others may change; only the lowest layer can be. See Live.
	Live bool `json:"-"`
}

// Chain is layers from the bottom up.
type Chain []Layer

// Change is one path that differs between two trees. Before or After is nil where the path does not exist.
type Change struct {
	Path   Path   `json:"path"`
	Before *Entry `json:"before,omitempty"`
	After  *Entry `json:"after,omitempty"`
}
