package isolate_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/internal/isolate"
)

func TestInit_WriteFile(t *testing.T) {
	b := newBox(t, isolate.Config{})
	ctx := testContext(t)
	b.sh(`printf old >exe; chmod 750 exe; ln -s exe link; ln -s /dir/abs abs; ln -s nowhere/deep dangling; ln -s ../../../../../../tmp/escape escape; ln -s loop loop; mkfifo fifo; ln -s / root; ln -s /proc/self/root magic`)
	big := strings.Repeat("0123456789abcdef", 5<<16)
	for _, c := range []struct {
		write isolate.FileWrite
		at    string // where the content is to be found then
		mode  string
		want  error
	}{
		{isolate.FileWrite{Path: "new", Content: []byte("a")}, "new", "644", nil},
		{isolate.FileWrite{Path: "exe", Content: []byte("b")}, "exe", "750", nil},
		{isolate.FileWrite{Path: "exe", Content: []byte("c"), Mode: 0o600}, "exe", "600", nil},
		{isolate.FileWrite{Path: "old", Content: []byte(big)}, "old", "644", nil},
		{isolate.FileWrite{Path: "empty"}, "empty", "644", nil},
		{isolate.FileWrite{Path: "link", Content: []byte("d")}, "exe", "600", nil},
		{isolate.FileWrite{Path: "abs", Content: []byte("e")}, "", "", syscall.EXDEV},
		{isolate.FileWrite{Path: "a/b/c", Content: []byte("f")}, "", "", fs.ErrNotExist},
		{isolate.FileWrite{Path: "a/b/c", Content: []byte("f"), MkdirAll: true}, "a/b/c", "644", nil},
		{isolate.FileWrite{Path: "dangling", Content: []byte("g"), MkdirAll: true}, "nowhere/deep", "644", nil},
		{isolate.FileWrite{Path: "escape", Content: []byte("h"), MkdirAll: true}, "", "", syscall.EXDEV},
		{isolate.FileWrite{Path: "../../up", Content: []byte("i")}, "", "", syscall.EXDEV},
		{isolate.FileWrite{Path: "/rooted", Content: []byte("j")}, "", "", syscall.EXDEV},
		{isolate.FileWrite{Path: "root/etc/passwd", Content: []byte("k"), MkdirAll: true}, "", "", syscall.EXDEV},
		{isolate.FileWrite{Path: "magic/x", Content: []byte("l")}, "", "", syscall.EXDEV},
		{isolate.FileWrite{Path: "loop", Content: []byte("m")}, "", "", syscall.ELOOP},
		{isolate.FileWrite{Path: "dir", Content: []byte("n")}, "", "", syscall.EISDIR},
		{isolate.FileWrite{Path: "dir/", Content: []byte("n")}, "", "", syscall.EISDIR},
		{isolate.FileWrite{Path: "dir/..", Content: []byte("n")}, "", "", syscall.EISDIR},
		{isolate.FileWrite{Path: "", Content: []byte("n")}, "", "", syscall.EISDIR},
		{isolate.FileWrite{Path: "fifo", Content: []byte("o")}, "", "", syscall.EINVAL},
		{isolate.FileWrite{Path: "old/x", Content: []byte("p"), MkdirAll: true}, "", "", syscall.ENOTDIR},
		{isolate.FileWrite{Path: "bytes\xff\n", Content: []byte("q")}, "bytes\xff\n", "644", nil},
	} {
		err := b.WriteFile(ctx, c.write)
		if !errors.Is(err, c.want) {
			t.Errorf("write %q: got %v, want %v", c.write.Path, err, c.want)
		}
		if c.want != nil || err != nil {
			continue
		}
		out, _ := b.sh(fmt.Sprintf("stat -c %%a.%%U '%s'; cat '%s'", c.at, c.at))
		if want := c.mode + ".sandbox\n" + string(c.write.Content); out != want {
			t.Errorf("write %q: got %.60q at %s, want %.60q", c.write.Path, out, c.at, want)
		}
	}
	if out, _ := b.sh("ls -A /tmp; find . -name '*.tmp'"); out != "" {
		t.Errorf("left behind: %s", out)
	}
	err := b.WriteFile(ctx, isolate.FileWrite{Path: "x", Content: make([]byte, 64<<20+1)})
	if !errors.Is(err, isolate.ErrTooLarge) {
		t.Errorf("too large: got %v", err)
	}
}

