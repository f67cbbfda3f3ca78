package inside

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate/mountfd"
	"github.com/warmfleet/warmfleet/internal/isolate/wire"
)

const (
	secretsPath = "/run/secrets"
	// secretsSize bounds the file system of one command's secrets; isolate.MaxSecrets is less.
	secretsSize = "size=4m"
)

// compartment is a thread with a mount namespace of its own, as powerless as that of the
// commands: what is forked from it sees mounts that other commands do not. They live as
// long as it and whatever came of it.
type compartment struct {
	calls chan func()
}

// openCompartment copies the mounts as they are now and lets arrange change the copy.
func openCompartment(spec wire.Spec, into entrance, arrange func() error) (*compartment, error) {
	return openThread(unix.CLONE_FS|unix.CLONE_NEWNS, func() error {
		if err := arrange(); err != nil {
			return err
		}
		return becomeCommand(spec, into)
	})
}

// openThread makes a compartment that has what flags say to itself, and lets arrange take from it what it must not have.
func openThread(flags int, arrange func() error) (*compartment, error) {
	c := &compartment{calls: make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this function
		err := unix.Unshare(flags)
		if err != nil {
			err = fmt.Errorf("separate mounts and directory: %w", err)
		}
		if err == nil {
			err = arrange()
		}
		ready <- err
		if err != nil {
			return
		}
		for call := range c.calls {
			call()
		}
	}()
	if err := <-ready; err != nil {
		return nil, err
	}
	return c, nil
}

func (c *compartment) do(call func()) {
	done := make(chan struct{})
	c.calls <- func() {
		defer close(done)
		call()
	}
	<-done
}

func (c *compartment) close() { close(c.calls) }

// mountSecrets puts files onto a read-only file system in memory, for the mounts of the calling thread.
func mountSecrets(secrets []wire.Secret) error {
	fd, err := mountfd.New("tmpfs", mountfd.Safe|unix.MOUNT_ATTR_NOEXEC, "mode=0500", secretsSize)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for _, s := range secrets {
		if err := writeSecret(fd, s); err != nil {
			return err
		}
	}
	if err := mountfd.SetAttr(fd, unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return fmt.Errorf("make secrets read-only: %w", err)
	}
	return mountfd.Attach(fd, unix.AT_FDCWD, secretsPath)
}

// writeSecretsDir is for an init without namespaces: a new directory of nobody else.
func writeSecretsDir(dir string, secrets []wire.Secret) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return fmt.Errorf("make directory of secrets: %w", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("make directory of secrets: %w", err)
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open directory of secrets: %w", err)
	}
	defer unix.Close(fd)
	for _, s := range secrets {
		if err := writeSecret(fd, s); err != nil {
			return err
		}
	}
	return nil
}

func writeSecret(dir int, s wire.Secret) error {
	fd, err := unix.Openat(dir, s.Name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o400)
	if err != nil {
		return fmt.Errorf("make secret %q: %w", s.Name, err)
	}
	file := os.NewFile(uintptr(fd), s.Name)
	defer file.Close()
	if _, err := file.Write(s.Value); err != nil {
		return fmt.Errorf("write secret %q: %w", s.Name, err)
	}
	return nil
}
