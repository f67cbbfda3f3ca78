package isolate

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// input is the pipe that a command reads, and the goroutine that fills it. A nil input is empty.
type input struct {
	child int // the command's end, -1 once it is closed
	pipe  *os.File
}

// openInput starts to copy. The writing end is closed at the reader's end, or by finish.
func openInput(r io.Reader) (*input, error) {
	if r == nil {
		return nil, nil
	}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("isolate: exec: open input: %w", err)
	}
	if err := unix.SetNonblock(ends[1], true); err != nil { // so that finish can end a Write
		unix.Close(ends[0])
		unix.Close(ends[1])
		return nil, fmt.Errorf("isolate: exec: open input: %w", err)
	}
	in := &input{child: ends[0], pipe: os.NewFile(uintptr(ends[1]), "input")}
	go func() {
		defer in.pipe.Close()
		// The plain loop: a splice would hold the pipe open for as long as the reader blocks.
		io.CopyBuffer(struct{ io.Writer }{in.pipe}, struct{ io.Reader }{r}, make([]byte, copySize))
	}()
	return in, nil
}

// add puts the command's end among the descriptors sent along and returns the new list and its place in it, from 1.
func (in *input) add(fds []int) ([]int, uint64) {
	if in == nil {
		return fds, 0
	}
	fds = append(fds, in.child)
	return fds, uint64(len(fds))
}

func (in *input) closeChild() {
	if in != nil && in.child >= 0 {
		unix.Close(in.child)
		in.child = -1
	}
}

// finish lets the copying end with its present Read.
func (in *input) finish() {
	if in != nil {
		in.closeChild()
		in.pipe.Close()
	}
}
