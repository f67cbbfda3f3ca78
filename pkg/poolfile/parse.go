package poolfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/warmfleet/warmfleet/pkg/plan"
)

// What a pool file means when it says nothing.
const (
	DefaultTargetSize    = 3
	DefaultMaxAge        = plan.Duration(25 * time.Minute)
	DefaultMaxStaleness  = plan.Duration(30 * time.Second)
	DefaultBuildInterval = plan.Duration(30 * time.Minute)
	// DefaultStepTimeout bounds a build step.
	DefaultStepTimeout = plan.Duration(30 * time.Minute)
)

// The bounds of single values.
const (
	maxTargetSize = 1000
	maxMinIdle    = 100
	maxSteps      = 200
	maxStepBytes  = 64 << 10
	day           = 24 * time.Hour
)

var form = plan.Form[Pool]{
	Noun: "pool file", Empty: `the pool file is empty: begin with "version: 1", "name:" and "resource:"`, Check: check,
}

// ParseYAML reads and checks a pool file; its name is only shown in errors. The error is a *plan.Errors with every
// fault. Defaults are not filled in: Defaults does that.
func ParseYAML(file string, src []byte) (*Pool, error) { return form.ParseYAML(file, src) }

// ParseJSON is ParseYAML for the form that is sent to the service and kept in a pool's record.
func ParseJSON(src []byte) (*Pool, error) { return form.ParseJSON(src) }

// Validate checks a pool that was built in Go; faults have no line and column.
func (p *Pool) Validate() error { return form.Validate(p) }

// SetWord implements plan.Worder: an image may be the word auto.
func (i *Image) SetWord(word string) error {
	if word != "auto" {
		return fmt.Errorf("%q is no way to make an image: write auto, or setup: and warm: with the steps", word)
	}
	i.Auto = true
	return nil
}

// UnmarshalJSON reads the word or the object, so that a pool's record can be read by encoding/json as well.
func (i *Image) UnmarshalJSON(b []byte) error {
	var word string
	if json.Unmarshal(b, &word) == nil {
		return i.SetWord(word)
	}
	type plain Image
	return json.Unmarshal(b, (*plain)(i))
}

// Defaults fills in what the file leaves out. The methods below expect a pool that was completed this way.
func (p *Pool) Defaults() {
	orElse(&p.TargetSize, DefaultTargetSize)
	orElse(&p.MaxAge, DefaultMaxAge)
	orElse(&p.MaxStaleness, DefaultMaxStaleness)
	orElse(&p.BuildInterval, DefaultBuildInterval)
	orElse(&p.Image.Timeout, DefaultStepTimeout)
	orElse(&p.Network, plan.Network{Mode: plan.NetworkAllow})
	orElse(&p.PlanNetwork, plan.Network{Mode: plan.NetworkNone})
}

func orElse[T any](v **T, otherwise T) {
	if *v == nil {
		*v = &otherwise
	}
}

// Unsupported lists the fields that are valid but not built in this version, one line each: see plan.Plan.Unsupported.
func (p *Pool) Unsupported() []string {
	return (&plan.Plan{Limits: p.Limits, Network: p.PlanNetwork}).Unsupported()
}

