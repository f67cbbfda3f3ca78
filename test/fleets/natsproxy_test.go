package fleets

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/test/fleettest"
)

// natsProxy stands between a NATS client and its server. drop says of each message that the
// client publishes whether it gets lost on the way.
func natsProxy(t *testing.T, server string, drop func(subject string, payload []byte) bool) string {
	t.Helper()
	return relay(t, server, func(client, upstream net.Conn) {
		go io.Copy(client, upstream)
		go forward(client, upstream, drop)
	})
}

// relay listens in a server's place and gives every connection to join, with one of its own to the server. It
// returns the URL to use instead.
func relay(t *testing.T, server string, join func(client, upstream net.Conn)) string {
	t.Helper()
	u, err := url.Parse(server)
	fleettest.Must(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fleettest.Must(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			upstream, err := net.Dial("tcp", u.Host)
			if err != nil {
				client.Close()
				continue
			}
			t.Cleanup(func() {
				client.Close()
				upstream.Close()
			})
			join(client, upstream)
		}
	}()
	return "nats://" + l.Addr().String()
}

// forward passes the client's protocol on, message by message.
func forward(client io.Reader, server io.WriteCloser, drop func(string, []byte) bool) {
	defer server.Close()
	in := bufio.NewReader(client)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		fields := strings.Fields(line)
		lost := false
		if len(fields) >= 3 && (fields[0] == "PUB" || fields[0] == "HPUB") {
			size, err := strconv.Atoi(fields[len(fields)-1])
			if err != nil {
				return
			}
			payload := make([]byte, size+2)
			if _, err := io.ReadFull(in, payload); err != nil {
				return
			}
			lost = drop(fields[1], payload[:size])
			line += string(payload)
		}
		if lost {
			continue
		}
		if _, err := fmt.Fprint(server, line); err != nil {
			return
		}
	}
}
