package layer

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/fault"
)

// overlayPrefix is the namespace of overlayfs' own attributes: trusted.overlay. as real root, user.overlay. with userxattr.
type overlayPrefix string

const (
	trustedOverlay overlayPrefix = "trusted.overlay."
	userOverlay    overlayPrefix = "user.overlay."
	// noOverlay reads and writes a directory that is not a layer: nothing is escaped, nothing is internal.
	noOverlay overlayPrefix = ""
)

// overlayfs stores an attribute of its own namespace that a user sets as <prefix>overlay.<rest>
// (Documentation/filesystems/overlayfs.rst, "Nesting overlayfs mounts").
const overlayEscape = "overlay."

// InPlaceXattr is an attribute that a worker without trusted ones may put on the root of a
// directory it works on in place. It is never part of a tree.
const InPlaceXattr = "user.warmfleet.inplace"

// kept tells whether an attribute is part of a tree.
func kept(name string) bool {
	if name == InPlaceXattr {
		return false
	}
	switch name {
	case "security.capability", "system.posix_acl_access", "system.posix_acl_default":
		return true
	}
	return strings.HasPrefix(name, "user.")
}

// logical maps the name of an attribute on disk to its name in the tree; internal ones are overlayfs' own.
func (o overlayPrefix) logical(disk string) (name string, internal bool) {
	rest, own := strings.CutPrefix(disk, string(o))
	if o == noOverlay || !own || fault.Off("layer.overlay-xattrs") {
		return disk, false
	}
	if inner, escaped := strings.CutPrefix(rest, overlayEscape); escaped {
		return string(o) + inner, false
	}
	return rest, true
}

func (o overlayPrefix) disk(name string) string {
	rest, own := strings.CutPrefix(name, string(o))
	if o == noOverlay || !own {
		return name
	}
	return string(o) + overlayEscape + rest
}

// xattrs reads the attributes of a regular file or a directory: those of the tree, and overlayfs' own.
func (f *folder) xattrs(name string, o overlayPrefix) (tree, internal map[string][]byte, err error) {
	path := f.attrPath(name)
	names, err := listXattrs(path)
	if err != nil || len(names) == 0 {
		return nil, nil, err
	}
	for _, disk := range names {
		n, own := o.logical(disk)
		if !own && !kept(n) {
			continue
		}
		value, err := getXattr(path, disk)
		if errors.Is(err, unix.EACCES) {
			err = f.readable(name, func() (err error) {
				value, err = getXattr(path, disk)
				return err
			})
		}
		if errors.Is(err, unix.ENODATA) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		if own {
			internal = set(internal, n, value)
		} else {
			tree = set(tree, n, value)
		}
	}
	return tree, internal, nil
}

// attrPath names something in f for the l*xattr calls, which have no *at form before Linux 6.13.
func (f *folder) attrPath(name string) string {
	return "/proc/self/fd/" + strconv.Itoa(f.fd) + "/" + name
}

func set(m map[string][]byte, name string, value []byte) map[string][]byte {
	if m == nil {
		m = map[string][]byte{}
	}
	m[name] = value
	return m
}

// listXattrs is empty, not an error, where the file system has no attributes.
func listXattrs(path string) ([]string, error) {
	var small [512]byte
	buf := small[:]
	for {
		n, err := unix.Llistxattr(path, buf)
		switch {
		case errors.Is(err, unix.ENOTSUP):
			return nil, nil
		case errors.Is(err, unix.ERANGE):
			buf = make([]byte, 64<<10) // XATTR_LIST_MAX
			continue
		case err != nil || n == 0:
			return nil, err
		}
		return strings.Split(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00"), nil
	}
}

func getXattr(path, name string) ([]byte, error) {
	for size := 256; ; size = 64 << 10 { // XATTR_SIZE_MAX
		buf := make([]byte, size)
		n, err := unix.Lgetxattr(path, name, buf)
		if errors.Is(err, unix.ERANGE) && size == 256 {
			continue
		}
		if err != nil {
			return nil, err
		}
		return bytes.Clone(buf[:n]), nil
	}
}

// setXattrs makes the tree's attributes of name exactly want, in the name order, and returns those that the
// file system or the caller's rights do not allow.
func (f *folder) setXattrs(name string, o overlayPrefix, want map[string][]byte) (refused []string, err error) {
	path := f.attrPath(name)
	have, err := listXattrs(path)
	if err != nil {
		return nil, err
	}
	for _, disk := range have {
		n, own := o.logical(disk)
		if _, wanted := want[n]; own || wanted || !kept(n) {
			continue
		}
		if err := unix.Lremovexattr(path, disk); err != nil && !errors.Is(err, unix.ENODATA) {
			return nil, err
		}
	}
	for _, n := range slices.Sorted(maps.Keys(want)) {
		err := unix.Lsetxattr(path, o.disk(n), want[n], 0)
		switch {
		case errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EINVAL):
			refused = append(refused, n)
		case err != nil:
			return refused, err
		}
	}
	return refused, nil
}

func equalXattrs(a, b map[string][]byte) bool {
	return maps.EqualFunc(a, b, bytes.Equal)
}
