package gitrepo

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// superproject is a followed remote with a submodule libs/sub that has one itself, inner.
type superproject struct {
	followed
	sub, inner repo
}

func newSuper(t *testing.T) superproject {
	t.Helper()
	s := superproject{followed: follow(t, ""), sub: sample(t), inner: sample(t)}
	s.sub.git("submodule", "--quiet", "add", s.inner.dir, "inner")
	s.sub.commit("with inner")
	s.remote.git("submodule", "--quiet", "add", s.sub.dir, "libs/sub")
	s.remote.commit("with sub")
	s.r.Submodules = []string{s.sub.dir, filepath.Dir(s.inner.dir) + "/"}
	return s
}

// brought syncs and brings the tree, and returns what came of it.
func (f followed) brought() Brought {
	f.t.Helper()
	tip, err := f.store.Sync(f.t.Context(), f.r)
	if err != nil {
		f.t.Fatal(err)
	}
	out, err := f.store.Bring(f.t.Context(), f.r, tip, localTree{dir: f.tree.dir})
	if err != nil {
		f.t.Fatal(err)
	}
	if got := f.tree.git("rev-parse", "HEAD"); got != tip.Commit {
		f.t.Errorf("HEAD is %s, want %s", got, tip.Commit)
	}
	return out
}

func (s superproject) filled(want string) {
	s.t.Helper()
	sub := repo{s.t, filepath.Join(s.tree.dir, "libs/sub")}
	if got, _ := os.ReadFile(filepath.Join(sub.dir, "a.txt")); string(got) != want {
		s.t.Errorf("libs/sub/a.txt is %q, want %q", got, want)
	}
	for _, r := range []repo{s.tree, sub} { // at the recorded commit, and git knows of it
		if got := r.git("submodule", "status"); !strings.HasPrefix(got, " ") || strings.Contains(got, "\n") {
			s.t.Errorf("submodule status in %s: %q", r.dir, got)
		}
		if got := r.git("status", "--porcelain"); got != "" {
			s.t.Errorf("status in %s: %q", r.dir, got)
		}
	}
}

func TestStore_BringFillsSubmodules(t *testing.T) {
	s := newSuper(t)
	if out := s.brought(); len(out.Notes) > 0 || !out.Moved {
		t.Errorf("brought %+v", out)
	}
	s.filled("two\n")
	if out := s.brought(); out.Moved || len(out.Notes) > 0 {
		t.Errorf("again: %+v, want nothing moved", out)
	}
	s.sub.write("a.txt", "three\n")
	s.sub.commit("three")
	at := repo{t, filepath.Join(s.remote.dir, "libs/sub")}
	at.git("pull", "-q", "--recurse-submodules=no")
	s.remote.commit("sub moved")
	repo{t, filepath.Join(s.tree.dir, "libs/sub")}.write("a.txt", "changed by a build step\n")
	s.brought()
	s.filled("three\n")
	if err := os.Rename(s.sub.dir, s.sub.dir+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(s.tree.dir, "libs/sub")); err != nil {
		t.Fatal(err)
	}
	s.brought() // from what is on this machine
	s.filled("three\n")
}

// A submodule that a recipe filled, with its git directory in that of the repository, is moved where it is.
func TestStore_BringMovesSubmodulesOfARecipe(t *testing.T) {
	s := newSuper(t)
	s.tree.git("pull", "-q")
	s.tree.git("submodule", "--quiet", "update", "--init", "--recursive")
	s.sub.write("a.txt", "three\n")
	s.sub.commit("three")
	repo{t, filepath.Join(s.remote.dir, "libs/sub")}.git("pull", "-q", "--recurse-submodules=no")
	s.remote.commit("sub moved")
	if out := s.brought(); len(out.Notes) > 0 {
		t.Errorf("notes: %q", out.Notes)
	}
	s.filled("three\n")
}

// What cannot be fetched is named with the reason, and not asked for again at once; the tree is right without.
func TestStore_BringNamesUnfilledSubmodules(t *testing.T) {
	for _, tc := range []struct {
		name, want string
		change     func(s *superproject)
	}{
		{"NotListed", "does not list it", func(s *superproject) { s.r.Submodules = []string{"/nowhere/"} }},
		{"InnerNotListed", `"libs/sub/inner"`, func(s *superproject) { s.r.Submodules = s.r.Submodules[:1] }},
		{"Away", "libs/sub", func(s *superproject) {
			if err := os.Rename(s.sub.dir, s.sub.dir+".away"); err != nil {
				s.t.Fatal(err)
			}
		}},
		{"NoSuchCommit", "no longer available", func(s *superproject) {
			s.remote.git("update-index", "--cacheinfo", "160000,"+strings.Repeat("1", 40)+",libs/sub")
			s.remote.git("commit", "-qm", "a commit that nobody has")
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSuper(t)
			tc.change(&s)
			for range 2 {
				if out := s.brought(); len(out.Notes) != 1 || !strings.Contains(out.Notes[0], tc.want) || strings.Contains(out.Notes[0], "\n") {
					t.Errorf("notes: got %q, want one with %s", out.Notes, tc.want)
				}
			}
		})
	}
}

