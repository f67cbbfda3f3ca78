package inside

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate/mountfd"
)

// takeRunsc takes gVisor's program, as one more of what is exposed.
func (b *builder) takeRunsc(fds []int) error {
	if b.spec.Runsc == "" {
		return nil
	}
	s := source{path: runscPath[1:], file: true}
	if b.spec.Mounted {
		s.fd = fds[len(b.spec.Expose)]
	} else {
		var err error
		if s.fd, err = mountfd.Tree(b.spec.Runsc, readOnly); err != nil {
			return fmt.Errorf("show %q: %w", b.spec.Runsc, err)
		}
	}
	b.exposed = append(b.exposed, s)
	return nil
}

// strong makes the place for bundles, beside the program.
func (b *builder) strong() error {
	if b.spec.Runsc == "" {
		return nil
	}
	if err := b.mkdirs(strongState[1:]); err != nil {
		return err
	}
	fd, err := mountfd.New("tmpfs", mountfd.Safe|unix.MOUNT_ATTR_NOEXEC, "mode=0700", strongStateSize)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return mountfd.Attach(fd, b.root, strongState[1:])
}

// forbidNested keeps commands from making user namespaces, by a parameter of the /proc given. A kernel of a command's own
// begins with one, and the command can't make any of the host's.
func (b *builder) forbidNested(proc int) error {
	if b.spec.Runsc != "" {
		return nil
	}
	if err := writeAt(proc, "sys/user/max_user_namespaces", "0"); err != nil {
		return fmt.Errorf("forbid nested user namespaces: %w", err)
	}
	return nil
}
