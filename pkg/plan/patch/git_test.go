package patch_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/pkg/plan/patch"
)

// What git makes of two trees brings the one to the other, byte for byte, whatever is in them and however it is asked.
func TestSet_ApplyAgreesWithGit(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("needs git to make diffs")
	}
	for _, flags := range []string{"", "--no-prefix", "-M -C --find-copies-harder", "-U1", "--patience -U5", "--no-renames --text"} {
		for seed := range uint64(12) {
			t.Run(fmt.Sprintf("%s/%d", strings.ReplaceAll(flags, " ", ""), seed), func(t *testing.T) {
				t.Parallel()
				r := rand.New(rand.NewPCG(seed, 1))
				old := grow(r)
				new := mutate(r, old)
				diff := gitDiff(t, old, new, strings.Fields(flags))
				strip := 1
				if flags == "--no-prefix" {
					strip = 0
				}
				if diff == "" {
					return
				}
				changes, err := parse(t, diff, strip).Apply(old.lookup)
				if err != nil {
					t.Fatalf("seed %d: %v\n%s", seed, err, diff)
				}
				if d := cmp.Diff(old.after(changes), new); d != "" {
					t.Errorf("seed %d: got, want: %s\n%s", seed, d, diff)
				}
			})
		}
	}
}

var names = []string{"a", "b c", "d/e", "d/ f", "ä/ö", "q\"uote", "tab\tbed", "back\\", "new\nline", "\xff\xfe", "-dash", "d/e2/deep/x", "crlf.txt", "end"}

// grow makes a tree of odd names and contents.
func grow(r *rand.Rand) files {
	f := files{}
	for _, name := range names {
		if r.IntN(3) > 0 {
			f[name] = content(r)
		}
	}
	return f
}

func content(r *rand.Rand) string {
	var b bytes.Buffer
	switch r.IntN(8) {
	case 0:
		return ""
	case 1:
		return "@" + names[r.IntN(len(names))]
	case 2:
		b.WriteByte('!')
	case 3: // binary
		for range r.IntN(3000) {
			b.WriteByte(byte(r.Uint32() & 0x7))
		}
		return "\x01" + b.String()
	case 4:
		b.WriteString("\ufeff")
	}
	end := []string{"\n", "\r\n"}[r.IntN(2)]
	for range 1 + r.IntN(60) {
		fmt.Fprintf(&b, "line %d%s", r.IntN(20), end)
	}
	if r.IntN(3) == 0 {
		b.WriteString("no newline")
	}
	return b.String()
}

func mutate(r *rand.Rand, f files) files {
	out := files{}
	for name, c := range f {
		switch r.IntN(6) {
		case 0: // goes
		case 1:
			out[name] = content(r)
		case 2:
			out[name] = edited(r, c)
		case 3: // moves
			if to := name + ".moved"; r.IntN(2) == 0 {
				out[to] = c
			} else {
				out[to] = edited(r, c)
			}
		case 4:
			out[name], out[name+".copy"] = c, c
		default:
			out[name] = c
		}
	}
	out["added/file"] = content(r)
	return out
}

func edited(r *rand.Rand, c string) string {
	if strings.HasPrefix(c, "@") {
		return c + "x"
	}
	l := strings.SplitAfter(c, "\n")
	for range 1 + r.IntN(3) {
		if i := r.IntN(len(l)); r.IntN(2) == 0 && i > 0 {
			l[i] = ""
		} else {
			l[i] += fmt.Sprintf("inserted %d\n", r.IntN(100))
		}
	}
	return strings.Join(l, "")
}

func gitDiff(t *testing.T, old, new files, flags []string) string {
	t.Helper()
	dir := t.TempDir()
	git := func(args ...string) string {
		cmd := exec.Command("git", append([]string{"-C", dir, "-c", "core.autocrlf=false", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "diff.renameLimit=0"}, args...)...)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	git("init", "-q")
	plant(t, dir, old)
	git("add", "-A", "-f")
	git("commit", "-qm", "old", "--allow-empty")
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != ".git" {
			os.RemoveAll(filepath.Join(dir, e.Name()))
		}
	}
	plant(t, dir, new)
	git("add", "-A", "-f")
	return git(append([]string{"diff", "--cached", "--binary", "--full-index"}, flags...)...)
}

func plant(t *testing.T, dir string, f files) {
	t.Helper()
	for p := range f {
		one, _ := f.lookup(p)
		at := filepath.Join(dir, p)
		err := os.MkdirAll(filepath.Dir(at), 0o755)
		switch {
		case err != nil:
		case one.Link:
			err = os.Symlink(string(one.Content), at)
		default:
			err = os.WriteFile(at, one.Content, fs.FileMode(one.Mode))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n+y\n", 1)
	f.Add("diff --git \"a/\\303\\244\" b/x\nrename from \"\\303\\244\"\nrename to x\n", 1)
	f.Add(delta, 0)
	tree := files{"f": "x\n", "b": lines(1, 400)}
	f.Fuzz(func(t *testing.T, diff string, strip int) {
		s, faults := patch.Parse(diff, patch.Options{Strip: strip & 3})
		if (s == nil) == (len(faults) == 0) {
			t.Fatalf("set %v, faults %v", s, faults)
		}
		for _, fault := range faults {
			if most := strings.Count(diff, "\n") + 2; fault.Line < 1 || fault.Line > most {
				t.Errorf("fault on line %d of %d", fault.Line, most)
			}
		}
		if s != nil {
			_, _ = s.Apply(tree.lookup)
		}
	})
}

// A plan may be half a MiB of anything.
func TestParse_HostileSizes(t *testing.T) {
	const size = 512 << 10
	for _, piece := range []string{"\n", "diff --git a/x b/x\n", "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n+y\n", "--- \n+++ \n", "@@ -1 +1 @@\n", "@@ -1,0 +1,0 @@\n"} {
		for _, head := range []string{"", "--- a/f\n+++ b/f\n@@ -1,9999999 +1,9999999 @@\n"} {
			s, faults := patch.Parse(head+strings.Repeat(piece, size/len(piece)), patch.Options{Strip: 1})
			if s == nil && (len(faults) == 0 || len(faults) > size/len("--- \n+++ \n")+200) {
				t.Errorf("%q: %d faults", piece, len(faults))
			}
		}
	}
}
