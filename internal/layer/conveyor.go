package layer

import (
	"io"
)

const (
	conveyorChunk = 512 << 10
	conveyorDepth = 4
)

// conveyor is a pipe that holds some megabytes, so that both ends work at the same time. One goroutine writes
// and calls finish, one reads and calls abandon.
type conveyor struct {
	full chan []byte
	free chan []byte
	gone chan struct{}

	filling  []byte
	draining []byte
	rest     []byte // of draining
	writeErr error  // set before full is closed
	readErr  error  // set before gone is closed
}

func newConveyor() *conveyor {
	return &conveyor{
		full: make(chan []byte, conveyorDepth),
		free: make(chan []byte, conveyorDepth+2),
		gone: make(chan struct{}),
	}
}

// Write keeps a copy of p. It fails with the reader's error once the reader has gone.
func (c *conveyor) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		if c.filling == nil {
			c.filling = c.chunk()
		}
		n := copy(c.filling[len(c.filling):cap(c.filling)], p[done:])
		c.filling = c.filling[:len(c.filling)+n]
		done += n
		if len(c.filling) < cap(c.filling) {
			continue
		}
		if err := c.pass(); err != nil {
			return done, err
		}
	}
	return done, nil
}

func (c *conveyor) chunk() []byte {
	select {
	case b := <-c.free:
		return b[:0]
	default:
		return make([]byte, 0, conveyorChunk)
	}
}

func (c *conveyor) pass() error {
	select {
	case c.full <- c.filling:
		c.filling = nil
		return nil
	case <-c.gone:
		return c.readErr
	}
}

// finish ends the writing: the reader gets err, or the rest and io.EOF if it is nil. It returns err, or else why the
// rest could not be passed on.
func (c *conveyor) finish(err error) error {
	if err == nil && len(c.filling) > 0 {
		err = c.pass()
	}
	if c.writeErr = err; err == nil {
		c.writeErr = io.EOF
	}
	close(c.full)
	return err
}

// Read gives what was written, then the error of finish.
func (c *conveyor) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		if c.draining != nil {
			c.free <- c.draining
		}
		var ok bool
		if c.draining, ok = <-c.full; !ok {
			return 0, c.writeErr
		}
		c.rest = c.draining
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// abandon ends the reading; a writer that has more to say gets err.
func (c *conveyor) abandon(err error) {
	if c.readErr = err; err == nil {
		c.readErr = io.ErrClosedPipe
	}
	close(c.gone)
}
