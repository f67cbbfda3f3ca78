package diff

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/internal/layer"
)

type dir string

func (d dir) Open(p layer.Path) (io.ReadCloser, error) {
	return os.Open(filepath.Join(string(d), string(p)))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func sh(t testing.TB, d dir, script string) string {
	t.Helper()
	cmd := exec.Command("bash", "-euc", "umask 022; "+script)
	cmd.Dir = string(d)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", script, err, out)
	}
	return string(out)
}

func entries(t testing.TB, d dir) map[layer.Path]*layer.Entry {
	t.Helper()
	all := map[layer.Path]*layer.Entry{}
	must(t, filepath.WalkDir(string(d), func(p string, de fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if de.Name() == ".git" {
			return fs.SkipDir
		}
		fi, err := de.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(string(d), p)
		if err != nil {
			return err
		}
		e := &layer.Entry{Path: layer.Path(rel), Type: layer.Dir, Mode: uint32(fi.Mode().Perm())}
		switch fi.Mode().Type() {
		case 0:
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			e.Type, e.Size, e.Digest = layer.File, int64(len(b)), fmt.Sprintf("sha256:%x", sha256.Sum256(b))
		case fs.ModeSymlink:
			e.Type = layer.Symlink
			var text string
			text, err = os.Readlink(p)
			e.Link = layer.LinkText(text)
		case fs.ModeNamedPipe:
			e.Type = layer.Fifo
		}
		all[e.Path] = e
		return err
	}))
	return all
}

// render compares two directories.
func render(t testing.TB, base, ours dir, limit int) Diff {
	t.Helper()
	before, after := entries(t, base), entries(t, ours)
	req := Request{Base: base, Ours: ours, Max: limit}
	for p, b := range before {
		if !cmp.Equal(b, after[p]) {
			req.Changes = append(req.Changes, layer.Change{Path: p, Before: b, After: after[p]})
		}
	}
	for p, a := range after {
		if before[p] == nil {
			req.Changes = append(req.Changes, layer.Change{Path: p, After: a})
		}
	}
	d, err := Render(context.Background(), req)
	must(t, err)
	return d
}

func sides(t testing.TB, base, ours string) (dir, dir) {
	t.Helper()
	a, b := dir(t.TempDir()), dir(t.TempDir())
	sh(t, a, base)
	sh(t, b, fmt.Sprintf("cp -a %q/. .; %s", string(a), ours))
	return a, b
}

func TestRender_Text(t *testing.T) {
	a, b := sides(t, `printf 'one\ntwo\nthree\n'>t; echo gone>gone; echo same>old; echo x>run; ln -s a l; printf 'a\0b'>bin; mkdir dir`,
		`printf 'one\n2\nthree'>t; rm gone; mv old new; chmod 755 run; ln -sfn b l; printf 'a\0bc'>bin; : >empty; chmod 700 dir; mkfifo p`)
	d := render(t, a, b, 0)
	want := `diff --git a/bin b/bin
Binary files a/bin and b/bin differ (3 -> 4 bytes)
directory changed: dir (mode 0755 -> 0700)
diff --git a/empty b/empty
new file mode 100644
diff --git a/gone b/gone
deleted file mode 100644
--- a/gone
+++ /dev/null
@@ -1,1 +0,0 @@
-gone
diff --git a/l b/l
--- a/l
+++ b/l
@@ -1,1 +1,1 @@
-a
\ No newline at end of file
+b
\ No newline at end of file
diff --git a/old b/new
similarity index 100%
rename from old
rename to new
named pipe created: p (mode 0644)
diff --git a/run b/run
old mode 100644
new mode 100755
diff --git a/t b/t
--- a/t
+++ b/t
@@ -1,3 +1,3 @@
 one
-two
-three
+2
+three
\ No newline at end of file
`
	if diff := cmp.Diff(want, string(d.Text)); diff != "" {
		t.Errorf("text: (-want +got)\n%s", diff)
	}
	stat := ` bin | modified, binary 3 -> 4 bytes
 dir | modified
 empty | added
 gone | deleted +0 -1
 l | modified +1 -1
 old => new | renamed
 p | added
 run | modified
 t | modified +2 -2
 9 changed, 3 insertions(+), 4 deletions(-)
`
	if diff := cmp.Diff(stat, d.Stat()); diff != "" {
		t.Errorf("stat: (-want +got)\n%s", diff)
	}
}

