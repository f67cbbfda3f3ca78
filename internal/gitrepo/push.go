package gitrepo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
)

// ErrRejected reports a remote that answered, and refused a push.
var ErrRejected = errors.New("refused by the remote")

// Git is the git that the store uses.
func (s *Store) Git() Git { return s.git }

// Tip fetches a branch of a remote, whatever r.Ref says, and returns where it is: Commit is "" when the remote has no such
// branch. The mirror holds all of its history. Errors: as of Sync.
func (s *Store) Tip(ctx context.Context, r Remote, branch string) (Mirror, error) {
	r.Ref = headsPrefix + branch
	m, err := s.mirror(ctx, r)
	if errors.Is(err, ErrNoRef) {
		rem, parsed := parseRemote(r.URL)
		return Mirror{Dir: s.mirrorDir(rem), Branch: branch}, parsed
	}
	return m, err
}

// Contains tells whether a commit is another, or in its history; a commit that the repository does not have is in no history.
func (g Git) Contains(ctx context.Context, gitDir, tip, commit string) (bool, error) {
	if tip == commit {
		return true, nil
	}
	err := g.Run(ctx, Call{GitDir: gitDir, Args: []string{"merge-base", "--is-ancestor", commit, tip}})
	if ExitCode(err) > 0 { // 1: no; 128: it is not there
		return false, nil
	}
	return err == nil, err
}

// Push is a commit that is to become the tip of a remote's branch.
type Push struct {
	// To is the remote; its Ref does not count.
	To     Remote
	Branch string
	// GitDir and Alternates have the commit and all it needs.
	GitDir     string
	Alternates []string
	Commit     string
	// Old is where the branch has to be, "" when it must not exist.
	Old string
}

// Push moves a branch of a remote if it is where it has to be. ErrRejected: the remote answered and refused, because the
// branch is elsewhere or for a reason of its own. ErrDenied: it does not take the credential. After any other error it may have moved, and has to be asked. The remote's own hooks
// decide, ours never run. A local remote is written to as its owner where we are root.
func (s *Store) Push(ctx context.Context, p Push) error {
	r, err := parseRemote(p.To.URL)
	if err != nil {
		return err
	}
	if err := s.authorizeBy(ctx, &r, p.To.Credential); err != nil {
		return fmt.Errorf("gitrepo: push to %q: %w", r.url, err)
	}
	home := s.mirrorHome(r)
	if err := os.MkdirAll(home, 0o700); err != nil {
		return fmt.Errorf("gitrepo: push to %q: %w", r.url, err)
	}
	f := fetcher{git: s.git, home: home, dir: p.GitDir, remote: r, timeout: s.opt.Timeout}
	ref := headsPrefix + p.Branch
	c := f.call("push", "--porcelain", "--no-verify", "--no-signed", "--recurse-submodules=no", "--force-with-lease="+ref+":"+p.Old,
		"origin", p.Commit+":"+ref)
	c.Alternates = p.Alternates
	if err := asOwner(&c, r.local); err != nil {
		return err
	}
	out := &boundedBuffer{max: maxOutput}
	c.Stdout = out
	err = f.run(ctx, c)
	if err == nil {
		return nil
	}
	if why := rejection(out.String(), ref); why != "" {
		return fmt.Errorf("gitrepo: push to %q: %w: branch %q: %s", r.url, ErrRejected, p.Branch, redact(why+detail(err), r.secret))
	}
	return fmt.Errorf("gitrepo: push to %q: %w", r.url, f.meaning(err))
}

// rejection is what a push said of a ref that it did not move: "!\t<from>:<to>\t[remote rejected] (why)" of git-push(1).
func rejection(out, ref string) string {
	for line := range strings.Lines(out) {
		fields := strings.SplitN(strings.TrimRight(line, "\n"), "\t", 3)
		if len(fields) == 3 && fields[0] == "!" && strings.HasSuffix(fields[1], ":"+ref) {
			return fields[2]
		}
	}
	return ""
}

// detail is what a remote's hook said.
func detail(err error) string {
	exit, ok := errors.AsType[*ExitError](err)
	if !ok {
		return ""
	}
	var said []string
	for part := range strings.SplitSeq(exit.Stderr, "; ") {
		if text, remote := strings.CutPrefix(part, "remote: "); remote {
			said = append(said, strings.TrimSpace(text))
		}
	}
	if len(said) == 0 {
		return ""
	}
	return ": " + strings.Join(said, "; ")
}

// asOwner makes the far end of a push to a local repository run as its owner where we are root: its hooks are the owner's
// programs, and what it writes must be the owner's.
func asOwner(c *Call, local string) error {
	if local == "" {
		return nil
	}
	owner, err := OwnerToBe(local)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // git says it better
	}
	if err != nil || owner == nil {
		return err
	}
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		return fmt.Errorf("gitrepo: push to %q as its owner: %w: install util-linux", local, err)
	}
	c.Config = append(c.Config, fmt.Sprintf("remote.origin.receivepack=%s --reuid=%d --regid=%d --clear-groups git-receive-pack", setpriv, owner.UID, owner.GID))
	return nil
}
