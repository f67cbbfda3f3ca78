package plan

import (
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/warmfleet/warmfleet/pkg/plan/patch"
)

// Kind is what a step does; its text is the step's key.
type Kind string

// The kinds of steps.
const (
	KindRun       Kind = "run"
	KindWriteFile Kind = "write_file"
	KindEdit      Kind = "edit"
	KindPatch     Kind = "patch"
)

var kinds = [...]Kind{KindRun, KindWriteFile, KindEdit, KindPatch}

// Kind is the kind of a valid step, "" when the step has none.
func (s *Step) Kind() Kind {
	switch {
	case s.Run != "":
		return KindRun
	case s.WriteFile != nil:
		return KindWriteFile
	case s.Edit != nil:
		return KindEdit
	case s.Patch != nil:
		return KindPatch
	}
	return ""
}

func (s *Step) has(k Kind) bool {
	switch k {
	case KindRun:
		return s.Run != ""
	case KindWriteFile:
		return s.WriteFile != nil
	case KindEdit:
		return s.Edit != nil
	default:
		return s.Patch != nil
	}
}

var (
	idPattern   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$`)
	modePattern = regexp.MustCompile(`^0?[0-7]{3,4}$`)
	namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)
)

func (c *checker) steps() {
	steps := c.p.Steps
	switch {
	case len(steps) == 0 && c.present("steps"):
		c.addf("steps", "is empty: give at least one step")
	case len(steps) == 0:
		c.addf("steps", "is missing: give at least one step, as in steps: [{run: make test}]")
	case len(steps) > MaxSteps:
		c.addf("steps", "has %d steps, at most %d are accepted: put some into a script", len(steps), MaxSteps)
		return
	}
	c.ids()
	artifacts := map[string]bool{}
	for i := range steps {
		c.step(index("steps", i), &steps[i])
		c.artifacts(index("steps", i), steps[i].Artifacts, artifacts)
	}
}

// ids are checked as they will be after Defaults, so that a written step-2 can't be taken
// by a second step that has none.
func (c *checker) ids() {
	first := map[string]int{}
	for i := range c.p.Steps {
		s := &c.p.Steps[i]
		id, at := s.ID, index("steps", i)
		if c.given(join(at, "id"), id != "") && !idPattern.MatchString(id) {
			c.addf(join(at, "id"), "%s is no step id: use letters, digits, - and _, at most 63, a letter or digit first", quote(id))
			continue
		}
		if id == "" {
			id = defaultID(i)
		}
		before, taken := first[id]
		switch {
		case taken && s.ID == "":
			c.addf(join(at, "id"), "the default %q is already the id of steps[%d]: give it an id", id, before)
		case taken:
			c.addf(join(at, "id"), "%q is already the id of steps[%d]: choose another", id, before)
		default:
			first[id] = i
		}
	}
}

func defaultID(i int) string { return fmt.Sprintf("step-%d", i+1) }

func (c *checker) step(at string, s *Step) {
	c.kind(at, s)
	if s.WriteFile != nil {
		c.writeFile(join(at, "write_file"), s.WriteFile)
	}
	if s.Edit != nil {
		c.edit(join(at, "edit"), s.Edit)
	}
	if s.Patch != nil {
		c.patch(join(at, "patch"), s.Patch)
	}
	c.env(join(at, "env"), s.Env)
	c.workingDir(join(at, "working_dir"), s.WorkingDir)
	c.shell(join(at, "shell"), s.Shell)
	c.duration(join(at, "timeout"), s.Timeout, maxTimeout)
	if s.Retry != nil {
		c.retry(join(at, "retry"), s.Retry)
	}
	for i, name := range s.Outputs {
		c.problem(index(join(at, "outputs"), i), inputNameProblem(name))
	}
	c.distinct(join(at, "outputs"), s.Outputs)
}

// kind reports a step that does not do exactly one thing.
func (c *checker) kind(at string, s *Step) {
	var found []Kind
	for _, k := range kinds {
		if c.given(join(at, string(k)), s.has(k)) {
			found = append(found, k)
		}
	}
	switch {
	case len(found) == 0:
		c.addf(at, "does nothing: give it one of run, write_file, edit, patch")
	case len(found) > 1:
		c.addKeyf(join(at, string(found[1])), "the step already has %s: a step does exactly one thing, split it in two", found[0])
	case found[0] != KindRun && (len(s.Shell) > 0 || len(s.Env) > 0 || s.WorkingDir != ""):
		c.addf(at, "shell, env and working_dir belong to run steps: %s takes its path from the workspace, remove them", found[0])
	}
	if run := join(at, string(KindRun)); c.present(run) || s.Run != "" {
		switch {
		case strings.TrimSpace(s.Run) == "":
			c.addf(run, "is empty: give a script")
		case strings.ContainsRune(s.Run, 0):
			c.addf(run, "holds a NUL byte, which no shell reads")
		}
	}
}

func (c *checker) writeFile(at string, w *WriteFile) {
	c.file(join(at, "path"), w.Path)
	if w.Content == nil {
		c.addf(join(at, "content"), `is missing: write content: "" for an empty file`)
	}
	if c.given(join(at, "mode"), w.Mode != "") && !modePattern.MatchString(w.Mode) {
		c.addf(join(at, "mode"), `%s is not an octal mode: write four digits in quotes, as in "0644"`, quote(w.Mode))
	}
	if c.given(join(at, "expect_sha256"), w.ExpectSHA256 != "") {
		if b, err := hex.DecodeString(w.ExpectSHA256); err != nil || len(b) != 32 {
			c.addf(join(at, "expect_sha256"), "%s is not a SHA-256 digest: write its 64 hex digits", quote(w.ExpectSHA256))
		}
	}
}

func (c *checker) edit(at string, e *Edit) {
	c.file(join(at, "path"), e.Path)
	c.required(join(at, "old"), e.Old)
	if e.New == nil {
		c.addf(join(at, "new"), `is missing: write new: "" to delete the text`)
	}
	c.whole(join(at, "count"), e.Count, maxEditCount)
}

func (c *checker) patch(at string, p *Patch) {
	c.required(join(at, "diff"), p.Diff)
	if p.Strip != nil && (*p.Strip < 0 || *p.Strip > maxStripLevel) {
		c.addf(join(at, "strip"), "%d is out of range: give a number from 0 to %d", *p.Strip, maxStripLevel)
		return
	}
	path := join(at, "diff")
	if p.Diff == "" || c.hidden(path) || c.full() {
		return
	}
	_, faults := p.Read()
	for _, f := range faults {
		c.addAt(c.find(c.values, path), path, "line %d of the diff: %s", f.Line, f.Message)
	}
}

// Read reads the diff of a step, with its paths checked. Its faults are those that a valid plan does not have.
func (p *Patch) Read() (*patch.Set, []patch.Fault) {
	strip := 1
	if p.Strip != nil {
		strip = *p.Strip
	}
	return patch.Parse(p.Diff, patch.Options{Strip: strip, Check: fileProblem})
}

func (c *checker) file(path, value string) {
	if value == "" {
		c.required(path, value)
		return
	}
	c.problem(path, fileProblem(value))
}

func (c *checker) workingDir(path, dir string) {
	if c.given(path, dir != "") {
		c.problem(path, pathProblem(dir))
	}
}

func (c *checker) shell(path string, shell []string) {
	if !c.given(path, len(shell) > 0) {
		return
	}
	if len(shell) == 0 || shell[0] == "" {
		c.addf(path, "names no program: write a list, as in [sh, -eu, -c]")
	}
	for i, word := range shell {
		if strings.ContainsRune(word, 0) {
			c.addf(index(path, i), "holds a NUL byte, which no argument can")
		}
	}
}

func (c *checker) retry(at string, r *Retry) {
	if limit := join(at, "limit"); r.Limit == 0 && !c.present(limit) {
		c.addf(limit, "is missing: give the number of further tries")
	} else {
		c.whole(limit, r.Limit, maxRetries)
	}
	on := join(at, "on")
	if len(r.On) == 0 && c.present(on) {
		c.addf(on, "the list is empty: leave it out to retry every failure")
	}
	for i, cond := range r.On {
		c.problem(index(on, i), conditionProblem(cond))
	}
	c.distinct(on, r.On)
	if backoff := join(at, "backoff"); r.Backoff < 0 {
		c.addf(backoff, "%s is negative: give a pause up to %s", r.Backoff, Duration(maxBackoff))
	} else if time.Duration(r.Backoff) > maxBackoff {
		c.addf(backoff, "%s is too long: at most %s", r.Backoff, Duration(maxBackoff))
	}
}

// causes are what a step can fail of, as results name it; cancelled is no reason to go on.
var causes = [...]string{"exit", "signal", "timeout", "oom", "disk", "pids", "start", "lost"}

func conditionProblem(cond string) string {
	cause, arg, hasArg := strings.Cut(cond, ":")
	switch {
	case cond == "cancelled":
		return "a cancelled plan is not tried again: remove it"
	case !slices.Contains(causes[:], cause):
		return fmt.Sprintf("%s is no cause of failure; %s", quote(cond), hint(cause, causes[:]))
	case !hasArg:
		return ""
	case cause == "exit":
		if n, err := strconv.Atoi(arg); err != nil || n < 1 || n > 255 || arg != strconv.Itoa(n) {
			return fmt.Sprintf("%s is no exit code that means failure: write exit:1 to exit:255", quote(cond))
		}
	case cause == "signal":
		if !signalPattern.MatchString(arg) {
			return fmt.Sprintf("%s names no signal: write it without SIG, as in signal:KILL", quote(cond))
		}
	default:
		return fmt.Sprintf("%s takes nothing after it: write %q", cause, cause)
	}
	return ""
}

var signalPattern = regexp.MustCompile(`^(ABRT|ALRM|BUS|FPE|HUP|ILL|INT|IO|KILL|PIPE|PROF|PWR|QUIT|SEGV|STKFLT|SYS|TERM|TRAP|USR1|USR2|VTALRM|XCPU|XFSZ|RTMIN(\+\d{1,2})?|RTMAX(-\d{1,2})?)$`)

func (c *checker) artifacts(at string, list []Artifact, taken map[string]bool) {
	for i, a := range list {
		one := index(join(at, "artifacts"), i)
		c.file(join(one, "path"), a.Path)
		oneOf(c, join(one, "if"), a.If, "always", "success", "failure")
		name := a.Name
		if c.given(join(one, "name"), name != "") && !namePattern.MatchString(name) {
			c.addf(join(one, "name"), "%s is no artifact name: use letters, digits, ., - and _, at most 100", quote(name))
		}
		if name == "" {
			continue
		}
		if taken[name] {
			c.addf(join(one, "name"), "%q is already the name of an artifact: choose another", name)
		}
		taken[name] = true
	}
}
