package objectstore

import (
	"io"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// answer is one message of a batch, after the one with sequence last.
func answer(seq, last uint64) *nats.Msg {
	return &nats.Msg{Header: nats.Header{
		"Nats-Sequence":      {strconv.FormatUint(seq, 10)},
		"Nats-Last-Sequence": {strconv.FormatUint(last, 10)},
		"Nats-Time-Stamp":    {time.Now().UTC().Format(time.RFC3339Nano)},
	}}
}

func batchEnd(last uint64, pending string) *nats.Msg {
	return &nats.Msg{Header: nats.Header{
		"Status": {"204"}, "Nats-Last-Sequence": {strconv.FormatUint(last, 10)}, "Nats-Num-Pending": {pending},
	}}
}

// After a reconnect an inbox gets the rest of a batch whose beginning was lost.
func TestBatchReader_NoGaps(t *testing.T) {
	tests := []struct {
		name    string
		answers []*nats.Msg
		nextSeq uint64 // where to go on
		end     bool
	}{
		{"Whole", []*nats.Msg{answer(3, 0), answer(5, 3), batchEnd(5, "0")}, 6, true},
		{"MoreToCome", []*nats.Msg{answer(3, 0), answer(5, 3), batchEnd(5, "7")}, 6, false},
		{"FirstLost", []*nats.Msg{answer(5, 3)}, 1, false},
		{"MiddleLost", []*nats.Msg{answer(3, 0), answer(6, 5)}, 4, false},
		{"LastLost", []*nats.Msg{answer(3, 0), batchEnd(5, "0")}, 4, false},
		{"AllLost", []*nats.Msg{batchEnd(5, "0")}, 1, false},
		{"Nothing", []*nats.Msg{{Header: nats.Header{"Status": {"404"}}}}, 1, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := (&JetStream{}).newBatchReader("s", 4)
			var err error
			for _, msg := range tt.answers {
				if _, err = r.take(msg); err != nil {
					break
				}
			}
			if r.nextSeq != tt.nextSeq || (err == io.EOF) != tt.end {
				t.Errorf("got next %d, %v, want next %d, end %v", r.nextSeq, err, tt.nextSeq, tt.end)
			}
		})
	}
}
