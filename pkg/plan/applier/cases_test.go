package applier

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/internal/layer"
)

// gitTrees is a repository with a commit, on disk rather than in memory.
func gitTrees(t *testing.T, base string) trees {
	t.Helper()
	return treesIn(t, t.TempDir(), script(t, base+`
git init -q .; git config user.name n; git config user.email e@x; git add -A; git commit -qm base`))
}

func (tr trees) git(t *testing.T) Request {
	t.Helper()
	req := tr.request(t)
	req.Git = true
	return req
}

func mustApply(t *testing.T, root string, req Request, want ...string) {
	t.Helper()
	got, err := apply(root, req, nil)
	must(t, err)
	if diff := cmp.Diff(want, kinds(got)); diff != "" {
		t.Errorf("conflicts: (-want +got)\n%s", diff)
	}
}

// Case E1: uncommitted work is never lost, staged state included.
func TestCaseE1_UncommittedWork(t *testing.T) {
	tr := gitTrees(t, `echo a>a; echo b>b; echo e>e; echo d>.gitignore`)
	sh(t, tr.orig, `echo A>a; echo B>b; git add b; echo C>c; echo D>d`)
	status := func() []string {
		sh(t, tr.orig, `git --no-optional-locks status --porcelain=2 -z --ignored > ../status`)
		b, err := os.ReadFile(filepath.Join(filepath.Dir(tr.orig), "status"))
		must(t, err)
		return append(snapshot(t, tr.orig), string(b))
	}
	before := status()
	for _, tc := range []struct{ plan, conflict string }{
		{`echo A2>a`, "a: content"},
		{`echo C2>c`, "c: added_both"},
		{`echo D2>d`, "d: added_both"},
	} {
		sh(t, tr.ours, `rm -rf ./[a-e] .git*; cp -a ../base/. .; echo E>e; git commit -qam mine; `+tc.plan)
		mustApply(t, tr.orig, tr.git(t), tc.conflict)
		sameTrees(t, tc.plan, status(), before)
	}
	sh(t, tr.ours, `rm -rf ./[a-e] .git*; cp -a ../base/. .; echo E>e; git commit -qam mine`)
	mustApply(t, tr.orig, tr.git(t))
	sh(t, tr.orig, `test "$(cat a b c d e)" = "$(printf 'A\nB\nC\nD\nE')"; echo e>e`)
	sameTrees(t, "after plan 1", status()[:len(before)-1], before[:len(before)-1])
}

// Case E2: two plans at the same instant, in two processes: one is applied, the other sees the first one's result.
func TestCaseE2_SameInstant(t *testing.T) {
	for _, tc := range []struct {
		name, other string
		codes       int // sum of the two exit codes; 9 is a conflict
	}{
		{"SameFile", `echo Q>a`, 9},
		{"OtherFile", `echo Q>b`, 0},
		{"SameResult", `echo P>a`, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := memDir(t)
			tr := treesIn(t, dir, script(t, baseScript))
			sh(t, dir, `cp -a ours other`)
			sh(t, tr.ours, `echo P>a`)
			sh(t, filepath.Join(dir, "other"), tc.other)
			p, q := childCmd(dir, "ours"), childCmd(dir, "other")
			must(t, p.Start())
			must(t, q.Start())
			_, _ = p.Wait(), q.Wait()
			if got := p.ProcessState.ExitCode() + q.ProcessState.ExitCode(); got != tc.codes {
				t.Errorf("exit codes: got %d, want %d", got, tc.codes)
			}
			got := read(t, tr.orig, "a")
			if got != "P" && (got != "Q" || tc.codes == 0) {
				t.Errorf("a: got %q", got)
			}
			noJournal(t, tr.orig)
		})
	}
}

// Case E3: any bytes, modes, renames, deletions, links and empty files.
func TestCaseE3_Binary(t *testing.T) {
	tr := gitTrees(t, `printf 'P\0NG\377'>p.png; head -c 300000 /dev/urandom>del.bin; echo x>t.txt; echo '*.txt binary'>.gitattributes
echo run>run; echo f>f; echo old>old; printf 'no newline'>nl`)
	sh(t, tr.ours, `printf 'Q\0\0\377\376'>p.png; rm del.bin; printf 'a\0b'>nul; printf 'x\r\ny'>t.txt; chmod +x run
rm f; ln -s run f; : >empty; mv old new; echo more>>new; printf 'still none'>nl; head -c 1000000 /dev/zero>holes`)
	mustApply(t, tr.orig, tr.git(t))
	sh(t, tr.ours, `rm -rf .git; cp -a ../orig/.git .`)
	sameTrees(t, "original", snapshot(t, tr.orig), snapshot(t, tr.ours))
}

