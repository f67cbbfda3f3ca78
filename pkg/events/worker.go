package events

import (
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
	"strings"
	"time"
)

// Worker is what a worker says of itself in the workers' bucket, renewed every second.
// Fields may be added, none renamed.
type Worker struct {
	Name  string `json:"name"`
	Host  string `json:"host"`
	State string `json:"state"` // WorkerReady or WorkerDraining
	// Paused is why a ready worker begins nothing for now, in one line; "" while it does.
	Paused string `json:"paused,omitempty"`
	Slots  int    `json:"slots"`
	Free   int    `json:"free"`
	// Pools maps a pool token to the allowed path behind it, "" for a named pool.
	Pools     map[string]string `json:"pools"`
	Isolation string            `json:"isolation"`
	// Policy is what the worker was started with: required, preferred or off; "" before there were policies.
	Policy string `json:"isolation_policy,omitempty"`
	// Guarantees maps a guarantee's name to enforced, best_effort or absent.
	Guarantees map[string]string `json:"guarantees"`
	Labels     map[string]string `json:"labels,omitempty"`
	// Warm is what it has of each pool that it serves.
	Warm    map[string]Warm `json:"warm,omitempty"`
	Version string          `json:"version"`
	Started time.Time       `json:"started"`
}

// States of a worker; one that drains takes no more commands.
const (
	WorkerReady    = "ready"
	WorkerDraining = "draining"
)

// Types of events of a worker, which begins nothing while the disk of its state directory is nearly full (Data.Reason).
const (
	WorkerPaused  = "paused"
	WorkerResumed = "resumed"
)

// WorkerInterval is how often a worker renews its record; the bucket's TTL says when one
// that stopped doing so is gone.
const WorkerInterval = time.Second

// PoolToken is the pool of plans on paths at or below the allowed path entry of a host:
// "h-<host id>-<first 8 hex of sha256 of the entry>".
func PoolToken(hostID, entry string) string {
	sum := sha256.Sum256([]byte(entry))
	return "h-" + strings.ToLower(hostID) + "-" + hex.EncodeToString(sum[:4])
}

// PathPool returns the token of the longest entry of pools that contains path on the
// given worker's host, or "" if it lists none.
func (w Worker) PathPool(path string) string {
	token, longest := "", -1
	for t, entry := range w.Pools {
		if entry != "" && len(entry) > longest && Within(entry, path) {
			token, longest = t, len(entry)
		}
	}
	return token
}

// Within tells whether path is dir or lies below it; both are clean and absolute.
func Within(dir, path string) bool {
	dir, path = filepath.Clean(dir), filepath.Clean(path)
	return dir == path || dir == "/" || strings.HasPrefix(path, dir+"/")
}
