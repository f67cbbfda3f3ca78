package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/warmfleet/warmfleet/internal/natsboot"
)

func TestMain_ExitCode(t *testing.T) {
	never := func(context.Context, *natsboot.Connection) error { return errors.New("must not run") }
	for _, tc := range []struct {
		name string
		args []string
		err  error // of the daemon's own checks
		want int
	}{
		{"UnknownFlag", []string{"--nonsense"}, nil, 2},
		{"Argument", []string{"now"}, nil, 2},
		{"Usage", nil, Usage(errors.New("--labels x: write key=value")), 2},
		{"NoStateDir", nil, natsboot.ErrNoStateDir, 2},
		{"Unreachable", nil, fmt.Errorf("dial: %w", natsboot.ErrUnreachable), 8},
		{"Other", nil, errors.New("disk"), 1},
		{"Help", []string{"--help"}, nil, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := &Daemon{Name: "worker"}
			c := d.Command("test", never)
			c.SetOut(io.Discard)
			c.SetArgs(tc.args)
			if tc.args == nil {
				c.SetArgs([]string{})
			}
			if tc.err != nil {
				c.RunE = func(*cobra.Command, []string) error { return tc.err }
			}
			if got := Main(c); got != tc.want {
				t.Errorf("exit code %d, want %d", got, tc.want)
			}
		})
	}
}

func TestUsage_KeepsNilAndCause(t *testing.T) {
	if err := Usage(nil); err != nil {
		t.Errorf("nil became %v", err)
	}
	if err := Usage(natsboot.ErrNoStateDir); !errors.Is(err, ErrUsage) || !errors.Is(err, natsboot.ErrNoStateDir) {
		t.Errorf("%v is not both", err)
	}
}

func TestDaemon_Listen(t *testing.T) {
	d := &Daemon{Name: "worker", HTTP: freeAddress(t), Log: zerolog.Nop()}
	stop, err := d.listen()
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	d.Measure(prometheus.NewCounter(prometheus.CounterOpts{Name: "warmfleet_test_total", Help: "Of this test."}))
	(&Daemon{}).Measure(prometheus.NewCounter(prometheus.CounterOpts{Name: "nobody_asks"}))
	for path, want := range map[string]string{"/healthz": `{"status":"ok"}`, "/metrics": "warmfleet_test_total 0"} {
		resp, err := http.Get("http://" + d.HTTP + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(body), want) {
			t.Errorf("%s: %s, %v, want %q in it", path, resp.Status, err, want)
		}
	}
	if _, err := (&Daemon{HTTP: d.HTTP}).listen(); err == nil || !strings.Contains(err.Error(), "--http") {
		t.Errorf("taken address: %v, want an error that names --http", err)
	}
}

// freeAddress is an address that was free a moment ago.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
