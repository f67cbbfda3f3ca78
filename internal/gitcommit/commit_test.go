package gitcommit

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const baseScript = `
mkdir -p d/e; for f in a b c d/f d/e/g run; do seq 9 >$f; done; chmod 755 run; ln -s a link; echo 'ign*' >.gitignore
git add -A; git commit -qm one; `

// submodule adds one, with a git directory of its own in it, as a clone has it.
const submodule = "git init -q sub; echo 1 >sub/f; git -C sub add f; git -C sub commit -qm sub; git add sub 2>/dev/null; git commit -qm two"

func TestRepository_CommitHere(t *testing.T) {
	for _, tc := range []struct {
		name             string
		before           string // by the user, before the plan starts
		meanwhile, plan  string
		conflicts, notes []string
		tip              string // prints what the branch has
		want             string
		status           string // what git says afterwards; conflicts leave all as it was
	}{
		{name: "EditAddDelete", plan: "echo A>a; rm b; mkdir n; echo n>n/n", tip: "git show trunk:a; git show trunk:n/n; git ls-tree --name-only trunk b", want: "A\nn\n"},
		{name: "ModeAndLink", plan: "chmod 644 run; chmod 755 a; ln -sfn b link; rm c; ln -s a c", tip: "git ls-tree trunk run a c | cut -c1-6; git show trunk:link; readlink link", want: "100755\n120000\n100644\nbb\n"},
		{name: "DeleteDirectory", plan: "rm -r d", tip: "git ls-tree --name-only trunk d; ls", want: "a\nb\nc\nlink\nrun\n"},
		{name: "FileToDirectory", plan: "rm a; mkdir -p a/x; echo i>a/x/i", tip: "git show trunk:a/x/i; cat a/x/i", want: "i\ni\n"},
		{name: "DirectoryToFile", plan: "rm -r d; echo d>d", tip: "git show trunk:d; cat d", want: "d\nd\n"},
		{name: "RenameWithEdit", meanwhile: "sed -i s/9/nine/ a; git commit -qam two", plan: "mv a moved; sed -i s/1/one/ moved", tip: "git show trunk:moved | sed -n '1p;9p'; sed -n '1p;9p' moved; ls a 2>/dev/null || true", want: "one\nnine\none\nnine\n"},
		{name: "MergedByContent", meanwhile: "sed -i s/9/nine/ a; git commit -qam two", plan: "sed -i s/1/one/ a", tip: "git show trunk:a | sed -n '1p;9p'; sed -n '1p;9p' a", want: "one\nnine\none\nnine\n"},
		{name: "Overlap", meanwhile: "sed -i s/9/nine/ a; git commit -qam two", plan: "sed -i s/9/neuf/ a; echo n>n", conflicts: []string{"a: content"}},
		{name: "DeletedAndChanged", meanwhile: "git rm -q a; git commit -qm two", plan: "echo A>a", conflicts: []string{"a: deleted_by_original"}},
		{name: "BaseIsGoneFromHistory", meanwhile: "git checkout -q --orphan x; git commit -qm other; git branch -qM x trunk", plan: "echo A>a", tip: "git show trunk:a; git rev-list --count trunk", want: "A\n2\n"},
		{name: "SameChangeIsThere", meanwhile: "echo A>a; git commit -qam two", plan: "echo A>a", tip: "git rev-list --count trunk", want: "2\n"},
		{name: "OtherDirtIsKept", meanwhile: "echo mine>b; echo s>staged; git add staged; echo u>u; git rm -q --cached c", plan: "echo A>a", tip: "cat b u; git diff --cached --name-status", want: "mine\nu\nD\tc\nA\tstaged\n", status: " M b\nD  c\nA  staged\n?? c\n?? u\n"},
		{name: "ModifiedNow", meanwhile: "echo mine>a", plan: "echo A>a; echo n>n", conflicts: []string{"a: dirty"}},
		{name: "ModifiedAlike", meanwhile: "echo A>a", plan: "echo A>a", tip: "git show trunk:a", want: "A\n"},
		{name: "StagedNow", meanwhile: "echo mine>a; git add a; seq 9 >a", plan: "echo A>a", conflicts: []string{"a: dirty"}},
		{name: "DeletedNow", meanwhile: "rm a", plan: "echo A>a", conflicts: []string{"a: dirty"}},
		{name: "UntrackedNow", meanwhile: "echo mine>n", plan: "echo n>n; echo A>a", conflicts: []string{"n: added_both"}},
		{name: "UntrackedAlike", meanwhile: "echo n>n", plan: "echo n>n", tip: "git show trunk:n", want: "n\n"},
		{name: "UntrackedInTheWay", meanwhile: "echo mine>n", plan: "mkdir n; echo i>n/i", conflicts: []string{"n/i: parent_replaced"}},
		{name: "StagedInTheWay", meanwhile: "echo mine>n; git add n; rm n", plan: "mkdir n; echo i>n/i", conflicts: []string{"n: dirty"}},
		{name: "IntentToAdd", meanwhile: "echo n>n; git add -N n", plan: "echo n>n", conflicts: []string{"n: dirty"}},
		{name: "ModifiedBefore", before: "echo mine>>a", plan: "echo A>>a; echo n>n", conflicts: []string{"a: dirty"}},
		{name: "CommittedSince", before: "echo mine>>a", meanwhile: "git commit -qam two", plan: "echo A>>a", conflicts: []string{"a: dirty"}},
		{name: "UntrackedBefore", before: "echo u>u", plan: "echo A>u", conflicts: []string{"u: dirty"}},
		{name: "DeletedBefore", before: "rm a", plan: "echo A>a", conflicts: []string{"a: dirty"}},
		{name: "OtherDirtBefore", before: "echo mine>>b; echo u>u", plan: "echo A>a", tip: "git show trunk:a", want: "A\n", status: " M b\n?? u\n"},
		{name: "IgnoredIsLeftOut", before: "echo x>ign1", plan: "echo A>a; echo x>>ign1; mkdir ign2; echo i>ign2/i", tip: "git show --format= --name-only trunk; cat ign1", want: "a\nx\n", notes: []string{`commit: ignored by git and left out: "ign1", "ign2/i"`}},
		{name: "IgnoredByThePlan", plan: "echo '*.o'>>.gitignore; echo o>x.o", tip: "git show --format= --name-only trunk", want: ".gitignore\n", notes: []string{`commit: ignored by git and left out: "x.o"`}},
		{name: "TrackedThoughIgnored", before: "echo x>ign; git add -f ign; git commit -qm two", plan: "echo y>ign", tip: "git show trunk:ign", want: "y\n"},
		{name: "EmptyDirectoryAndPipe", plan: "mkdir e; mkfifo p; echo A>a", tip: "git show --format= --name-only trunk", want: "a\n", notes: []string{`commit: of a kind that git cannot keep, and left out: "p"`}},
		{name: "OwnFileStaysInDeletedDirectory", meanwhile: "echo own>d/own", plan: "rm -r d", tip: "cat d/own; ls d", want: "own\nown\n", status: "?? d/\n"},
		{name: "InnerRepository", before: "git init -q in; echo 1 >in/f", plan: "echo 2 >in/f; echo A>a", conflicts: []string{"in: nested_git"}},
		{name: "NewInnerRepository", plan: "git init -q in; echo 1>in/f", conflicts: []string{"in: nested_git"}},
		{name: "Submodule", before: submodule, plan: "echo 2 >sub/f; echo A>a", conflicts: []string{"sub: nested_git"}},
		{name: "SubmoduleRemoved", before: submodule, plan: "rm -rf sub; echo A>a", conflicts: []string{"sub: nested_git"}},
		{name: "BesideASubmodule", before: submodule, plan: "echo A>a", tip: "git show trunk:a; cat sub/f", want: "A\n1\n"},
		{name: "FilterProgram", before: "echo '*.big filter=lfs' >.gitattributes; git add -A; git commit -qm two", plan: "echo b>x.big", conflicts: []string{"x.big: filter"}},
		{name: "SplitIndex", before: "git update-index --split-index; echo s>s; git add s", plan: "echo A>a", tip: "git show trunk:a; git diff --cached --name-only", want: "A\ns\n", status: "A  s\n"},
		{name: "IndexOfVersion4", before: "git update-index --index-version 4", plan: "echo A>a; rm b", tip: "git show trunk:a", want: "A\n"},
		{name: "OddNames", plan: `printf x >$'nl\nx'; printf x >'-rf'; printf x >'*.txt'; printf x >$'\xff'; printf x >' a'`, tip: "git ls-tree --name-only trunk | wc -l", want: "12\n"},
		{name: "SHA256", before: "rm -rf .git; git init -q -b trunk --object-format=sha256 .; git add -A; git commit -qm one", meanwhile: "echo B>b; git commit -qam two", plan: "echo A>a", tip: "git show trunk:a trunk:b", want: "A\nB\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, baseScript+tc.before, tc.plan)
			sh(t, r.orig, tc.meanwhile)
			before := r.state(t)
			out, err := r.apply(t.Context(), "", nil)
			must(t, err)
			if d := cmp.Diff(out.conflicts, tc.conflicts); d != "" {
				t.Fatalf("conflicts (-got +want):\n%s", d)
			}
			if d := cmp.Diff(out.notes, tc.notes); d != "" {
				t.Errorf("notes (-got +want):\n%s", d)
			}
			if tc.conflicts != nil {
				if d := cmp.Diff(r.state(t), before); d != "" {
					t.Errorf("after a conflict (-got +before):\n%s", d)
				}
				return
			}
			if got := sh(t, r.orig, tc.tip); got != tc.want {
				t.Errorf("the branch: got %q, want %q", got, tc.want)
			}
			if got := sh(t, r.orig, "git status --porcelain"); got != tc.status {
				t.Errorf("status: got %q, want %q", got, tc.status)
			}
			if got := sh(t, r.orig, "git fsck --strict --no-dangling 2>&1; ls .git/*.lock .git/*warmfleet* .warmfleet-apply 2>/dev/null || true"); got != "" {
				t.Errorf("left behind: %s", got)
			}
		})
	}
}

