// Package mountfd makes mounts that are nothing but a descriptor: in no mount namespace
// until someone moves them into one, gone when the last descriptor is closed.
//
// It wraps the kernel's mount interface (fsopen, open_tree, move_mount, mount_setattr;
// Linux 6.5 for overlays with many layers). It must not know sandboxes or layers.
package mountfd

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Safe are the attributes that every mount a sandbox sees has at least.
const Safe = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV

// Option is one "key=value" of a file system; without "=" it is a flag.
type Option string

// New makes a file system of a type and returns its mount descriptor.
func New(fstype string, attr int, options ...Option) (int, error) {
	fs, err := unix.Fsopen(fstype, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("mountfd: open file system %q: %w", fstype, err)
	}
	defer unix.Close(fs)
	for _, o := range options {
		key, value, isString := strings.Cut(string(o), "=")
		if isString {
			err = unix.FsconfigSetString(fs, key, value)
		} else {
			err = unix.FsconfigSetFlag(fs, key)
		}
		if err != nil {
			return -1, fmt.Errorf("mountfd: set option %q of %s: %w%s", o, fstype, err, kernelLog(fs))
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("mountfd: create %s: %w%s", fstype, err, kernelLog(fs))
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attr)
	if err != nil {
		return -1, fmt.Errorf("mountfd: mount %s: %w%s", fstype, err, kernelLog(fs))
	}
	return fd, nil
}

// kernelLog reads what the kernel had to say about a failed call; each read is one line.
func kernelLog(fs int) string {
	buf := make([]byte, 512)
	var out strings.Builder
	for range 8 {
		n, err := unix.Read(fs, buf)
		if err != nil || n <= 0 {
			break
		}
		fmt.Fprintf(&out, " (%s)", strings.TrimSpace(strings.TrimPrefix(string(buf[:n]), "e ")))
	}
	return out.String()
}

// Tree clones the mounts at and below a path, with attributes added on every one of them.
func Tree(path string, attr uint64) (int, error) {
	return TreeAt(unix.AT_FDCWD, path, attr)
}

// TreeAt is Tree with a path below a directory descriptor; an empty path is the descriptor itself.
func TreeAt(dir int, path string, attr uint64) (int, error) {
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_RECURSIVE)
	if path == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	fd, err := unix.OpenTree(dir, path, flags)
	if err != nil {
		return -1, fmt.Errorf("mountfd: clone tree %q: %w", path, err)
	}
	if err := SetAttr(fd, unix.MountAttr{Attr_set: attr}); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("mountfd: restrict tree %q: %w", path, err)
	}
	return fd, nil
}

// SetAttr changes every mount of the tree at fd.
func SetAttr(fd int, attr unix.MountAttr) error {
	return unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr)
}

// Attach puts a mount onto a path below the directory root. No symbolic link is followed.
func Attach(mount, root int, path string) error {
	target, err := unix.Openat2(root, path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return fmt.Errorf("mountfd: open mount point %q: %w", path, err)
	}
	defer unix.Close(target)
	err = unix.MoveMount(mount, "", target, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("mountfd: attach at %q: %w", path, err)
	}
	return nil
}

// Overlay says what to merge. Lowers are top first; Upper "" makes a read-only view.
type Overlay struct {
	Lowers      []string
	Upper, Work string
	// UserXattr keeps the overlay's marks in user.overlay.*, the only ones a user namespace may write.
	UserXattr bool
	// Volatile leaves out the syncfs of the upper's file system at unmount.
	Volatile bool
	// Live: others change the lowest layer meanwhile, so nothing is remembered about its files (index).
	Live bool
}

// Mount makes the overlay. Directories are given to the kernel as descriptors of this
// process: an option is limited to 255 bytes, and the host's paths stay out of the
// mount table that the sandbox can read.
func (o Overlay) Mount() (int, error) {
	var keep []*os.File
	defer func() {
		for _, f := range keep {
			f.Close()
		}
	}()
	dir := func(key, path string) (Option, error) {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return "", fmt.Errorf("mountfd: open overlay %s %q: %w", key, path, err)
		}
		keep = append(keep, os.NewFile(uintptr(fd), path))
		return Option(fmt.Sprintf("%s=/proc/self/fd/%d", key, fd)), nil
	}
	options := o.flags()
	for _, l := range o.Lowers {
		opt, err := dir("lowerdir+", l)
		if err != nil {
			return -1, err
		}
		options = append(options, opt)
	}
	if o.Upper == "" {
		empty, err := o.bottom()
		if err != nil {
			return -1, err
		}
		defer unix.Close(empty)
		options = append(options, Option(fmt.Sprintf("lowerdir+=/proc/self/fd/%d", empty)))
		return New("overlay", Safe|unix.MOUNT_ATTR_RDONLY, options...)
	}
	for _, d := range []struct{ key, path string }{{"upperdir", o.Upper}, {"workdir", o.Work}} {
		opt, err := dir(d.key, d.path)
		if err != nil {
			return -1, err
		}
		options = append(options, opt)
	}
	return New("overlay", Safe, options...)
}

// flags are the features: a layer must stay free of redirects to other layers' content
// (metacopy), and keep hard links (index). A user namespace may not have redirect_dir.
func (o Overlay) flags() []Option {
	options := []Option{"metacopy=off"}
	switch {
	case o.Upper == "" && o.UserXattr:
		options = []Option{"userxattr"}
	case o.Upper == "":
		options = append(options, "redirect_dir=follow")
	case o.UserXattr:
		options = []Option{"userxattr", "index=on"}
	default:
		options = append(options, "redirect_dir=on", "index=on")
	}
	if o.Live {
		options[len(options)-1] = "index=off"
	}
	if o.Volatile && o.Upper != "" {
		options = append(options, "volatile")
	}
	return options
}

// bottom is an empty directory: the kernel refuses a read-only overlay of one layer.
func (o Overlay) bottom() (int, error) {
	return New("tmpfs", Safe, "size=4k", "mode=0755")
}
