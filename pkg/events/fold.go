package events

import "time"

// States of a plan. The last eight are final.
const (
	StateAccepted         = "accepted"
	StateWaiting          = "waiting"
	StateRunning          = "running"
	StateAwaitingApproval = "awaiting_approval"
	StateApplying         = "applying"
	StateApplied          = "applied"
	StateExecuted         = "executed"
	StateFailed           = "failed"
	StateConflict         = "conflict"
	StateCancelled        = "cancelled"
	StateRejected         = "rejected"
	StateExpired          = "expired"
	StateDead             = "dead"
)

// Values of a plan's apply.
const (
	ApplyAuto   = "auto"
	ApplyManual = "manual"
	ApplyNever  = "never"
)

// Phases of checkpoints, and the place a claim's sandbox came from when it went on after one.
const (
	PhasePreExecute  = "pre_execute"
	PhaseStep        = "step"
	PhasePostExecute = "post_execute"
	PhasePreApply    = "pre_apply"
	PhaseSession     = "session"
	PhaseImage       = "image"
	SourceCheckpoint = "checkpoint"
)

// strategyNone works in place, so applied needs no intent before it.
const strategyNone = "none"

// MaxFold is the size in bytes of the largest encoded Fold: it is in every event of a plan.
const MaxFold = 4096

// Fold is the state of a plan after an event. It is in every event of the plan, so one read of the
// last event is all a new holder needs. It never encodes to more than MaxFold bytes: Next cuts long
// texts and names the fields it cut in Cut; their whole values are in the accepted event's body.
type Fold struct {
	State string `json:"state"`

	Name        string    `json:"name,omitempty"`
	Strategy    string    `json:"strategy,omitempty"`
	Apply       string    `json:"apply,omitempty"`
	Resource    Resource  `json:"resource,omitzero"`
	Pool        string    `json:"pool,omitempty"`
	Class       string    `json:"class,omitempty"`
	Key         string    `json:"key,omitempty"`
	MaxAttempts int       `json:"max_attempts,omitempty"`
	Created     time.Time `json:"created,omitzero"`
	ExpiresAt   time.Time `json:"expires_at,omitzero"`
	RetryOf     string    `json:"retry_of,omitempty"`
	// BodyDigest tells a repeated submission from another plan under the same id.
	BodyDigest string `json:"body_digest,omitempty"`

	Epoch   uint64 `json:"epoch,omitempty"`
	Attempt int    `json:"attempt,omitempty" jsonschema:"description=how often its steps were begun"`
	// Losses counts the claims that ended without a word from their holder.
	Losses int    `json:"losses,omitempty"`
	Worker string `json:"worker,omitempty"`
	Host   string `json:"host,omitempty"`
	// Held is true while the epoch's holder is expected to go on.
	Held bool `json:"held,omitempty"`

	// Cursor is the index of the step that runs next or runs now.
	Cursor int    `json:"cursor,omitempty"`
	Step   string `json:"step,omitempty"`
	// Checkpoint is the last portable one: where another worker goes on.
	Checkpoint *FoldCheckpoint `json:"checkpoint,omitempty"`
	Base       string          `json:"base,omitempty"`
	// Executed is true when all steps are done and only approval or apply is left.
	Executed   bool    `json:"executed,omitempty"`
	ApprovedBy string  `json:"approved_by,omitempty"`
	Approved   bool    `json:"approved,omitempty"`
	Intent     *Intent `json:"intent,omitempty"`

	CancelRequested bool   `json:"cancel_requested,omitempty"`
	Changed         *int   `json:"changed,omitempty"`
	RolledBack      string `json:"rolled_back,omitempty"`
	Undone          bool   `json:"undone,omitempty"`
	// Undoing is true from the request to undo an applied plan until that is done or failed.
	Undoing bool `json:"undoing,omitempty"`

	Reason   string `json:"reason,omitempty"`
	Code     string `json:"code,omitempty"`
	Error    string `json:"error,omitempty"`
	ExitCode *int   `json:"exit_code,omitempty"`

	Cut []string `json:"cut,omitempty" jsonschema:"description=fields that were shortened to fit"`
}

