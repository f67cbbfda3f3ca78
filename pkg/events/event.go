package events

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Types of a plan's events (contract.md, Messages).
const (
	TypeAccepted         = "accepted"
	TypeRejected         = "rejected"
	TypeClaimed          = "claimed"
	TypeStepStarted      = "step_started"
	TypeStepFinished     = "step_finished"
	TypeCheckpointed     = "checkpointed"
	TypeExecuted         = "executed"
	TypeWaiting          = "waiting"
	TypeAwaitingApproval = "awaiting_approval"
	TypeApproved         = "approved"
	TypeApplyIntent      = "apply_intent"
	TypeApplied          = "applied"
	TypeConflict         = "conflict"
	TypeRolledBack       = "rolled_back"
	TypeFailed           = "failed"
	TypeRetrying         = "retrying"
	TypeInterrupted      = "interrupted"
	TypeCancelRequested  = "cancel_requested"
	TypeCancelled        = "cancelled"
	TypeExpired          = "expired"
	TypeDead             = "dead"
	// TypeConflictPart holds conflicts that have no room in the conflict or undo_failed event after it.
	TypeConflictPart = "conflict_part"
	// TypeUndoRequested and TypeUndoFailed are facts about an applied plan, which stays applied.
	TypeUndoRequested = "undo_requested"
	TypeUndoFailed    = "undo_failed"
)

// MaxBody is the size in bytes of the largest plan body that fits in an accepted event: half of what a server takes as one message by default.
const MaxBody = 512 << 10

const typePrefix = "warmfleet."

// Event is a fact, in the structured JSON form of CloudEvents 1.0.
type Event struct {
	SpecVersion     string    `json:"specversion" jsonschema:"enum=1.0"`
	ID              string    `json:"id" jsonschema:"description=ULID; also the deduplication key"`
	Source          string    `json:"source" jsonschema:"description=who wrote it: /worker/<name> or /scheduler/<id>"`
	Type            string    `json:"type" jsonschema:"pattern=^warmfleet\\.[a-z]+\\.[a-z_]+$"`
	Subject         string    `json:"subject" jsonschema:"description=id of what it is about"`
	Time            time.Time `json:"time" jsonschema:"description=for display; order is the order in the log"`
	DataContentType string    `json:"datacontenttype" jsonschema:"enum=application/json"`
	TraceParent     string    `json:"traceparent,omitempty"`
	Data            Data      `json:"data"`
}