// git applies the text to the base, and gets ours: cases E4 and E5 among it.
func TestRender_GitApplies(t *testing.T) {
	names := []string{"a b.txt", "Über — 1.md", "x b/y", "[ab].txt", "-rf", "new\nline", "tab\tq\"'\\", "trailing ", "\xff\xfe", "c\rr", "\x01\x7f"}
	a, b := sides(t, `echo keep>keep`, `true`)
	for i, n := range names {
		for _, d := range []dir{a, b} {
			must(t, os.MkdirAll(filepath.Dir(filepath.Join(string(d), n)), 0o755))
			must(t, os.WriteFile(filepath.Join(string(d), n), []byte(strings.Repeat("line\r\n", 20)+fmt.Sprint(i)), 0o644))
		}
		p := filepath.Join(string(b), n)
		switch i % 3 {
		case 0:
			must(t, os.WriteFile(p, []byte(strings.Repeat("line\r\n", 10)+"mid\n"+strings.Repeat("line\r\n", 10)), 0o644))
		case 1:
			must(t, os.Rename(p, p+"+"))
		case 2:
			must(t, os.Remove(p))
			must(t, os.Symlink("\xffto\n", p))
		}
	}
	sh(t, b, `chmod 755 keep; printf 'no end'>'n ew'; mkdir -p deep/er; echo x>deep/er/f`)
	d := render(t, a, b, 0)
	patch := filepath.Join(t.TempDir(), "patch")
	must(t, os.WriteFile(patch, d.Text, 0o600))
	sh(t, a, fmt.Sprintf("git init -q .; git apply --whitespace=nowarn %q", patch))
	if diff := cmp.Diff(entries(t, b), entries(t, a)); diff != "" {
		t.Errorf("applied: (-want +got)\n%s\n%s", diff, d.Text)
	}
}

func TestQuote_AsGit(t *testing.T) {
	a := dir(t.TempDir())
	sh(t, a, `git init -q .`)
	for _, n := range []string{"plain", "a b", "ü", "q\"", `back\`, "\a\b\t\n\v\f\r", "\xff", "\x7f", "'", "$"} {
		must(t, os.WriteFile(filepath.Join(string(a), n), nil, 0o600))
		want := strings.TrimSuffix(sh(t, a, `git add -A; git ls-files; git rm -qrf .`), "\n")
		if got := Quote(n); got != want {
			t.Errorf("Quote(%q): got %s, want %s", n, got, want)
		}
	}
}

func TestRender_Bounded(t *testing.T) {
	a, b := sides(t, `for i in $(seq 100 130); do seq 2000 >f$i; done`, `for i in $(seq 100 130); do seq 3 3000 >f$i; done; seq 200000 >huge`)
	whole := render(t, a, b, 0)
	if whole.Truncated || !bytes.Contains(whole.Text, []byte("huge differ, too large to show (0 -> 1288895 bytes)")) {
		t.Errorf("truncated: got %t, and the text lacks the large file", whole.Truncated)
	}
	const limit = 20000
	d := render(t, a, b, limit)
	if !d.Truncated || len(d.Text) > limit || len(d.Text) < limit/2 {
		t.Errorf("got %d bytes, truncated %t, want at most %d", len(d.Text), d.Truncated, limit)
	}
	if !bytes.HasSuffix(d.Text, []byte("[diff truncated at 20000 bytes: 4 of 32 changed paths shown]\n")) {
		t.Errorf("marker: got %q", d.Text[len(d.Text)-100:])
	}
	if !slices.EqualFunc(d.Files, whole.Files, func(x, y File) bool { return x.Path == y.Path }) {
		t.Error("a path is missing in the summary")
	}
}

func TestRender_ContentError(t *testing.T) {
	ch := layer.Change{Path: "x", After: &layer.Entry{Path: "x", Type: layer.File, Digest: "d", Size: 1}}
	_, err := Render(context.Background(), Request{Changes: []layer.Change{ch}, Base: dir("/nowhere"), Ours: dir("/nowhere")})
	if err == nil || !strings.Contains(err.Error(), `"x"`) {
		t.Errorf("error: got %v, want one that names x", err)
	}
}
