package gitrepo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
)

// errInSandbox is the fault of a sandbox, not of the mirror.
var errInSandbox = errors.New("in the sandbox")

// sandboxGit runs git in a sandbox, whose repository may say anything.
type sandboxGit struct {
	tree WorkTree
	off  []string // settings that switch the repository's own filters off
	in   string   // the submodule that it works in, "" for the repository itself
	more []string // variables for scripts
}

// found is what prepare found.
type found struct {
	clone
	branches []string
}

// position is where a work tree is.
type position struct {
	commit, branch string // "" where unborn, and where detached
	changed        int    // tracked files that differ
}

func (p position) is(t Tip) bool {
	return p.commit == t.Commit && p.branch == t.Branch && p.changed == 0
}

// prepareScript removes what killed or half-done work left and what makes git see another repository or other files than there are, an
// index with marks that hide files included; then it prints filters, refs and the boundary, with a line = between. It is
// one text without any value in it.
const prepareScript = `!cd .git || exit
rm -rf -- *.lock rebase-merge rebase-apply sequencer MERGE_HEAD MERGE_MODE MERGE_MSG MERGE_RR AUTO_MERGE SQUASH_MSG CHERRY_PICK_HEAD \
	REVERT_HEAD REBASE_HEAD BISECT_* info/attributes info/grafts info/sparse-checkout objects/info/alternates objects/info/*.lock commondir
find refs -name '*.lock' -exec rm -rf -- {} +
cd ..
git config --name-only --get-regexp '^filter\.'
echo =
git for-each-ref --format='%(objectname) %(refname) %(symref)' refs/heads refs/tags refs/remotes/origin || exit
echo =
! test -f .git/shallow || sort .git/shallow
if git ls-files -v | grep -q '^[a-zS]'; then rm -f .git/index; fi
:`

// prepare makes the repository one that can be worked with, and tells what of a clone is in it.
func (s *sandboxGit) prepare(ctx context.Context) (found, error) {
	out, err := s.script(ctx, nil, prepareScript)
	if err != nil {
		return found{}, err
	}
	f := found{clone: clone{refs: map[string]string{}}}
	part := 0
	for line := range strings.Lines(string(out)) {
		line = strings.TrimRight(line, "\n")
		switch {
		case line == "=":
			part++
		case part == 0:
			s.switchOff(line)
		case part == 1:
			if err := f.take(line); err != nil {
				return f, err
			}
		default:
			f.shallow += line + "\n"
		}
	}
	if part != 2 {
		return f, fmt.Errorf("%w: git gives %d parts of an answer, want 3", errInSandbox, part+1)
	}
	return f, nil
}

// switchOff makes a filter that the repository configures do nothing.
func (s *sandboxGit) switchOff(key string) {
	if at := strings.LastIndexByte(key, '.'); at > 0 {
		s.off = append(s.off, key[:at]+".clean=", key[:at]+".smudge=", key[:at]+".process=", key[:at]+".required=false")
	}
}

// take reads a ref.
func (f *found) take(line string) error {
	fields := strings.Split(line, " ")
	if len(fields) != 3 || !fullHash.MatchString(fields[0]) {
		return fmt.Errorf("%w: git lists a ref as %q", errInSandbox, line)
	}
	branch, isBranch := strings.CutPrefix(fields[1], headsPrefix)
	switch {
	case isBranch:
		f.branches = append(f.branches, branch)
	case fields[1] == remoteHead:
		f.head = fields[2]
	default:
		f.refs[fields[1]] = fields[0]
	}
	return nil
}

// position asks for HEAD and tracked changes by one process.
func (s *sandboxGit) position(ctx context.Context) (position, error) {
	out, err := s.output(ctx, nil, "status", "--porcelain=v2", "--branch", "--no-ahead-behind", "-z", "--untracked-files=no", "--ignore-submodules=all", "--no-renames")
	if err != nil {
		return position{}, err
	}
	var p position
	for entry := range bytes.SplitSeq(out, []byte{0}) {
		line := string(entry)
		switch value, isHeader := strings.CutPrefix(line, "# "); {
		case isHeader:
			if oid, ok := strings.CutPrefix(value, "branch.oid "); ok && fullHash.MatchString(oid) {
				p.commit = oid
			}
			if head, ok := strings.CutPrefix(value, "branch.head "); ok && head != "(detached)" {
				p.branch = head
			}
		case line != "":
			p.changed++
		}
	}
	return p, nil
}