// Canonical is the pool as it is kept: JSON with fixed field order and sorted keys. Equal pools have equal bytes, which
// is how a file that changes nothing is recognised.
func (p *Pool) Canonical() []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(p); err != nil {
		panic("poolfile: encode pool: " + err.Error()) // every field is text, a number or a list of them
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// SameRepo tells whether two URLs name the same repository: a path and its file:// URL do, and a slash at the end makes
// no difference.
func SameRepo(a, b string) bool { return repoKey(a) == repoKey(b) }

func repoKey(repo string) string {
	if local, ok := LocalRepo(repo); ok {
		return path.Clean(local)
	}
	return strings.TrimRight(repo, "/")
}

// LocalRepo returns the directory that an absolute path or a file:// URL names, false of any other URL.
func LocalRepo(repo string) (dir string, ok bool) {
	if !strings.HasPrefix(repo, "file://") {
		return repo, path.IsAbs(repo)
	}
	u, err := url.Parse(repo)
	if err != nil || u.Path == "" {
		return "/", true // names no repository, and is refused where git would be asked
	}
	return "/" + strings.TrimLeft(u.Path, "/"), true
}

func check(k *plan.Checks, p *Pool) {
	k.Version("version", p.Version, Version)
	k.PoolName("name", p.Name)
	k.Repo("resource.repo", p.Resource.Repo)
	if k.Given("resource.ref", p.Resource.Ref != "") {
		k.Ref("resource.ref", p.Resource.Ref)
	}
	checkImage(k, &p.Image)
	k.Whole("target_size", p.TargetSize, plan.Bounds[int]{Most: maxTargetSize})
	k.Whole("min_idle", &p.MinIdle, plan.Bounds[int]{Most: maxMinIdle})
	k.Duration("max_age", p.MaxAge, plan.Bounds[time.Duration]{Least: time.Second, Most: day})
	k.Duration("max_staleness", p.MaxStaleness, plan.Bounds[time.Duration]{Most: day})
	k.Duration("build_interval", p.BuildInterval, plan.Bounds[time.Duration]{Least: time.Second, Most: 30 * day})
	checkToken(k, p.Token)
	for i, url := range p.Submodules {
		k.Repo(k.At("submodules", i), url)
	}
	k.Identity("identity", p.Identity)
	k.Limits("limits", p.Limits)
	k.Network("network", p.Network)
	k.Network("plan_network", p.PlanNetwork)
}

func checkImage(k *plan.Checks, i *Image) {
	if i.Auto && len(i.Setup)+len(i.Warm) > 0 {
		k.Addf("image", "has auto, which finds the steps by itself, and steps: keep one")
	}
	checkSteps(k, "image.setup", i.Setup)
	checkSteps(k, "image.warm", i.Warm)
	k.Env("image.env", i.Env)
	k.Secrets("image.secrets", i.Secrets)
	k.Duration("image.timeout", i.Timeout, plan.Bounds[time.Duration]{Least: time.Second, Most: day})
}

func checkSteps(k *plan.Checks, at string, steps []string) {
	if len(steps) > maxSteps {
		k.Addf(at, "has %d steps, at most %d are taken: put them into a script of the repository", len(steps), maxSteps)
	}
	for i, s := range steps {
		if err := stepProblem(s); err != nil {
			k.Addf(k.At(at, i), "%v", err)
		}
	}
}

func stepProblem(s string) error {
	switch {
	case strings.TrimSpace(s) == "":
		return errors.New("is empty: give a command or remove it")
	case strings.ContainsRune(s, 0):
		return errors.New("holds a NUL byte, which no command can")
	case len(s) > maxStepBytes:
		return fmt.Errorf("has %d bytes, at most %d are taken: put it into a script of the repository", len(s), maxStepBytes)
	}
	return nil
}

func checkToken(k *plan.Checks, t *Token) {
	if t == nil {
		return
	}
	env, file, command := k.Given("token.env", t.Env != ""), k.Given("token.file", t.File != ""), k.Given("token.command", len(t.Command) > 0)
	given := 0
	for _, one := range []bool{env, file, command} {
		if one {
			given++
		}
	}
	if given != 1 {
		k.Addf("token", "has %d sources: give exactly one of env, file and command", given)
	}
	if env && !plan.ValidVariable(t.Env) {
		k.Addf("token.env", "%q is no name of a variable: use letters, digits and _, no digit first", t.Env)
	}
	if file && (!path.IsAbs(t.File) || strings.ContainsRune(t.File, 0)) {
		k.Addf("token.file", "%q is not absolute: give the whole path of a file on the workers", t.File)
	}
	if command && (len(t.Command) == 0 || t.Command[0] == "") {
		k.Addf("token.command", "is empty: give a program and its arguments")
	}
	if slices.ContainsFunc(t.Command, func(arg string) bool { return strings.ContainsRune(arg, 0) }) {
		k.Addf("token.command", "holds a NUL byte, which no argument can")
	}
}
