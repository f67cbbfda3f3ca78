package inside

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate/mountfd"
	"github.com/warmfleet/warmfleet/internal/isolate/wire"
)

const (
	home      = "/home/sandbox"
	workspace = "/workspace"
	shm       = "dev/shm"
	// cachesPath is isolate.CachesDir.
	cachesPath = "/cache"
	readOnly   = mountfd.Safe | unix.MOUNT_ATTR_RDONLY
	deviceBit  = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC
	// device is a device of the host: written to all the same, but its times stay.
	device = deviceBit | unix.MOUNT_ATTR_RDONLY
)

// systemDirs are bound, or made again where they are links into /usr.
func systemDirs() []string {
	return []string{"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"}
}

// etcFiles are what programs need of /etc and what holds no secret of a host: loader,
// alternatives, certificates (never private keys), names of services, time zone.
func etcFiles() []string {
	return []string{
		"alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ssl/certs", "ssl/openssl.cnf", "ca-certificates",
		"pki/ca-trust", "pki/tls/certs", "pki/tls/cert.pem", "pki/tls/openssl.cnf", "crypto-policies",
		"nsswitch.conf", "localtime", "timezone", "protocols", "services", "os-release", "mime.types", "java-17-openjdk",
	}
}

func devices() []string {
	return []string{"null", "zero", "full", "random", "urandom", "tty"}
}

// source is a mount taken from the host before anything is covered.
type source struct {
	path string // where it goes, relative to the root
	fd   int
	file bool
	link string // a symbolic link to make instead of a mount
}

// builder makes the sandbox's root on a tmpfs. Nothing of the sandbox runs meanwhile, and
// no target lies in a tree that a sandbox ever wrote.
type builder struct {
	root    int
	spec    wire.Spec
	sources []source
	exposed []source
	names   *hostNames
}

// buildRoot replaces the root of this mount namespace by the sandbox's. The descriptors
// are the mounts of spec.Expose when spec.Mounted, then those of spec.Caches.
func buildRoot(spec wire.Spec, exposed []int) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	b := &builder{spec: spec}
	if err := b.collect(exposed); err != nil {
		return err
	}
	root, err := mountfd.New("tmpfs", mountfd.Safe, "mode=0755", "size=1m")
	if err != nil {
		return err
	}
	b.root = root
	// Any directory that is there serves as the place of the new root until the pivot;
	// /proc must stay visible, or the kernel refuses a fresh one.
	if err := unix.MoveMount(root, "", unix.AT_FDCWD, "/usr", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach new root: %w", err)
	}
	for _, step := range []func() error{b.skeleton, b.system, b.scratch, b.expose, b.strong, b.dev, b.proc, b.etc, b.pivot} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) collect(exposed []int) error {
	for _, name := range systemDirs() {
		if err := b.take("/"+name, name, readOnly); err != nil {
			return err
		}
	}
	for _, name := range etcFiles() {
		if err := b.take("/etc/"+name, "etc/"+name, readOnly); err != nil {
			return err
		}
	}
	for _, name := range devices() {
		if err := b.take("/dev/"+name, "dev/"+name, device); err != nil {
			return err
		}
	}
	b.names = readHostNames(b.spec)
	for i, dir := range b.spec.Expose {
		target := strings.TrimPrefix(dir, "/")
		if b.spec.Mounted {
			b.exposed = append(b.exposed, source{path: target, fd: exposed[i]})
			continue
		}
		fd, err := mountfd.Tree(dir, readOnly)
		if err != nil {
			return fmt.Errorf("expose %q: %w", dir, err)
		}
		b.exposed = append(b.exposed, source{path: target, fd: fd})
	}
	return errors.Join(b.takeRunsc(exposed), b.takeCaches(exposed))
}