// Resource is what a plan works on: Path and Host, or Repo and Ref.
type Resource struct {
	Path string `json:"path,omitempty"`
	Host string `json:"host,omitempty"`
	Repo string `json:"repo,omitempty"`
	Ref  string `json:"ref,omitempty"`
}

// FoldCheckpoint is a portable checkpoint as the fold remembers it. See CheckpointRef.
type FoldCheckpoint struct {
	ID     string `json:"checkpoint_id"`
	Phase  string `json:"phase"`
	Cursor int    `json:"cursor"`
	Object string `json:"object,omitempty"`
}

// Intent is the point of no return of an apply: which claim began to change the original.
type Intent struct {
	Epoch      uint64 `json:"epoch"`
	Checkpoint string `json:"checkpoint_id,omitempty" jsonschema:"description=the pre_apply checkpoint"`
	Commit     string `json:"commit,omitempty" jsonschema:"description=the commit that is brought to a branch"`
}

// IsFinal tells whether a state is one that a plan never leaves.
func IsFinal(state string) bool {
	switch state {
	case StateApplied, StateExecuted, StateFailed, StateConflict, StateCancelled, StateRejected, StateExpired, StateDead:
		return true
	}
	return false
}

// Final tells whether the plan has ended.
func (f Fold) Final() bool { return IsFinal(f.State) }

// Unapproved tells whether the steps are done and somebody has yet to say that they may be applied.
func (f Fold) Unapproved() bool { return f.Executed && f.Apply == ApplyManual && !f.Approved }

// Exhausted tells whether one more claim would be one too many: the holder is gone without a
// word and MaxAttempts claims were made. An apply past its intent is never exhausted: it has to be recovered.
func (f Fold) Exhausted() bool {
	return f.MaxAttempts > 0 && f.Held && f.Intent == nil && f.Losses+1 >= f.MaxAttempts
}

// bounded returns the fold with every text cut to its share of MaxFold.
func (f Fold) bounded() Fold {
	f.Cut = append([]string(nil), f.Cut...)
	for _, field := range []struct {
		name  string
		text  *string
		limit int
	}{
		{"state", &f.State, 24},
		{"name", &f.Name, 128},
		{"strategy", &f.Strategy, 24},
		{"apply", &f.Apply, 16},
		{"resource.path", &f.Resource.Path, 1024},
		{"resource.host", &f.Resource.Host, 64},
		{"resource.repo", &f.Resource.Repo, 320},
		{"resource.ref", &f.Resource.Ref, 128},
		{"pool", &f.Pool, 64},
		{"class", &f.Class, 16},
		{"key", &f.Key, 96},
		{"retry_of", &f.RetryOf, 26},
		{"body_digest", &f.BodyDigest, 72},
		{"worker", &f.Worker, 64},
		{"host", &f.Host, 64},
		{"step", &f.Step, 64},
		{"base", &f.Base, 96},
		{"approved_by", &f.ApprovedBy, 48},
		{"rolled_back", &f.RolledBack, 32},
		{"reason", &f.Reason, 96},
		{"code", &f.Code, 40},
		{"error", &f.Error, 400},
	} {
		short, was := cut(*field.text, field.limit)
		if was {
			*field.text = short
			f.noteCut(field.name)
		}
	}
	return f.boundedParts()
}

// boundedParts cuts what the fold points to, on copies.
func (f Fold) boundedParts() Fold {
	if c := f.Checkpoint; c != nil {
		part := *c
		part.ID, _ = cut(part.ID, 26)
		part.Phase, _ = cut(part.Phase, 16)
		part.Object, _ = cut(part.Object, 88)
		f.Checkpoint = &part
	}
	if i := f.Intent; i != nil {
		part := *i
		part.Checkpoint, _ = cut(part.Checkpoint, 26)
		part.Commit, _ = cut(part.Commit, 64)
		f.Intent = &part
	}
	return f
}

func (f *Fold) noteCut(name string) {
	for _, have := range f.Cut {
		if have == name {
			return
		}
	}
	f.Cut = append(f.Cut, name)
}
