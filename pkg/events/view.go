package events

import "time"

// States and causes of a step as a View shows it.
const (
	StepPending   = "pending"
	StepRunning   = "running"
	StepSucceeded = "succeeded"
	StepFailed    = "failed"
	StepSkipped   = "skipped"

	causeExit      = "exit"
	causeLost      = "lost"
	causeCancelled = "cancelled"
)

// View is a plan as `plan show -o json` prints it (contract.md). Null means: not known or not yet.
type View struct {
	ID       string   `json:"id"`
	Name     string   `json:"name"`
	State    string   `json:"state"`
	Final    bool     `json:"final"`
	Worker   *string  `json:"worker" jsonschema:"nullable"`
	Attempt  int      `json:"attempt"`
	Epoch    uint64   `json:"epoch"`
	Strategy string   `json:"strategy"`
	Resource Resource `json:"resource"`
	Pool     string   `json:"pool,omitempty" jsonschema:"description=that the plan names"`
	Error    *string  `json:"error" jsonschema:"nullable"`
	Code     *string  `json:"code" jsonschema:"nullable,description=of a rejection or failure; for programs"`
	// Reason is why the plan waits, or who and what ended it.
	Reason   *string `json:"reason" jsonschema:"nullable"`
	ExitCode *int    `json:"exit_code" jsonschema:"nullable,description=0 when all steps are done; of the failed step otherwise"`

	Steps       []StepView       `json:"steps"`
	Checkpoints []CheckpointView `json:"checkpoints"`
	Conflicts   []Conflict       `json:"conflicts"`
	// Drift is what others changed in a live base while the plan ran, at most 20 of DriftTotal paths.
	Drift      []string `json:"drift,omitempty"`
	DriftTotal int      `json:"drift_total,omitempty"`

	// ConflictCount is more than there are Conflicts where some were left out.
	ConflictCount int `json:"conflict_count"`

	// Undo is what came of taking an applied plan back; null while nobody asked for it.
	Undo *UndoView `json:"undo" jsonschema:"nullable"`

	// Commit is what apply made, null where files were applied or nothing was.
	Commit *CommitView `json:"commit" jsonschema:"nullable"`

	Changed         *int    `json:"changed" jsonschema:"nullable"`
	RolledBack      *string `json:"rolled_back" jsonschema:"nullable"`
	CancelRequested bool    `json:"cancel_requested"`
	Isolation       *string `json:"isolation" jsonschema:"nullable"`
	// Guarantees is how far each guarantee held where the steps ran last; null before.
	Guarantees map[string]string `json:"guarantees" jsonschema:"nullable"`
	Notes      []string          `json:"notes"`
	RetryOf    *string           `json:"retry_of" jsonschema:"nullable"`
	CreatedAt  time.Time         `json:"created_at,omitzero"`
	ExpiresAt  time.Time         `json:"expires_at,omitzero"`
}

// UndoView is the last undo of a plan as a View shows it.
type UndoView struct {
	State string `json:"state" jsonschema:"enum=requested,enum=done,enum=failed"`
	By    string `json:"by"`
	// Changed is how many paths were put back.
	Changed       *int       `json:"changed" jsonschema:"nullable"`
	Code          *string    `json:"code" jsonschema:"nullable"`
	Error         *string    `json:"error" jsonschema:"nullable"`
	Conflicts     []Conflict `json:"conflicts"`
	ConflictCount int        `json:"conflict_count"`
}

// States of an undo.
const (
	UndoRequested = "requested"
	UndoDone      = "done"
	UndoFailed    = "failed"
)

// StepView is a step of a View. A step that ran again shows its last run.
type StepView struct {
	ID         string  `json:"id"`
	State      string  `json:"state"`
	ExitCode   *int    `json:"exit_code" jsonschema:"nullable"`
	Signal     *string `json:"signal" jsonschema:"nullable"`
	Cause      *string `json:"cause" jsonschema:"nullable"`
	DurationMS *int64  `json:"duration_ms" jsonschema:"nullable"`
	// Network is absent where the network is no list of hosts, and where nothing was tried.
	Network     []NetworkUse `json:"network,omitempty"`
	NetworkMore int          `json:"network_more,omitempty"`
}