// Data is what events say, under fixed names. Fields may be added, none renamed.
type Data struct {
	// Final is true on exactly one event of a plan: the one that ended it.
	Final bool `json:"final"`

	Step      string `json:"step,omitempty"`
	StepIndex *int   `json:"step_index,omitempty" jsonschema:"description=counted from 0"`
	Try       int    `json:"try,omitempty" jsonschema:"description=counted from 1 within an attempt"`
	State     string `json:"state,omitempty" jsonschema:"description=of the step: succeeded or failed or skipped"`

	Epoch   uint64 `json:"epoch,omitempty"`
	Attempt int    `json:"attempt,omitempty"`
	Worker  string `json:"worker,omitempty"`
	Host    string `json:"host,omitempty"`

	PlanID    string `json:"plan_id,omitempty"`
	SandboxID string `json:"sandbox_id,omitempty"`
	Pool      string `json:"pool,omitempty"`
	Image     string `json:"image,omitempty"`
	// Generation is of a pool's file, in events about the pool.
	Generation uint64 `json:"generation,omitempty"`
	Source     string `json:"source,omitempty" jsonschema:"description=where the sandbox came from: warm or cold or checkpoint or path"`
	// Commit is what a sandbox started from, in claimed; what apply makes, in apply_intent and applied.
	Commit string `json:"commit,omitempty"`
	// Branch and Onto are in apply_intent and applied: the branch that gets the commit, and the commit's parent.
	Branch string `json:"branch,omitempty"`
	Onto   string `json:"onto,omitempty"`
	// Author is in claimed, of a plan that will make a commit: who it will be by, whoever makes it.
	Author *Author `json:"author,omitempty"`
	// Behind is in claimed: how many commits a pool's sandbox was behind the remote before it was brought to Commit.
	Behind    *int   `json:"behind_commits,omitempty" jsonschema:"description=how many commits the sandbox was behind before it was brought to commit"`
	Strategy  string `json:"strategy,omitempty"`
	Base      string `json:"base,omitempty"`
	Isolation string `json:"isolation,omitempty" jsonschema:"description=what held while it ran"`
	// Guarantees is in claimed: how far each guarantee of isolation and limits holds where the plan runs.
	Guarantees map[string]string `json:"guarantees,omitempty" jsonschema:"description=enforced or best_effort or absent; by name"`
	Driver     string            `json:"driver,omitempty" jsonschema:"description=what shows the sandbox's tree: overlay or reflink or copy or in_place"`
	DriverWhy  string            `json:"driver_why,omitempty" jsonschema:"description=why it is not a better one"`

	Reason string `json:"reason,omitempty"`
	Code   string `json:"code,omitempty" jsonschema:"description=for programs; as path_not_allowed"`
	Error  string `json:"error,omitempty" jsonschema:"description=for people"`
	By     string `json:"by,omitempty"`

	ExitCode   *int   `json:"exit_code,omitempty" jsonschema:"description=absent when signalled or not started"`
	Signal     string `json:"signal,omitempty" jsonschema:"description=name without SIG"`
	Cause      string `json:"cause,omitempty" jsonschema:"description=exit or signal or timeout or cancelled or oom or disk or pids or start or lost"`
	DurationMS *int64 `json:"duration_ms,omitempty"`

	// Network is in step_finished, where the sandbox's network is a list of hosts: at most 16 of each verdict, and how many more.
	Network     []NetworkUse `json:"network,omitempty"`
	NetworkMore int          `json:"network_more,omitempty" jsonschema:"description=how many attempts network does not have"`

	Checkpoint *CheckpointRef `json:"checkpoint,omitempty"`
	Conflicts  []Conflict     `json:"conflicts,omitempty"`
	// Drift is what others changed in a live base while the plan ran: some of the paths, and how many there are.
	Drift      []string `json:"drift,omitempty" jsonschema:"description=paths of a live base that others changed while the plan ran; at most 20"`
	DriftTotal int      `json:"drift_total,omitempty" jsonschema:"description=how many such paths there are"`
	// ConflictCount is of all, those in the conflict_part events before included.
	ConflictCount int      `json:"conflict_count,omitempty"`
	Changed       *int     `json:"changed,omitempty" jsonschema:"description=number of paths that were or will be changed"`
	RolledBack    string   `json:"rolled_back,omitempty" jsonschema:"description=what was put back: sandbox or original or none"`
	Notes         []string `json:"notes,omitempty"`
	// Omitted says what was left out because the event would not have fitted into a message.
	Omitted string `json:"omitted,omitempty"`

	// Steps and Body are in accepted only.
	Steps   []string        `json:"steps,omitempty" jsonschema:"description=ids of the steps in order"`
	Body    json.RawMessage `json:"body,omitempty" jsonschema:"description=the plan"`
	RetryOf string          `json:"retry_of,omitempty"`

	// Plan is the state of the plan after this event. A caller gives it with accepted only (name, strategy,
	// apply, resource, pool, class, key, max_attempts, expires_at, body_digest); otherwise the Writer fills it in.
	Plan *Fold `json:"plan,omitempty"`
}

// Who named the author of a plan's commit.
const (
	AuthorOfPlan       = "plan"
	AuthorOfRepository = "repository"
	AuthorOfPool       = "pool"
	AuthorOfWorker     = "worker"
)

// Author is who a plan's commit is by, as author and committer.
type Author struct {
	Name  string `json:"name"`
	Email string `json:"email"`
	Of    string `json:"of" jsonschema:"description=who named it: plan or repository or pool or worker"`
}

// CheckpointRef is a checkpoint as events name it.
type CheckpointRef struct {
	ID        string `json:"checkpoint_id"`
	Phase     string `json:"phase" jsonschema:"enum=pre_execute,enum=step,enum=post_execute,enum=pre_apply,enum=session,enum=image"`
	SizeBytes int64  `json:"size_bytes" jsonschema:"description=stored size of its own layer"`
	Portable  bool   `json:"portable"`
	Live      bool   `json:"live,omitempty" jsonschema:"description=its base was the original itself; never portable"`
	Fuzzy     bool   `json:"fuzzy,omitempty" jsonschema:"description=processes ran when it was taken"`
	// Cursor is the index of the step that runs next on a sandbox in this state.
	Cursor int    `json:"cursor"`
	Object string `json:"object,omitempty" jsonschema:"description=name of its own layer in the object store"`
	Lost   int    `json:"lost,omitempty" jsonschema:"description=number of things that could not be kept"`
}

// Record is an event and its place in the log.
type Record struct {
	Event Event
	Seq   uint64
}

