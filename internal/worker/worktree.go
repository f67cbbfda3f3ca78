package worker

import (
	"bytes"
	"context"
	"errors"

	"github.com/warmfleet/warmfleet/internal/gitrepo"
	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/pkg/sandbox"
)

// maxGitSaid bounds what is kept of git's messages, in bytes.
const maxGitSaid = 16 << 10

// workTree lets a sync run git in a sandbox.
func workTree(sb *sandbox.Sandbox) gitrepo.WorkTree { return sandboxTree{sb} }

type sandboxTree struct{ sb *sandbox.Sandbox }

// Git implements gitrepo.WorkTree.
func (t sandboxTree) Git(ctx context.Context, c gitrepo.SandboxGit) (gitrepo.Ended, error) {
	said := &saying{}
	r, err := t.sb.Exec(ctx, isolate.Command{
		Argv: append([]string{"git"}, c.Args...), Env: append(t.sb.BaseEnv(), c.Env...),
		Stdin: c.Stdin, Stdout: c.Stdout, Stderr: said,
	})
	switch {
	case err != nil:
		return gitrepo.Ended{}, err
	case ctx.Err() != nil:
		return gitrepo.Ended{}, context.Cause(ctx)
	case r.Cause == isolate.CauseStart:
		return gitrepo.Ended{}, errors.New(r.StartError)
	case r.ExitCode == nil:
		return gitrepo.Ended{ExitCode: -1, Stderr: said.String()}, nil
	}
	return gitrepo.Ended{ExitCode: *r.ExitCode, Stderr: said.String()}, nil
}

// saying keeps the beginning of what is written to it.
type saying struct{ buf bytes.Buffer }

func (s *saying) Write(p []byte) (int, error) {
	if room := maxGitSaid - s.buf.Len(); room > 0 {
		s.buf.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

func (s *saying) String() string { return s.buf.String() }