// CommitView is the commit of a View.
type CommitView struct {
	ID     string `json:"id"`
	Branch string `json:"branch"`
}

// CheckpointView is a checkpoint of a View.
type CheckpointView struct {
	ID        string `json:"id"`
	Phase     string `json:"phase"`
	SizeBytes int64  `json:"size_bytes"`
	Portable  bool   `json:"portable"`
}

// NewView returns a plan as far as its fold tells: without steps, checkpoints and conflicts.
func NewView(planID string, f Fold) View {
	v := View{
		ID: planID, Name: f.Name, State: f.State, Final: f.Final(), Worker: text(f.Worker), Attempt: f.Attempt, Epoch: f.Epoch,
		Strategy: f.Strategy, Resource: f.Resource, Pool: f.Pool, Error: text(f.Error), Code: text(f.Code), Reason: text(f.Reason), Changed: f.Changed,
		RolledBack: text(f.RolledBack), CancelRequested: f.CancelRequested, RetryOf: text(f.RetryOf), CreatedAt: f.Created, ExpiresAt: f.ExpiresAt,
		Steps: []StepView{}, Checkpoints: []CheckpointView{}, Conflicts: []Conflict{}, Notes: []string{},
	}
	switch f.State {
	case StateFailed:
		v.ExitCode = f.ExitCode
	case StateExecuted, StateApplied, StateAwaitingApproval, StateConflict:
		v.ExitCode = new(int)
	}
	return v
}

// BuildView returns a plan from all its events in order. Without events it is the zero View.
func BuildView(records []Record) View {
	if len(records) == 0 {
		return View{}
	}
	var b viewBuilder
	for _, r := range records {
		b.add(r.Event)
	}
	last := records[len(records)-1].Event
	var f Fold
	if last.Data.Plan != nil {
		f = *last.Data.Plan
	}
	v := NewView(last.Subject, f)
	v.Steps = append(v.Steps, b.steps...)
	v.Checkpoints = append(v.Checkpoints, b.checkpoints...)
	v.Conflicts = append(v.Conflicts, b.conflicts...)
	v.Drift, v.DriftTotal = b.drift, b.drifted
	v.ConflictCount, v.Undo = max(b.conflictCount, len(b.conflicts)), b.undo
	v.Notes = append(v.Notes, b.notes...)
	v.Isolation = text(b.isolation)
	v.Guarantees = b.guarantees
	v.Commit = b.commit
	if b.err != "" {
		v.Error = text(b.err) // the fold's may be cut
	}
	if v.CreatedAt.IsZero() {
		v.CreatedAt = records[0].Event.Time
	}
	if v.Final {
		v.settle()
	}
	return v
}

// settle gives steps that will never run or end the state of that.
func (v *View) settle() {
	for i := range v.Steps {
		switch s := &v.Steps[i]; s.State {
		case StepPending:
			s.State = StepSkipped
		case StepRunning:
			s.State, s.Cause = StepFailed, text(causeLost)
			if v.State == StateCancelled {
				s.Cause = text(causeCancelled)
			}
		}
	}
}

// viewBuilder collects what a fold does not keep.
type viewBuilder struct {
	steps       []StepView
	checkpoints []CheckpointView
	found       gather
	conflicts   []Conflict
	drift       []string
	drifted     int
	// conflictCount is what the event says, 0 when it says nothing.
	conflictCount int
	undo          *UndoView
	notes         []string
	isolation     string
	guarantees    map[string]string
	commit        *CommitView
	err           string
}

