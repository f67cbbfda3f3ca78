package fleettest

import "testing"

// GitIdentity commits without the user's configuration.
const GitIdentity = "git -c user.name=t -c user.email=t@example.com -c commit.gpgsign=false "

// GitScript makes a repository of the small tree, with a file that is ignored and one that is not tracked.
const GitScript = SampleScript + `
git init -q -b trunk .
echo 'cache/' >.gitignore
git add -A
` + GitIdentity + `commit -qm one
mkdir cache; echo ignored >cache/x; echo untracked >notes.txt
`

// RemoteScript makes a bare repository r.git and a user's clone of it.
const RemoteScript = `git init -q -b trunk up; cd up; seq 9 >a; echo b >b; git add -A; ` + GitIdentity + `commit -qm one; cd ..; git clone -q --bare up r.git; git clone -q r.git user`

// SubmoduleScript makes a repository repo whose submodule sub is that of up.
const SubmoduleScript = `
up=$PWD/up; git init -q -b trunk repo; cd repo; echo v1 >f; git -c protocol.file.allow=always submodule --quiet add "$up" sub; git add -A; ` + GitIdentity + `commit -qm one`

// BranchScript makes a clone repo that is on branch feat, two commits ahead of trunk; the tag v1 is one behind.
const BranchScript = `
git init -q -b trunk up; cd up; echo 0 >tracked; git add -A; ` + GitIdentity + `commit -qm base; cd ..
git clone -q up repo; cd repo; git checkout -q -b feat
for i in 1 2; do echo $i >tracked; ` + GitIdentity + `commit -qam feat$i; done
git tag v1 HEAD~1`

// GitState is what a plan must never change of a repository: refs, worktrees, configuration,
// hooks, stash and index.
func (p *Place) GitState(t testing.TB, dir string) string {
	t.Helper()
	return p.Sh(t, dir, `
export GIT_OPTIONAL_LOCKS=0
git for-each-ref; git symbolic-ref -q HEAD || git rev-parse HEAD; git worktree list --porcelain; git stash list
sha256sum <"$(git rev-parse --git-dir)/index"; sha256sum <"$(git rev-parse --git-common-dir)/config"
ls "$(git rev-parse --git-common-dir)/hooks" "$(git rev-parse --git-common-dir)"; git diff --cached`)
}
