package suite

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"

	"github.com/warmfleet/warmfleet/bench/internal/bench"
)

// remote is a bare repository that sandboxes of pools are made of.
type remote struct {
	dir            string
	files, commits int // at first
	random         *rand.ChaCha8
	pushed         int
}

const (
	remoteBranch = "trunk"
	// behind is how many commits a sandbox lacks that is to be brought to the newest, and touched how many files each changes.
	behind, touched = 5, 3
	// stable is a file that no push changes.
	stable = "STABLE"
)

// newRemote makes a repository with a history, in a moment: git reads it as a stream.
func newRemote(ctx context.Context, e *bench.Env, dir string) (*remote, error) {
	r := &remote{dir: dir, files: pick(e, 2000, 100), commits: pick(e, 500, 10), random: random()}
	if err := tool(ctx, "/", "git", "init", "-q", "--bare", "-b", remoteBranch, dir); err != nil {
		return nil, err
	}
	all := make([]int, r.files)
	for i := range all {
		all[i] = i
	}
	var stream bytes.Buffer
	r.commit(&stream, all)
	for range r.commits - 1 {
		r.commit(&stream, r.some())
	}
	return r, r.imports(ctx, &stream)
}

// url is what a pool names.
func (r *remote) url() string { return "file://" + r.dir }

func (r *remote) String() string { return fmt.Sprintf("%d files, %d commits", r.files, r.commits) }

// push adds n commits and returns the last.
func (r *remote) push(ctx context.Context, n int) (string, error) {
	var stream bytes.Buffer
	for range n {
		r.commit(&stream, r.some())
	}
	if err := r.imports(ctx, &stream); err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, "git", "-C", r.dir, "rev-parse", remoteBranch).Output()
	return strings.TrimSpace(string(out)), err
}

// some are files for a commit to change.
func (r *remote) some() []int {
	var which []int
	for range touched {
		which = append(which, int(r.random.Uint64()%uint64(r.files)))
	}
	return which
}

// commit writes one in the form of git fast-import. The first of a stream stands on what is there.
func (r *remote) commit(stream *bytes.Buffer, files []int) {
	r.pushed++
	first := stream.Len() == 0
	fmt.Fprintf(stream, "commit refs/heads/%s\ncommitter bench <bench@localhost> %d +0000\ndata 6\ncommit\n", remoteBranch, 1_700_000_000+r.pushed)
	switch {
	case r.pushed == 1:
		fmt.Fprintf(stream, "M 100644 inline %s\ndata 2\n1\n\n", stable)
	case first:
		fmt.Fprintf(stream, "from refs/heads/%s^0\n", remoteBranch)
	}
	for _, i := range files {
		b := content(r.random, smallSize)
		fmt.Fprintf(stream, "M 100644 inline dir-%d/file-%d.txt\ndata %d\n%s\n", i/filesADir, i, len(b), b)
	}
}

func (r *remote) imports(ctx context.Context, stream *bytes.Buffer) error {
	c := exec.CommandContext(ctx, "git", "-C", r.dir, "fast-import", "--quiet")
	c.Stdin = stream
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("git fast-import: %w: %s", err, out)
	}
	return nil
}
