package events

import (
	"context"
	"time"
)

// DefaultAckWait is how long a delivery may go without a sign of life before it is given to another
// worker: a killed worker's plan runs again within 7 s, which is this, the server's timers and the claim.
const DefaultAckWait = 5 * time.Second

// Queue is the work queue of commands, one queue per pool token. Delivery is at least once; who may act on a plan is
// decided in the log. Safe for concurrent use.
type Queue interface {
	// Publish queues a command. ErrQueued: a command of that verb for that plan is queued or being worked on. ErrNoPool is not
	// checked: EnsurePool comes first. A lost answer is retried without queueing twice; ErrUnknown after that.
	Publish(ctx context.Context, c Command) error
	// Pull waits up to p.Wait for a command and returns as soon as it has one, with up to p.Max that lie ready.
	// None is no error. It does not return early when ctx ends, because a command on its way would be lost for
	// a whole AckWait: give what it returns back with Nak then. ErrNoPool: nobody made that queue.
	Pull(ctx context.Context, p Pull) ([]Delivery, error)
	// Remove takes a command out of the queue. It is no error when it isn't there. One that a worker holds
	// is removed too; its Ack succeeds later.
	Remove(ctx context.Context, c Command) error
	// EnsurePool makes the queue of a pool token, or does nothing when it is there.
	EnsurePool(ctx context.Context, pool string) error
	HasPool(ctx context.Context, pool string) (bool, error)
}

// PoolQueues is what those who administer pools need beside Queue.
type PoolQueues interface {
	// Depth counts the commands of a pool. ErrNoPool.
	Depth(ctx context.Context, pool string) (Depth, error)
	// RemovePool removes a drained queue; ErrNotDrained while a command is queued or held. No queue is no error.
	RemovePool(ctx context.Context, pool string) error
	// Has tells whether a command of that verb and id is in the queue: not delivered yet, or held.
	Has(ctx context.Context, c Command) (bool, error)
}

// FullQueue is a Queue for those who administer its pools as well.
type FullQueue interface {
	Queue
	PoolQueues
}

// Pull asks for commands.
type Pull struct {
	Pool     string
	Max      int           // at least 1
	Priority int           // 0 (served first: a warm sandbox waits) to 9
	Wait     time.Duration // about 1 s
}

// Depth counts commands of a pool.
type Depth struct {
	Queued  int // not delivered yet
	Held    int // delivered, not settled: being worked on, or waiting after a Nak with delay
	Waiting int // pulls that wait for a command
}

// Settler ends or prolongs one delivery. Like JetStream's acks it is no fence: it acts on the message, also when the message was
// delivered again since.
type Settler interface {
	// InProgress restarts the AckWait. It returns after the server's answer: no error means that the server is reachable.
	InProgress(ctx context.Context) error
	// Ack removes the message, and returns when it is removed. Twice is no error.
	Ack(ctx context.Context) error
	// Nak gives the message back for delivery after a delay.
	Nak(ctx context.Context, delay time.Duration) error
	// Term sets the message aside: it is copied to the dead letters with the reason, then removed.
	Term(ctx context.Context, reason string) error
}

// Delivery is one delivered command.
type Delivery interface {
	Settler
	// Command decodes the command. ErrMalformed: Term it.
	Command() (Command, error)
	// Redelivered counts the deliveries before this one. Naks count as well, so it is a hint only.
	Redelivered() int
}

// Submissions is where services ask for plans. Safe for concurrent use.
type Submissions interface {
	// Publish stores a submission durably. Errors: ErrID, ErrTooLarge with both numbers, ErrUnknown (publish it again: the same
	// id and body is the same plan).
	Publish(ctx context.Context, planID string, s Submission) error
	// Pull waits up to wait for submissions, as Queue.Pull does.
	Pull(ctx context.Context, limit int, wait time.Duration) ([]SubmissionDelivery, error)
}

// SubmissionDelivery is one delivered submission.
type SubmissionDelivery interface {
	Settler
	// PlanID returns the id in the subject, or ErrID: Term it.
	PlanID() (string, error)
	// Submission decodes the submission. ErrMalformed: reject the plan.
	Submission() (Submission, error)
}

// DeadLetter is a message that was set aside.
type DeadLetter struct {
	Seq     uint64
	Subject string // where it had been published
	Reason  string
	Body    []byte
	Time    time.Time
}

// DeadLetters keeps messages that nobody could handle. Safe for concurrent use.
type DeadLetters interface {
	// Add stores a letter; Seq and Time are given to it.
	Add(ctx context.Context, d DeadLetter) error
	// List returns all letters, oldest first.
	List(ctx context.Context) ([]DeadLetter, error)
	// Delete removes a letter. It is no error when it isn't there.
	Delete(ctx context.Context, seq uint64) error
}
