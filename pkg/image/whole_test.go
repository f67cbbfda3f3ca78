package image

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// committed is a box with a repository of one commit, and that commit.
func committed(t *testing.T) (dirBox, string) {
	t.Helper()
	b := newBox(t, map[string]string{"a": "1"})
	cmd := exec.Command("/bin/sh", "-euc", `export GIT_CONFIG_NOSYSTEM=1
git init -q -b trunk .; git add a; git -c user.name=x -c user.email=x@y commit -qm one; git pack-refs --all; git rev-parse HEAD`)
	cmd.Dir = b.dir
	cmd.Env = append(os.Environ(), "HOME="+b.dir)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return b, strings.TrimSpace(string(out))
}

// A repository that git can't use, or that is elsewhere, makes no image, and no pipe in it holds up the build.
func TestBuild_RefusesABrokenRepository(t *testing.T) {
	type fault struct{ name, step, says string }
	cases := []fault{
		{"Missing", "rm -rf .git", "missing: .git"},
		{"MissingHead", "rm .git/HEAD", "missing: .git/HEAD"},
		{"MissingObjects", "rm -rf .git/objects", "missing: .git/objects"},
		{"EmptyObjects", "find .git/objects -type f -delete", "git can't read it"},
		{"NoRefs", "rm .git/packed-refs", "git can't read it"},
		{"JunkHead", "echo junk >.git/HEAD", "git can't read it"},
		{"Unborn", "git symbolic-ref HEAD refs/heads/none", "git can't read it"},
		{"JunkIndex", "echo junk >.git/index", "git can't read it"},
		{"Bare", "git config core.bare true", "it is set to have no work tree"},
		{"PipeAsRef", "mkfifo .git/refs/heads/x", "neither a file nor a directory: .git/refs/heads/x"},
		{"Elsewhere", "git -c user.name=x -c user.email=x@y commit -q --allow-empty -m two", "HEAD is at "},
	}
	for _, name := range []string{"HEAD", "config", "index", "packed-refs", "refs", "objects"} {
		at, kind := ".git/"+name, "file"
		other := "mkdir " + at
		if name == "refs" || name == "objects" {
			kind, other = "directory", "touch "+at
		}
		cases = append(cases,
			fault{"Link/" + name, "mv " + at + " was && ln -s ../was " + at, "a link: " + at},
			fault{"Pipe/" + name, "rm -rf " + at + " && mkfifo " + at, "not a " + kind + ": " + at},
			fault{"Kind/" + name, "rm -rf " + at + " && " + other, "not a " + kind + ": " + at},
		)
		if os.Geteuid() != 0 {
			cases = append(cases, fault{"Unreadable/" + name, "chmod 0 " + at, "not readable: " + at})
		}
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			b, commit := committed(t)
			job := b.job(Recipe{Setup: []string{tc.step}})
			job.Commit = commit
			_, err := Build(t.Context(), job)
			if !errors.Is(err, ErrLeft) || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want ErrLeft that says %q in a line", err, tc.says)
			}
			_ = exec.Command("chmod", "-R", "u+rwX", b.dir).Run()
		})
	}
}

// A repository that is as it was makes one, changed and untracked files beside it or not.
func TestBuild_KeepsAWholeRepository(t *testing.T) {
	b, commit := committed(t)
	job := b.job(Recipe{Setup: []string{"echo 2 >a; echo 3 >b; git add b; git gc -q; git tag v1"}})
	job.Commit = commit
	if r, err := Build(t.Context(), job); err != nil || len(r.Warnings) > 0 {
		t.Errorf("got %v, warnings %q", err, r.Warnings)
	}
}