// setShallow sets where the history ends; "" is a full one.
func (s *sandboxGit) setShallow(ctx context.Context, boundary string) error {
	if boundary == "" {
		_, err := s.script(ctx, nil, "!rm -f .git/shallow")
		return err
	}
	_, err := s.script(ctx, strings.NewReader(boundary), "!cat >.git/shallow.lock && mv -f .git/shallow.lock .git/shallow")
	return err
}

func (s *sandboxGit) run(ctx context.Context, in io.Reader, args ...string) error {
	_, err := s.output(ctx, in, args...)
	return err
}

// script runs a script of ours as an alias of git, with git's settings around it.
func (s *sandboxGit) script(ctx context.Context, in io.Reader, text string) ([]byte, error) {
	return s.git(ctx, append(s.env("alias.warmfleet-script="+text), s.more...), SandboxGit{Args: []string{"warmfleet-script"}, Stdin: in})
}

// output runs git in the sandbox and returns its stdout, bounded.
func (s *sandboxGit) output(ctx context.Context, in io.Reader, args ...string) ([]byte, error) {
	return s.git(ctx, s.env(), SandboxGit{Args: args, Stdin: in})
}

// env is the environment of git in the repository, or the submodule.
func (s *sandboxGit) env(settings ...string) []string {
	git, tree := ".git", "."
	if s.in != "" {
		git, tree = s.in+"/.git", s.in
	}
	where := []string{"GIT_DIR=" + git, "GIT_WORK_TREE=" + tree}
	if s.in == "" { // that of a submodule may be a file that names its directory
		where = append(where, "GIT_COMMON_DIR="+git)
	}
	return append(sandboxEnv(append(settings, s.off...)), where...)
}

func (s *sandboxGit) git(ctx context.Context, env []string, c SandboxGit) ([]byte, error) {
	out := &boundedBuffer{max: maxOutput}
	c.Env, c.Stdout = env, out
	ended, err := s.tree.Git(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("%w: git %s: %w", errInSandbox, c.Args[0], err)
	}
	if ended.ExitCode != 0 {
		return nil, fmt.Errorf("%w: %w", errInSandbox, &ExitError{Command: c.Args[0], Code: ended.ExitCode, Stderr: summary(ended.Stderr, nil)})
	}
	return out.Bytes(), nil
}

// sandboxEnv is stronger than what a step left in the repository's configuration. How much of a file's state counts is as
// privateConfig has it.
func sandboxEnv(settings []string) []string {
	return append(configEnv(append([]string{
		"core.bare=false", "core.attributesFile=/dev/null", "core.excludesFile=/dev/null", "core.sparseCheckout=false", "index.sparse=false",
		"core.ignoreStat=false", "core.checkStat=minimal", "core.trustctime=false", "core.fileMode=true", "core.symlinks=true",
		"core.ignoreCase=false", "core.autocrlf=false", "core.eol=native", "core.safecrlf=false", "advice.detachedHead=false",
	}, settings...)),
		"LC_ALL=C", "LANGUAGE=C", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_ATTR_NOSYSTEM=1", "GIT_NO_REPLACE_OBJECTS=1", "GIT_NO_LAZY_FETCH=1", "GIT_ALLOW_PROTOCOL="+noProtocol, "GIT_TERMINAL_PROMPT=0", "GIT_OPTIONAL_LOCKS=0",
		"GIT_PAGER=cat", "GIT_EDITOR=/bin/false", "GIT_REFLOG_ACTION=sync", "GIT_COMMITTER_NAME=warmfleet", "GIT_COMMITTER_EMAIL=warmfleet@localhost")
}