// takeCaches takes the last descriptors. They come from a worker's mounter, so their attributes are set again here.
func (b *builder) takeCaches(fds []int) error {
	if len(fds) < len(b.spec.Caches) {
		return fmt.Errorf("%d descriptors, %d caches", len(fds), len(b.spec.Caches))
	}
	fds = fds[len(fds)-len(b.spec.Caches):]
	for i, name := range b.spec.Caches {
		if err := mountfd.SetAttr(fds[i], unix.MountAttr{Attr_set: mountfd.Safe}); err != nil {
			return fmt.Errorf("restrict cache %q: %w", name, err)
		}
		b.exposed = append(b.exposed, source{path: cachesPath[1:] + "/" + name, fd: fds[i]})
	}
	return nil
}

// take remembers a path of the host, if it is there.
func (b *builder) take(from, to string, attr uint64) error {
	fi, err := os.Lstat(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if fi.Mode()&fs.ModeSymlink != 0 {
		link, err := os.Readlink(from)
		if err != nil {
			return err
		}
		b.sources = append(b.sources, source{path: to, link: link})
		return nil
	}
	fd, err := mountfd.Tree(from, attr)
	if err != nil {
		return err
	}
	b.sources = append(b.sources, source{path: to, fd: fd, file: !fi.IsDir()})
	return nil
}

func (b *builder) skeleton() error {
	for _, dir := range []string{"proc", "dev/pts", shm, "tmp", "etc", home[1:], secretsPath[1:], "var", workspace[1:]} {
		if err := b.mkdirs(dir); err != nil {
			return err
		}
	}
	for _, l := range []struct{ target, path string }{
		{"/tmp", "var/tmp"},
		{"/run", "var/run"},
		{"pts/ptmx", "dev/ptmx"},
		{"/proc/self/fd", "dev/fd"},
		{"/proc/self/fd/0", "dev/stdin"},
		{"/proc/self/fd/1", "dev/stdout"},
		{"/proc/self/fd/2", "dev/stderr"},
		{"/proc/self/mounts", "etc/mtab"},
	} {
		if err := b.symlink(l.target, l.path); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) system() error { return b.place(b.sources) }

// expose comes after the scratch space: what is shown may lie below /tmp.
func (b *builder) expose() error { return b.place(b.exposed) }

// place attaches what collect took.
func (b *builder) place(sources []source) error {
	for _, s := range sources {
		if err := b.mkdirs(path.Dir(s.path)); err != nil {
			return err
		}
		if s.link != "" {
			if err := b.symlink(s.link, s.path); err != nil {
				return err
			}
			continue
		}
		err := b.attachNew(s)
		unix.Close(s.fd)
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) attachNew(s source) error {
	var err error
	if s.file {
		err = b.write(s.path, "")
	} else {
		err = b.mkdirs(s.path)
	}
	if err != nil {
		return err
	}
	return mountfd.Attach(s.fd, b.root, s.path)
}

// scratch is one tmpfs, so that one size bounds everything a step can keep outside its workspace.
func (b *builder) scratch() error {
	options := []mountfd.Option{"mode=0755"}
	if b.spec.Scratch > 0 {
		options = append(options, mountfd.Option(fmt.Sprintf("size=%d", b.spec.Scratch)))
	}
	fd, err := mountfd.New("tmpfs", mountfd.Safe, options...)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// A tree can only be cloned from an attached mount: it waits where the last of its trees covers it for good, since
	// to take it away again is to wait until no processor uses it.
	if err := mountfd.Attach(fd, b.root, shm); err != nil {
		return err
	}
	for _, d := range []struct {
		name, path string
		mode       uint32
	}{{"tmp", "tmp", 0o1777}, {"home", home[1:], 0o755}, {"shm", shm, 0o1777}} {
		if err := unix.Mkdirat(fd, d.name, d.mode); err != nil {
			return fmt.Errorf("make %s: %w", d.path, err)
		}
		tree, err := mountfd.TreeAt(fd, d.name, mountfd.Safe)
		if err != nil {
			return err
		}
		err = mountfd.Attach(tree, b.root, d.path)
		unix.Close(tree)
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) dev() error {
	fd, err := mountfd.New("devpts", deviceBit, "newinstance", "ptmxmode=0666", "mode=0620")
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return mountfd.Attach(fd, b.root, "dev/pts")
}

// maskedFiles of /proc tell of the machine, not of the sandbox: the list of the OCI runtimes, the command line of the
// kernel, which may hold secrets, and names of swap files.
func maskedFiles() []string {
	return []string{
		"kcore", "keys", "key-users", "kallsyms", "kmsg", "timer_list", "timer_stats", "sched_debug", "latency_stats", "interrupts",
		"vmallocinfo", "kpagecount", "kpageflags", "kpagecgroup", "cmdline", "swaps",
	}
}

// proc mounts a fresh /proc, forbids nested user namespaces, and closes what reaches
// beyond the sandbox.
func (b *builder) proc() error {
	fd, err := mountfd.New("proc", mountfd.Safe|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := mountfd.Attach(fd, b.root, "proc"); err != nil {
		return err
	}
	if err := b.forbidNested(fd); err != nil {
		return err
	}
	for _, name := range []string{"sys", "sysrq-trigger", "irq", "bus", "fs"} {
		if err := b.cover("proc/"+name, "proc/"+name, readOnly|unix.MOUNT_ATTR_NOEXEC); err != nil {
			return err
		}
	}
	for _, name := range maskedFiles() {
		if err := b.cover("dev/null", "proc/"+name, device); err != nil {
			return err
		}
	}
	for _, name := range []string{"acpi", "asound", "scsi"} {
		if err := b.cover(secretsPath[1:], "proc/"+name, readOnly); err != nil {
			return err
		}
	}
	return nil
}

// cover puts a clone of one path of the new root over another, if that is there.
func (b *builder) cover(from, to string, attr uint64) error {
	if err := unix.Faccessat(b.root, to, unix.F_OK, 0); err != nil {
		return nil
	}
	fd, err := mountfd.TreeAt(b.root, from, attr)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return mountfd.Attach(fd, b.root, to)
}

// etc writes the files that are made up.
func (b *builder) etc() error {
	for name, content := range etcContents(b.names) {
		if err := b.write(name, content); err != nil {
			return err
		}
	}
	return nil
}

// hostNames are how the host finds names of the network.
type hostNames struct{ hosts, resolv string }

// readHostNames is nil without the host's network.
func readHostNames(spec wire.Spec) *hostNames {
	if !spec.Network {
		return nil
	}
	// Often links into /run: their text is copied. Where one is missing, there is no such name service.
	hosts, _ := os.ReadFile("/etc/hosts")
	resolv, _ := os.ReadFile("/etc/resolv.conf")
	return &hostNames{hosts: string(hosts), resolv: string(resolv)}
}

// etcContents are the files that are made up, by path below the root.
func etcContents(n *hostNames) map[string]string {
	files := map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/usr/sbin/nologin\nsandbox:x:1000:1000:sandbox:" + home + ":/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
		"etc/group":  "root:x:0:\nsandbox:x:1000:\nnogroup:x:65534:\n",
		"etc/hosts":  "127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost\n",
	}
	if n != nil {
		files["etc/hosts"] += n.hosts
		files["etc/resolv.conf"] = n.resolv
	}
	files["etc/hostname"] = "sandbox\n"
	return files
}

// pivot makes the new root the only one. Stacking both on "/" needs no directory for the old.
func (b *builder) pivot() error {
	if err := unix.Fchdir(b.root); err != nil {
		return fmt.Errorf("enter new root: %w", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("detach old root: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("enter root: %w", err)
	}
	err := unix.MountSetattr(b.root, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: readOnly})
	unix.Close(b.root)
	if err != nil {
		return fmt.Errorf("make root read-only: %w", err)
	}
	return nil
}
