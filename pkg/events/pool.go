package events

import (
	"encoding/json"
	"strings"
	"time"
)

// Pool is a pool's record in the pools' bucket, by name. Schedulers write it by compare-and-set, workers watch it.
// Fields may be added, none renamed.
type Pool struct {
	Name string `json:"name"`
	// Spec is the pool file as JSON, with defaults filled in; package poolfile reads it.
	Spec json.RawMessage `json:"spec"`
	// Generation grows with each apply that changed the file.
	Generation uint64    `json:"generation"`
	AppliedAt  time.Time `json:"applied_at"`
}

// Image is an image's record in the images' bucket, by image id. It is written once, when its layers are stored.
type Image struct {
	ID   string `json:"image_id"`
	Pool string `json:"pool"`
	// Repo is the URL without credentials. Ref is what the pool asked for, "" for the remote's default branch, and
	// Branch what that was, "" for a tag or commit.
	Repo   string `json:"repo"`
	Ref    string `json:"ref,omitempty"`
	Branch string `json:"branch,omitempty"`
	Commit string `json:"commit"`
	// Access is a digest of where the credential came from that Commit was fetched with, "" where there was none; never of its value.
	Access string `json:"access,omitempty"`
	// Checkpoint has the image's layers; its phase is image.
	Checkpoint string `json:"checkpoint_id"`
	// Parent is the image that it was built on, "" when it was built from scratch.
	Parent string `json:"parent,omitempty"`
	// Recipe is the digest of the pool file's recipe, Steps that of what was run: where the repository has the recipe it says more.
	Recipe    string        `json:"recipe"`
	Steps     string        `json:"steps,omitempty"`
	Worker    string        `json:"worker"`
	BuiltAt   time.Time     `json:"built_at"`
	Took      time.Duration `json:"took_ns"`
	Layers    int           `json:"layers"`
	SizeBytes int64         `json:"size_bytes" jsonschema:"description=stored size of the layers above the clone"`
	// Warnings are what did not go well without failing the build, as a cache-warming step.
	Warnings []string `json:"warnings,omitempty"`
}

// Latest says which image a pool starts from and how builds go. It lies in the images' bucket under LatestKey and is
// written by compare-and-set by whoever builds; a failed build leaves Image as it was.
type Latest struct {
	Pool string `json:"pool"`
	// Image is the last good image, "" before the first.
	Image   string    `json:"image,omitempty"`
	Commit  string    `json:"commit,omitempty"`
	BuiltAt time.Time `json:"built_at,omitzero"`
	// Generation and Recipe are of the pool file that Image was built by.
	Generation uint64 `json:"generation,omitempty"`
	Recipe     string `json:"recipe,omitempty"`
	// CheckedAt is when the remote was last seen to have nothing newer.
	CheckedAt time.Time `json:"checked_at,omitzero"`
	// Asked is the last build that was asked for. Schedulers write it, before they publish the command.
	Asked *Asked `json:"asked,omitempty"`
	// Build is the build under way, nil for none.
	Build *Build `json:"build,omitempty"`
	// Error is why the last build failed, "" after one that did not; Failures counts those in a row.
	Error    string    `json:"error,omitempty"`
	FailedAt time.Time `json:"failed_at,omitzero"`
	Failures int       `json:"failures,omitempty"`
}

// Asked is a build that was asked for. It is under way for as long as its command is queued or held.
type Asked struct {
	ID string    `json:"image_id"`
	At time.Time `json:"at" jsonschema:"description=by the scheduler's clock"`
	// Generation is the pool's then; Why is applied, interval, retry, missing or refresh.
	Generation uint64 `json:"generation"`
	Why        string `json:"why"`
	Scratch    bool   `json:"scratch,omitempty"`
}

// Build is an image being built.
type Build struct {
	ID     string `json:"image_id"`
	Worker string `json:"worker"`
	// WorkerStarted is Started of that worker: a later one of the same name does not have it. Zero in older records.
	WorkerStarted time.Time `json:"worker_started,omitzero"`
	Since         time.Time `json:"since"`
	// Attempt counts the workers that began it, from 1; one that handed it over counts for none.
	Attempt int `json:"attempt,omitempty"`
}

// BuildParams are the parameters of a build command.
type BuildParams struct {
	// Scratch builds from a new clone instead of on the last image.
	Scratch bool `json:"scratch,omitempty"`
	// Force builds although nothing moved.
	Force bool `json:"force,omitempty"`
	// Generation is the pool's when the build was asked for.
	Generation uint64 `json:"generation"`
}

// LatestKey is the key of a pool's Latest in the images' bucket.
func LatestKey(pool string) string { return "pool." + pool }

// PoolOfLatest is the pool whose Latest lies under a key of the images' bucket, and false for other keys.
func PoolOfLatest(key string) (pool string, ok bool) { return strings.CutPrefix(key, LatestKey("")) }

// Warm is what a worker has of a pool, in its record. Counts are since the worker started.
type Warm struct {
	// Idle is how many warm sandboxes wait, Target how many this worker is to keep, Making how many are being made.
	Idle   int `json:"idle"`
	Target int `json:"target"`
	Making int `json:"making"`
	// Prewarmed is how many of Target were asked for by a prewarm.
	Prewarmed int `json:"prewarmed,omitempty"`
	// Image is the one they are made of; Commit the one they are at, Behind how many commits the remote is ahead of it.
	Image    string    `json:"image,omitempty"`
	Commit   string    `json:"commit,omitempty"`
	Behind   int       `json:"behind_commits"`
	SyncedAt time.Time `json:"synced_at,omitzero"`
	// OldestMS is the age of the oldest idle one in milliseconds.
	OldestMS int64 `json:"oldest_ms"`
	Hits     int64 `json:"hits"`
	Misses   int64 `json:"misses"`
	// Wasted are those that went unused: too old, of an old image, or dead.
	Wasted int64 `json:"wasted"`
	// RefillMS is how long the last replacement took from the claim, in milliseconds.
	RefillMS int64 `json:"refill_ms"`
	// Error is why the last one could not be made, "" if it could.
	Error string `json:"error,omitempty"`
	// Lost is the latest image, where something of it is gone or damaged: only another build helps.
	Lost string `json:"lost,omitempty"`
}

// Environment states of a warm sandbox; each change is an event about the sandbox.
const (
	EnvCreating     = "creating"
	EnvSyncing      = "syncing"
	EnvReady        = "ready"
	EnvExecuting    = "executing"
	EnvSnapshotting = "snapshotting"
	EnvTerminated   = "terminated"
)

// Sources of a sandbox, as claimed events and sessions name them.
const (
	SourceWarm = "warm"
	SourceCold = "cold"
	SourcePath = "path"
)
