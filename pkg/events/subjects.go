package events

import (
	"fmt"
	"regexp"
	"strings"
)

// DefaultPrefix begins every subject and, in upper case, every stream and bucket name.
const DefaultPrefix = "fleet"

// Headers of stored messages. Nats-Msg-Id is the server's own name for the deduplication key.
const (
	HeaderMsgID       = "Nats-Msg-Id"
	HeaderType        = "Fleet-Type"         // type of the event or command
	HeaderPlanID      = "Fleet-Plan-Id"      // plan or session the message is about
	HeaderEpoch       = "Fleet-Epoch"        // epoch of the claim that wrote it
	HeaderTry         = "Fleet-Try"          // which try of a step an output chunk belongs to
	HeaderOffset      = "Fleet-Offset"       // offset in bytes of an output chunk in the step's whole output
	HeaderDropped     = "Fleet-Dropped"      // bytes that were left out at this place of the output
	HeaderReason      = "Fleet-Dlq-Reason"   // why a message was set aside
	HeaderOrigSubject = "Fleet-Orig-Subject" // where it had been published
	HeaderTraceParent = "traceparent"        // W3C trace context; lower case, as the specification has it
)

// Nouns that events are about.
const (
	NounPlan    = "plan"
	NounSandbox = "sandbox"
	NounSession = "session"
	NounImage   = "image"
	NounWorker  = "worker"
	NounPool    = "pool"
)

// priorityGroup is the one group of every command consumer; a prioritized pull must name it.
const priorityGroup = "w"

// submissionsConsumer is the durable consumer that all schedulers share.
const submissionsConsumer = "scheduler"

var (
	prefixForm = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,31}$`)
	poolForm   = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)
	tokenForm  = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)
)

// Subjects spells every name that a fleet has in NATS. The zero value is not usable.
type Subjects struct{ prefix string }

// NewSubjects returns the names for a prefix of the form [a-z0-9][a-z0-9_-]{0,31}; "" means DefaultPrefix.
func NewSubjects(prefix string) (Subjects, error) {
	if prefix == "" {
		prefix = DefaultPrefix
	}
	if !prefixForm.MatchString(prefix) {
		return Subjects{}, fmt.Errorf("events: use subject prefix %q: must match %s", prefix, prefixForm)
	}
	return Subjects{prefix: prefix}, nil
}

// ValidPool tells whether s can be a pool token of a command's subject: a pool's name,
// "default", or h-<host id>-<8 hex>, see PoolToken. The rule for pool files is stricter.
func ValidPool(s string) error {
	if !poolForm.MatchString(s) {
		return fmt.Errorf("events: use pool token %q: must match %s", truncate(s, 80), poolForm)
	}
	return nil
}

// ValidToken tells whether s can be one token of a subject, as the names of workers are.
func ValidToken(s string) error {
	if !tokenForm.MatchString(s) {
		return fmt.Errorf("events: use subject token %q: must match %s", truncate(s, 80), tokenForm)
	}
	return nil
}

// Submit is where a service publishes a submission. The id must have passed ParseID.
func (s Subjects) Submit(planID string) string { return s.prefix + ".submit." + planID }

// Command is where the one queued command of a verb for a plan lies.
func (s Subjects) Command(pool, verb, planID string) string {
	return s.prefix + ".cmd." + pool + "." + verb + "." + planID
}

// Event is where events of one type about one thing are stored.
func (s Subjects) Event(noun, id, typ string) string {
	return s.prefix + ".evt." + noun + "." + id + "." + typ
}

// PlanEvents matches all events of a plan. It is the one filter every fenced writer uses: on a
// replicated stream the server tracks writes in flight by this very string.
func (s Subjects) PlanEvents(planID string) string { return s.prefix + ".evt.plan." + planID + ".>" }

// Events matches all events of a noun; "" means of all nouns.
func (s Subjects) Events(noun string) string {
	if noun == "" {
		return s.prefix + ".evt.>"
	}
	return s.prefix + ".evt." + noun + ".>"
}

// Output is where the output of one step lies.
func (s Subjects) Output(planID string, step int) string {
	return fmt.Sprintf("%s.out.%s.%d", s.prefix, planID, step)
}

// PlanOutput matches the output of all steps of a plan.
func (s Subjects) PlanOutput(planID string) string { return s.prefix + ".out." + planID + ".*" }

// DeadLetter is where a message that could not be handled is kept.
func (s Subjects) DeadLetter(kind, id string) string { return s.prefix + ".dlq." + kind + "." + id }

// API is an endpoint of the micro service, as in fleet.api.plan.submit.
func (s Subjects) API(noun, verb string) string { return s.prefix + ".api." + noun + "." + verb }

// Session is an endpoint of the worker that owns a session.
func (s Subjects) Session(id, verb string) string { return s.prefix + ".session." + id + "." + verb }

// Worker is an endpoint of one worker. The id must have passed ValidToken.
func (s Subjects) Worker(id, verb string) string { return s.prefix + ".worker." + id + "." + verb }

// Control is an unstored hint to whoever it concerns, as in fleet.ctl.cancel.<plan id>: it may be lost.
func (s Subjects) Control(verb, id string) string { return s.prefix + ".ctl." + verb + "." + id }

// Stream names. See Declare for what each is.
func (s Subjects) SubmissionsStream() string { return s.name("SUBMISSIONS") }

// CommandsStream is the work queue.
func (s Subjects) CommandsStream() string { return s.name("COMMANDS") }

// EventsStream is the event log.
func (s Subjects) EventsStream() string { return s.name("EVENTS") }

// SchedulesStream is written by schedulers only.
func (s Subjects) SchedulesStream() string { return s.name("SCHEDULES") }

// OutputStream holds step output.
func (s Subjects) OutputStream() string { return s.name("OUTPUT") }

// DeadLettersStream holds what was set aside.
func (s Subjects) DeadLettersStream() string { return s.name("DLQ") }

// Buckets are the names of the key-value buckets.
func (s Subjects) Buckets() Buckets {
	return Buckets{
		Leases: s.name("LEASES"), Workers: s.name("WORKERS"), Pools: s.name("POOLS"),
		Images: s.name("IMAGES"), Checkpoints: s.name("CHECKPOINTS"), Plans: s.name("PLANS"), Sessions: s.name("SESSIONS"),
	}
}

// LayersBucket is the name of the object store of layers.
func (s Subjects) LayersBucket() string { return s.name("LAYERS") }

// Buckets names the key-value buckets of a fleet.
type Buckets struct {
	Leases      string // key: lease name
	Workers     string // key: worker id
	Pools       string // key: pool name
	Images      string // key: image id, or LatestKey of a pool
	Checkpoints string // key: checkpoint id
	Plans       string // key: plan id
	Sessions    string // key: session id
}

func (s Subjects) name(what string) string { return strings.ToUpper(s.prefix) + "_" + what }

// parse returns the tokens of a subject of ours after the family (cmd, evt, ...), or nil.
func (s Subjects) parse(family, subject string, tokens int) []string {
	rest, ok := strings.CutPrefix(subject, s.prefix+"."+family+".")
	if !ok {
		return nil
	}
	parts := strings.Split(rest, ".")
	if len(parts) != tokens {
		return nil
	}
	return parts
}
