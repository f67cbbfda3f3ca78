package executor

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/pkg/plan"
)

const (
	// outputLimit bounds the wait for a step's output to be stored.
	outputLimit = 5 * time.Second
	// MaxEdit is the largest file an edit step or an expect_sha256 reads, in bytes.
	MaxEdit = 64 << 20
)

// perform does what a step says. A step that fails is a result with a message; an error
// means that it could not be run at all.
func (r *run) perform(ctx context.Context, i, try int) (isolate.Result, string, error) {
	step := r.Plan.Steps[i]
	if step.Run != "" {
		return r.command(ctx, i, try)
	}
	start := time.Now()
	err := r.fileStep(ctx, step)
	var refused stepError
	if err != nil && !errors.As(err, &refused) {
		return isolate.Result{}, "", err
	}
	zero := 0
	res := isolate.Result{ExitCode: &zero, Cause: isolate.CauseExit, Duration: time.Since(start)}
	if err != nil {
		res.ExitCode, res.Cause = nil, cmp.Or(refused.cause, isolate.CauseStart)
		return res, err.Error(), nil
	}
	return res, "", nil
}

// stepError is a file step that cannot be done on the tree as it is.
type stepError struct {
	msg   string
	cause isolate.Cause // CauseStart if ""
}

func (e stepError) Error() string { return e.msg }

func (r *run) command(ctx context.Context, i, try int) (isolate.Result, string, error) {
	var out io.Writer = io.Discard
	if r.Output != nil {
		w := r.Output(i, try)
		defer r.closeOutput(ctx, w)
		masked := r.Mask.Writer(w)
		defer masked.Close() // first
		out = masked
	}
	argv, script := r.shell(i)
	res, err := r.Sandbox.Exec(ctx, isolate.Command{
		Argv: argv, Script: script, Env: environment(r.Sandbox.BaseEnv(), r.Plan, i), Dir: r.Plan.EffectiveDir(i),
		Stdout: out, Stderr: out, Timeout: r.Plan.StepTimeout(i), Grace: r.Grace, Secrets: r.Secrets,
	})
	if err != nil {
		return res, "", err
	}
	return res, describe(res, r.Plan.StepTimeout(i)), nil
}

// shell is the command of a step: the script is its last argument, or, where Linux allows none so long, a file.
func (r *run) shell(i int) (argv []string, script []byte) {
	argv = r.Plan.Shell(i, r.Bash)
	text := r.Plan.Steps[i].Run
	if len(text) <= plan.MaxEnvBytes {
		return append(argv, text), nil
	}
	// What tells an interpreter that a script follows: sh -c, sh -ec, perl -e.
	last := len(argv) - 1
	switch flags, ok := strings.CutSuffix(argv[last], "c"); {
	case argv[last] == "-c" || argv[last] == "-e":
		argv = argv[:last]
	case ok && strings.HasPrefix(flags, "-") && !strings.HasPrefix(flags, "--"):
		argv[last] = flags
	}
	return argv, []byte(text)
}

// closeOutput flushes a step's output; losing some of it does not fail the step.
func (r *run) closeOutput(ctx context.Context, w Output) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), outputLimit)
	defer cancel()
	if err := w.Close(ctx); err != nil {
		r.Log.Warn().Err(err).Msg("store the output of a step")
	}
}

// describe is the one line people read about a step that did not succeed.
func describe(res isolate.Result, timeout time.Duration) string {
	switch {
	case succeeded(res):
		return ""
	case res.Cause == isolate.CauseTimeout:
		return fmt.Sprintf("step timeout of %s reached", timeout)
	case res.Cause == isolate.CauseOOM:
		return "out of memory: the limit memory_mb was reached"
	case res.Why != "":
		return res.Why
	case res.Cause == isolate.CauseDisk:
		return "wrote more than the limit disk_gb"
	case res.Cause == isolate.CausePIDs:
		return "failed after the limit pids was reached"
	case res.Cause == isolate.CauseStart:
		return "could not start: " + res.StartError
	case res.Signal != "":
		return "killed by signal " + res.Signal
	case res.ExitCode != nil:
		return fmt.Sprintf("exit code %d", *res.ExitCode)
	default:
		return string(res.Cause)
	}
}

func (r *run) fileStep(ctx context.Context, step plan.Step) error {
	switch {
	case step.WriteFile != nil:
		return r.writeFile(ctx, *step.WriteFile)
	case step.Patch != nil:
		return r.patch(ctx, step.Patch)
	}
	return r.edit(ctx, *step.Edit)
}

func (r *run) writeFile(ctx context.Context, w plan.WriteFile) error {
	if w.ExpectSHA256 != "" {
		if err := r.expect(ctx, w.Path, w.ExpectSHA256); err != nil {
			return err
		}
	}
	mode, _ := w.UnixMode()
	err := r.Sandbox.WriteFile(ctx, isolate.FileWrite{Path: w.Path, Content: []byte(*w.Content), Mode: mode, MkdirAll: true})
	return refusal(err, "write_file", w.Path)
}

func (r *run) expect(ctx context.Context, path, want string) error {
	b, _, err := r.Sandbox.ReadFile(ctx, path, MaxEdit)
	if err != nil {
		return refusal(err, "write_file", path)
	}
	sum := sha256.Sum256(b)
	if got := hex.EncodeToString(sum[:]); got != want {
		return stepError{msg: fmt.Sprintf("write_file %q: content is sha256 %s, expect_sha256 says %s: read the file again", path, got, want)}
	}
	return nil
}

func (r *run) edit(ctx context.Context, e plan.Edit) error {
	b, _, err := r.Sandbox.ReadFile(ctx, e.Path, MaxEdit)
	if err != nil {
		return refusal(err, "edit", e.Path)
	}
	count := max(e.Count, 1)
	if got := bytes.Count(b, []byte(e.Old)); got != count {
		return stepError{msg: fmt.Sprintf("edit %q: the old text occurs %d times, count says %d: nothing was changed", e.Path, got, count)}
	}
	b = bytes.ReplaceAll(b, []byte(e.Old), []byte(*e.New))
	return refusal(r.Sandbox.WriteFile(ctx, isolate.FileWrite{Path: e.Path, Content: b}), "edit", e.Path)
}

// refusal tells what the tree does not allow from a sandbox that does not work.
func refusal(err error, verb, path string) error {
	if err == nil || broken(err) {
		return err
	}
	var cause isolate.Cause
	if errors.Is(err, isolate.ErrFull) || errors.Is(err, syscall.ENOSPC) {
		cause = isolate.CauseDisk
	}
	return stepError{msg: fmt.Sprintf("%s %q: %v", verb, path, err), cause: cause}
}

// unattended keeps anything in a step from waiting for a person (case F3).
func unattended() map[string]string {
	return map[string]string{
		"GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "/bin/false", "SSH_ASKPASS": "/bin/false", "GIT_SSH_COMMAND": "ssh -oBatchMode=yes",
		"EDITOR": "/bin/false", "VISUAL": "/bin/false", "GIT_EDITOR": "/bin/false", "GIT_SEQUENCE_EDITOR": "/bin/false",
		"PAGER": "cat", "GIT_PAGER": "cat", "DEBIAN_FRONTEND": "noninteractive",
	}
}

// environment is everything that step i sees in its environment, as NAME=value: the
// sandbox's, then what the fleet sets, then what the plan says.
func environment(base []string, p *plan.Plan, i int) []string {
	env := unattended()
	for _, pair := range append(base, p.Environment(i)...) {
		name, value, _ := strings.Cut(pair, "=")
		env[name] = value
	}
	out := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		out = append(out, name+"="+env[name])
	}
	return out
}
