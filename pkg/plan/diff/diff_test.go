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
		e := &layer.Entry{Path: layer.Path(rel), Type: layer.Dir, Mode: uint32(fi.Mode().Perm()), UID: layer.Self, GID: layer.Self}
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

// request asks for the difference of two directories.
func request(t testing.TB, base, ours dir, limit int) Request {
	t.Helper()
	before, after := entries(t, base), entries(t, ours)
	req := Request{Base: base, Ours: ours, Max: limit, More: "look here"}
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
	return req
}

func render(t testing.TB, base, ours dir, limit int) Diff {
	t.Helper()
	d, err := Render(context.Background(), request(t, base, ours, limit))
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
	a, b := sides(t, `printf 'one\ntwo\nthree\n'>t; echo gone>gone; echo same>old; echo x>run; ln -s a l; printf 'a\0b'>bin
		mkdir dir was left; seq 30 >moved; : >left/x; ln -s t swap; echo d >will; head -c 20000 /dev/zero >zeros`,
		`printf 'one\n2\nthree'>t; rm gone; mv old new; chmod 755 run; ln -sfn b l; printf 'a\0bc'>bin; : >empty; chmod 700 dir; mkfifo p
		rmdir was; mkdir bare full secret; chmod 700 secret; echo f >full/f; echo s >secret/s; rm -r left
		sed -i s/7/seven/ moved; mv moved full/moved; rm swap; cp t swap; rm will; mkdir will; head -c 30000 /dev/zero >zeros`)
	d := render(t, a, b, 0)
	want := `directory created: bare (mode 0755)
diff --git a/bin b/bin
Binary files a/bin and b/bin differ
binary: 3 bytes -> 4 bytes
directory changed: dir (mode 0755 -> 0700)
diff --git a/empty b/empty
new file mode 100644
diff --git a/full/f b/full/f
new file mode 100644
--- /dev/null
+++ b/full/f
@@ -0,0 +1,1 @@
+f
diff --git a/moved b/full/moved
similarity index 78%
rename from moved
rename to full/moved
--- a/moved
+++ b/full/moved
@@ -4,7 +4,7 @@
 4
 5
 6
-7
+seven
 8
 9
 10
@@ -14,7 +14,7 @@
 14
 15
 16
-17
+1seven
 18
 19
 20
@@ -24,7 +24,7 @@
 24
 25
 26
-27
+2seven
 28
 29
 30
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
diff --git a/left/x b/left/x
deleted file mode 100644
diff --git a/old b/new
similarity index 100%
rename from old
rename to new
named pipe created: p (mode 0644)
diff --git a/run b/run
old mode 100644
new mode 100755
directory created: secret (mode 0700)
diff --git a/secret/s b/secret/s
new file mode 100644
--- /dev/null
+++ b/secret/s
@@ -0,0 +1,1 @@
+s
diff --git a/swap b/swap
deleted file mode 120000
--- a/swap
+++ /dev/null
@@ -1,1 +0,0 @@
-t
\ No newline at end of file
diff --git a/swap b/swap
new file mode 100644
--- /dev/null
+++ b/swap
@@ -0,0 +1,3 @@
+one
+2
+three
\ No newline at end of file
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
directory deleted: was
diff --git a/will b/will
deleted file mode 100644
--- a/will
+++ /dev/null
@@ -1,1 +0,0 @@
-d
directory created: will (mode 0755)
diff --git a/zeros b/zeros
Binary files a/zeros and b/zeros differ
binary: 20000 bytes (19.5 KiB) -> 30000 bytes (29.3 KiB)
`
	if diff := cmp.Diff(want, string(d.Text)); diff != "" {
		t.Errorf("text: (-want +got)\n%s", diff)
	}
	stat := ` bare                | directory added
 bin                 | Bin 3 -> 4 bytes
 dir                 | mode 0755 -> 0700
 empty               | empty file added
 full/f              |    1 +
 moved => full/moved |    6 +++---
 gone                |    1 -
 l                   |    2 +-
 left/x              | empty file deleted
 old => new          | renamed
 p                   | fifo added
 run                 | mode 0644 -> 0755
 secret              | directory added
 secret/s            |    1 +
 swap                |    4 +++-
 t                   |    4 ++--
 was                 | directory deleted
 will                |    1 -
 zeros               | Bin 20000 -> 30000 bytes
 19 paths changed, 11 insertions(+), 9 deletions(-)
`
	if diff := cmp.Diff(stat, Stat(d.Files)); diff != "" {
		t.Errorf("stat: (-want +got)\n%s", diff)
	}
	status := "A\tbare\nM\tbin\nM\tdir\nA\tempty\nA\tfull/f\nR078\tmoved\tfull/moved\nD\tgone\nM\tl\nD\tleft/x\nR100\told\tnew\nA\tp\n" +
		"M\trun\nA\tsecret\nA\tsecret/s\nT\tswap\nM\tt\nD\twas\nT\twill\nM\tzeros\n"
	if diff := cmp.Diff(status, NameStatus(d.Files)); diff != "" {
		t.Errorf("name-status: (-want +got)\n%s", diff)
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
	a, b := sides(t, `for i in $(seq 100 130); do seq 2000 >f$i; done`, `for i in $(seq 100 130); do seq 3 3000 >f$i; done; seq 200000 >huge; echo last >z`)
	whole := render(t, a, b, 0)
	if whole.Truncated || !bytes.Contains(whole.Text, []byte("Binary files /dev/null and b/huge differ\ntoo large to show: 1288895 bytes (1.2 MiB)\n")) {
		t.Errorf("truncated: got %t, and the text lacks the large file", whole.Truncated)
	}
	const limit = 30000
	d := render(t, a, b, limit)
	if !d.Truncated || len(d.Text) > limit || len(d.Text) < limit/2 {
		t.Errorf("got %d bytes, truncated %t, want at most %d", len(d.Text), d.Truncated, limit)
	}
	text, note, _ := bytes.Cut(d.Text, []byte("[diff cut: "))
	shown := bytes.Count(text, []byte("diff --git "))
	want := fmt.Sprintf("%d of 33 changed paths left out, %d insertions(+), %d deletions(-)]\n[left out: f103, +1000 -2]\n", 33-shown, (33-shown)*1000, (33-shown)*2)
	if !strings.HasPrefix(string(note), want) || !strings.HasSuffix(string(note), " more]\n[to see all: look here]\n") {
		t.Errorf("note: got %s, want %s...", note, want)
	}
	if !bytes.HasSuffix(text, []byte("+last\n")) {
		t.Error("what still fits behind something left out is not shown")
	}
	omitted := func(f File) bool { return f.Omitted }
	if got := len(slices.DeleteFunc(slices.Clone(d.Files), omitted)); got != shown {
		t.Errorf("got %d files that are not omitted, want the %d of the text", got, shown)
	}
	if !slices.EqualFunc(d.Files, whole.Files, func(x, y File) bool { return x.Path == y.Path }) {
		t.Error("a path is missing in the summary")
	}
}

// Pages joined are the whole text, whatever their size.
func TestSet_PagesAreTheText(t *testing.T) {
	a, b := sides(t, `for i in $(seq 100 130); do seq 200 >f$i; done`, `for i in $(seq 100 130); do seq 3 300 >f$i; done; mv f101 g101; rm f102; ln -s x f102`)
	want := render(t, a, b, 1<<20)
	s, err := New(context.Background(), request(t, a, b, 0))
	must(t, err)
	files, err := s.Files(context.Background())
	must(t, err)
	if diff := cmp.Diff(want.Files, files); diff != "" {
		t.Errorf("files: (-rendered +listed)\n%s", diff)
	}
	for _, limit := range []int{1, 5000, 1 << 20} {
		var got []byte
		pages := 0
		for next := layer.Path(""); pages == 0 || next != ""; pages++ {
			var text []byte
			text, next, err = s.Page(context.Background(), next, limit)
			must(t, err)
			got = append(got, text...)
		}
		if !bytes.Equal(got, want.Text) {
			t.Errorf("limit %d: %d pages are %d bytes, want the %d of the text", limit, pages, len(got), len(want.Text))
		}
	}
}

func TestRender_ContentError(t *testing.T) {
	ch := layer.Change{Path: "x", After: &layer.Entry{Path: "x", Type: layer.File, Digest: "d", Size: 1}}
	_, err := Render(context.Background(), Request{Changes: []layer.Change{ch}, Base: dir("/nowhere"), Ours: dir("/nowhere")})
	if err == nil || !strings.Contains(err.Error(), `"x"`) {
		t.Errorf("error: got %v, want one that names x", err)
	}
}