// Files that the commit did not change keep what the index knows of them, and those that it did are known without a look at them.
func TestRepository_IndexIsKept(t *testing.T) {
	r := newRig(t, baseScript, "echo A>a; echo n>n")
	debug := "git ls-files --debug b c d run | grep -v '^ *flags'"
	before := sh(t, r.orig, debug)
	_, err := r.apply(t.Context(), "", nil)
	must(t, err)
	if d := cmp.Diff(sh(t, r.orig, debug), before); d != "" {
		t.Errorf("entries of other files (-got +before):\n%s", d)
	}
	if got := sh(t, r.orig, "git diff-files --name-only; git diff-index --name-only HEAD"); got != "" {
		t.Errorf("git has to look again at %q", got)
	}
}

// Case E5: the commit is the one that git makes in the sandbox by hand, and the files are the sandbox's.
func TestRepository_CaseE5LineEndings(t *testing.T) {
	files := `printf 'a\r\nb\r\n' >crlf; printf 'a\r\nb\n' >mixed; printf 'a\rb\nc\n' >cr; printf '\357\273\277a\nb\n' >bom; printf 'a\nb' >nonl; printf 'a\nb\n' >lf; `
	edit := `for f in crlf mixed cr bom nonl lf; do sed -i s/a/word/ $f; done; `
	for _, autocrlf := range []string{"true", "false", "input"} {
		for name, plan := range map[string]string{
			"Edit": edit, "NewFiles": `printf 'x\r\ny\r\n' >new1; printf 'x\ny\n' >new2`,
			"Attributes": edit + `echo '* text=auto eol=crlf' >.gitattributes`,
		} {
			for base, attributes := range map[string]string{"Plain": "", "WithAttributes": "echo '* text=auto eol=crlf' >.gitattributes; "} {
				t.Run(autocrlf+"/"+name+"/"+base, func(t *testing.T) {
					t.Parallel()
					// Made with one setting, and cloned with another.
					r := newRig(t, "mkdir up; cd up; git init -q -b trunk .; "+attributes+files+"git add -A 2>/dev/null; git commit -qm one; cd ..; rm -rf .git; "+
						"git clone -q -c core.autocrlf="+autocrlf+" up x; rm -rf up; mv x/.git x/* .; [ ! -e x/.gitattributes ] || mv x/.gitattributes .; rm -rf x", plan)
					if got := sh(t, r.orig, "git status --porcelain"); got != "" {
						t.Fatalf("git itself takes the clone for changed: %s", got)
					}
					out, err := r.apply(t.Context(), "", nil)
					must(t, err)
					if out.conflicts != nil {
						t.Fatalf("conflicts: %q", out.conflicts)
					}
					want := sh(t, r.ours, "git add -A 2>/dev/null; git write-tree")
					if got := sh(t, r.orig, "git rev-parse trunk^{tree}"); got != want {
						t.Errorf("tree: got %s, want that of a commit by hand %s", got, want)
					}
					sh(t, r.dir, "diff -r --exclude=.git --exclude=.gitattributes orig ours") // of that one, only line ends may differ
					if got := sh(t, r.orig, "git status --porcelain 2>/dev/null"); got != "" {
						t.Errorf("status: %q", got)
					}
				})
			}
		}
	}
}

