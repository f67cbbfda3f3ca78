package diff

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/internal/layer"
)

// oddNames are what a name of a file may be; the empty one stands for what is ordinary.
var oddNames = []string{
	"", "", "", "a b", "x b", "b", "-rf", "--- a", "new\nline", "tab\tq\"'\\", "trailing ", "\xff\xfe", "c\rr", "\x01\x7f", "Über", "[ab]", "*", ":x", "dev", "null",
}

// oddLines are lines that a careless reader of patches takes for its own.
var oddLines = []string{
	"", "x", "same", "-- sql", "++ x", "@@ -1,1 +1,1 @@", "diff --git a/x b/x", "\\ No newline at end of file", "--- a/x", "tab\t", "cr\r", "\xff", "Binary files a/x and b/x differ", "rename from x",
}

type forest struct{ rnd *rand.Rand }

func (f forest) path() string {
	parts := []string{}
	for range 1 + f.rnd.IntN(3) {
		name := oddNames[f.rnd.IntN(len(oddNames))]
		if name == "" {
			name = string(rune('a' + f.rnd.IntN(5)))
		}
		parts = append(parts, name)
	}
	return filepath.Join(parts...)
}

func (f forest) text() string {
	var b strings.Builder
	for range f.rnd.IntN(40) {
		b.WriteString(oddLines[f.rnd.IntN(len(oddLines))])
		if f.rnd.IntN(2) == 0 {
			fmt.Fprint(&b, f.rnd.IntN(1000))
		}
		b.WriteString("\n")
	}
	if f.rnd.IntN(4) == 0 {
		b.WriteString("no end")
	}
	return b.String()
}

// put makes something at a path, whatever was there or above.
func (f forest) put(t *testing.T, root dir, p string) {
	t.Helper()
	full := filepath.Join(string(root), p)
	for up := filepath.Dir(full); len(up) > len(string(root)); up = filepath.Dir(up) {
		if st, err := os.Lstat(up); err == nil && !st.IsDir() {
			must(t, os.Remove(up))
		}
	}
	must(t, os.RemoveAll(full))
	must(t, os.MkdirAll(filepath.Dir(full), 0o755))
	if f.rnd.IntN(5) == 0 {
		must(t, os.Symlink(f.path(), full))
		return
	}
	must(t, os.WriteFile(full, []byte(f.text()), 0o644))
	must(t, os.Chmod(full, []os.FileMode{0o644, 0o755}[f.rnd.IntN(2)]))
}

// files are the paths of a tree that are no directories.
func files(t *testing.T, root dir) []string {
	t.Helper()
	var all []string
	for p, e := range entries(t, root) {
		if e.Type != layer.Dir {
			all = append(all, string(p))
		}
	}
	slices.Sort(all)
	return all
}

func (f forest) edit(t *testing.T, root dir) {
	t.Helper()
	for _, p := range files(t, root) {
		full := filepath.Join(string(root), p)
		st, err := os.Lstat(full)
		if err != nil { // went with its directory
			continue
		}
		switch f.rnd.IntN(8) {
		case 0:
			must(t, os.Remove(full))
		case 1:
			f.put(t, root, p)
		case 2: // moved, and perhaps edited on the way
			to := filepath.Join(string(root), f.path())
			if _, err := os.Lstat(to); err == nil {
				continue
			}
			if os.MkdirAll(filepath.Dir(to), 0o755) == nil {
				must(t, os.Rename(full, to))
				full = to
			}
			fallthrough
		case 3:
			if st.Mode().IsRegular() {
				b, err := os.ReadFile(full)
				must(t, err)
				lines := strings.SplitAfter(string(b), "\n")
				lines[f.rnd.IntN(len(lines))] = "edited\n"
				must(t, os.WriteFile(full, []byte(strings.Join(lines, "")), 0o644))
			}
		case 4:
			if st.Mode().IsRegular() {
				must(t, os.Chmod(full, []os.FileMode{0o644, 0o755}[f.rnd.IntN(2)]))
			}
		}
	}
	for range 3 {
		f.put(t, root, f.path())
	}
}

// gitSees are the entries that git keeps: no directories.
func gitSees(t *testing.T, root dir) map[layer.Path]*layer.Entry {
	t.Helper()
	all := entries(t, root)
	maps.DeleteFunc(all, func(_ layer.Path, e *layer.Entry) bool { return e.Type == layer.Dir })
	return all
}

// For any two trees that git can keep, git applies the text to the first and gets the second.
func TestRender_GitAppliesAnything(t *testing.T) {
	for seed := range uint64(25) {
		f := forest{rand.New(rand.NewPCG(seed, 7))}
		a, b := dir(t.TempDir()), dir(t.TempDir())
		for range 14 {
			f.put(t, a, f.path())
		}
		sh(t, b, fmt.Sprintf("cp -a %q/. .", string(a)))
		f.edit(t, b)
		d := render(t, a, b, 1<<20)
		patch := filepath.Join(t.TempDir(), "patch")
		must(t, os.WriteFile(patch, d.Text, 0o600))
		want := gitSees(t, b)
		sh(t, a, fmt.Sprintf("git init -q .; test ! -s %q || git apply --whitespace=nowarn %q", patch, patch))
		if diff := cmp.Diff(want, gitSees(t, a)); diff != "" {
			t.Fatalf("seed %d: applied: (-want +got)\n%s\n%s", seed, diff, d.Text)
		}
	}
}
