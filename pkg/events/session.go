package events

import "time"

// Session is a session's record in the sessions' bucket, by session id. The worker that owns the session writes it;
// a scheduler only before anybody has taken it, or when whoever did died while it started it. Fields may be added, none renamed.
type Session struct {
	ID     string `json:"session_id"`
	State  string `json:"state"`
	Worker string `json:"worker,omitempty"`
	// WorkerStarted is Started of the worker that took it: a later one of the same name does not have it. Zero in older records.
	WorkerStarted time.Time `json:"worker_started,omitzero"`
	Host          string    `json:"host,omitempty"`
	// Pool and Resource are where it started, Source how: warm, cold, checkpoint or path.
	Pool     string   `json:"pool,omitempty"`
	Resource Resource `json:"resource,omitzero"`
	Source   string   `json:"source,omitempty"`
	// Notes say why it started cold, or that a checkpoint is shown in a warm sandbox.
	Notes  []string `json:"notes,omitempty"`
	Image  string   `json:"image,omitempty"`
	Commit string   `json:"commit,omitempty"`
	// Syncing: the sandbox is being brought to the remote's tip; reads are served, writes and commands wait.
	Syncing bool `json:"syncing,omitempty"`
	// Checkpoint is the last portable one, which the session can be resumed from.
	Checkpoint string `json:"checkpoint_id,omitempty"`
	// Fuzzy: processes ran when that was taken.
	Fuzzy bool `json:"fuzzy,omitempty"`
	// ResumedFrom is the checkpoint that it started from.
	ResumedFrom string `json:"resumed_from,omitempty"`
	// User and Email are who commits in it.
	User  string `json:"user,omitempty"`
	Email string `json:"email,omitempty"`
	// IdleTimeout is how long it may go unused, Timeout how long it may last; in nanoseconds.
	IdleTimeout time.Duration `json:"idle_timeout_ns"`
	Timeout     time.Duration `json:"timeout_ns"`
	CreatedAt   time.Time     `json:"created_at"`
	UsedAt      time.Time     `json:"used_at,omitzero"`
	ExpiresAt   time.Time     `json:"expires_at,omitzero"`
	EndedAt     time.Time     `json:"ended_at,omitzero"`
	// FirstReadMS and FirstWriteMS are the time from the request to the first read and the first write or command
	// that were served, in milliseconds; 0 before.
	FirstReadMS  int64  `json:"first_read_ms,omitempty"`
	FirstWriteMS int64  `json:"first_write_ms,omitempty"`
	Error        string `json:"error,omitempty"`
	Code         string `json:"code,omitempty"`
}

// States of a session. One whose worker is gone keeps its last state in the record and is shown as lost.
const (
	SessionStarting = "starting"
	SessionActive   = "active"
	SessionEnded    = "ended"
	SessionExpired  = "expired"
	SessionFailed   = "failed"
	SessionLost     = "lost"
)