// TypeOf returns the CloudEvents type of a noun's event, as in warmfleet.plan.claimed.
func TypeOf(noun, typ string) string { return typePrefix + noun + "." + typ }

// NewEvent returns an event of a type made by TypeOf, with a new id and the time now.
// Subject is the id of what it is about, source a URI reference as /worker/w1.
func NewEvent(typ, subject, source string, d Data) Event {
	return Event{
		SpecVersion: "1.0", ID: NewID(), Source: source, Type: typ, Subject: subject,
		Time: time.Now().UTC(), DataContentType: "application/json", Data: d,
	}
}

// Noun returns what the event is about: plan, sandbox, ...
func (e Event) Noun() string {
	noun, _, _ := strings.Cut(strings.TrimPrefix(e.Type, typePrefix), ".")
	return noun
}

// Kind returns the type without the noun: claimed, applied, ...
func (e Event) Kind() string {
	_, kind, _ := strings.Cut(strings.TrimPrefix(e.Type, typePrefix), ".")
	return kind
}

// DecodeEvent reads what EncodeEvent wrote. Unknown fields are ignored: newer programs may add some.
func DecodeEvent(b []byte) (Event, error) {
	var e Event
	if err := json.Unmarshal(b, &e); err != nil {
		return Event{}, fmt.Errorf("events: decode event: %w: %w", ErrMalformed, err)
	}
	if e.SpecVersion != "1.0" || !strings.HasPrefix(e.Type, typePrefix) {
		return Event{}, fmt.Errorf("events: decode event %q of type %q, specversion %q: %w", e.ID, e.Type, e.SpecVersion, ErrMalformed)
	}
	return e, nil
}

// EncodeEvent returns the event as JSON of at most limit bytes. One that is larger is replaced by a smaller
// one with the same outcome: lists and long texts go first, and Data.Omitted says so. Only an accepted event is
// never cut, since its body is the plan: it is a SizeError. Case I3.
func EncodeEvent(e Event, limit int) ([]byte, error) {
	if len(e.Data.Body) > MaxBody {
		return nil, fmt.Errorf("events: encode event %q: %w", e.ID, &SizeError{What: "plan", Size: len(e.Data.Body), Max: MaxBody})
	}
	b, err := marshal(e)
	if err != nil {
		return nil, fmt.Errorf("events: encode event %q: %w", e.ID, err)
	}
	if len(b) <= limit {
		return b, nil
	}
	tooLarge := &SizeError{What: "event " + e.Type, Size: len(b), Max: limit}
	if len(e.Data.Body) > 0 {
		return nil, fmt.Errorf("events: encode event %q: %w", e.ID, tooLarge)
	}
	for _, keep := range []int{64, 8, 0} {
		small, err := marshal(e.shrunk(keep, len(b)))
		if err != nil {
			return nil, fmt.Errorf("events: encode event %q: %w", e.ID, err)
		}
		if len(small) <= limit {
			return small, nil
		}
	}
	return nil, fmt.Errorf("events: encode event %q: %w", e.ID, tooLarge)
}

// shrunk returns the event with at most keep entries in each list and texts of at most 16*keep+256 bytes.
func (e Event) shrunk(keep, size int) Event {
	d := &e.Data
	text := 16*keep + 256
	d.Omitted = fmt.Sprintf("the whole event takes %d bytes; it had %d conflicts, %d notes, %d steps", size, len(d.Conflicts), len(d.Notes), len(d.Steps))
	d.Conflicts = append([]Conflict(nil), d.Conflicts[:min(keep, len(d.Conflicts))]...)
	for i := range d.Conflicts {
		d.Conflicts[i] = d.Conflicts[i].shrunk(text)
	}
	d.Network = append([]NetworkUse(nil), d.Network[:min(keep, len(d.Network))]...)
	for i := range d.Network {
		d.Network[i] = d.Network[i].shrunk(text)
	}
	d.Notes = append([]string(nil), d.Notes[:min(keep, len(d.Notes))]...)
	for i := range d.Notes {
		d.Notes[i] = truncate(d.Notes[i], text)
	}
	d.Steps = d.Steps[:min(keep, len(d.Steps))]
	for _, s := range []*string{
		&d.Error, &d.Reason, &d.By, &d.Step, &d.Base, &d.Isolation, &d.RolledBack, &d.Code, &d.Cause, &d.Host, &d.Worker, &d.Commit, &d.Image, &d.Source,
	} {
		*s = truncate(*s, text)
	}
	return e
}

// marshal is json.Marshal without the escaping of HTML: steps and messages are full of < and &.
func marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}