// Case E4: a path is bytes; none is a pattern, an option or a line.
func TestCaseE4_OddNames(t *testing.T) {
	names := []string{
		"Über — 1.md", "a b.txt", "x b/y", "[ab].txt", "*.txt", ":x", "-rf", "new\nline", "tab\tq\"'\\", "trailing ",
		"\xff\xfe", "..x", " ", "~", "$HOME", "n\u0303", "ñ", strings.Repeat("n", 255), ".wh.x",
	}
	tr := newTrees(t, func(dir string) {
		sh(t, dir, `echo a>a.txt; echo b>b.txt`)
		for _, n := range names {
			must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, n)), 0o755))
			must(t, os.WriteFile(filepath.Join(dir, n), []byte("old"), 0o644))
		}
	})
	for i, n := range names {
		if i%3 == 0 {
			must(t, os.Remove(filepath.Join(tr.ours, n)))
			continue
		}
		must(t, os.WriteFile(filepath.Join(tr.ours, n), []byte("new"), 0o644))
		must(t, os.WriteFile(filepath.Join(tr.ours, n+"+")[:len(tr.ours)+1+min(len(n)+1, 255)], []byte("added"), 0o644))
	}
	must(t, os.Symlink("\xff\nto", filepath.Join(tr.ours, "l")))
	for _, dir := range []string{tr.orig, tr.ours} {
		sh(t, dir, `echo dirty>a.txt; echo dirty>b.txt`)
	}
	req := tr.request(t)
	req.Changes = without(req.Changes, "a.txt", "b.txt")
	mustApply(t, tr.orig, req)
	sameTrees(t, "original", snapshot(t, tr.orig), snapshot(t, tr.ours))
}

func without(cs []layer.Change, paths ...layer.Path) []layer.Change {
	var out []layer.Change
	for _, c := range cs {
		keep := true
		for _, p := range paths {
			keep = keep && c.Path != p
		}
		if keep {
			out = append(out, c)
		}
	}
	return out
}

func TestSession_Git(t *testing.T) {
	tr := gitTrees(t, `echo a>a; mkdir sub; git init -q sub; git -C sub -c user.name=n -c user.email=e@x commit -q --allow-empty -m x; echo s>sub/s`)
	sh(t, tr.ours, `echo A>a; git config core.hooksPath /evil; git commit -qam mine; echo S>sub/s; mkdir .warmfleet-apply; echo x>.warmfleet-apply/x`)
	mustApply(t, tr.orig, tr.git(t))
	if got := read(t, tr.orig, "a") + read(t, tr.orig, "sub/s"); got != "AS" {
		t.Errorf("content: got %q, want AS", got)
	}
	sh(t, tr.orig, `! git config core.hooksPath; test "$(git log --format=%s)" = base`)

	sh(t, tr.ours, `git -C sub config core.hooksPath /evil; mkdir -p new/deep; echo gitdir: x>new/deep/.git`)
	before := snapshot(t, tr.orig)
	mustApply(t, tr.orig, tr.git(t), "new/deep/.git: nested_git", "sub/.git: nested_git")
	sameTrees(t, "original", snapshot(t, tr.orig), before)
}

func TestSession_Merge(t *testing.T) {
	tr := newTrees(t, script(t, baseScript))
	sh(t, tr.orig, `echo O>>a; chmod 600 a; echo O>>b`)
	sh(t, tr.ours, `echo A>>a; echo A>>b; echo C>c`)
	req := tr.request(t)
	req.Merge = func(_ context.Context, p layer.Path, original []byte) ([]byte, bool, error) {
		return bytes.ToUpper(original), p == "a", nil
	}
	mustApply(t, tr.orig, req, "b: content")
	req.Changes = without(req.Changes, "b")
	mustApply(t, tr.orig, req)
	sh(t, tr.orig, `test "$(cat a)" = "$(printf 'A\nO')"; test "$(stat -c %a a)" = 600; test "$(cat c)" = C`)
}

