package inside

import (
	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate/wire"
)

// backlog is how many connections wait to be accepted by the worker.
const backlog = 512

// listen makes a listener on the sandbox's loopback. It stays in the sandbox's network namespace whoever holds it.
func listen(port int) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	err = unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
	if err == nil {
		err = unix.Listen(fd, backlog)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// sayReady answers the first frame, and hands on the listener: nothing in the sandbox keeps it.
func (s *server) sayReady(id uint64) error {
	ready := &wire.Ready{Version: wire.Version}
	if s.listener < 0 {
		return s.conn.Send(id, wire.KindReady, ready)
	}
	err := s.conn.Send(id, wire.KindReady, ready, s.listener)
	unix.Close(s.listener)
	s.listener = -1
	return err
}