// Whatever .gitmodules says, nothing runs, nothing is read that is not listed, and nothing is written outside of the submodule's place.
func TestStore_BringHostileSubmodules(t *testing.T) {
	for _, tc := range []struct{ name, url, path, module string }{
		{"Ext", "ext::sh -c touch% MARK", "sub", "sub"},
		{"Option", "--upload-pack=touch MARK", "sub", "sub"},
		{"OptionAfterHost", "ssh://-oProxyCommand=touch MARK/x", "sub", "sub"},
		{"Unlisted", "SECRET", "sub", "sub"},
		{"FileURL", "file://SECRET", "sub", "sub"},
		{"OutOfAListed", "LISTED/../secret", "sub", "sub"},
		{"Encoded", "file://LISTED/%2e%2e/secret", "sub", "sub"},
		{"Relative", "../secret", "sub", "sub"},
		{"AboveTheRoot", strings.Repeat("../", 50) + "etc", "sub", "sub"},
		{"PathOut", "LISTED/good", "../out", "sub"},
		{"PathAbsolute", "LISTED/good", "TOP/out", "sub"},
		{"PathGit", "LISTED/good", ".git/hooks", "sub"},
		{"PathOption", "LISTED/good", "--template=x", "sub"},
		{"NameOut", "LISTED/good", "sub", "../../out"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := follow(t, "")
			top := filepath.Dir(f.remote.dir)
			secret, good := repo{t, filepath.Join(top, "secret")}, repo{t, filepath.Join(top, "listed", "good")}
			for _, r := range []repo{secret, good} {
				if err := os.MkdirAll(r.dir, 0o755); err != nil {
					t.Fatal(err)
				}
				r.git("init", "-q", "-b", "trunk")
				r.write("content", "of "+filepath.Base(r.dir))
			}
			commit := secret.commit("secret")
			if strings.HasPrefix(tc.url, "LISTED/good") {
				commit = good.commit("good")
			}
			mark := filepath.Join(top, "MARK")
			words := strings.NewReplacer("MARK", mark, "SECRET", secret.dir, "LISTED", filepath.Dir(good.dir), "TOP", top)
			f.remote.write(".gitmodules", "[submodule \""+tc.module+"\"]\n\tpath = "+words.Replace(tc.path)+"\n\turl = "+words.Replace(tc.url)+"\n")
			f.remote.git("add", ".gitmodules")
			f.remote.git("update-index", "--add", "--cacheinfo", "160000,"+commit+",sub")
			f.remote.git("commit", "-qm", "hostile")
			f.r.Submodules = []string{filepath.Dir(good.dir) + "/"}
			before := names(t, top)
			f.brought()
			if after := names(t, top); !slices.Equal(before, after) {
				t.Errorf("beside the repository there was %q and is %q", before, after)
			}
			if got, err := os.ReadFile(filepath.Join(f.tree.dir, "sub", "content")); err == nil {
				t.Errorf("the sandbox got %q", got)
			}
			if left := names(t, filepath.Join(f.tree.dir, ".git", "hooks")); slices.Contains(left, "content") {
				t.Errorf("hooks: %q", left)
			}
		})
	}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// A link where a submodule is to be is not followed.
func TestStore_BringSubmoduleBehindALink(t *testing.T) {
	s := newSuper(t)
	s.brought()
	outside := t.TempDir()
	for _, err := range []error{
		os.RemoveAll(filepath.Join(s.tree.dir, "libs")), os.Symlink(outside, filepath.Join(s.tree.dir, "libs")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	s.brought()
	if left := names(t, outside); len(left) > 0 {
		t.Errorf("behind the link: %q", left)
	}
}

func TestResolveSubmodule(t *testing.T) {
	for _, tc := range []struct{ of, url, want string }{
		{"https://host/org/a.git", "../b.git", "https://host/org/b.git"},
		{"https://host/org/a.git/", "../../other/b", "https://host/other/b"},
		{"https://host/org/a.git", "../../../b", ""},
		{"https://host/org/a.git", "./b", "https://host/org/a.git/b"},
		{"git@host:org/a.git", "../b.git", "git@host:org/b.git"},
		{"git@host:a.git", "../b.git", ""},
		{"/srv/git/a.git", "../b.git", "/srv/git/b.git"},
		{"/srv/a.git", "../../b.git", "/b.git"},
		{"/srv/a.git", "../../../b.git", ""},
		{"/srv/a.git", "https://host/b", "https://host/b"},
	} {
		got, err := resolveSubmodule(tc.of, tc.url)
		if got != tc.want || (err == nil) != (tc.want != "") {
			t.Errorf("%s of %s: got %q, %v, want %q", tc.url, tc.of, got, err, tc.want)
		}
	}
}
