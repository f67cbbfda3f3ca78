package gitrepo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// ErrNotBrought reports a work tree that is not at the tip although git did what it was asked: it must not be used.
var ErrNotBrought = errors.New("the work tree is not at the commit")

// bringLimit bounds a Bring: no network is in it, so only a sandbox that hangs takes as long.
const bringLimit = 10 * time.Minute

// WorkTree runs git in the workspace of a sandbox, as the sandbox's user, with nothing on the host in reach. What it
// answers is not trusted.
type WorkTree interface {
	// Git runs one command to its end. An error means that its end is unknown.
	Git(ctx context.Context, c SandboxGit) (Ended, error)
}

// SandboxGit is one run of git in a sandbox.
type SandboxGit struct {
	Args   []string
	Env    []string // besides what every command in the sandbox gets, as NAME=value
	Stdin  io.Reader
	Stdout io.Writer
}

// Ended is how it ended. ExitCode is -1 when a signal ended it.
type Ended struct {
	ExitCode int
	Stderr   string
}

// Brought is what a sandbox was brought to.
type Brought struct {
	Commit string
	// Bytes is the size of the pack that went in.
	Bytes int64
	// Moved tells whether commit, branch or tracked files changed.
	Moved bool
	// Notes name what is not filled in: submodules, and files of Git LFS where the top .gitattributes says that there are.
	Notes []string
}

// Bring moves a sandbox's work tree to a tip that Sync found, so that its repository is what a clone of the remote would be:
// the objects it lacks are streamed in, remote-tracking branches and tags are set as the remote has them, HEAD is on the tip's
// branch and no other branch of an earlier tip is left, tracked files are reset, half-done merges and locks are gone. Untracked
// and ignored files stay, as do other branches. Submodules that may be fetched (r.Submodules) are at the commits that the tip records, each
// with a repository of its own, whose objects come from the worker's mirror of it. What the repository's own configuration and attributes say of hooks, monitors, filters,
// work tree and sparse checkout counts for nothing. It returns only when HEAD and tracked files are seen to be at the tip;
// ErrNotBrought otherwise, and then, as after any error, the sandbox has to be thrown away.
//
// Whether a file is as in the commit is what git tells by its size and time of change, as ever.
func (s *Store) Bring(ctx context.Context, r Remote, t Tip, w WorkTree) (Brought, error) {
	rem, err := parseRemote(r.URL)
	if err != nil {
		return Brought{}, err
	}
	var mods []submodule
	var unfilled []string
	if len(r.Submodules) > 0 {
		mods, unfilled = s.fetchSubmodules(ctx, r, rem, t)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, bringLimit, fmt.Errorf("it did not end within %s", bringLimit))
	defer cancel()
	b := bringer{git: s.git, dir: s.mirrorDir(rem), tip: t, sandbox: &sandboxGit{tree: w}, fills: len(r.Submodules) > 0}
	out, err := b.bring(ctx)
	if err == nil {
		var moved bool
		var refused []string
		moved, refused, err = b.fill(ctx, mods)
		out.Moved, out.Notes = out.Moved || moved, slices.Concat(out.Notes, unfilled, refused)
	}
	if err != nil {
		if !errors.Is(err, errInSandbox) {
			s.doubt(rem, err)
		}
		return Brought{}, fmt.Errorf("gitrepo: bring a sandbox of %q to %s: %w", rem.url, t.Commit, err)
	}
	return out, nil
}

// bringer moves one work tree.
type bringer struct {
	git     Git
	dir     string // the mirror
	tip     Tip
	sandbox *sandboxGit
	fills   bool // submodules are filled
}

func (b bringer) bring(ctx context.Context) (Brought, error) {
	have, err := b.sandbox.prepare(ctx)
	if err != nil {
		return Brought{}, err
	}
	at, err := b.sandbox.position(ctx)
	if err != nil {
		return Brought{}, err
	}
	want, err := b.wanted(ctx)
	if err != nil {
		return Brought{}, err
	}
	out := Brought{Commit: b.tip.Commit}
	if at.is(b.tip) && want.like(have.clone) {
		_, out.Notes, err = b.mirrorKnows(ctx, nil)
		return out, err
	}
	out.Moved = !at.is(b.tip)
	if out.Bytes, out.Notes, err = b.stream(ctx, at, have, want); err != nil {
		return Brought{}, err
	}
	if err := b.setRefs(ctx, at, have, want); err != nil {
		return Brought{}, err
	}
	if out.Moved {
		if err := b.sandbox.run(ctx, nil, "reset", "--hard", "--quiet"); err != nil {
			return Brought{}, err
		}
	}
	if at, err = b.sandbox.position(ctx); err != nil {
		return Brought{}, err
	}
	if !at.is(b.tip) {
		return Brought{}, fmt.Errorf("%w: HEAD is %q at %q, %d tracked files differ", ErrNotBrought, at.branch, at.commit, at.changed)
	}
	return out, nil
}

