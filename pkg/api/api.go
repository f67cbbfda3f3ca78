// Package api holds the requests and replies of the fleet's API: what the micro services
// `warmfleet` and `warmfleet-worker` take and give as JSON.
//
// It is types only. Fields may be added, none renamed. Errors come with the header
// Nats-Service-Error-Code: one of the codes below.
package api

import (
	"encoding/json"
	"time"
)

// Codes of errors.
const (
	CodeInvalid  = "400" // the request or the plan is not valid
	CodeRefused  = "403" // not allowed
	CodeNotFound = "404"
	CodeConflict = "409" // the state does not allow it, or the id is taken
	CodeInternal = "500"
	CodeTimeout  = "504" // accepted so far as known; no verdict yet
)

// HeaderParts is a header of each reply of the service `warmfleet`: how many messages it takes.
// Their data in the order of arrival is the reply; one that fits into a message is one.
const HeaderParts = "Fleet-Parts"

// ID names what a request is about; a bare id that is no JSON is taken as well.
type ID struct {
	ID string `json:"id"`
	// By says who asks, for approve, reject, cancel and undo.
	By string `json:"by,omitempty"`
}

// Submitted is the verdict on a submission.
type Submitted struct {
	ID    string `json:"id"`
	State string `json:"state"`
	Code  string `json:"code,omitempty"`
	Error string `json:"error,omitempty"`
}

// Done is the reply to a request that changes a plan.
type Done struct {
	ID    string `json:"id"`
	State string `json:"state"`
}

// Undo is the reply to a request to undo an applied plan: it is undone already, or will be, or its events say why not.
type Undo struct {
	ID      string `json:"id"`
	State   string `json:"state"`
	Undone  bool   `json:"undone"`
	Undoing bool   `json:"undoing"`
}

// Diff is the rendered difference of a plan from its base.
type Diff struct {
	ID string `json:"id"`
	// Diff is a unified diff, cut where it would be large. Where its bytes are not UTF-8 they are in Patch, and here replaced.
	Diff  string `json:"diff"`
	Patch []byte `json:"patch,omitempty"`
	// Files describes every changed path: an array of what docs/formats.md calls a changed file.
	Files json.RawMessage `json:"files,omitempty"`
	// Checkpoint is the one that has all of it.
	Checkpoint string `json:"checkpoint,omitempty"`
}

// CheckpointDiff asks a worker how one checkpoint differs from another, or from its base where From is "".
type CheckpointDiff struct {
	From string `json:"from,omitempty"`
	To   string `json:"to"`
	// Files asks for the description of every changed path, else for text.
	Files bool `json:"files,omitempty"`
	// After is the Next of the page before; "" begins.
	After string `json:"after,omitempty"`
}

// DiffPage is a part of a difference of checkpoints.
type DiffPage struct {
	// Patch is text of whole files, in the order of their paths.
	Patch []byte `json:"patch,omitempty"`
	// Next is what the request for the next page has as After, "" at the end.
	Next  string          `json:"next,omitempty"`
	Files json.RawMessage `json:"files,omitempty"`
}

// CheckpointFilter selects checkpoints; empty fields select all.
type CheckpointFilter struct {
	Plan    string `json:"plan,omitempty"`
	Sandbox string `json:"sandbox,omitempty"`
}

// Checkpoint is a checkpoint as people see it.
type Checkpoint struct {
	ID        string    `json:"id"`
	Plan      string    `json:"plan"`
	Sandbox   string    `json:"sandbox"`
	Phase     string    `json:"phase"`
	CreatedAt time.Time `json:"created_at"`
	SizeBytes int64     `json:"size_bytes"`
	Portable  bool      `json:"portable"`
	// Fuzzy: processes ran when it was taken; files may be as after a crash of theirs.
	Fuzzy    bool              `json:"fuzzy,omitempty"`
	Worker   string            `json:"worker"`
	Base     string            `json:"base"`
	Layers   []string          `json:"layers"`
	Metadata map[string]string `json:"metadata"`
	Lost     json.RawMessage   `json:"lost"`
}

// Rollback asks for a sandbox in the state of a checkpoint, on a worker of choice.
type Rollback struct {
	Checkpoint string `json:"checkpoint"`
	Worker     string `json:"worker,omitempty"`
}

// RolledBack names the sandbox that was made.
type RolledBack struct {
	Sandbox string `json:"sandbox"`
	Worker  string `json:"worker"`
	State   string `json:"state"`
	// Checkpoint is what it stands on.
	Checkpoint string `json:"checkpoint"`
}

// Delete asks for the removal of a checkpoint's record. Force: also of one that a plan that has not ended could
// go back to; never of the one that it goes on from.
type Delete struct {
	ID    string `json:"id"`
	Force bool   `json:"force,omitempty"`
}

// Collect asks for a collection of garbage. Grace is a duration as Go writes it, such as "24h"; the default where
// absent.
type Collect struct {
	DryRun bool   `json:"dry_run,omitempty"`
	Grace  string `json:"grace,omitempty"`
}

// Store asks the worker that holds a checkpoint to make it portable.
type Store struct {
	Checkpoint string `json:"checkpoint"`
}