// File calls have a command's rights, no more.
func TestInit_Files_AreAsWeakAsCommands(t *testing.T) {
	b := newBox(t, isolate.Config{})
	ctx := testContext(t)
	b.sh("echo x >locked; chmod 0 locked; mkdir closed; echo x >closed/f; chmod 0 closed")
	if _, _, err := b.ReadFile(ctx, "locked", 10); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("read: got %v, want permission denied", err)
	}
	if err := b.WriteFile(ctx, isolate.FileWrite{Path: "closed/g"}); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("write: got %v, want permission denied", err)
	}
	_, r := b.sh("", func(c *isolate.Command) { c.Argv, c.Dir = []string{"/bin/true"}, "closed" })
	if r.Cause != isolate.CauseStart || !strings.Contains(r.StartError, "permission denied") {
		t.Errorf("command in a closed directory: got %+v", r)
	}
}

func TestInit_ReadFile(t *testing.T) {
	b := newBox(t, isolate.Config{})
	ctx := testContext(t)
	b.sh(`ln -s /etc/passwd out; ln -s old link; ln -s /proc/self/root/etc/passwd magic; mkfifo fifo; chmod 4711 gone`)
	for _, c := range []struct {
		path    string
		max     int64
		content string
		mode    fs.FileMode
		want    error
	}{
		{"old", 4, "old\n", 0o644, nil},
		{"old", 3, "", 0, isolate.ErrTooLarge},
		{"link", 100, "old\n", 0o644, nil},
		{"dir/../old", 100, "old\n", 0o644, nil},
		{"out", 100, "", 0, syscall.EXDEV},
		{"magic", 100, "", 0, syscall.EXDEV},
		{"../../../etc/passwd", 100, "", 0, syscall.EXDEV},
		{"dir", 100, "", 0, syscall.EISDIR},
		{"fifo", 100, "", 0, syscall.EINVAL},
		{"old/x", 100, "", 0, syscall.ENOTDIR},
	} {
		content, mode, err := b.ReadFile(ctx, c.path, c.max)
		if string(content) != c.content || mode != c.mode || !errors.Is(err, c.want) {
			t.Errorf("read %q: got %q, %v, %v; want %q, %v, %v", c.path, content, mode, err, c.content, c.mode, c.want)
		}
	}
	info, err := b.Stat(ctx, "dir/../out")
	if err != nil || info.Name != "out" || info.Mode != fs.ModeSymlink|0o777 {
		t.Errorf("Stat: got %+v, %v", info, err)
	}
	if info, err = b.Stat(ctx, "gone"); err != nil || info.Mode != fs.ModeSetuid|0o711 || info.Size != 5 || info.ModTime.IsZero() {
		t.Errorf("Stat: got %+v, %v", info, err)
	}
	entries, err := b.List(ctx, "")
	var names []string
	for _, e := range entries {
		names = append(names, e.Mode.String()[:1]+e.Name)
	}
	if diff := cmp.Diff(names, []string{"ddir", "pfifo", "ugone", "Llink", "Lmagic", "-old", "Lout"}); diff != "" || err != nil {
		t.Errorf("List (-got +want), %v:\n%s", err, diff)
	}
}

// File calls work while a command runs, and see what it does.
func TestInit_Files_BesideCommand(t *testing.T) {
	b := newBox(t, isolate.Config{})
	ctx := testContext(t)
	out, r := b.sh("while ! test -e stop; do sleep 0.01; done; cat stop", func(c *isolate.Command) {
		c.Started = func() {
			if content, _, err := b.ReadFile(ctx, "old", 100); err != nil || string(content) != "old\n" {
				t.Errorf("got %q, %v", content, err)
			}
			if err := b.WriteFile(ctx, isolate.FileWrite{Path: "stop", Content: []byte("now")}); err != nil {
				t.Error(err)
			}
		}
	})
	if out != "now" || plainOf(r).Code != 0 {
		t.Errorf("got %q, %+v", out, plainOf(r))
	}
}

// A step that swaps a directory for a link while files are written never gets one out.
func TestInit_WriteFile_Race(t *testing.T) {
	b := newBox(t, isolate.Config{})
	ctx := testContext(t)
	_, r := b.sh("mkdir real; ln -s /tmp link; while ! test -e stop; do mv -T real swap 2>/dev/null; mv -T link real; mv -T real link; mv -T swap real; done", func(c *isolate.Command) {
		c.Started = func() {
			for range 300 {
				b.WriteFile(ctx, isolate.FileWrite{Path: "real/file", Content: []byte("x")})
			}
			if err := b.WriteFile(ctx, isolate.FileWrite{Path: "stop"}); err != nil {
				t.Error(err)
			}
		}
	})
	if out, _ := b.sh("ls -A /tmp"); out != "" || r.Cause != isolate.CauseExit {
		t.Errorf("got out: %q (%+v)", out, r)
	}
	if _, err := os.Stat("/tmp/file"); err == nil {
		t.Error("/tmp/file exists on the host")
	}
}
