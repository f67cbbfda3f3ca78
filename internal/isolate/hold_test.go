package isolate_test

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/warmfleet/warmfleet/internal/isolate"
)

func syncing(c *isolate.Command) { c.Sync = true }

func TestInit_Hold(t *testing.T) {
	b := newBox(t, isolate.Config{})
	ctx := testContext(t)
	held := func(what string) {
		t.Helper()
		out, _ := b.sh("cat old; sh -c 'echo x >new'; echo x >>old; mkdir d; rm gone; cd /proc/self/cwd/ && : >here", func(c *isolate.Command) { c.Stderr = nil })
		if out != "old\n" {
			t.Errorf("%s: got %q", what, out)
		}
		if out, _ := b.sh("ls new d here; ls gone; sh -c 'echo x >new' 2>&1"); !hasLine(out, "gone") || !hasSuffixLine(out, "Read-only file system") {
			t.Errorf("%s: got %q, want nothing changed and EROFS", what, out)
		}
		err := b.WriteFile(ctx, isolate.FileWrite{Path: "new", Content: []byte("x")})
		if !errors.Is(err, isolate.ErrHeld) || !errors.Is(err, syscall.EROFS) {
			t.Errorf("%s: WriteFile: got %v, want ErrHeld", what, err)
		}
		if err := b.ChangeFiles(ctx, []isolate.FileChange{{Path: "gone", Remove: true}}); !errors.Is(err, isolate.ErrHeld) {
			t.Errorf("%s: ChangeFiles: got %v, want ErrHeld", what, err)
		}
		if content, _, err := b.ReadFile(ctx, "old", 100); err != nil || string(content) != "old\n" {
			t.Errorf("%s: ReadFile: got %q, %v", what, content, err)
		}
	}
	if err := b.Hold(ctx); err != nil {
		t.Fatal(err)
	}
	if err := b.Hold(ctx); err == nil {
		t.Error("second Hold: got no error")
	}
	held("held")
	if out, r := b.sh("pwd; echo 1 >dir/synced && echo 2 >/workspace/synced && sh -c 'cat dir/synced synced'", syncing); out != "/workspace\n1\n2\n" || plainOf(r).Code != 0 {
		t.Errorf("sync: got %q, %+v", out, r)
	}
	if err := b.WriteFile(ctx, isolate.FileWrite{Path: "byfile", Content: []byte("x"), Sync: true}); err != nil {
		t.Errorf("sync: WriteFile: %v", err)
	}
	if out, _ := b.sh("cat synced dir/synced byfile"); out != "2\n1\nx" {
		t.Errorf("a command sees %q of the sync", out)
	}
	// As at a checkpoint or rollback.
	if err := b.Detach(ctx); err != nil {
		t.Fatal(err)
	}
	b.attach()
	held("attached again")
	if out, _ := b.sh("echo 3 >synced && cat synced", syncing); out != "3\n" {
		t.Errorf("sync after attaching again: got %q", out)
	}
	if err := b.Release(ctx); err != nil {
		t.Fatal(err)
	}
	if out, _ := b.sh("echo x >new && cat new synced"); out != "x\n3\n" {
		t.Errorf("released: got %q", out)
	}
	if err := b.WriteFile(ctx, isolate.FileWrite{Path: "new", Content: []byte("y")}); err != nil {
		t.Error(err)
	}
	if err := b.Release(ctx); err == nil {
		t.Error("second Release: got no error")
	}
}

// Who has a file open for writing would go on writing: that is refused, not overlooked.
func TestInit_Hold_OpenFile(t *testing.T) {
	b := newBox(t, isolate.Config{})
	ctx := testContext(t)
	d := startDetached(t, b.Init, "exec 9>>old; echo open; exec sleep 60")
	eventually(t, "open file", func() bool { out, _ := b.sh("cat " + d.Log); return out == "open\n" })
	if err := b.Hold(ctx); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("got %v, want EBUSY", err)
	}
	if out, _ := b.sh("echo on >new && cat new"); out != "on\n" {
		t.Errorf("after a refused Hold: got %q", out)
	}
	if _, r := b.sh("pkill sleep"); plainOf(r).Code != 0 {
		t.Errorf("got %+v", r)
	}
	eventually(t, "end", func() bool { return detached(t, b.Init) == 0 })
	if err := b.Hold(ctx); err != nil {
		t.Error(err)
	}
	if err := b.Release(ctx); err != nil {
		t.Error(err)
	}
}

func TestBare_Hold(t *testing.T) {
	i, _ := newBare(t)
	ctx := testContext(t)
	if err := i.Hold(ctx); err != nil {
		t.Fatal(err)
	}
	if err := i.WriteFile(ctx, isolate.FileWrite{Path: "f"}); !errors.Is(err, isolate.ErrHeld) {
		t.Errorf("got %v, want ErrHeld", err)
	}
	if err := i.WriteFile(ctx, isolate.FileWrite{Path: "f", Content: []byte("x"), Sync: true}); err != nil {
		t.Error(err)
	}
	if out, _ := runScript(t, i, "echo commands are not held >f; cat f"); out != "commands are not held\n" {
		t.Errorf("got %q", out)
	}
	if err := i.Release(ctx); err != nil {
		t.Error(err)
	}
	if err := i.WriteFile(ctx, isolate.FileWrite{Path: "f"}); err != nil {
		t.Error(err)
	}
}

func hasLine(text, line string) bool { return strings.Contains("\n"+text, "\n"+line+"\n") }

func hasSuffixLine(text, end string) bool { return strings.HasSuffix(strings.TrimSpace(text), end) }
