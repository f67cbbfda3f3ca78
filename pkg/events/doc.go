// Package events is where the processes of a fleet meet: ids, subjects, submissions,
// commands, the event log and the work queue.
//
// The event log is the truth about a plan. Each event is one write that is a fact, a state
// change and a fence at once: it carries the plan's folded state (Fold) and is stored only
// if the writer knew the last event of the plan. Everything that changes a plan goes
// through a Writer; what may follow what is the pure table in Fold.Next.
//
// Each interface (Log, Queue, Submissions, DeadLetters, Output) has a JetStream and an
// in-memory implementation that pass the same suite in package eventstest.
//
// All that has a name in NATS (subjects, streams, consumers, buckets, headers) is spelled
// here and nowhere else. The package must not know how steps run, what a sandbox is, where
// layers lie, or what a plan file looks like inside.
package events
