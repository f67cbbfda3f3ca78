package worker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/warmfleet/warmfleet/internal/credential"
	"github.com/warmfleet/warmfleet/internal/gitrepo"
	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/pkg/image"
	"github.com/warmfleet/warmfleet/pkg/poolfile"
	"github.com/warmfleet/warmfleet/pkg/sandbox"
)

// imageBox lets a build run in a sandbox.
type imageBox struct{ sb *sandbox.Sandbox }

// Run implements image.Box.
func (b imageBox) Run(ctx context.Context, c image.Command) (image.Ended, error) {
	r, err := b.sb.Exec(ctx, isolate.Command{
		Argv: c.Argv, Env: append(b.sb.BaseEnv(), c.Env...), Timeout: c.Timeout, Secrets: c.Secrets, Stdout: c.Stdout, Stderr: c.Stderr,
	})
	tellDenied(c.Stderr, b.sb.Decisions())
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return image.Ended{ExitCode: r.ExitCode, Signal: r.Signal, Cause: string(r.Cause), Why: r.StartError}, err
}

// Read implements image.Box.
func (b imageBox) Read(ctx context.Context, path string, limit int64) ([]byte, error) {
	data, _, err := b.sb.ReadFile(ctx, path, limit)
	if errors.Is(err, isolate.ErrTooLarge) {
		err = fmt.Errorf("%w: %w", image.ErrTooLarge, err)
	}
	return data, err
}

// poolLimits are the stricter of a pool's limits and the worker's.
func (w *Worker) poolLimits(spec poolfile.Pool) isolate.Limits { return w.stricterLimits(spec.Limits) }

// poolRemote is the repository of a pool, with the credential that its file names, asked at each use.
func (w *Worker) poolRemote(spec poolfile.Pool) gitrepo.Remote {
	r := gitrepo.Remote{URL: spec.Resource.Repo, Ref: spec.Resource.Ref, Submodules: spec.Submodules}
	if t := spec.Token; t != nil {
		source := credential.Source{Env: t.Env, File: t.File, Command: t.Command}
		r.Who = fmt.Sprintf("%q", []any{t.Env, t.File, t.Command})
		r.Credential = func(ctx context.Context) (gitrepo.Credential, error) {
			c, err := source.Get(ctx)
			return gitrepo.Credential(c), err
		}
	}
	return r
}

// accessOf names where a remote's credential comes from, "" for nowhere. What one was given is not another's: the pool's token may have
// been changed so that it can read no more. Another value from the same place counts as the same, since commands give a new one each time.
func accessOf(r gitrepo.Remote) string {
	if r.Who == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(r.Who))
	return hex.EncodeToString(sum[:16])
}

// oneLine joins the lines of a text.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