// clone is the part of a repository that a clone of the remote decides.
type clone struct {
	refs    map[string]string // remote-tracking branches and tags
	head    string            // what refs/remotes/origin/HEAD is a symbolic ref to, "" for none
	shallow string            // the boundary of the history
}

func (c clone) like(o clone) bool {
	return maps.Equal(c.refs, o.refs) && c.head == o.head && c.shallow == o.shallow
}

const (
	remotePrefix = "refs/remotes/origin/"
	remoteHead   = remotePrefix + "HEAD"
)

// wanted is what the mirror says of it.
func (b bringer) wanted(ctx context.Context) (clone, error) {
	out, err := b.git.Output(ctx, Call{GitDir: b.dir, Args: []string{"for-each-ref", "--format=%(objectname) %(refname) %(symref)", syncPrefix}})
	if err != nil {
		return clone{}, err
	}
	c := clone{refs: map[string]string{}}
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimRight(line, "\n"), " ")
		if len(f) != 3 {
			continue
		}
		branch, isBranch := strings.CutPrefix(f[1], syncHeads)
		switch {
		case f[1] == syncDefault:
			c.head = remotePrefix + strings.TrimPrefix(f[2], syncHeads)
		case isBranch && branch != "HEAD": // its name is taken
			c.refs[remotePrefix+branch] = f[0]
		case !isBranch:
			c.refs[tagsPrefix+strings.TrimPrefix(f[1], syncTags)] = f[0]
		}
	}
	shallow, err := shallowOf(b.dir)
	c.shallow = string(shallow)
	return c, err
}

// Lacks names what no sandbox at a tip that Sync found has of it: submodules and files of Git LFS.
func (s *Store) Lacks(ctx context.Context, r Remote, t Tip) ([]string, error) {
	rem, err := parseRemote(r.URL)
	if err != nil {
		return nil, err
	}
	_, notes, err := bringer{git: s.git, dir: s.mirrorDir(rem), tip: t}.mirrorKnows(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("gitrepo: look what a sandbox of %q at %s lacks: %w", rem.url, t.Commit, err)
	}
	return notes, nil
}

// mirrorKnows tells which of some objects the mirror has, and what of the tip's commit a sync does not fill in.
func (b bringer) mirrorKnows(ctx context.Context, hashes []string) (known []string, notes []string, err error) {
	modules, attributes := b.tip.Commit+":.gitmodules", b.tip.Commit+":.gitattributes"
	in := strings.Join(append(slices.Clone(hashes), modules, attributes), "\n") + "\n"
	out, err := b.git.Output(ctx, Call{GitDir: b.dir, Args: []string{"cat-file", "--batch-check"}, Stdin: strings.NewReader(in)})
	if err != nil {
		return nil, nil, err
	}
	lines := strings.Split(strings.TrimRight(string(out), "\n"), "\n")
	if len(lines) != len(hashes)+2 {
		return nil, nil, fmt.Errorf("git cat-file: %d answers to %d questions", len(lines), len(hashes)+2)
	}
	there := func(i int) bool { return len(strings.Fields(lines[i])) == 3 }
	for i, h := range hashes {
		if there(i) {
			known = append(known, h)
		}
	}
	if there(len(hashes)) && !b.fills {
		notes = append(notes, "submodules are not fetched: their directories stay as they are; a pool file can list in submodules where they may come from")
	}
	if there(len(hashes) + 1) {
		text := &boundedWriter{left: maxInfoFile}
		if err := b.git.Run(ctx, Call{GitDir: b.dir, Args: []string{"cat-file", "blob", attributes}, Stdout: text}); err != nil {
			return nil, nil, err
		}
		if strings.Contains(text.buf.String(), "filter=lfs") {
			notes = append(notes, "files of Git LFS are not fetched: they are pointers")
		}
	}
	return known, notes, nil
}

// boundedWriter takes everything and keeps the beginning.
type boundedWriter struct {
	buf  bytes.Buffer
	left int
}

func (b *boundedWriter) Write(p []byte) (int, error) {
	n := min(len(p), b.left)
	b.left -= n
	_, _ = b.buf.Write(p[:n])
	return len(p), nil
}