func TestWorkshop_OntoIsDeterministic(t *testing.T) {
	var ids []string
	for range 2 {
		r := newRig(t, "export GIT_AUTHOR_DATE=@1600000000 GIT_COMMITTER_DATE=@1600000000;"+baseScript, "echo A>a; ln -s x new")
		out, err := r.apply(t.Context(), "", nil)
		must(t, err)
		ids = append(ids, out.made.Commit)
		if got, want := sh(t, r.orig, "git show -s --format='%an <%ae> %at %cn <%ce> %ct %P%n%B' trunk"), "P <p@example.com> 1700000000 P <p@example.com> 1700000000 "+out.made.Onto+"\nby plan\n\n"; got != want {
			t.Errorf("commit: got %q, want %q", got, want)
		}
	}
	if ids[0] != ids[1] {
		t.Errorf("commits of the same work: %s and %s", ids[0], ids[1])
	}
}

func TestRepository_OtherBranches(t *testing.T) {
	for _, tc := range []struct {
		name, orig, branch string
		code               string
		tip, want          string
	}{
		{name: "NewBranch", orig: baseScript, branch: "feat/x", tip: "git show feat/x:a; cat a; git rev-list --count feat/x; git status --porcelain", want: "A\n1\n2\n3\n4\n5\n6\n7\n8\n9\n2\n"},
		{name: "ExistingBranch", orig: baseScript + "git checkout -q -b other; echo o>o; git add -A; git commit -qm o; git checkout -q trunk", branch: "other", tip: "git show other:a other:o; git status --porcelain", want: "A\no\n"},
		{name: "DashedBranch", orig: baseScript, branch: "it's->x", tip: "git show \"it's->x:a\"", want: "A\n"},
		{name: "DetachedWithBranch", orig: baseScript + "git checkout -q --detach", branch: "trunk", tip: "git show trunk:a; git status --porcelain; git symbolic-ref -q HEAD || echo detached", want: "A\ndetached\n"},
		{name: "Detached", orig: baseScript + "git checkout -q --detach", code: CodeNoBranch},
		{name: "Elsewhere", orig: baseScript + "git worktree add -q ../second -b other", branch: "other", code: CodeCheckedOut},
		{name: "RebasedElsewhere", orig: baseScript + "git worktree add -q ../second -b other; mkdir -p .git/worktrees/second/rebase-merge; git -C ../second checkout -q --detach; echo refs/heads/other >.git/worktrees/second/rebase-merge/head-name", branch: "other", code: CodeCheckedOut},
		{name: "Merging", orig: baseScript + "git rev-parse HEAD >.git/MERGE_HEAD", code: CodeInProgress},
		{name: "Rebasing", orig: baseScript + "mkdir .git/rebase-merge", branch: "x", code: CodeInProgress},
		{name: "CherryPicking", orig: baseScript + "git rev-parse HEAD >.git/CHERRY_PICK_HEAD", code: CodeInProgress},
		{name: "Bisecting", orig: baseScript + "git bisect start >/dev/null", code: CodeInProgress},
		{name: "BranchInTheWay", orig: baseScript + "git branch feat", branch: "feat/x", code: CodeRef},
		{name: "Unborn", orig: "echo u>u", tip: "git show --format=%P --name-only trunk; cat a; git status --porcelain", want: "\n\na\nA\n?? u\n"},
		{name: "UnbornOtherBranch", orig: "echo u>u", branch: "x", tip: "git show x:a; git status --porcelain; ls", want: "A\n?? u\nu\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, tc.orig, "echo A>a")
			before := r.state(t)
			_, err := r.apply(t.Context(), tc.branch, nil)
			var refused *Refusal
			if errors.As(err, &refused) != (tc.code != "") || tc.code == "" && err != nil {
				t.Fatalf("got %v, want code %q", err, tc.code)
			}
			if tc.code != "" {
				if refused.Code != tc.code || strings.Contains(err.Error(), "\n") {
					t.Errorf("got code %s: %v; want %s on one line", refused.Code, err, tc.code)
				}
				if d := cmp.Diff(r.state(t), before); d != "" {
					t.Errorf("after a refusal (-got +before):\n%s", d)
				}
				return
			}
			if got := sh(t, r.orig, tc.tip); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestRepository_MoveComparesAndSets(t *testing.T) {
	r := newRig(t, baseScript, "true")
	repo, err := r.open(t.Context())
	must(t, err)
	target, err := repo.Target(t.Context(), "other")
	must(t, err)
	head := strings.TrimSpace(sh(t, r.orig, "git branch other; git rev-parse HEAD"))
	if err := repo.Move(t.Context(), target, head, Reflog{}); !errors.Is(err, ErrMoved) {
		t.Errorf("got %v, want ErrMoved", err)
	}
}

func TestRepository_Lock(t *testing.T) {
	r := newRig(t, baseScript, "echo A>a")
	repo, err := r.open(t.Context())
	must(t, err)
	t.Run("KeepsGitOut", func(t *testing.T) {
		l, err := repo.Lock(t.Context())
		must(t, err)
		if got := sh(t, r.orig, "! git add -A 2>&1"); !strings.Contains(got, "index.lock") {
			t.Errorf("git said %q", got)
		}
		must(t, l.Release())
		sh(t, r.orig, "git add -A")
	})
	t.Run("IsKeptOutByGit", func(t *testing.T) {
		must(t, os.WriteFile(filepath.Join(r.orig, ".git", lockName), []byte("DIRC"), 0o644))
		_, err := repo.Lock(t.Context())
		var refused *Refusal
		if !errors.As(err, &refused) || refused.Code != CodeLocked || !strings.Contains(err.Error(), r.orig) {
			t.Errorf("got %v, want %s with the path", err, CodeLocked)
		}
		must(t, repo.Sweep())
		if _, err := os.Stat(filepath.Join(r.orig, ".git", lockName)); err != nil {
			t.Errorf("the lock of git is gone: %v", err)
		}
	})
	t.Run("WaitsForGit", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		freed := time.AfterFunc(2*lockPoll, func() { os.Remove(filepath.Join(r.orig, ".git", lockName)) })
		defer freed.Stop()
		l, err := repo.Lock(ctx)
		must(t, err)
		must(t, l.Abandon())
	})
	t.Run("TakesOverItsOwn", func(t *testing.T) {
		l, err := repo.Lock(t.Context())
		must(t, err)
		must(t, l.Abandon())
		must(t, repo.Sweep())
		sh(t, r.orig, "[ ! -e .git/index.lock ]; git add -A")
	})
}

// Nothing that a repository configures runs.
func TestRepository_RunsNothingOfTheRepository(t *testing.T) {
	r := newRig(t, baseScript+`
for h in pre-commit post-commit reference-transaction post-index-change post-checkout commit-msg; do printf '#!/bin/sh\ntouch ../CANARY-$0\n' >.git/hooks/$h; chmod 755 .git/hooks/$h; done
echo '*.f filter=evil merge=evil diff=evil' >.gitattributes; echo 1 >x.f; git add -A; git -c core.hooksPath=/dev/null commit -qm two
for k in filter.evil.clean filter.evil.smudge merge.evil.driver diff.evil.textconv diff.evil.command core.fsmonitor core.sshCommand gpg.program; do git config $k 'touch ../CANARY'; done
git config commit.gpgSign true; git config core.alternateRefsCommand 'touch ../CANARY'`, "echo A>a")
	sh(t, r.orig, "rm -f ../CANARY*; echo B>b; git -c core.hooksPath=/dev/null -c core.fsmonitor=false -c commit.gpgSign=false commit -qm three b; rm -f ../CANARY*")
	out, err := r.apply(t.Context(), "", nil)
	must(t, err)
	if out.made.Commit == "" {
		t.Errorf("nothing was made: %q", out.conflicts)
	}
	if got := sh(t, r.dir, "ls"); got != "base\norig\nours\n" {
		t.Errorf("something ran: %q", got)
	}
}
