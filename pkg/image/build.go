package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/warmfleet/warmfleet/internal/mask"
)

const (
	// keptOutput is how much of a step's last output is kept, toldOutput how much of that an error tells, in bytes.
	keptOutput = 64 << 10
	toldOutput = 1000
	toldLines  = 5
	// toldStep is how much of a step's text an error tells, in bytes.
	toldStep = 80
)

// Command is shell or a program to run in the workspace of a sandbox.
type Command struct {
	Argv []string
	// Env is added to what every command of the sandbox gets.
	Env     []string
	Timeout time.Duration
	// Secrets are files that this command alone sees, by name.
	Secrets map[string][]byte
	// Stdout and Stderr may be the same writer, which then is written to by one goroutine.
	Stdout, Stderr io.Writer
}

// Ended is how a command ended that could be run.
type Ended struct {
	ExitCode *int   // nil when a signal ended it, or it never ran
	Signal   string // without SIG, "" when it was our own
	Cause    string // exit, signal, timeout, start, ...
	Why      string // what a start failed with
}

func (e Ended) ok() bool { return e.ExitCode != nil && *e.ExitCode == 0 && e.Cause == "exit" }

// Box is what a build needs of a sandbox. A command that fails is a result; an error is a command that could not be run.
type Box interface {
	Run(ctx context.Context, c Command) (Ended, error)
	// Read is a Reader of the workspace.
	Read(ctx context.Context, path string, limit int64) ([]byte, error)
}

// Job is one build.
type Job struct {
	Box Box
	// Sync brings the workspace to the commit that the image is of; nil where it is there.
	Sync func(ctx context.Context) error
	// Commit is what HEAD has to be at in the end, "" where the workspace need not be a repository.
	Commit string
	// Recipe is the pool file's. Auto takes the steps from the repository.
	Recipe Recipe
	Auto   bool
	// Steps is Result.Steps of the image that the workspace is of, "" for a clone. Where other steps are found, Build stops with
	// ErrSteps before it runs one: what the old ones left would stay.
	Steps string
	// Shell runs a step, whose text is added to it.
	Shell []string
	// Secrets are the values of Recipe.Secrets. Nothing the build returns holds one.
	Secrets map[string][]byte
}

// ErrSteps reports a repository whose recipe has changed since the image that a build starts from.
var ErrSteps = errors.New("the recipe in the repository is another than that of the last image")

// Result is a build that went well.
type Result struct {
	Explanation Explanation
	// Steps is a digest over what was run and its environment.
	Steps string
	// Warnings are what went wrong without failing the build.
	Warnings []string
}

// StepError is a setup step that failed.
type StepError struct {
	// N counts from 1, of Of.
	N, Of int
	Text  string
	Ended Ended
	// Timeout is the step's limit.
	Timeout time.Duration
	// Output is the last lines, without secrets.
	Output string
}

// Error implements error, in one line.
func (e *StepError) Error() string { return e.describe("setup") }

func (e *StepError) describe(kind string) string {
	msg := fmt.Sprintf("image: %s step %d of %d (%s): %s", kind, e.N, e.Of, e.Text, e.how())
	if e.Output != "" {
		msg += ": " + e.Output
	}
	return msg
}

func (e *StepError) how() string {
	switch {
	case e.Ended.Cause == "timeout":
		return fmt.Sprintf("not done after %s, its timeout", e.Timeout)
	case e.Ended.Cause == "start":
		return "could not be started: " + oneLine(e.Ended.Why)
	case e.Ended.ExitCode != nil && e.Ended.Cause == "exit":
		return fmt.Sprintf("exit code %d", *e.Ended.ExitCode)
	case e.Ended.Signal != "":
		return "ended by signal " + e.Ended.Signal
	default:
		return "ended by cause " + e.Ended.Cause
	}
}

