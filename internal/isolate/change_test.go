package isolate_test

import (
	"errors"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	"github.com/warmfleet/warmfleet/internal/isolate"
)

const listTree = `find . -mindepth 1 -printf '%P %y %m %l\n' | LC_ALL=C sort; find . -type f -exec cat {} +`

func TestInit_ChangeFiles(t *testing.T) {
	b := newBox(t, isolate.Config{})
	ctx := testContext(t)
	b.sh(`rm -rf * ; mkdir -p d/e keep; echo 1 >d/e/f; echo 2 >keep/x; echo 3 >keep/y; ln -s x keep/l; mkdir -p emptied/deep; echo 4 >emptied/deep/z`)
	err := b.ChangeFiles(ctx, []isolate.FileChange{
		{Path: "d", Content: []byte("now a file\n"), Mode: 0o600},
		{Path: "d/e/f", Remove: true},
		{Path: "emptied/deep/z", Remove: true},
		{Path: "keep/l", Link: true, Content: []byte("y")},
		{Path: "keep/x", Content: []byte("two\n"), Mode: 0o755},
		{Path: "keep/y", Remove: true},
		{Path: "keep/y2/z", Content: []byte("three\n"), Mode: 0o644},
		{Path: "odd \xff\n", Mode: 0o644},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := " f 644 \nd f 600 \nkeep d 755 \nkeep/l l 777 y\nkeep/x f 755 \nkeep/y2 d 755 \nkeep/y2/z f 644 \nodd \xff\n"
	if out, _ := b.sh(listTree); !strings.HasPrefix(out, want) || strings.Contains(out, "1\n2") {
		t.Errorf("got\n%s\nwant\n%s", out, want)
	}
}

// Whatever a change fails on, everything is as before: names, contents, modes, and nothing left of the try.
func TestInit_ChangeFiles_AllOrNone(t *testing.T) {
	b := newBox(t, isolate.Config{})
	ctx := testContext(t)
	b.sh(`rm -rf old; mkdir -p d/e; chmod 750 d/e; echo 1 >d/e/f; echo 2 >x; chmod 700 x; mkdir dir full closed; echo 3 >full/f; echo 4 >closed/f; chmod 500 closed
		ln -s d linkdir; ln -s /tmp out; touch file`)
	before, _ := b.sh(listTree)
	first := []isolate.FileChange{
		{Path: "a/new", Content: []byte("n"), Mode: 0o644},
		{Path: "d/e/f", Remove: true},
		{Path: "x", Content: []byte("changed"), Mode: 0o644},
		{Path: "d/e", Content: []byte("file for a directory"), Mode: 0o644},
	}
	for _, c := range []struct {
		bad  isolate.FileChange
		want error
	}{
		{isolate.FileChange{Path: "nothing", Remove: true}, fs.ErrNotExist},
		{isolate.FileChange{Path: "dir", Remove: true}, syscall.EISDIR},
		{isolate.FileChange{Path: "full", Mode: 0o644}, fs.ErrExist},
		{isolate.FileChange{Path: "closed/f", Remove: true}, fs.ErrPermission},
		{isolate.FileChange{Path: "closed/g", Mode: 0o644}, fs.ErrPermission},
		{isolate.FileChange{Path: "linkdir/g", Mode: 0o644}, syscall.ENOTDIR},
		{isolate.FileChange{Path: "linkdir/e/f", Remove: true}, syscall.ELOOP},
		{isolate.FileChange{Path: "out/g", Mode: 0o644}, syscall.ENOTDIR},
		{isolate.FileChange{Path: "file/g", Mode: 0o644}, syscall.ENOTDIR},
		{isolate.FileChange{Path: "../g", Mode: 0o644}, syscall.EXDEV},
		{isolate.FileChange{Path: strings.Repeat("n", 300), Mode: 0o644}, syscall.ENAMETOOLONG},
	} {
		err := b.ChangeFiles(ctx, append(first[:4:4], c.bad))
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.bad.Path[:3]) {
			t.Errorf("%q: got %v, want %v", c.bad.Path, err, c.want)
		}
		if after, _ := b.sh(listTree); after != before {
			t.Fatalf("%q: the tree is now\n%s\nwas\n%s", c.bad.Path, after, before)
		}
	}
	err := b.ChangeFiles(ctx, []isolate.FileChange{{Path: "x", Content: make([]byte, 64<<20+1)}})
	if !errors.Is(err, isolate.ErrTooLarge) {
		t.Errorf("too large: got %v", err)
	}
}

func TestInit_LookAt(t *testing.T) {
	b := newBox(t, isolate.Config{})
	ctx := testContext(t)
	b.sh(`echo content >f; chmod 711 f; ln -s /etc/passwd l; ln -s . here; mkfifo fifo`)
	for _, c := range []struct {
		path, content string
		mode          fs.FileMode
		want          error
	}{
		{"f", "content\n", 0o711, nil},
		{"l", "/etc/passwd", fs.ModeSymlink | 0o777, nil},
		{"here/f", "", 0, syscall.ELOOP},
		{"l/x", "", 0, syscall.ELOOP},
		{"f/x", "", 0, syscall.ENOTDIR},
		{"none", "", 0, fs.ErrNotExist},
		{"dir", "", 0, syscall.EISDIR},
		{"fifo", "", 0, syscall.EINVAL},
		{"../f", "", 0, syscall.EXDEV},
	} {
		content, mode, err := b.LookAt(ctx, c.path, 100)
		if string(content) != c.content || mode != c.mode || !errors.Is(err, c.want) {
			t.Errorf("%s: got %q, %v, %v, want %q, %v, %v", c.path, content, mode, err, c.content, c.mode, c.want)
		}
	}
	if _, _, err := b.LookAt(ctx, "f", 3); !errors.Is(err, isolate.ErrTooLarge) {
		t.Errorf("too large: got %v", err)
	}
}
