package gitrepo

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A damaged mirror and what a killed git left there mend themselves.
func TestStore_SyncMendsTheMirror(t *testing.T) {
	f := follow(t, "")
	f.fresh()
	dir := f.store.mirrorDir(must(parseRemote(f.r.URL)))
	if err := os.WriteFile(filepath.Join(dir, "packed-refs.lock"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	f.remote.commit("three")
	f.fresh()
	packs, err := filepath.Glob(filepath.Join(dir, "objects", "pack", "*.pack"))
	if err != nil || len(packs) == 0 {
		t.Fatalf("packs of the mirror: %v, %v", packs, err)
	}
	for _, p := range packs {
		if err := os.Remove(p); err != nil {
			t.Fatal(err)
		}
	}
	f.remote.commit("four")
	f.fresh()
}

// Whatever is broken of a mirror, the next sync has a whole one.
func TestStore_SyncMendsAnyDamage(t *testing.T) {
	for name, harm := range map[string]func(t *testing.T, mirror string, f *followed){
		"Head":   func(t *testing.T, mirror string, _ *followed) { overwrite(t, filepath.Join(mirror, "HEAD"), "") },
		"Config": func(t *testing.T, mirror string, _ *followed) { overwrite(t, filepath.Join(mirror, "config"), "[") },
		"Ref": func(t *testing.T, mirror string, _ *followed) {
			overwrite(t, filepath.Join(mirror, syncHeads, "trunk"), "\x00")
		},
		"Objects": func(t *testing.T, mirror string, _ *followed) {
			overwrite(t, filepath.Join(mirror, "objects", "pack"), "")
		},
		"HeadLock": func(t *testing.T, mirror string, _ *followed) {
			overwrite(t, filepath.Join(mirror, syncHeads, "trunk.lock"), "")
		},
		"AnotherFormat": func(t *testing.T, _ string, f *followed) {
			if err := os.RemoveAll(f.remote.dir); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(f.remote.dir, 0o755); err != nil {
				t.Fatal(err)
			}
			f.remote.git("init", "-q", "-b", "trunk", "--object-format=sha256")
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := follow(t, "")
			f.fresh()
			harm(t, f.store.mirrorDir(must(parseRemote(f.r.URL))), &f)
			f.remote.write("a.txt", "three\n")
			want := f.remote.commit("three")
			tip, err := f.store.Sync(t.Context(), f.r)
			if err != nil || tip.Commit != want {
				t.Fatalf("got %+v, %v, want %s", tip, err, want)
			}
			base, err := f.store.FromMirror(t.Context(), f.r, tip)
			if err != nil {
				t.Fatal(err)
			}
			base.Release()
		})
	}
}

// overwrite puts a file in the place of whatever is there.
func overwrite(t *testing.T, path, text string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Damage that only shows when a sandbox is brought along is mended by the sync after that.
func TestStore_SyncMendsWhatBringMissed(t *testing.T) {
	f := follow(t, "")
	blob := f.remote.git("rev-parse", "HEAD:run.sh")
	tip, err := f.store.Sync(t.Context(), f.r)
	if err != nil {
		t.Fatal(err)
	}
	f.tree = newRepo(t) // lacks everything
	mirror := f.store.mirrorDir(must(parseRemote(f.r.URL)))
	packs, err := filepath.Glob(filepath.Join(mirror, "objects", "pack", "*.pack"))
	if err != nil || len(packs) != 1 {
		t.Fatalf("packs of the mirror: %v, %v", packs, err)
	}
	unpack := exec.Command("git", "unpack-objects", "-q")
	unpack.Env = []string{"PATH=" + os.Getenv("PATH"), "GIT_DIR=" + mirror}
	pack, err := os.Open(packs[0])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pack.Close() }()
	unpack.Stdin = pack
	overwrite(t, packs[0], "")
	overwrite(t, strings.TrimSuffix(packs[0], ".pack")+".idx", "")
	if out, err := unpack.CombinedOutput(); err != nil {
		t.Fatalf("unpack: %v: %s", err, out)
	}
	if err := os.Remove(filepath.Join(mirror, "objects", blob[:2], blob[2:])); err != nil {
		t.Fatal(err)
	}
	if _, err := f.store.Bring(t.Context(), f.r, tip, localTree{dir: f.tree.dir}); err == nil || strings.Contains(err.Error(), "\n") {
		t.Fatalf("a mirror without a blob: got %v, want one line", err)
	}
	f.fresh()
}