// Build runs a job: sync, setup steps, warm steps, and the closing check, in this order. What it leaves in the sandbox
// after an error is no image. Errors: *StepError, ErrRecipe, ErrSteps, ErrLeft, what Sync fails with, and the context's.
func Build(ctx context.Context, j Job) (Result, error) {
	if j.Sync != nil {
		if err := j.Sync(ctx); err != nil {
			return Result{}, err
		}
	}
	found, err := j.recipe(ctx)
	if err != nil {
		return Result{}, err
	}
	j.Recipe = found.Recipe
	out := Result{Explanation: found, Steps: j.Recipe.digest()}
	if j.Steps != "" && j.Steps != out.Steps {
		return out, fmt.Errorf("image: %w", ErrSteps)
	}
	secret := mask.New(slices.Collect(maps.Values(j.Secrets))...)
	for i, text := range j.Recipe.Setup {
		failed, err := j.step(ctx, StepError{N: i + 1, Of: len(j.Recipe.Setup), Text: text}, secret)
		if err != nil {
			return out, err
		}
		if failed != nil {
			return out, failed
		}
	}
	for i, text := range j.Recipe.Warm {
		failed, err := j.step(ctx, StepError{N: i + 1, Of: len(j.Recipe.Warm), Text: text}, secret)
		if err != nil {
			return out, err
		}
		if failed != nil {
			out.Warnings = append(out.Warnings, failed.describe("warm"))
		}
	}
	notes, err := j.close(ctx)
	out.Warnings = append(out.Warnings, notes...)
	return out, err
}

// recipe is what the job runs, and why.
func (j Job) recipe(ctx context.Context) (Explanation, error) {
	if !j.Auto {
		return Explain(j.Recipe), nil
	}
	found, err := Detect(func(path string, limit int64) ([]byte, error) { return j.Box.Read(ctx, path, limit) })
	found.Recipe = j.Recipe.With(found.Recipe)
	return found, err
}

// step runs one step and returns how it failed, nil where it did not.
func (j Job) step(ctx context.Context, s StepError, secret *mask.Set) (*StepError, error) {
	var last tail
	masked := secret.Writer(&last)
	s.Timeout = j.Recipe.Timeout
	ended, err := j.Box.Run(ctx, Command{
		Argv: append(slices.Clone(j.Shell), s.Text), Env: j.env(), Timeout: s.Timeout, Secrets: j.Secrets, Stdout: masked, Stderr: masked,
	})
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err = errors.Join(err, masked.Close()); err != nil {
		return nil, fmt.Errorf("image: run step %d: %w", s.N, err)
	}
	if ended.ok() {
		return nil, nil
	}
	s.Ended, s.Output, s.Text = ended, last.lines(), cut(secret.Text(oneLine(s.Text)), toldStep)
	return &s, nil
}

func (j Job) env() []string {
	var env []string
	for _, name := range slices.Sorted(maps.Keys(j.Recipe.Env)) {
		env = append(env, name+"="+j.Recipe.Env[name])
	}
	return env
}

// tail keeps the end of what is written to it.
type tail struct {
	mu sync.Mutex
	b  []byte
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p[max(0, len(p)-keptOutput):]...)
	if over := len(t.b) - keptOutput; over > 0 {
		t.b = append(t.b[:0], t.b[over:]...)
	}
	return len(p), nil
}

// lines are the last lines in one, for a message.
func (t *tail) lines() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var kept []string
	for l := range strings.SplitSeq(printable(string(t.b)), "\n") {
		if l = strings.TrimSpace(l); l != "" {
			kept = append(kept, l)
		}
	}
	text := strings.Join(kept[max(0, len(kept)-toldLines):], " | ")
	return strings.ToValidUTF8(text[max(0, len(text)-toldOutput):], "")
}

// printable drops what a terminal would act on.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return ' '
		case r == '\r':
			return '\n'
		case r < ' ' && r != '\n', r >= 0x7f && r < 0xa0:
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}

func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}