func TestSession_TimesLinksAttributes(t *testing.T) {
	tr := newTrees(t, script(t, baseScript))
	sh(t, tr.ours, `echo A>a; touch -d '2001-02-03 04:05:06.123456789' a; echo n>n; ln n d/n2; touch -h -d 1999-01-01 link; ln -sfn c link
touch -h -d '1999-01-01 00:00:00.5' link; echo same>>b; ln b b2`)
	setXattr(t, filepath.Join(tr.ours, "c"), "user.test", "plan")
	setXattr(t, filepath.Join(tr.ours, "n"), "user.test", "new")
	setXattr(t, filepath.Join(tr.orig, "d/f"), "user.test", "own")
	sh(t, tr.ours, `chmod 600 d/f`)
	mustApply(t, tr.orig, tr.request(t))
	setXattr(t, filepath.Join(tr.ours, "d/f"), "user.test", "own")
	sameTrees(t, "original", snapshot(t, tr.orig), snapshot(t, tr.ours))
	got, ours := entries(t, tr.orig), entries(t, tr.ours)
	for _, p := range []layer.Path{"a", "link", "n"} {
		if !got[p].MTime.Equal(ours[p].MTime) {
			t.Errorf("mtime of %s: got %s, want %s", p, got[p].MTime, ours[p].MTime)
		}
	}
	if got["n"].HardLink != "d/n2" {
		t.Errorf("link of n: got %q, want d/n2", got["n"].HardLink)
	}
}

// Longer than one lookup may be, and than PATH_MAX.
func TestSession_LongPath(t *testing.T) {
	deep := strings.TrimSuffix(strings.Repeat(strings.Repeat("d", 250)+"/", 20), "/")
	root := memDir(t)
	var changes []layer.Change
	dirs := strings.Split(deep, "/")
	now := time.Now()
	for i := range dirs {
		p := layer.Path(strings.Join(dirs[:i+1], "/"))
		changes = append(changes, layer.Change{Path: p, After: &layer.Entry{Path: p, Type: layer.Dir, Mode: 0o755, MTime: now}})
	}
	p := layer.Path(deep + "/f")
	changes = append(changes, layer.Change{Path: p, After: &layer.Entry{
		Path: p, Type: layer.File, Mode: 0o644, MTime: now, Digest: digestOfBytes([]byte("deep")),
	}})
	src := t.TempDir()
	must(t, os.WriteFile(filepath.Join(src, "f"), []byte("deep"), 0o600))
	req := Request{Plan: "P", Changes: changes, Content: oneFile(filepath.Join(src, "f"))}
	mustApply(t, root, req)
	s := open(t, root, nil)
	got, err := s.tree.state(p)
	must(t, err)
	if got.Digest != changes[len(changes)-1].After.Digest {
		t.Errorf("digest: got %s", got.Digest)
	}
	mustApplyAgain(t, s, req)
}

// mustApplyAgain checks that nothing is left to do.
func mustApplyAgain(t *testing.T, s *Session, req Request) {
	t.Helper()
	p, conflicts, err := s.Check(context.Background(), req)
	must(t, err)
	if len(p.Steps) != 0 || len(conflicts) != 0 {
		t.Errorf("second time: got %v and %v, want nothing", p.Steps, conflicts)
	}
}

// A repository that was checked out with another umask than the sandbox is not one that somebody changed.
func TestSession_CheckoutOfAnotherUmask(t *testing.T) {
	for _, mode := range []string{"g+w", "go="} {
		t.Run(mode, func(t *testing.T) {
			tr := newTrees(t, script(t, baseScript))
			sh(t, tr.orig, `chmod -R `+mode+` .`)
			const plan = `echo A>a; rm b; chmod +x c; rm -r d; rm link; mkdir link; chmod -x run; echo n>n`
			sh(t, tr.ours, plan)
			req := tr.request(t)
			req.Checkout = true
			want := filepath.Join(filepath.Dir(tr.orig), "want")
			sh(t, filepath.Dir(tr.orig), `cp -a orig want; cd want; `+plan)
			if mode == "go=" {
				sh(t, want, `chmod 700 c`) // readable for its owner only, so executable for its owner only
			}
			mustApply(t, tr.orig, req)
			sameTrees(t, "original", snapshot(t, tr.orig), snapshot(t, want))
		})
	}
	tr := newTrees(t, script(t, baseScript))
	sh(t, tr.orig, `chmod +x a b; chmod 600 c`)
	sh(t, tr.ours, `chmod 400 c; rm a; echo B>b`)
	req := tr.request(t)
	req.Checkout = true
	mustApply(t, tr.orig, req, "a: modified_and_deleted")
}
