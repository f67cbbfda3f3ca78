package layer

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

func TestConveyor_PassesEverything(t *testing.T) {
	for _, n := range []int{0, 1, conveyorChunk - 1, conveyorChunk, conveyorChunk + 1, 10*conveyorChunk + 7} {
		want := bytes.Repeat([]byte("0123456"), n/7+1)[:n]
		c := newConveyor()
		wrote := make(chan error, 1)
		go func() {
			_, err := io.Copy(struct{ io.Writer }{c}, iotest.HalfReader(bytes.NewReader(want)))
			wrote <- c.finish(err)
		}()
		got, err := io.ReadAll(c)
		c.abandon(err)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes came through as %d, %v", n, len(got), err)
		}
		if err := <-wrote; err != nil {
			t.Errorf("writing %d bytes: %v", n, err)
		}
	}
}

func TestConveyor_ErrorsReachTheOtherEnd(t *testing.T) {
	c := newConveyor()
	if err := c.finish(errTarTest); !errors.Is(err, errTarTest) {
		t.Errorf("finish: %v", err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, errTarTest) {
		t.Errorf("the reader got %v, want the writer's error", err)
	}
	for _, cause := range []error{errTarTest, nil} {
		c = newConveyor()
		c.abandon(cause)
		_, err := c.Write(make([]byte, 100*conveyorChunk))
		want := cause
		if want == nil {
			want = io.ErrClosedPipe
		}
		if !errors.Is(err, want) {
			t.Errorf("the writer got %v, want %v", err, want)
		}
	}
}
