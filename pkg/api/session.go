package api

import "time"

// SessionStart asks for a session. Exactly one of Pool, Path, Repo, Checkpoint and Session says what it starts
// from; Session is one that has ended or was lost, resumed from its last checkpoint.
type SessionStart struct {
	// ID is the new session's, a ULID of the caller's choice; the same again is the same session.
	ID         string `json:"id,omitempty"`
	Pool       string `json:"pool,omitempty"`
	Path       string `json:"path,omitempty"`
	Host       string `json:"host,omitempty"`
	Repo       string `json:"repo,omitempty"`
	Ref        string `json:"ref,omitempty"`
	Checkpoint string `json:"checkpoint,omitempty"`
	Session    string `json:"session,omitempty"`
	// User and Email are who commits in it.
	User  string `json:"user,omitempty"`
	Email string `json:"email,omitempty"`
	// IdleTimeout and Timeout are durations as Go writes them; 30m and 4h where absent.
	IdleTimeout string `json:"idle_timeout,omitempty"`
	Timeout     string `json:"timeout,omitempty"`
	// Network is none where absent, and for a pool what it says.
	Network Network `json:"network,omitzero"`
}

// Session is a session as people see it.
type Session struct {
	ID           string    `json:"id"`
	State        string    `json:"state"`
	Worker       string    `json:"worker"`
	Source       string    `json:"source"`
	Notes        []string  `json:"notes,omitempty"` // why it started cold, or that a checkpoint is shown in a warm sandbox
	Checkpoint   string    `json:"checkpoint"`
	Fuzzy        bool      `json:"fuzzy,omitempty"` // of Checkpoint
	Pool         string    `json:"pool,omitempty"`
	Path         string    `json:"path,omitempty"`
	Repo         string    `json:"repo,omitempty"`
	Ref          string    `json:"ref,omitempty"`
	Image        string    `json:"image,omitempty"`
	Commit       string    `json:"commit,omitempty"`
	User         string    `json:"user,omitempty"`
	Email        string    `json:"email,omitempty"`
	CreatedAt    time.Time `json:"created_at"`
	UsedAt       time.Time `json:"used_at,omitzero"`
	ExpiresAt    time.Time `json:"expires_at,omitzero"`
	FirstReadMS  int64     `json:"first_read_ms,omitempty"`
	FirstWriteMS int64     `json:"first_write_ms,omitempty"`
	Error        string    `json:"error,omitempty"`
}
