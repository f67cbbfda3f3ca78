// Package image is how an image of a repository is made: the recipe, what finds one by looking at the repository,
// the builder that runs one in a sandbox, and when an image is stale.
//
// Everything of a repository is untrusted: what is read of it is bounded, and nothing of it runs outside of the
// sandbox. The package must not know workers, queues, records, or how a sandbox or a sync is made.
package image

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"

	"github.com/warmfleet/warmfleet/pkg/poolfile"
)

// DefaultTimeout bounds a step whose recipe says nothing.
const DefaultTimeout = time.Duration(poolfile.DefaultStepTimeout)

// detection counts the rules of Detect: an image that other rules would have made is made again.
const detection = 2

// Recipe is the steps that make an image of a clone, as shell text.
type Recipe struct {
	Setup []string          `json:"setup,omitempty"`
	Warm  []string          `json:"warm,omitempty"`
	Env   map[string]string `json:"env,omitempty"`
	// Secrets are names of values that steps find as files.
	Secrets []string `json:"secrets,omitempty"`
	// Timeout bounds each step.
	Timeout time.Duration `json:"timeout_ns"`
}

// FromPool is the recipe of a pool file. Where that says auto the steps are Detect's, and the rest is the file's.
func FromPool(i poolfile.Image) Recipe {
	r := Recipe{Setup: i.Setup, Warm: i.Warm, Env: i.Env, Secrets: i.Secrets, Timeout: DefaultTimeout}
	if i.Timeout != nil && *i.Timeout > 0 {
		r.Timeout = time.Duration(*i.Timeout)
	}
	return r
}

// With adds what was found in the repository to what the pool file says: the file's environment wins.
func (r Recipe) With(found Recipe) Recipe {
	r.Setup, r.Warm = found.Setup, found.Warm
	env := map[string]string{}
	for name, value := range found.Env {
		env[name] = value
	}
	for name, value := range r.Env {
		env[name] = value
	}
	r.Env = env
	return r
}

// digest is over what a recipe runs and with what environment.
func (r Recipe) digest() string {
	return digestOf(struct {
		Setup, Warm []string
		Env         map[string]string
	}{r.Setup, r.Warm, r.Env})
}

// Digest is over everything of a pool file that decides what an image of a commit becomes; network is the one while
// building, in words. Two builds of one commit with one digest are the same image.
func Digest(i poolfile.Image, network string) string {
	return digestOf(struct {
		Auto      bool
		Detection int
		Recipe    Recipe
		Network   string
	}{i.Auto, detection, FromPool(i), network})
}

func digestOf(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic("image: encode recipe: " + err.Error()) // of strings and numbers alone
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
