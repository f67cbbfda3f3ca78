// Package poolfile is the pool file: its fields, defaults and validation, for whoever reads or writes one.
//
// It knows the format and nothing of how pools are kept, built or claimed.
package poolfile

import "github.com/warmfleet/warmfleet/pkg/plan"

// Version is the version of the format.
const Version = 1

// Pool is a pool file. Durations are as Go writes them, "25m".
type Pool struct {
	Version  int      `json:"version"`
	Name     string   `json:"name"`
	Resource Resource `json:"resource"`
	Image    Image    `json:"image,omitzero"`
	// TargetSize is how many warm sandboxes to keep idle in the whole fleet.
	TargetSize *int `json:"target_size,omitempty"`
	// MinIdle is how many each worker that serves the pool keeps idle at least, also where its share of TargetSize is smaller.
	MinIdle int `json:"min_idle,omitempty"`
	// MaxAge is how long one may idle, MaxStaleness how old the last sync may be at a claim; older is synced first.
	MaxAge       *plan.Duration `json:"max_age,omitempty"`
	MaxStaleness *plan.Duration `json:"max_staleness,omitempty"`
	// BuildInterval is how often the image is brought up to date.
	BuildInterval *plan.Duration `json:"build_interval,omitempty"`
	Token         *Token         `json:"token,omitempty"`
	// Identity is who commits of its plans are by, where a plan names nobody.
	Identity *plan.Identity `json:"identity,omitempty"`
	Limits   *plan.Limits   `json:"limits,omitempty"`
	// Network is for building, PlanNetwork what warm sandboxes are made with.
	Network     *plan.Network `json:"network,omitempty"`
	PlanNetwork *plan.Network `json:"plan_network,omitempty"`
	// AllowStale lets a claim have a sandbox that could not be brought to the newest commit; it says so.
	AllowStale bool `json:"allow_stale,omitempty"`
	// Submodules are the URLs that submodules may be fetched from: of a repository, or with a slash at the end of all below.
	Submodules []string `json:"submodules,omitempty"`
}

// Resource is the repository of a pool. An empty Ref is the remote's default branch, followed when it is renamed.
type Resource struct {
	Repo string `json:"repo"`
	Ref  string `json:"ref,omitempty"`
}

// Image is how a pool's image is made, as an object or the word auto.
type Image struct {
	// Auto finds the steps by what is in the repository.
	Auto bool `json:"auto,omitempty"`
	// Setup are build steps: one that fails fails the build. Warm are cache-warming steps, which may fail.
	Setup []string `json:"setup,omitempty"`
	Warm  []string `json:"warm,omitempty"`
	// Env is the environment of all steps; Secrets are names of values that they find as files in /run/secrets.
	Env     map[string]string `json:"env,omitempty"`
	Secrets []string          `json:"secrets,omitempty"`
	// Timeout bounds each step.
	Timeout *plan.Duration `json:"timeout,omitempty"`
}

// Token says where a worker gets the credential for the remote, at each use. Exactly one is set.
type Token struct {
	Env     string   `json:"env,omitempty"`
	File    string   `json:"file,omitempty"`
	Command []string `json:"command,omitempty"`
}
