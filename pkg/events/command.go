package events

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Types of messages, with their version. A program refuses versions it does not know.
const (
	SubmissionType = "warmfleet.submit.v1"
	CommandType    = "warmfleet.command.v1"
	messageVersion = 1
)

// Verbs of commands.
const (
	VerbRun      = "run"
	VerbApply    = "apply"
	VerbUndo     = "undo"
	VerbRollback = "rollback"
	VerbSession  = "session"
	VerbBuild    = "build"
)

// Classes of plans, in the order of admission.
const (
	ClassHigh   = "high"
	ClassNormal = "normal"
	ClassLow    = "low"
)

// Submission is a request to run a plan. The subject it is published on names the plan.
type Submission struct {
	V    int    `json:"v" jsonschema:"enum=1"`
	Type string `json:"type" jsonschema:"enum=warmfleet.submit.v1"`
	// PlanID is for the submit API; where given it must be the subject's.
	PlanID      string          `json:"plan_id,omitempty"`
	Plan        json.RawMessage `json:"plan" jsonschema:"type=object"`
	RequestedBy string          `json:"requested_by,omitempty"`
	RetryOf     string          `json:"retry_of,omitempty"`

	// TraceParent travels as a header.
	TraceParent string `json:"-"`
}

// Command is a request to a worker. What it says beside verb and plan is a hint: the log decides.
type Command struct {
	V      int    `json:"v" jsonschema:"enum=1"`
	Type   string `json:"type" jsonschema:"enum=warmfleet.command.v1"`
	Verb   string `json:"verb" jsonschema:"enum=run,enum=apply,enum=undo,enum=rollback,enum=session,enum=build"`
	PlanID string `json:"plan_id" jsonschema:"description=plan or session or image"`
	Pool   string `json:"pool" jsonschema:"description=pool token"`
	Class  string `json:"class,omitempty"`
	// Epoch is the plan's epoch when the command was published.
	Epoch       uint64          `json:"epoch,omitempty"`
	Checkpoint  string          `json:"checkpoint_id,omitempty"`
	RequestedBy string          `json:"requested_by,omitempty"`
	Params      json.RawMessage `json:"params,omitempty" jsonschema:"description=what the verb needs"`

	// TraceParent travels as a header.
	TraceParent string `json:"-"`
}

// NewSubmission returns a submission of a plan's JSON body.
func NewSubmission(plan json.RawMessage, requestedBy string) Submission {
	return Submission{V: messageVersion, Type: SubmissionType, Plan: plan, RequestedBy: requestedBy}
}

// NewCommand returns a command for a plan or session in a pool's queue.
func NewCommand(pool, verb, planID string) Command {
	return Command{V: messageVersion, Type: CommandType, Verb: verb, PlanID: planID, Pool: pool}
}

// DecodeSubmission reads a submission for a plan id. Unknown fields are refused, so that a misspelled one is
// not silently without effect. Errors wrap ErrMalformed.
func DecodeSubmission(planID string, b []byte) (Submission, error) {
	var s Submission
	if err := decodeStrict(b, &s); err != nil {
		return s, fmt.Errorf("events: decode submission of plan %q: %w: %w", planID, ErrMalformed, err)
	}
	var why string
	switch {
	case s.V != messageVersion || s.Type != SubmissionType:
		why = fmt.Sprintf("version %d of type %q, this program knows version %d of %q", s.V, truncate(s.Type, 64), messageVersion, SubmissionType)
	case s.PlanID != "" && s.PlanID != planID:
		why = fmt.Sprintf("plan_id is %q, the subject says otherwise", truncate(s.PlanID, 64))
	case len(s.Plan) == 0:
		why = "plan is missing"
	default:
		return s, nil
	}
	return s, fmt.Errorf("events: decode submission of plan %q: %w: %s", planID, ErrMalformed, why)
}

// DecodeCommand reads a command. Errors wrap ErrMalformed.
func DecodeCommand(b []byte) (Command, error) {
	var c Command
	if err := json.Unmarshal(b, &c); err != nil {
		return c, fmt.Errorf("events: decode command: %w: %w", ErrMalformed, err)
	}
	if c.V != messageVersion || c.Type != CommandType {
		return c, fmt.Errorf("events: decode command: %w: version %d of type %q, this program knows version %d of %q",
			ErrMalformed, c.V, truncate(c.Type, 64), messageVersion, CommandType)
	}
	if err := c.check(); err != nil {
		return c, fmt.Errorf("events: decode command: %w: %w", ErrMalformed, err)
	}
	return c, nil
}

func (c Command) check() error {
	if _, err := ParseID(c.PlanID); err != nil {
		return err
	}
	if err := ValidToken(c.Verb); err != nil {
		return err
	}
	return ValidPool(c.Pool)
}

// encode returns the submission as JSON of at most limit bytes, else a SizeError.
func (s Submission) encode(limit int) ([]byte, error) {
	if len(s.Plan) > MaxBody {
		return nil, &SizeError{What: "plan", Size: len(s.Plan), Max: MaxBody}
	}
	return encodeMessage("submission", s, limit)
}

func (c Command) encode(limit int) ([]byte, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	return encodeMessage("command", c, limit)
}

func encodeMessage(what string, v any, limit int) ([]byte, error) {
	b, err := marshal(v)
	if err != nil {
		return nil, err
	}
	if len(b) > limit {
		return nil, &SizeError{What: what, Size: len(b), Max: limit}
	}
	return b, nil
}

func decodeStrict(b []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if dec.More() {
		return fmt.Errorf("more than one JSON value")
	}
	return nil
}
