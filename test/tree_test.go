package test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/warmfleet/warmfleet/internal/layer/layertest"
)

// sampleScript makes a small tree of every common kind.
const sampleScript = `
mkdir -p src/deep empty
echo one >src/a.txt; echo two >src/b.txt; echo keep >src/deep/keep
printf 'bin\0\1\2' >blob
ln -s src/a.txt link; ln -s nowhere dangling; ln -s src dirlink
printf '#!/bin/sh\necho hi\n' >tool.sh; chmod 755 tool.sh
chmod 640 src/b.txt; touch -d 2001-02-03T04:05:06.123456789Z src/a.txt
`

// gitIdentity commits without the user's configuration.
const gitIdentity = "git -c user.name=t -c user.email=t@example.com -c commit.gpgsign=false "

const gitScript = sampleScript + `
git init -q -b trunk .
echo 'cache/' >.gitignore
git add -A
` + gitIdentity + `commit -qm one
mkdir cache; echo ignored >cache/x; echo untracked >notes.txt
`

// tree makes a directory below work with a script.
func (p *place) tree(t testing.TB, name, script string) string {
	t.Helper()
	dir := p.path("work", name)
	must(t, os.MkdirAll(dir, 0o755))
	p.own(t, dir)
	p.sh(t, dir, script)
	return dir
}

// snapshot describes a tree, .git included.
func snapshot(t testing.TB, dir string) layertest.Snapshot {
	t.Helper()
	s, err := layertest.Take(dir)
	must(t, err)
	return s
}

// unchanged fails the test if a tree is not as it was.
func unchanged(t testing.TB, dir string, before layertest.Snapshot) {
	t.Helper()
	if d := layertest.Diff(snapshot(t, dir), before, layertest.Options{}); d != "" {
		t.Errorf("%s changed (-now +before):\n%s", filepath.Base(dir), tail(d, 4000))
	}
}

// untouched fails the test if more of a tree changed than the times of directories, or what a
// journal leaves for a moment.
func untouched(t testing.TB, dir string, before layertest.Snapshot) {
	t.Helper()
	o := layertest.Options{NoDirTimes: true, Skip: []string{".warmfleet-apply"}}
	if d := layertest.Diff(snapshot(t, dir), before, o); d != "" {
		t.Errorf("%s changed (-now +before):\n%s", filepath.Base(dir), tail(d, 4000))
	}
}

// sameTree fails the test if two trees differ in more than times; .git is left out.
func sameTree(t testing.TB, got, want string) {
	t.Helper()
	o := layertest.Options{NoTimes: true, NoHoles: true, Skip: []string{".git"}}
	if d := layertest.Diff(snapshot(t, got), snapshot(t, want), o); d != "" {
		t.Errorf("%s differs from %s (-got +want):\n%s", filepath.Base(got), filepath.Base(want), tail(d, 4000))
	}
}

// read returns a file's content, "" if it is absent.
func read(t testing.TB, names ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(names...))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(b)
}

// write replaces a file as its owner would.
func (p *place) write(t testing.TB, file, content string) {
	t.Helper()
	must(t, os.WriteFile(file, []byte(content), 0o644))
	if p.cred != nil {
		must(t, os.Lchown(file, p.uid, int(p.cred.Gid)))
	}
}

func exists(file string) bool {
	_, err := os.Lstat(file)
	return err == nil
}