func (b *viewBuilder) add(e Event) {
	d := e.Data
	switch e.Kind() {
	case TypeAccepted:
		for _, id := range d.Steps {
			b.steps = append(b.steps, StepView{ID: id, State: StepPending})
		}
	case TypeClaimed:
		b.claimed(d)
	case TypeStepStarted:
		if s := b.step(d); s != nil {
			*s = StepView{ID: s.ID, State: StepRunning}
		}
	case TypeStepFinished:
		if s := b.step(d); s != nil {
			*s = finished(s.ID, d)
		}
	case TypeConflictPart:
		b.found.add(d)
	case TypeConflict:
		b.conflicts, b.conflictCount = b.found.end(d), d.ConflictCount
	case TypeUndoRequested, TypeUndoFailed, TypeRolledBack:
		b.undone(e.Kind(), d)
	case TypeApplied:
		if d.Commit != "" {
			b.commit = &CommitView{ID: d.Commit, Branch: d.Branch}
		}
	}
	if d.Final {
		b.err = d.Error
	}
	if d.DriftTotal > 0 {
		b.drift, b.drifted = d.Drift, d.DriftTotal
	}
	if d.Isolation != "" {
		b.isolation = d.Isolation
	}
	if d.Guarantees != nil {
		b.guarantees = d.Guarantees
	}
	b.notes = append(b.notes, d.Notes...)
	if d.Checkpoint != nil {
		b.checkpoint(*d.Checkpoint, d.Source == SourceCheckpoint)
	}
}

// undone keeps how the last undo stands.
func (b *viewBuilder) undone(typ string, d Data) {
	switch {
	case typ == TypeUndoRequested:
		b.found = gather{}
		b.undo = &UndoView{State: UndoRequested, By: d.By, Conflicts: []Conflict{}}
	case typ == TypeRolledBack && d.Reason == ReasonUndo:
		if b.undo == nil {
			b.undo = &UndoView{Conflicts: []Conflict{}} // completed for somebody whose request is forgotten
		}
		b.undo.State, b.undo.Changed = UndoDone, d.Changed
		b.undo.Code, b.undo.Error = nil, nil
		b.undo.Conflicts, b.undo.ConflictCount = []Conflict{}, 0
	case typ == TypeUndoFailed && b.undo != nil:
		b.undo.State, b.undo.Code, b.undo.Error = UndoFailed, text(d.Code), text(d.Error)
		b.undo.Conflicts = append([]Conflict{}, b.found.end(d)...)
		b.undo.ConflictCount = max(d.ConflictCount, len(b.undo.Conflicts))
	}
}

// claimed forgets what a new attempt will run again. A claim that only applies runs nothing.
func (b *viewBuilder) claimed(d Data) {
	b.found = gather{}
	if d.Plan == nil || d.Plan.Executed {
		return
	}
	for i := min(max(d.Plan.Cursor, 0), len(b.steps)); i < len(b.steps); i++ {
		b.steps[i] = StepView{ID: b.steps[i].ID, State: StepPending}
	}
}

// step returns the step that an event is about, adding those the view has not heard of.
func (b *viewBuilder) step(d Data) *StepView {
	if d.StepIndex == nil || *d.StepIndex < 0 || *d.StepIndex > len(b.steps) {
		return nil
	}
	if *d.StepIndex == len(b.steps) {
		b.steps = append(b.steps, StepView{ID: d.Step, State: StepPending})
	}
	return &b.steps[*d.StepIndex]
}

func finished(id string, d Data) StepView {
	s := StepView{ID: id, State: d.State, ExitCode: d.ExitCode, Signal: text(d.Signal), Cause: text(d.Cause), DurationMS: d.DurationMS, Network: d.Network, NetworkMore: d.NetworkMore}
	if s.Signal != nil {
		s.ExitCode = nil
	}
	if s.State == "" {
		s.State = StepFailed
		if s.ExitCode != nil && *s.ExitCode == 0 {
			s.State = StepSucceeded
		}
	}
	if s.Cause == nil && s.State != StepSkipped {
		s.Cause = text(causeExit)
	}
	return s
}

// checkpoint lists a checkpoint, or brings the listed one up to date, as when it became portable. A claim that went on after
// a checkpoint has not made a pre_execute of its own.
func (b *viewBuilder) checkpoint(c CheckpointRef, resumed bool) {
	for i, have := range b.checkpoints {
		if have.ID == c.ID {
			b.checkpoints[i] = CheckpointView{ID: c.ID, Phase: c.Phase, SizeBytes: max(c.SizeBytes, have.SizeBytes), Portable: c.Portable || have.Portable}
			return
		}
		if resumed && c.Phase == PhasePreExecute && have.Phase == PhasePreExecute {
			return
		}
	}
	b.checkpoints = append(b.checkpoints, CheckpointView{ID: c.ID, Phase: c.Phase, SizeBytes: c.SizeBytes, Portable: c.Portable})
}

func text(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
