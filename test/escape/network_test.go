package escape

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func dials(network string, address func(s scene) string) func(s scene) (string, error) {
	return func(s scene) (string, error) {
		conn, err := net.DialTimeout(network, address(s), 5*time.Second)
		if err != nil {
			return "", err
		}
		conn.Close()
		return "connected", nil
	}
}

func socket(family, kind, protocol int) func(scene) (string, error) {
	return func(scene) (string, error) {
		fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol)
		if err != nil {
			return "", err
		}
		unix.Close(fd)
		return "made", nil
	}
}

func networkAttempts() []attempt {
	return []attempt{
		{name: "a TCP server of the host", network: true, try: dials("tcp", func(s scene) string { return fmt.Sprintf("127.0.0.1:%d", s.Port) })},
		{name: "a UDP server of the host", network: true, try: udpServer},
		{name: "an abstract socket of the host", network: true, try: dials("unix", func(s scene) string { return s.Abstract })},
		{name: "a socket in a directory of the host", landlock: reachedSocket, like: "landrun#43", try: dials("unix", func(s scene) string { return s.Socket })},
		{name: "an address outside", network: true, machine: "a route", try: func(scene) (string, error) {
			// Connecting a datagram socket asks for the route and sends nothing.
			conn, err := net.Dial("udp", "192.0.2.77:9")
			if err != nil {
				return "", err
			}
			conn.Close()
			return "routed", nil
		}},
		{name: "the metadata service", network: true, machine: "a route", try: func(scene) (string, error) {
			conn, err := net.Dial("udp", "169.254.169.254:80")
			if err != nil {
				return "", err
			}
			conn.Close()
			return "routed", nil
		}},
		{name: "interfaces of the host", network: true, machine: "an interface", try: func(scene) (string, error) {
			all, err := net.Interfaces()
			if err != nil {
				return "", err
			}
			for _, i := range all {
				if i.Flags&net.FlagLoopback == 0 && i.Flags&net.FlagUp != 0 {
					return i.Name, nil
				}
			}
			return "", errNothing
		}},
		{name: "the hypervisor by vsock", like: "AF_VSOCK", machine: "a kernel with it", try: socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0)},
		{name: "raw packets", needs: "CAP_NET_RAW", try: socket(unix.AF_PACKET, unix.SOCK_RAW, 0)},
		{name: "raw IP", needs: "CAP_NET_RAW", try: socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)},
		{name: "the kernel's cryptography", machine: "a kernel with it", try: socket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0)},
		{name: "mark packets for the firewall", needs: "CAP_NET_ADMIN", try: firewall},
		{name: "configure the network", needs: "CAP_NET_ADMIN", try: func(scene) (string, error) {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return "", err
			}
			defer unix.Close(fd)
			request, err := unix.NewIfreq("lo")
			if err != nil {
				return "", err
			}
			request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING | unix.IFF_LOOPBACK) // as it is
			return "done", unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request)
		}},
	}
}

// shareAttempts reach memory, semaphores and queues by their names.
func shareAttempts() []attempt {
	return []attempt{
		{name: "System V memory of the host", like: "landlock rungs", try: func(s scene) (string, error) {
			id, err := unix.SysvShmGet(s.SysV, 0, 0)
			if err != nil {
				return "", err
			}
			mem, err := unix.SysvShmAttach(id, 0, unix.SHM_RDONLY)
			if err != nil {
				return "", err
			}
			return string(mem[:len(canary)]), nil
		}},
		{name: "System V semaphores of the host", try: func(s scene) (string, error) {
			_, err := call(unix.SYS_SEMGET, s.SysV, 0, 0)
			return "found", err
		}},
		{name: "a System V queue of the host", try: func(s scene) (string, error) {
			_, err := call(unix.SYS_MSGGET, s.SysV, 0)
			return "found", err
		}},
		{name: "a POSIX queue of the host", try: func(s scene) (string, error) {
			fd, err := openQueue(s.Queue, unix.O_RDONLY)
			if err != nil {
				return "", err
			}
			unix.Close(fd)
			return "opened", nil
		}},
		{name: "/dev/shm of the host", try: func(s scene) (string, error) { return secretIn(s.Shm) }},
	}
}

// udpServer looks whether somebody has the port: a closed one answers with an error on the loopback.
func udpServer(s scene) (string, error) {
	conn, err := net.Dial("udp", fmt.Sprintf("127.0.0.1:%d", s.UDPPort))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	if _, err := conn.Write([]byte("x")); err != nil {
		return "", err
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		return "", err
	}
	return "sent", nil
}

// firewall sets what rules of the firewall and of routing go by.
func firewall(scene) (string, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	mark := 1
	_, err = call(unix.SYS_SETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_MARK, unsafe.Pointer(&mark), 4)
	return "marked", err
}
