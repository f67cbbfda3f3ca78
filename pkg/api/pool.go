package api

import (
	"encoding/json"
	"time"
)

// Pool is a pool as people see it.
type Pool struct {
	Name string `json:"name"`
	// State is empty (no image yet), building, ready, failing (the last build failed) or removing.
	State string `json:"state"`
	// Error is why the image or its warm sandboxes could not be made, on which worker; "" when all is well.
	Error string `json:"error"`
	Image string `json:"image"`
	// Commit is the image's; Behind how many commits the warm sandbox that is farthest behind the remote lacks.
	Commit     string    `json:"commit"`
	Warm       int       `json:"warm"`
	TargetSize int       `json:"target_size"`
	HitRate    float64   `json:"hit_rate"`
	Behind     int       `json:"behind_commits"`
	BuiltAt    time.Time `json:"built_at,omitzero"`
	// Stale tells that the image is older than its build interval and nobody has found it up to date since.
	Stale bool `json:"stale"`
	// StalenessMS is how long ago the warm sandboxes were last known to be at the remote's commit.
	StalenessMS int64 `json:"staleness_ms"`
	// OldestMS is the age of the oldest warm sandbox, RefillMS how long the slowest worker's last replacement took from its claim.
	OldestMS   int64                 `json:"oldest_ms"`
	RefillMS   int64                 `json:"refill_ms"`
	Hits       int64                 `json:"hits"`
	Misses     int64                 `json:"misses"`
	Wasted     int64                 `json:"wasted"`
	Prewarmed  int                   `json:"prewarmed"`
	Generation uint64                `json:"generation"`
	Workers    map[string]PoolWorker `json:"workers"`
	Spec       json.RawMessage       `json:"spec"`
}

// PoolWorker is what one worker has of a pool.
type PoolWorker struct {
	Idle   int    `json:"idle"`
	Target int    `json:"target"`
	Error  string `json:"error,omitempty"`
}

// Name names a pool.
type Name struct {
	Name string `json:"name"`
}

// PoolDelete asks for the removal of a pool. Force: also of one that plans wait for.
type PoolDelete struct {
	Name  string `json:"name"`
	Force bool   `json:"force,omitempty"`
}

// PoolChanged is the reply to apply and delete.
type PoolChanged struct {
	Name string `json:"name"`
	// Generation is that of the pool's file; Changed is false where the file was applied before.
	Generation uint64 `json:"generation"`
	Changed    bool   `json:"changed"`
	State      string `json:"state"`
}

// PoolApply brings a pool to what its file says. Unchanged files change nothing.
type PoolApply struct {
	Spec json.RawMessage `json:"spec"`
}

// PoolRefresh asks for a build now: from scratch where Scratch, else on the last image.
type PoolRefresh struct {
	Name    string `json:"name"`
	Scratch bool   `json:"scratch,omitempty"`
}

// Prewarmed is the worker that will have one more ready, until when.
type Prewarmed struct {
	Name    string    `json:"name"`
	Worker  string    `json:"worker"`
	Expires time.Time `json:"expires"`
}
