package plan

import (
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
	"time"
)

// The bounds of single values.
const (
	maxName       = 100
	maxKey        = 200
	maxAttempts   = 20
	maxExpiry     = 20 * 24 * time.Hour
	maxTimeout    = maxExpiry
	maxRetries    = 100
	maxBackoff    = time.Hour
	maxMemoryMB   = 1 << 24
	maxCPUCores   = 4096
	maxDiskGB     = 1 << 20
	maxPIDs       = 1 << 22 // PID_MAX_LIMIT of Linux
	maxPath       = 4095    // PATH_MAX without its NUL
	maxHosts      = 256     // of a network's list
	maxEditCount  = 1 << 20
	maxStripLevel = 100
)

// checker reports what is wrong with the values of a plan whose shapes are right.
type checker struct {
	*report
	p *Plan
	o options
}

func (c *checker) plan() {
	p := c.p
	switch {
	case !c.present("version") && p.Version == 0:
		c.addf("version", "is missing: write version: %d", Version)
	case p.Version != Version:
		c.addf("version", "version %d is unknown: this program reads version %d", p.Version, Version)
	}
	c.line("name", p.Name, maxName)
	c.line("key", p.Key, maxKey)
	if c.given("pool", p.Pool != "") {
		c.problem("pool", poolProblem(p.Pool))
	}
	c.resource()
	oneOf(c, "strategy", p.Strategy, InPlace, CopyOnWrite, GitWorktree)
	oneOf(c, "class", p.Class, High, Normal, Low)
	oneOf(c, "isolation", p.Isolation, IsolationRequired, IsolationPreferred, IsolationStrong)
	oneOf(c, "on_failure", p.OnFailure, Rollback, Keep)
	oneOf(c, "apply", p.Apply, ApplyAuto, ApplyManual, ApplyNever)
	c.inPlace()
	c.base()
	c.duration("timeout", p.Timeout, maxTimeout)
	c.duration("expires_in", p.ExpiresIn, maxExpiry)
	c.whole("max_attempts", p.MaxAttempts, maxAttempts)
	c.limits("limits", p.Limits)
	c.network("network", p.Network)
	c.env("env", p.Env)
	for i, name := range p.Secrets {
		c.problem(index("secrets", i), envNameProblem(name))
	}
	c.distinct("secrets", p.Secrets)
	c.identity("identity", c.p.Identity)
	c.inputs()
	c.stepDefaults()
	c.steps()
	if p.Commit != nil {
		c.required("commit.message", p.Commit.Message)
		if c.given("commit.branch", p.Commit.Branch != "") {
			c.problem("commit.branch", branchProblem(p.Commit.Branch))
		}
	}
}

func (c *checker) resource() {
	res := c.p.Resource
	if res == nil {
		if c.p.Pool == "" && !c.present("resource") && !c.present("pool") {
			c.addf("resource", "is missing: write resource: {path: DIR} or {repo: URL}, give --path or --repo, or name a pool")
		}
		return
	}
	hasPath, hasRepo := c.given("resource.path", res.Path != ""), c.given("resource.repo", res.Repo != "")
	switch {
	case hasPath && hasRepo:
		c.addf("resource", "has both path and repo: keep one")
	case !hasPath && !hasRepo:
		c.addf("resource", "names nothing: give path or repo")
	}
	if hasPath {
		c.path("resource.path", res)
	}
	if hasRepo {
		c.problem("resource.repo", repoProblem(res.Repo))
	}
	if c.given("resource.host", res.Host != "") {
		c.problem("resource.host", hostIDProblem(res.Host))
		if !hasPath {
			c.addf("resource.host", "belongs to a path: a repo is the same on every host, remove it")
		}
	}
	if c.given("resource.ref", res.Ref != "") {
		c.problem("resource.ref", refProblem(res.Ref))
		if !hasRepo {
			c.addf("resource.ref", "belongs to a repo: a path is used as it stands, remove it")
		}
	}
}

func (c *checker) path(at string, res *Resource) {
	switch {
	case res.Path == "":
		c.addf(at, "is empty: name a directory")
	case strings.ContainsRune(res.Path, 0):
		c.addf(at, "holds a NUL byte, which no path can")
	case len(res.Path) > maxPath:
		c.addf(at, "has %d bytes, Linux allows %d", len(res.Path), maxPath)
	case c.o.submitted && (!path.IsAbs(res.Path) || path.Clean(res.Path) != res.Path):
		c.addf(at, "%s is not an absolute path without . and ..: resolve it before publishing", quote(res.Path))
	}
	if c.o.submitted && res.Host == "" {
		c.addf("resource.host", "is missing: a path means nothing without its host, give the host id beside it")
	}
}

// inPlace reports what the strategy that works on the original rules out.
func (c *checker) inPlace() {
	p := c.p
	if p.Strategy != InPlace {
		return
	}
	if p.Apply != ApplyAuto {
		c.addf("apply", "strategy none changes the original while it runs, so only apply: auto is possible: write that or choose copy_on_write")
	}
	if p.Resource != nil && p.Resource.Repo != "" || p.Pool != "" {
		c.addf("strategy", "none works on the original, which only a path has: choose copy_on_write")
	}
}

// base reports where the original cannot be the base.
func (c *checker) base() {
	p := c.p
	oneOf(c, "base", p.Base, BaseImage, BaseLive)
	if p.Base != BaseLive {
		return
	}
	if p.Strategy != CopyOnWrite && p.Strategy != "" {
		c.addf("base", "live shows the original below the sandbox, which strategy %s does not: write strategy: copy_on_write or leave base out", p.Strategy)
	}
	if p.Resource != nil && p.Resource.Repo != "" || p.Pool != "" {
		c.addf("base", "live is the directory itself, which only a path has: leave base out")
	}
}

