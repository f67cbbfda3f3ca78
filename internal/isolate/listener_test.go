package isolate_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/internal/isolate"
)

// The listener that comes out of a sandbox is the only one: what connects inside is accepted here, and once it is closed
// nobody is there any more.
func TestInit_Listener(t *testing.T) {
	b := newBox(t, isolate.Config{Network: isolate.NetworkProxy})
	file := b.Listener()
	if file == nil {
		t.Fatal("got no listener")
	}
	if b.Listener() != nil {
		t.Error("it was handed over twice")
	}
	l, err := net.FileListener(file)
	file.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	l.(*net.TCPListener).SetDeadline(time.Now().Add(10 * time.Second))
	served := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			io.WriteString(conn, "from outside\n")
			err = conn.Close()
		}
		served <- err
	}()
	connect := fmt.Sprintf("exec 3<>/dev/tcp/127.0.0.1/%d && cat <&3", isolate.ProxyPort)
	if out, r := b.sh(connect); out != "from outside\n" {
		t.Errorf("got %q, %+v", out, plainOf(r))
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	l.Close()
	if out, r := b.sh(connect); plainOf(r).Code == 0 || !strings.Contains(out, "refused") {
		t.Errorf("after its end: got %q, %+v", out, plainOf(r))
	}
}

func TestInit_ListenerIsOfTheProxyOnly(t *testing.T) {
	if i := start(t, isolate.Config{Network: isolate.NetworkNone}); i.Listener() != nil {
		t.Error("none: got a listener")
	}
	if _, err := isolate.Start(testContext(t), isolate.Config{Rung: isolate.RungBare, Network: isolate.NetworkProxy}); !errors.Is(err, isolate.ErrBare) {
		t.Errorf("bare: got %v, want %v", err, isolate.ErrBare)
	}
}
