package inside

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate/wire"
)

// sandboxID is isolate.SandboxID.
const sandboxID = "1000"

// sharedMemory bounds a command's /dev/shm, in bytes: what browsers and Python's multiprocessing need.
const sharedMemory = 256 << 20

// bubblewrap gives each command namespaces and a root of its own, by the program of that name: some hosts let it have
// what they deny others. It is not trusted with an environment, arguments that can be seen or descriptors: those are in
// files in memory. No target of a mount lies below a directory that a sandbox can write (CVE-2026-87766).
type bubblewrap struct {
	spec wire.Spec
	path string
	has  bubblewrapOptions
}

// bubblewrapOptions are what its version has.
type bubblewrapOptions struct {
	size, disableUserns bool // 0.8
}

func newBubblewrap(spec wire.Spec) (fence, error) {
	name, err := lookPath("bwrap", nil)
	if err != nil {
		return nil, errors.New("bubblewrap is not installed")
	}
	var st unix.Stat_t
	if err := unix.Stat(name, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_ISUID != 0 {
		return nil, fmt.Errorf("%s is setuid root: what it does for others is not for a sandbox", name)
	}
	said, err := versionOf(name)
	if err != nil {
		return nil, fmt.Errorf("%s --version: %w", name, err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(said, "bubblewrap %d.%d", &major, &minor); err != nil {
		return nil, fmt.Errorf("%s --version says %q", name, said)
	}
	if major == 0 && minor < 5 {
		return nil, fmt.Errorf("%s is of version %d.%d: at least 0.5 is needed", name, major, minor)
	}
	for _, dir := range spec.Expose {
		for _, written := range []string{"/tmp", "/var/tmp"} {
			if dir == written || strings.HasPrefix(dir, written+"/") {
				return nil, fmt.Errorf("expose %q: bubblewrap would mount it below a directory that commands write", dir)
			}
		}
	}
	newer := major > 0 || minor >= 8
	return bubblewrap{spec: spec, path: name, has: bubblewrapOptions{size: newer, disableUserns: newer}}, nil
}

// versionOf is what a program says of its version, without the package that is for running programs: init stays small.
func versionOf(name string) (string, error) {
	out, child, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer out.Close()
	p, err := os.StartProcess(name, []string{name, "--version"}, &os.ProcAttr{Env: []string{}, Files: []*os.File{nil, child, nil}})
	child.Close()
	if err != nil {
		return "", err
	}
	said, err := io.ReadAll(io.LimitReader(out, 256))
	if _, waitErr := p.Wait(); err == nil {
		err = waitErr
	}
	return string(said), err
}

func (b bubblewrap) reaper() reaper { return outerReaper{} }

func (b bubblewrap) enclose(j command, self string) (*enclosure, error) {
	dir, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", j.cwd))
	if err != nil {
		return nil, fmt.Errorf("find working directory: %w", err)
	}
	within, err := filepath.Rel(j.workspace, dir)
	if err != nil || within == ".." || strings.HasPrefix(within, "../") {
		return nil, fmt.Errorf("working directory %q is not in the workspace", j.exec.Dir)
	}
	a := bubblewrapArguments{bubblewrap: b}
	err = a.add(j, filepath.Join(workspace, within))
	var file *os.File
	if err == nil {
		file, err = memoryFile("arguments", a.text.Bytes())
	}
	if err != nil {
		a.close()
		return nil, err
	}
	files := append([]*os.File{file}, a.files...)
	e, err := newEnclosure(innerOf(j, b.spec), self, outer{
		path: b.path, files: files,
		argv: []string{"bwrap", "--args", strconv.Itoa(outerFD), "--", FencedPath, ModeFenced},
	})
	if err != nil {
		file.Close()
		a.close()
	}
	return e, err
}

// bubblewrapArguments collects arguments, and the files that they name by number.
type bubblewrapArguments struct {
	bubblewrap
	text  bytes.Buffer
	files []*os.File
}

func (a *bubblewrapArguments) put(arguments ...string) {
	for _, s := range arguments {
		a.text.WriteString(s)
		a.text.WriteByte(0)
	}
}

func (a *bubblewrapArguments) close() {
	for _, f := range a.files {
		f.Close()
	}
}

// data puts an option that takes the descriptor of a file in memory and a path.
func (a *bubblewrapArguments) data(option, name string, content []byte) error {
	f, err := memoryFile("data", content)
	if err != nil {
		return err
	}
	a.files = append(a.files, f)
	a.put(option, strconv.Itoa(outerFD+len(a.files)), name)
	return nil
}

// sized puts a file system in memory of at most so many bytes.
func (a *bubblewrapArguments) sized(bytes int64, name string) {
	if a.has.size && bytes > 0 {
		a.put("--size", strconv.FormatInt(bytes, 10))
	}
	a.put("--tmpfs", name)
}

// add says what a command sees.
func (a *bubblewrapArguments) add(j command, dir string) error {
	a.put("--unshare-all", "--unshare-user", "--as-pid-1", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv",
		"--uid", sandboxID, "--gid", sandboxID, "--hostname", "sandbox")
	if a.has.disableUserns {
		a.put("--disable-userns")
	}
	if a.spec.Network {
		a.put("--share-net")
	}
	a.system()
	if err := a.etc(); err != nil {
		return err
	}
	a.kernel()
	a.put("--bind", a.spec.Private+"/tmp", "/tmp", "--bind", a.spec.Private+"/home", home, "--symlink", "/tmp", "/var/tmp", "--symlink", "/run", "/var/run")
	for _, dir := range a.spec.Expose {
		a.put("--ro-bind", dir, dir)
	}
	if err := a.secrets(j.exec.Secrets); err != nil {
		return err
	}
	a.put("--bind", j.workspace, workspace, "--chdir", dir, "--remount-ro", "/")
	return nil
}

func (a *bubblewrapArguments) system() {
	for _, name := range systemDirs() {
		switch link, err := os.Readlink("/" + name); {
		case err == nil:
			a.put("--symlink", link, "/"+name)
		default:
			a.put("--ro-bind-try", "/"+name, "/"+name)
		}
	}
	for _, name := range etcFiles() {
		a.put("--ro-bind-try", "/etc/"+name, "/etc/"+name)
	}
}

func (a *bubblewrapArguments) etc() error {
	files := etcContents(readHostNames(a.spec))
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := a.data("--ro-bind-data", "/"+name, []byte(files[name])); err != nil {
			return err
		}
	}
	return nil
}

// kernel adds /proc and /dev.
func (a *bubblewrapArguments) kernel() {
	a.put("--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--dev", "/dev")
	for _, name := range maskedFiles() {
		if _, err := os.Lstat("/proc/" + name); err == nil {
			a.put("--ro-bind", "/dev/null", "/proc/"+name)
		}
	}
	a.sized(sharedMemory, "/dev/shm")
	a.put("--remount-ro", "/dev")
}

func (a *bubblewrapArguments) secrets(secrets []wire.Secret) error {
	if len(secrets) == 0 {
		return nil
	}
	a.put("--perms", "0500")
	a.sized(4<<20, secretsPath)
	for _, s := range secrets {
		a.put("--perms", "0400")
		if err := a.data("--file", secretsPath+"/"+s.Name, s.Value); err != nil {
			return err
		}
	}
	a.put("--remount-ro", secretsPath)
	return nil
}
