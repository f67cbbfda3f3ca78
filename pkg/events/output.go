package events

import (
	"context"
	"iter"
	"time"
)

// ChunkSize is the size in bytes of the largest chunk of output. It fits into the payload of a server that allows 64 kB.
const ChunkSize = 32 << 10

// Output keeps what steps print, byte for byte. Safe for concurrent use.
type Output interface {
	// Publish stores a chunk. The same chunk again (same plan, step, epoch, try, offset) is stored once. Chunks of one step
	// are read in the order in which they were stored.
	Publish(ctx context.Context, c Chunk) error
	// Read yields the chunks that q selects, in order. Without q.Follow it ends with the last one stored when it began; with it,
	// it ends with the context. An error is the last thing it yields.
	Read(ctx context.Context, q OutputQuery) iter.Seq2[Chunk, error]
}

// Chunk is a piece of a step's output.
type Chunk struct {
	PlanID string
	Step   int // index of the step
	Epoch  uint64
	Try    int
	// Offset is where Data begins in all that this try of the step printed, in bytes.
	Offset int64
	// Dropped is the number of bytes left out at Offset. A chunk with it has no Data.
	Dropped int64
	Data    []byte
	// Seq is the place in the store, given by it; a reader goes on with the next one.
	Seq uint64
}

// OutputQuery selects output.
type OutputQuery struct {
	PlanID string
	Step   *int   // nil: all steps
	From   uint64 // sequence to begin with; 0: the first
	Follow bool
}

func (q OutputQuery) subject(s Subjects) string {
	if q.Step == nil {
		return s.PlanOutput(q.PlanID)
	}
	return s.Output(q.PlanID, *q.Step)
}

// OutputOptions say whose output an OutputWriter carries and how much of it is kept.
type OutputOptions struct {
	PlanID string
	Step   int
	Epoch  uint64
	Try    int
	// Head and Tail are how many bytes of the beginning and of the end are kept; 0: 1 MiB and 256 KiB.
	Head, Tail int
	// Flush is how long a small piece may wait for more; 0: 50 ms.
	Flush time.Duration
}

func (o OutputOptions) withDefaults() OutputOptions {
	if o.Head == 0 {
		o.Head = 1 << 20
	}
	if o.Tail == 0 {
		o.Tail = 256 << 10
	}
	if o.Flush == 0 {
		o.Flush = 50 * time.Millisecond
	}
	return o
}
