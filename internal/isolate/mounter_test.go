package isolate_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate"
)

func TestMounter_Overlay(t *testing.T) {
	b := newBox(t, isolate.Config{})
	out, r := b.sh("echo new >>old; rm gone; mkdir made; mv dir moved; echo $?; grep workspace /proc/self/mountinfo")
	if plainOf(r).Code != 0 || !strings.Contains(out, "nosuid,nodev") {
		t.Errorf("got %+v, %s", plainOf(r), out)
	}
	if err := b.Detach(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(b.path("upper/old")); err != nil || string(got) != "old\nnew\n" {
		t.Errorf("upper: got %q, %v", got, err)
	}
	if got, err := os.ReadFile(b.path("lower/old")); err != nil || string(got) != "old\n" {
		t.Errorf("lower: got %q, %v", got, err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(b.path("upper/gone"), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != 0 {
		t.Errorf("whiteout: got mode %o, %v", st.Mode, err)
	}
}

// Renaming a directory of a lower layer is what the rungs differ in. mv copies instead.
func TestMounter_Overlay_RenameDirectory(t *testing.T) {
	b := newBox(t, isolate.Config{})
	out, _ := b.sh(`perl -e 'print rename("dir","moved") ? "renamed" : $!'`)
	want := "Invalid cross-device link"
	if os.Getuid() == 0 {
		want = "renamed"
	}
	if out != want {
		t.Errorf("got %q, want %q", out, want)
	}
}

func TestMounter_Overlay_ReadOnlyView(t *testing.T) {
	b := newBox(t, isolate.Config{})
	ctx := testContext(t)
	b.sh("rm gone; echo new >old")
	if err := b.Detach(ctx); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		lowers []string
		want   string
	}{
		{[]string{b.path("upper"), b.path("lower")}, "new\ndir old\n"},
		{[]string{b.path("lower")}, "old\ndir gone old\n"},
	} {
		mount, err := b.mounter.Overlay(ctx, isolate.Overlay{Lowers: c.lowers})
		if err != nil {
			t.Fatal(err)
		}
		// The worker itself reads through the descriptor, without any mount point.
		fd, err := unix.Openat(int(mount.Fd()), "old", unix.O_RDONLY, 0)
		if err != nil {
			t.Errorf("open through the descriptor: %v", err)
		}
		unix.Close(fd)
		err = b.Attach(ctx, mount)
		mount.Close()
		if err != nil {
			t.Fatal(err)
		}
		if out, _ := b.sh("cat old; echo *; echo x 2>/dev/null >x"); out != c.want {
			t.Errorf("%d layers: got %q, want %q", len(c.lowers), out, c.want)
		}
		if err := b.Detach(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// Options of a mount are limited to 255 bytes, and mount options split at commas and colons.
func TestMounter_Overlay_AwkwardPaths(t *testing.T) {
	b := newBox(t, isolate.Config{})
	ctx := testContext(t)
	if err := b.Detach(ctx); err != nil {
		t.Fatal(err)
	}
	deep := filepath.Join(b.dir, strings.Repeat("d", 200), strings.Repeat("e", 200), `a,b:c\d=e f`)
	var o isolate.Overlay
	for n := range 60 {
		dir := filepath.Join(deep, fmt.Sprint("lower", n))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		mustWrite(t, filepath.Join(dir, fmt.Sprint("f", n)), "")
		o.Lowers = append(o.Lowers, dir)
	}
	o.Upper, o.Work, o.Volatile = filepath.Join(deep, "upper"), filepath.Join(deep, "work"), true
	for _, dir := range []string{o.Upper, o.Work} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	give(t, b.dir)
	mount, err := b.mounter.Overlay(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	err = b.Attach(ctx, mount)
	mount.Close()
	if err != nil {
		t.Fatal(err)
	}
	if out, _ := b.sh("ls | wc -l; echo >new"); out != "60\n" {
		t.Errorf("got %q files, want 60", out)
	}
	if _, err := os.Stat(filepath.Join(o.Upper, "new")); err != nil {
		t.Error(err)
	}
}

func TestMounter_Overlay_WaitsForALowerThatIsStillMounted(t *testing.T) {
	b := newBox(t, isolate.Config{})
	ctx := testContext(t)
	var dirs [5]string
	for n := range dirs {
		dirs[n] = filepath.Join(b.dir, fmt.Sprint("dir", n))
		if err := os.Mkdir(dirs[n], 0o755); err != nil {
			t.Fatal(err)
		}
	}
	give(t, b.dir)
	first, err := b.mounter.Overlay(ctx, isolate.Overlay{Lowers: dirs[:1], Upper: dirs[1], Work: dirs[2], Volatile: true})
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(20*time.Millisecond, func() { first.Close() })
	second, err := b.mounter.Overlay(ctx, isolate.Overlay{Lowers: dirs[1:2], Upper: dirs[3], Work: dirs[4], Volatile: true})
	if err != nil {
		t.Fatal(err)
	}
	second.Close()
}

func TestMounter_Overlay_Errors(t *testing.T) {
	dir := tempDir(t)
	m := newMounter(t)
	ctx := testContext(t)
	_, err := m.Overlay(ctx, isolate.Overlay{Lowers: []string{filepath.Join(dir, "none")}, Upper: dir, Work: dir})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing layer: got %v", err)
	}
	if _, err := m.Bind(ctx, isolate.Bind{Dir: filepath.Join(dir, "none")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing directory: got %v", err)
	}
	if _, err := isolate.NewMounter(isolate.RungBare); !errors.Is(err, isolate.ErrBare) {
		t.Errorf("bare: got %v", err)
	}
	// The mounter goes on after errors.
	mount, err := m.Bind(ctx, isolate.Bind{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	mount.Close()
}

// attachBind makes a directory the workspace itself.
func attachBind(t *testing.T, i *isolate.Init, b isolate.Bind) {
	t.Helper()
	mount, err := newMounter(t).Bind(testContext(t), b)
	if err != nil {
		t.Fatal(err)
	}
	err = i.Attach(testContext(t), mount)
	mount.Close()
	if err != nil {
		t.Fatal(err)
	}
}

func TestMounter_Bind(t *testing.T) {
	dir := tempDir(t)
	mustWrite(t, filepath.Join(dir, "file"), "before\n")
	i := start(t, isolate.Config{NoSetuid: true})
	attachBind(t, i, isolate.Bind{Dir: dir, IDMap: true})
	out, r := runScript(t, i, "stat -c %u:%g . file; echo after >>file; echo >made; cat file")
	if out != "1000:1000\n1000:1000\nbefore\nafter\n" || plainOf(r).Code != 0 {
		t.Errorf("got %q, %+v", out, plainOf(r))
	}
	fi, err := os.Stat(filepath.Join(dir, "made"))
	if err != nil {
		t.Fatal(err)
	}
	if got := int(fi.Sys().(*syscall.Stat_t).Uid); got != os.Getuid() {
		t.Errorf("owner on disk: got %d, want %d", got, os.Getuid())
	}
	if err := i.Detach(testContext(t)); err != nil {
		t.Error(err)
	}
}

// Files of others than the directory's owner are nobody's in a mapped workspace.
func TestMounter_Bind_ForeignFiles(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can make files of others")
	}
	dir := tempDir(t)
	mustWrite(t, filepath.Join(dir, "foreign"), "x")
	if err := os.Lchown(dir, 12345, 12346); err != nil {
		t.Fatal(err)
	}
	i := start(t, isolate.Config{})
	for range 2 { // the second mapping comes from the cache
		attachBind(t, i, isolate.Bind{Dir: dir, IDMap: true})
		out, _ := runScript(t, i, "stat -c %u . foreign; { echo x >foreign; } 2>/dev/null || echo refused; touch mine")
		if out != "1000\n65534\nrefused\n" {
			t.Errorf("got %q", out)
		}
		if err := i.Detach(testContext(t)); err != nil {
			t.Fatal(err)
		}
	}
	fi, err := os.Stat(filepath.Join(dir, "mine"))
	if err != nil || fi.Sys().(*syscall.Stat_t).Uid != 12345 || fi.Sys().(*syscall.Stat_t).Gid != 12346 {
		t.Errorf("owner on disk: got %+v, %v", fi, err)
	}
}

// In place under root, a setuid file would be a real one: no call may make it.
func TestInit_NoSetuid(t *testing.T) {
	dir := tempDir(t)
	i := start(t, isolate.Config{NoSetuid: true})
	attachBind(t, i, isolate.Bind{Dir: dir, IDMap: true})
	out, r := runScript(t, i, "", func(c *isolate.Command) {
		c.Argv, c.Env = []string{"/proc/self/exe"}, []string{modeVariable + "=setuid"}
	})
	if out != "" || plainOf(r).Code != 0 {
		t.Errorf("got %+v:\n%s", plainOf(r), out)
	}
	if err := i.WriteFile(testContext(t), isolate.FileWrite{Path: "w", Mode: 0o4755}); !errors.Is(err, os.ErrPermission) {
		t.Errorf("WriteFile: got %v, want a refusal", err)
	}
	err := filepath.Walk(dir, func(p string, fi os.FileInfo, err error) error {
		if err == nil && fi.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
			t.Errorf("%s has mode %v", p, fi.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if out, r := runScript(t, i, "chmod 755 f0; mkdir d; touch t; git init -q g && cd g && git status -s"); plainOf(r).Code != 0 {
		t.Errorf("ordinary work: got %+v, %s", plainOf(r), out)
	}
}

// setuidMode makes set-id files in every way, prints what worked, and what ordinary call did not.
func setuidMode() int {
	path := func(n int) uintptr {
		b, err := unix.BytePtrFromString(fmt.Sprint("f", n))
		if err != nil {
			panic(err)
		}
		return uintptr(unsafe.Pointer(b))
	}
	at := ^uintptr(99) // AT_FDCWD
	for n := range 12 {
		if err := os.WriteFile(fmt.Sprint("f", n), nil, 0o644); err != nil {
			fmt.Println("ordinary create:", err)
		}
	}
	fd, err := unix.Open("f0", unix.O_RDWR, 0o6777) // without O_CREAT the mode means nothing
	if err != nil {
		fmt.Println("open with a stray mode:", err)
	}
	how := unix.OpenHow{Flags: unix.O_CREAT | unix.O_WRONLY, Mode: 0o4755}
	for n, bits := range []uintptr{0o4755, 0o2755, 0o6777, 1<<40 | 0o4755} {
		new := 100 + 20*n
		for name, call := range map[string][]uintptr{
			"fchmod":         {unix.SYS_FCHMOD, uintptr(fd), bits},
			"fchmodat":       {unix.SYS_FCHMODAT, at, path(2), bits},
			"fchmodat2":      {unix.SYS_FCHMODAT2, at, path(3), bits, 0},
			"openat":         {unix.SYS_OPENAT, at, path(new), unix.O_CREAT | unix.O_WRONLY, bits},
			"openat tmpfile": {unix.SYS_OPENAT, at, uintptr(unsafe.Pointer(&[]byte(".\x00")[0])), unix.O_TMPFILE | unix.O_WRONLY, bits},
			"mknodat":        {unix.SYS_MKNODAT, at, path(new + 1), unix.S_IFREG | bits, 0},
			"openat2":        {unix.SYS_OPENAT2, at, path(new + 2), uintptr(unsafe.Pointer(&how)), unsafe.Sizeof(how)},
			"io_uring_setup": {unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&[120]byte{}))},
		} {
			call = append(call, make([]uintptr, 7-len(call))...)
			_, _, errno := unix.Syscall6(call[0], call[1], call[2], call[3], call[4], call[5], call[6])
			if errno != unix.EPERM && errno != unix.ENOSYS {
				fmt.Printf("%s %o: %v\n", name, bits, errno)
			}
		}
	}
	for name, call := range oldModeCalls(path) {
		if _, _, errno := unix.Syscall(call[0], call[1], call[2], call[3]); errno != unix.EPERM {
			fmt.Printf("%s: %v\n", name, errno)
		}
	}
	return 0
}

// A request that is cancelled as its answer comes takes nothing from the next one.
func TestMounter_CancelIsOfOneRequest(t *testing.T) {
	m, err := isolate.NewMounter(isolate.RungUser)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	dir := t.TempDir()
	for n := range 100 {
		cancelled, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Duration(n)*10*time.Microsecond, cancel)
		for _, ctx := range []context.Context{cancelled, t.Context()} {
			f, err := m.Bind(ctx, isolate.Bind{Dir: dir})
			if err == nil {
				f.Close()
			} else if ctx == t.Context() {
				t.Fatalf("round %d: %v", n, err)
			}
		}
		cancel()
	}
}