func (c *checker) limits(at string, l *Limits) {
	if l == nil {
		return
	}
	c.whole(join(at, "memory_mb"), l.MemoryMB, maxMemoryMB)
	c.fraction(join(at, "cpu_cores"), l.CPUCores, maxCPUCores)
	c.fraction(join(at, "disk_gb"), l.DiskGB, maxDiskGB)
	c.whole(join(at, "pids"), l.PIDs, maxPIDs)
}

func (c *checker) network(at string, n *Network) {
	switch {
	case n == nil:
	case n.Mode != "":
		oneOf(c, at, n.Mode, NetworkNone, NetworkAllow)
	case len(n.Hosts) == 0:
		c.addf(at, "the list is empty: write %s: none to reach nothing", at)
	default:
		if len(n.Hosts) > maxHosts {
			c.addf(at, "the list has %d hosts, at most %d are allowed", len(n.Hosts), maxHosts)
		}
		for i, h := range n.Hosts {
			c.problem(index(at, i), hostPortProblem(h))
		}
		c.distinct(at, n.Hosts)
	}
}

func (c *checker) env(at string, env map[string]string) {
	for _, name := range sortedKeys(env) {
		path := join(at, name)
		c.problem(path, envNameProblem(name))
		c.problem(path, envValueProblem(name, env[name]))
	}
}

func (c *checker) inputs() {
	variables := map[string]string{}
	for _, name := range sortedKeys(c.p.Inputs) {
		in, at := c.p.Inputs[name], join("inputs", name)
		if problem := inputNameProblem(name); problem != "" {
			c.addf(at, "%s", problem)
			continue
		}
		variable := inputVariable(name)
		if first, taken := variables[variable]; taken {
			c.addf(at, "arrives as %s, as %s does: rename one", variable, quote(first))
		}
		variables[variable] = name
		for key, value := range map[string]*string{"default": in.Default, "value": in.Value} {
			if value != nil {
				c.problem(join(at, key), envValueProblem(variable, *value))
			}
		}
		if c.o.submitted && in.Required && in.Value == nil && in.Default == nil {
			c.addf(at, "is required and has no value: give %s.value", at)
		}
	}
}

func (c *checker) stepDefaults() {
	d := c.p.StepDefaults
	if d == nil {
		return
	}
	c.workingDir("defaults.working_dir", d.WorkingDir)
	c.shell("defaults.shell", d.Shell)
	c.duration("defaults.timeout", d.Timeout, maxTimeout)
}

// given tells whether a value was written: zero in the text counts, zero in Go does not.
func (c *checker) given(path string, nonZero bool) bool { return nonZero || c.present(path) }

func (c *checker) problem(path, problem string) {
	if problem != "" {
		c.addf(path, "%s", problem)
	}
}

func (c *checker) required(path, value string) {
	switch {
	case value != "":
	case c.present(path):
		c.addf(path, "is empty")
	default:
		c.addf(path, "is missing")
	}
}

// line is a short text for people.
func (c *checker) line(path, value string, most int) {
	switch {
	case value == "" && c.present(path):
		c.addf(path, "is empty: give it a value or remove the key")
	case len(value) > most:
		c.addf(path, "has %d bytes, at most %d are kept", len(value), most)
	case strings.ContainsFunc(value, isControl):
		c.addf(path, "holds a line break or control character: write one line")
	case strings.ContainsFunc(value, isBidi):
		c.addf(path, "holds a character that changes the direction of text: remove it")
	}
}

func (c *checker) duration(path string, d Duration, most time.Duration) {
	switch {
	case !c.given(path, d != 0):
	case d <= 0:
		c.addf(path, "%s is not positive: leave it out for the default", d)
	case time.Duration(d) > most:
		c.addf(path, "%s is too long: at most %s", d, Duration(most))
	}
}

func (c *checker) whole(path string, n, most int) {
	switch {
	case !c.given(path, n != 0):
	case n < 0:
		c.addf(path, "%d is negative: give a number from 1 to %d or leave it out", n, most)
	case n < 1 || n > most:
		c.addf(path, "%d is out of range: give a number from 1 to %d or leave it out", n, most)
	}
}

func (c *checker) fraction(path string, n, most float64) {
	switch {
	case !c.given(path, n != 0):
	case n < 0:
		c.addf(path, "%v is negative: give a number up to %v or leave it out", n, most)
	case n == 0 || n > most || math.IsNaN(n):
		c.addf(path, "%v is out of range: give a number above 0, up to %v, or leave it out", n, most)
	}
}

func (c *checker) distinct(path string, words []string) {
	seen := make(map[string]bool, len(words))
	for i, w := range words {
		if seen[w] {
			c.addf(index(path, i), "%s is already in the list: remove it", quote(w))
		}
		seen[w] = true
	}
}

// oneOf reports a word that is not one of those the format knows.
func oneOf[T ~string](c *checker, path string, got T, words ...T) {
	if !c.given(path, got != "") || slices.Contains(words, got) {
		return
	}
	known := make([]string, len(words))
	for i, w := range words {
		known[i] = string(w)
	}
	meant := ""
	if near := nearest(string(got), known); near != "" {
		meant = fmt.Sprintf("; did you mean %q?", near)
	}
	c.addf(path, "%s is not one of %s%s", quote(string(got)), strings.Join(known, ", "), meant)
}

func isControl(c rune) bool { return c < ' ' || c == 0x7f }

// isBidi tells whether a character embeds, overrides or isolates a direction: text that has one is not what it looks like.
func isBidi(c rune) bool { return c >= 0x202a && c <= 0x202e || c >= 0x2066 && c <= 0x2069 }

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
