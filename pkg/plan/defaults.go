package plan

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// What a plan means when it says nothing.
const (
	DefaultTimeout     = Duration(time.Hour)
	DefaultStepTimeout = Duration(10 * time.Minute)
	DefaultExpiresIn   = Duration(7 * 24 * time.Hour)
	DefaultMaxAttempts = 3
)

// longestBackoff is where the doubling of Retry.Backoff stops.
const longestBackoff = 5 * time.Minute

// Defaults fills in what the plan leaves out. Isolation stays empty (the worker decides), and
// so does the shell, since the default depends on what the sandbox has: see Shell.
// The methods below expect a plan that was completed this way.
func (p *Plan) Defaults() {
	orElse(&p.Strategy, CopyOnWrite)
	orElse(&p.Base, BaseImage)
	orElse(&p.Class, Normal)
	orElse(&p.Timeout, DefaultTimeout)
	orElse(&p.OnFailure, Rollback)
	orElse(&p.Apply, ApplyManual)
	orElse(&p.MaxAttempts, DefaultMaxAttempts)
	orElse(&p.ExpiresIn, DefaultExpiresIn)
	if p.Network == nil {
		p.Network = &Network{Mode: NetworkNone}
	}
	if p.StepDefaults == nil {
		p.StepDefaults = &StepDefaults{}
	}
	orElse(&p.StepDefaults.WorkingDir, ".")
	orElse(&p.StepDefaults.Timeout, DefaultStepTimeout)
	for i := range p.Steps {
		orElse(&p.Steps[i].ID, defaultID(i))
		if e := p.Steps[i].Edit; e != nil {
			orElse(&e.Count, 1)
		}
	}
}

func orElse[T comparable](v *T, otherwise T) {
	var zero T
	if *v == zero {
		*v = otherwise
	}
}

// StepIndex is the index of the step with an id, and false when there is none.
func (p *Plan) StepIndex(id string) (int, bool) {
	i := slices.IndexFunc(p.Steps, func(s Step) bool { return s.ID == id })
	return i, i >= 0
}

// StepTimeout bounds one try of step i.
func (p *Plan) StepTimeout(i int) time.Duration {
	if d := p.Steps[i].Timeout; d > 0 {
		return time.Duration(d)
	}
	return time.Duration(p.StepDefaults.Timeout)
}

// EffectiveDir is where step i starts, relative to the workspace.
func (p *Plan) EffectiveDir(i int) string {
	if dir := p.Steps[i].WorkingDir; dir != "" {
		return dir
	}
	return p.StepDefaults.WorkingDir
}

// Shell is the command that runs the script of step i. A script too long for an argument has
// to be given as a file, see MaxEnvBytes. bash tells whether the sandbox has one; it matters
// only when the plan names no shell.
func (p *Plan) Shell(i int, bash bool) []string {
	switch {
	case len(p.Steps[i].Shell) > 0:
		return slices.Clone(p.Steps[i].Shell)
	case len(p.StepDefaults.Shell) > 0:
		return slices.Clone(p.StepDefaults.Shell)
	}
	return DefaultShell(bash)
}

// DefaultShell is the command that runs a script whose author names no shell; bash tells whether there is one.
func DefaultShell(bash bool) []string {
	if bash {
		return []string{"bash", "-euo", "pipefail", "-c"}
	}
	return []string{"sh", "-eu", "-c"}
}

// Environment is what the plan gives step i, as NAME=value in byte order: identity, inputs,
// the plan's env, the step's env, where a later one wins. The fleet's own variables (PATH,
// HOME, WARMFLEET_OUTPUT) are not in it.
func (p *Plan) Environment(i int) []string {
	env := map[string]string{}
	if id := p.Identity; id != nil {
		env["GIT_AUTHOR_NAME"], env["GIT_AUTHOR_EMAIL"] = id.Name, id.Email
		env["GIT_COMMITTER_NAME"], env["GIT_COMMITTER_EMAIL"] = id.Name, id.Email
		// Programs that ask git for it by name must hear the same; a plan's own GIT_CONFIG_COUNT takes its place.
		env["GIT_CONFIG_COUNT"] = "2"
		env["GIT_CONFIG_KEY_0"], env["GIT_CONFIG_VALUE_0"] = "user.name", id.Name
		env["GIT_CONFIG_KEY_1"], env["GIT_CONFIG_VALUE_1"] = "user.email", id.Email
	}
	for name, in := range p.Inputs {
		if v := in.effective(); v != nil {
			env[inputVariable(name)] = *v
		}
	}
	maps.Copy(env, p.Env)
	maps.Copy(env, p.Steps[i].Env)
	list := make([]string, 0, len(env))
	for _, name := range sortedKeys(env) {
		list = append(list, name+"="+env[name])
	}
	return list
}

// NetworkMode is NetworkNone, NetworkAllow, or "" when the plan lists hosts.
func (p *Plan) NetworkMode() string { return p.Network.Mode }

// Matches tells whether a failure is tried again. cause, exit code and signal are those of
// the step's result; a cancelled step never is. A nil Retry matches nothing.
func (r *Retry) Matches(cause string, exitCode *int, signal string) bool {
	if r == nil || cause == "cancelled" {
		return false
	}
	if len(r.On) == 0 {
		return true
	}
	return slices.ContainsFunc(r.On, func(cond string) bool {
		name, arg, hasArg := strings.Cut(cond, ":")
		switch {
		case name != cause:
			return false
		case !hasArg:
			return true
		case name == "exit":
			return exitCode != nil && arg == strconv.Itoa(*exitCode)
		}
		return arg == signal
	})
}

// Tries is how often a step may run in one attempt at the plan, at least once.
func (r *Retry) Tries() int {
	if r == nil {
		return 1
	}
	return 1 + r.Limit
}

// Delay is the pause before a try, the second one being 2.
func (r *Retry) Delay(try int) time.Duration {
	if r == nil || try < 2 || r.Backoff <= 0 {
		return 0
	}
	first := time.Duration(r.Backoff)
	d := first
	for range try - 2 {
		if d >= longestBackoff {
			break
		}
		d *= 2
	}
	return min(d, max(first, longestBackoff))
}
