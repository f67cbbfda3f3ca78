// Package wire is the protocol between a worker and the processes it keeps inside
// namespaces: frames on a Unix stream socket, with descriptors beside them.
//
// It knows framing and the fields of each message, and nothing of what they cause. Both
// ends are always the same build or refuse each other (Version), so nothing here is stored
// and fields may change freely together with Version.
package wire

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Version of the protocol; both ends must have the same.
const Version = 9

const (
	headerSize = 16
	// MaxBody bounds one frame, in bytes: the largest file content plus room for the rest.
	MaxBody = MaxContent + 1<<20
	// MaxContent bounds the content of one file call, in bytes.
	MaxContent = 64 << 20
	// maxFiles is SCM_MAX_FD of the kernel.
	maxFiles = 253
)

// Frame is one received message.
type Frame struct {
	ID    uint64
	Kind  Kind
	Body  []byte
	Files []*os.File
}

// Close closes the files that came with the frame.
func (f Frame) Close() {
	for _, file := range f.Files {
		file.Close()
	}
}

// Conn sends and receives frames. Send may be called from many goroutines, Recv from one.
type Conn struct {
	file *os.File
	raw  syscall.RawConn
	mu   sync.Mutex
}

// NewConn takes over a Unix stream socket, blocking or not.
func NewConn(file *os.File) (*Conn, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("wire: open socket: %w", err)
	}
	return &Conn{file: file, raw: raw}, nil
}

// Pair returns a connected end for this process and the other end for a child. Both are
// close-on-exec; the child's end is blocking.
func Pair() (*Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("wire: make socket pair: %w", err)
	}
	child := os.NewFile(uintptr(fds[1]), "child")
	if err := unix.SetNonblock(fds[0], true); err != nil {
		unix.Close(fds[0])
		child.Close()
		return nil, nil, fmt.Errorf("wire: make socket pair: %w", err)
	}
	conn, err := NewConn(os.NewFile(uintptr(fds[0]), "control"))
	if err != nil {
		child.Close()
		return nil, nil, err
	}
	return conn, child, nil
}

// Close closes the socket; a blocked Recv of a non-blocking socket returns.
func (c *Conn) Close() error { return c.file.Close() }

// Hangup tells the other end that no more frames come, and keeps receiving.
func (c *Conn) Hangup() error {
	var err error
	ctlErr := c.raw.Control(func(fd uintptr) { err = unix.Shutdown(int(fd), unix.SHUT_WR) })
	if err == nil {
		err = ctlErr
	}
	return err
}

// Send writes one frame whole. The descriptors stay the caller's.
func (c *Conn) Send(id uint64, kind Kind, body Body, fds ...int) error {
	if len(fds) > maxFiles {
		return fmt.Errorf("wire: send %d descriptors: the limit is %d", len(fds), maxFiles)
	}
	buf := encode(body, make([]byte, headerSize, 256))
	size := len(buf) - headerSize
	if size > MaxBody {
		return fmt.Errorf("wire: send %d bytes: the limit is %d", size, MaxBody)
	}
	binary.LittleEndian.PutUint32(buf, uint32(size))
	buf[4], buf[5] = byte(kind), byte(len(fds))
	binary.LittleEndian.PutUint64(buf[8:], id)
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var sendErr error
	err := c.raw.Write(func(fd uintptr) bool {
		for len(buf) > 0 {
			n, err := unix.SendmsgN(int(fd), buf, rights, nil, unix.MSG_NOSIGNAL)
			switch err {
			case nil:
				buf, rights = buf[n:], nil
			case unix.EINTR:
			case unix.EAGAIN:
				return false
			default:
				sendErr = err
				return true
			}
		}
		return true
	})
	if err == nil {
		err = sendErr
	}
	if err != nil {
		return fmt.Errorf("wire: send: %w", err)
	}
	return nil
}

// Wait waits for something to receive, the other end's end included, and tells whether there is after so long.
func (c *Conn) Wait(limit time.Duration) bool {
	some := true // when it can't be told, Recv may
	_ = c.raw.Control(func(fd uintptr) {
		for {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(limit.Milliseconds()))
			if err != unix.EINTR {
				some = n != 0
				return
			}
		}
	})
	return some
}

// Recv reads one frame. io.EOF: the other end is gone. The files are the caller's to close.
func (c *Conn) Recv() (Frame, error) {
	var header [headerSize]byte
	var f Frame
	if err := c.fill(header[:], &f.Files); err != nil {
		f.Close()
		return Frame{}, err
	}
	size := binary.LittleEndian.Uint32(header[:])
	f.Kind, f.ID = Kind(header[4]), binary.LittleEndian.Uint64(header[8:])
	if size > MaxBody || len(f.Files) != int(header[5]) {
		f.Close()
		return Frame{}, fmt.Errorf("wire: receive: malformed frame of %d bytes, %d descriptors", size, len(f.Files))
	}
	f.Body = make([]byte, size)
	if err := c.fill(f.Body, &f.Files); err != nil {
		f.Close()
		return Frame{}, err
	}
	return f, nil
}

// fill reads exactly len(buf) bytes and collects descriptors that come with them.
func (c *Conn) fill(buf []byte, files *[]*os.File) error {
	oob := make([]byte, unix.CmsgSpace(maxFiles*4))
	var recvErr error
	err := c.raw.Read(func(fd uintptr) bool {
		for len(buf) > 0 {
			n, on, _, _, err := unix.Recvmsg(int(fd), buf, oob, unix.MSG_CMSG_CLOEXEC)
			switch {
			case err == unix.EINTR:
			case err == unix.EAGAIN:
				return false
			case err != nil:
				recvErr = err
				return true
			case n == 0:
				recvErr = io.EOF
				return true
			default:
				buf = buf[n:]
				*files = append(*files, rights(oob[:on])...)
			}
		}
		return true
	})
	if err == nil {
		err = recvErr
	}
	if err != nil && err != io.EOF {
		return fmt.Errorf("wire: receive: %w", err)
	}
	return err
}

func rights(oob []byte) []*os.File {
	if len(oob) == 0 {
		return nil
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	var files []*os.File
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files
}
