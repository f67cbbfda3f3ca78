package layer

import (
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// unkept lists what else a file or directory has that no layer keeps, as a Lost says it: attributes, and flags that
// chattr(1) sets and that change what can be done with it.
func (f *folder) unkept(name string) ([]string, error) {
	names, err := listXattrs(f.attrPath(name))
	if err != nil {
		return nil, err
	}
	var lost []string
	for _, n := range names {
		if !kept(n) && !ofHost(n) {
			lost = append(lost, "attribute "+n)
		}
	}
	slices.Sort(lost)
	var st unix.Statx_t
	if err := unix.Statx(f.fd, name, unix.AT_SYMLINK_NOFOLLOW, 0, &st); err != nil {
		return nil, err
	}
	for _, flag := range []struct {
		bit  uint64
		name string
	}{{unix.STATX_ATTR_IMMUTABLE, "immutable"}, {unix.STATX_ATTR_APPEND, "append only"}, {unix.STATX_ATTR_ENCRYPTED, "encrypted"}, {unix.STATX_ATTR_VERITY, "verity"}} {
		if st.Attributes&flag.bit != 0 {
			lost = append(lost, "flag "+flag.name)
		}
	}
	return lost, nil
}

// ofHost tells which attributes belong to the host that a file is on and not to the file: labels by the host's policy, which it
// gives to every file, and marks of our own and of overlayfs.
func ofHost(name string) bool {
	switch name {
	case "security.selinux", "security.SMACK64", "security.ima", "security.evm", "trusted.warmfleet.inplace", InPlaceXattr:
		return true
	}
	return strings.HasPrefix(name, string(trustedOverlay))
}