// stream sends the objects that the sandbox lacks, by what it says it has; should that be wrong, what is missing shows when it is
// checked out. Where the histories end elsewhere it is no measure, and all is sent.
func (b bringer) stream(ctx context.Context, at position, have found, want clone) (int64, []string, error) {
	said := append(slices.Collect(maps.Values(have.refs)), at.commit)
	slices.Sort(said)
	said = slices.DeleteFunc(slices.Compact(said), func(h string) bool { return h == "" })
	known, notes, err := b.mirrorKnows(ctx, said)
	if err != nil {
		return 0, nil, err
	}
	if have.shallow != want.shallow {
		known = nil
		if err := b.sandbox.setShallow(ctx, want.shallow); err != nil {
			return 0, nil, err
		}
	}
	var revs strings.Builder
	lacks := append(slices.Collect(maps.Values(want.refs)), b.tip.Commit)
	slices.Sort(lacks)
	lacks = slices.DeleteFunc(slices.Compact(lacks), func(h string) bool {
		_, found := slices.BinarySearch(known, h)
		return found
	})
	if len(lacks) == 0 {
		return 0, notes, nil
	}
	fmt.Fprintf(&revs, "%s\n--not\n%s\n", strings.Join(lacks, "\n"), strings.Join(known, "\n"))
	n, err := b.send(ctx, revs.String())
	return n, notes, err
}

// send pipes a pack out of the mirror into the sandbox.
func (b bringer) send(ctx context.Context, revs string) (int64, error) {
	r, w := io.Pipe()
	count := &counter{w: w}
	sent := make(chan error, 1)
	go func() {
		err := b.git.Run(ctx, Call{
			GitDir: b.dir, Config: []string{"pack.compression=1"},
			// No search for deltas: those of the mirror are used again.
			Args:  []string{"pack-objects", "--revs", "--thin", "--stdout", "--window=0", "--delta-base-offset", "-q"},
			Stdin: strings.NewReader(revs), Stdout: count,
		})
		w.CloseWithError(err)
		sent <- err
	}()
	err := b.sandbox.run(ctx, r, "index-pack", "--stdin", "--fix-thin")
	r.CloseWithError(errGone) // one that stopped reading must not hold the writer
	if from := <-sent; from != nil && ExitCode(from) > 0 {
		return count.n, from // the sandbox's own error follows from it
	}
	return count.n, err
}

// errGone is what a writer gets whose reader has ended.
var errGone = errors.New("the reader has ended")

// counter counts what passes.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// setRefs makes the sandbox's refs those of a clone of the tip, by one process unless a symbolic ref changes. What goes is removed
// by a transaction of its own, since a branch that is called a does not go together with a/b.
func (b bringer) setRefs(ctx context.Context, at position, have found, want clone) error {
	var in strings.Builder
	in.WriteString("start\n")
	for _, name := range b.inTheWay(at, have, want) {
		fmt.Fprintf(&in, "option no-deref\ndelete %s\n", name)
	}
	in.WriteString("prepare\ncommit\nstart\n")
	for _, name := range slices.Sorted(maps.Keys(want.refs)) {
		if have.refs[name] != want.refs[name] {
			fmt.Fprintf(&in, "update %s %s\n", name, want.refs[name])
		}
	}
	branch := headsPrefix + b.tip.Branch
	if b.tip.Branch != "" {
		fmt.Fprintf(&in, "option no-deref\nupdate %s %s\n", branch, b.tip.Commit)
	} else {
		fmt.Fprintf(&in, "option no-deref\nupdate HEAD %s\n", b.tip.Commit)
	}
	in.WriteString("prepare\ncommit\n")
	if err := b.sandbox.run(ctx, strings.NewReader(in.String()), "update-ref", "--stdin"); err != nil {
		return err
	}
	if b.tip.Branch != "" && at.branch != b.tip.Branch {
		if err := b.sandbox.run(ctx, nil, "symbolic-ref", "HEAD", branch); err != nil {
			return err
		}
	}
	switch {
	case want.head == have.head:
		return nil
	case want.head == "":
		return b.sandbox.run(ctx, nil, "symbolic-ref", "--delete", remoteHead)
	}
	return b.sandbox.run(ctx, nil, "symbolic-ref", remoteHead, want.head)
}

// inTheWay are the sandbox's refs that have to go: what the remote no longer has, the branch of the last tip, and branches that
// the tip's has no room beside.
func (b bringer) inTheWay(at position, have found, want clone) []string {
	var gone []string
	for _, name := range slices.Sorted(maps.Keys(have.refs)) {
		if want.refs[name] == "" {
			gone = append(gone, name)
		}
	}
	for _, branch := range have.branches {
		blocks := b.tip.Branch != "" && (within(branch, b.tip.Branch) || within(b.tip.Branch, branch))
		if blocks || branch == at.branch && branch != b.tip.Branch {
			gone = append(gone, headsPrefix+branch)
		}
	}
	return gone
}

// within tells whether a ref's name lies below another, as a file would.
func within(name, dir string) bool { return strings.HasPrefix(name, dir+"/") }
