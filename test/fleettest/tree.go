package fleettest

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/internal/layer/layertest"
)

// SampleScript makes a small tree of every common kind.
const SampleScript = `
mkdir -p src/deep empty
echo one >src/a.txt; echo two >src/b.txt; echo keep >src/deep/keep
printf 'bin\0\1\2' >blob
ln -s src/a.txt link; ln -s nowhere dangling; ln -s src dirlink
printf '#!/bin/sh\necho hi\n' >tool.sh; chmod 755 tool.sh
chmod 640 src/b.txt; touch -d 2001-02-03T04:05:06.123456789Z src/a.txt
`

// Tree makes a directory below work with a script.
func (p *Place) Tree(t testing.TB, name, script string) string {
	t.Helper()
	dir := p.Path("work", name)
	Must(t, os.MkdirAll(dir, 0o755))
	p.Own(t, dir)
	p.Sh(t, dir, script)
	return dir
}

// Snapshot describes a tree, .git included.
func Snapshot(t testing.TB, dir string) layertest.Snapshot {
	t.Helper()
	s, err := layertest.Take(dir)
	Must(t, err)
	return s
}

// Unchanged fails the test if a tree is not as it was.
func Unchanged(t testing.TB, dir string, before layertest.Snapshot) {
	t.Helper()
	if d := layertest.Diff(Snapshot(t, dir), before, layertest.Options{}); d != "" {
		t.Errorf("%s changed (-now +before):\n%s", filepath.Base(dir), Tail(d, 4000))
	}
}

// Untouched fails the test if more of a tree changed than the times of directories, or what a
// journal leaves for a moment. It waits for the end of a mark that an in-place plan has, which
// comes after the plan's last event.
func Untouched(t testing.TB, dir string, before layertest.Snapshot) {
	t.Helper()
	Eventually(t, "the mark of a plan in place to go", func() bool {
		_, err := unix.Lgetxattr(dir, layer.InPlaceXattr, nil)
		return err != nil
	})
	o := layertest.Options{NoDirTimes: true, Skip: []string{".warmfleet-apply"}}
	if d := layertest.Diff(Snapshot(t, dir), before, o); d != "" {
		t.Errorf("%s changed (-now +before):\n%s", filepath.Base(dir), Tail(d, 4000))
	}
}

// SameTree fails the test if two trees differ in more than times; .git is left out.
func SameTree(t testing.TB, got, want string) {
	t.Helper()
	o := layertest.Options{NoTimes: true, NoHoles: true, Skip: []string{".git"}}
	if d := layertest.Diff(Snapshot(t, got), Snapshot(t, want), o); d != "" {
		t.Errorf("%s differs from %s (-got +want):\n%s", filepath.Base(got), filepath.Base(want), Tail(d, 4000))
	}
}

// Read returns a file's content, "" if it is absent.
func Read(t testing.TB, names ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(names...))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(b)
}

// Write replaces a file as its owner would.
func (p *Place) Write(t testing.TB, file, content string) {
	t.Helper()
	Must(t, os.WriteFile(file, []byte(content), 0o644))
	if p.Cred != nil {
		Must(t, os.Lchown(file, p.UID, int(p.Cred.Gid)))
	}
}

// Exists tells whether there is something of that name, a link that leads nowhere included.
func Exists(file string) bool {
	_, err := os.Lstat(file)
	return err == nil
}
