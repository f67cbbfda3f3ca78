package events

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// MemorySubmissions is a Submissions in the memory of one process.
type MemorySubmissions struct {
	subjects Subjects
	queue    *memoryQueue
}

// NewMemorySubmissions returns an empty one that sets aside to dead.
func NewMemorySubmissions(s Subjects, o QueueOptions, dead *MemoryDeadLetters) *MemorySubmissions {
	return &MemorySubmissions{subjects: s, queue: newMemoryQueue(o.AckWait, dead)}
}

// Publish implements Submissions.
func (q *MemorySubmissions) Publish(ctx context.Context, planID string, s Submission) error {
	if _, err := ParseID(planID); err != nil {
		return err
	}
	data, err := s.encode(memoryLimit)
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = q.queue.add(&memoryMessage{subject: q.subjects.Submit(planID), data: data, trace: s.TraceParent}, false)
	}
	if err != nil {
		return fmt.Errorf("events: submit plan %q: %w", planID, err)
	}
	return nil
}

// Pull implements Submissions.
func (q *MemorySubmissions) Pull(_ context.Context, limit int, wait time.Duration) ([]SubmissionDelivery, error) {
	var deliveries []SubmissionDelivery
	for _, s := range q.queue.pull("", limit, wait) {
		deliveries = append(deliveries, memorySubmissionDelivery{s})
	}
	return deliveries, nil
}

// memorySubmissionDelivery is a SubmissionDelivery in memory.
type memorySubmissionDelivery struct{ memorySettler }

// PlanID implements SubmissionDelivery.
func (d memorySubmissionDelivery) PlanID() (string, error) { return lastID(d.msg.subject) }

// Submission implements SubmissionDelivery.
func (d memorySubmissionDelivery) Submission() (Submission, error) {
	id, err := d.PlanID()
	if err != nil {
		return Submission{}, err
	}
	s, err := DecodeSubmission(id, d.msg.data)
	s.TraceParent = d.msg.trace
	return s, err
}

// MemoryDeadLetters is a DeadLetters in the memory of one process. The zero value is empty and ready.
type MemoryDeadLetters struct {
	mu      sync.Mutex
	last    uint64
	letters []DeadLetter
}

// Add implements DeadLetters.
func (q *MemoryDeadLetters) Add(ctx context.Context, d DeadLetter) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.last++
	d.Seq, d.Time, d.Reason = q.last, time.Now(), headerText(d.Reason)
	q.letters = append(q.letters, d)
	return nil
}

// List implements DeadLetters.
func (q *MemoryDeadLetters) List(context.Context) ([]DeadLetter, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.letters), nil
}

// Delete implements DeadLetters.
func (q *MemoryDeadLetters) Delete(_ context.Context, seq uint64) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.letters = slices.DeleteFunc(q.letters, func(d DeadLetter) bool { return d.Seq == seq })
	return nil
}
