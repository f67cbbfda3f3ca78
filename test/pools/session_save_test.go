package pools

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// A session whose time is over while a command runs that hears no SIGTERM is saved first: when its worker is killed before the
// command is, the work is there on another worker.
func TestSession_SavedBeforeItsCommandIsKilled(t *testing.T) {
	for _, as := range fleettest.Accounts(t) {
		t.Run(as.Name, func(t *testing.T) {
			t.Parallel()
			c := startRig(t, as)
			dir := c.Tree(t, "tree", "echo one >a.txt")
			a := c.Worker(t, "a", "--grace", "10m")
			s := started(t, c.Do(t, "warmfleet", "session", "start", "--path", dir, "--timeout", "2s", "-o", "json"))
			exec := c.Start(t, "exec", "warmfleet", "session", "exec", s.ID, "--", "sh", "-c", "trap '' TERM; echo hours of it >work; echo began; while :; do sleep 0.1; done")
			exec.Prints(t, "began")
			fleettest.Eventually(t, "a fuzzy checkpoint", func() bool {
				now, err := c.Client.Session(t.Context(), s.ID)
				return err == nil && now.Checkpoint != "" && now.Fuzzy
			})
			a.Kill(t)
			c.Worker(t, "b")
			fleettest.Eventually(t, "the session is lost", func() bool {
				now, err := c.Client.Session(t.Context(), s.ID)
				return err == nil && now.State == "lost"
			})
			late := c.Warmfleet(t, "session", "read", s.ID, "work")
			if want := "warmfleet: session " + s.ID + ": is lost: its worker a is gone: go on from its last checkpoint with warmfleet session resume " + s.ID + "\n"; late.Code != 4 || late.Stderr != want {
				t.Errorf("a call of a session whose worker is gone: got exit code %d, %q, want 4, %q", late.Code, late.Stderr, want)
			}
			n := started(t, c.Do(t, "warmfleet", "session", "resume", s.ID, "-o", "json"))
			if got := c.Do(t, "warmfleet", "session", "read", n.ID, "work"); got != "hours of it\n" {
				t.Errorf("got %q, want what was written before the time-out", got)
			}
		})
	}
}

// A checkpoint beside a server that runs in the foreground comes at once, and the server goes on.
func TestSession_CheckpointBesideAServer(t *testing.T) {
	c := startRig(t, fleettest.Self())
	c.Worker(t, "a")
	s := started(t, c.Do(t, "warmfleet", "session", "start", "--path", c.Tree(t, "tree", "echo one >a.txt"), "-o", "json"))
	server := c.Start(t, "server", "warmfleet", "session", "exec", s.ID, "--", "sh", "-c", "echo x >served; echo serves; until test -e stop; do sleep 0.05; done; echo stopped")
	server.Prints(t, "serves")
	r := c.Warmfleet(t, "session", "checkpoint", s.ID, "-o", "name").Exits(t, 0)
	if !strings.Contains(r.Stderr, "is fuzzy") {
		t.Errorf("got %q, want it told that the checkpoint is fuzzy", r.Stderr)
	}
	fork := started(t, c.Do(t, "warmfleet", "session", "fork", s.ID, "-o", "json"))
	for what, id := range map[string]string{
		"fork":             fork.ID,
		"from that moment": started(t, c.Do(t, "warmfleet", "session", "start", "--checkpoint", strings.TrimSpace(r.Stdout), "-o", "json")).ID,
	} {
		if got := c.Do(t, "warmfleet", "session", "read", id, "served"); got != "x\n" {
			t.Errorf("%s: got %q", what, got)
		}
	}
	if !fork.Fuzzy {
		t.Error("a fork beside a command is not said to be fuzzy")
	}
	fleettest.Must(t, c.Client.WriteFile(t.Context(), s.ID, "stop", 0, strings.NewReader("")))
	server.Prints(t, "stopped")
	<-server.Ended
	if code := server.Exit(t, time.Minute); code != 0 {
		t.Errorf("the server's exec: exit code %d", code)
	}
}

// Clients that are killed leave a session as it is: a command goes on without its reader, half an upload is no file and changes
// none, and another client reads and writes meanwhile.
func TestSession_ClientsAreKilled(t *testing.T) {
	c := startRig(t, fleettest.Self())
	c.Worker(t, "a")
	s := started(t, c.Do(t, "warmfleet", "session", "start", "--path", c.Tree(t, "tree", "echo old >large"), "-o", "json"))
	exec := c.Start(t, "exec", "warmfleet", "session", "exec", s.ID, "--", "sh", "-c", "echo began; until test -e go; do sleep 0.05; done; echo x >over")
	exec.Prints(t, "began")
	exec.Kill(t)
	cmd := c.Command(context.WithoutCancel(t.Context()), "warmfleet", "session", "write", s.ID, "large")
	in, err := cmd.StdinPipe()
	fleettest.Must(t, err)
	upload := fleettest.Start(t, "upload", cmd)
	if _, err := io.WriteString(in, strings.Repeat("x", 3*api.SessionChunk)); err != nil { // more than a pipe holds: parts were sent
		t.Fatal(err)
	}
	upload.Kill(t)
	if got := c.Do(t, "warmfleet", "session", "read", s.ID, "large"); got != "old\n" {
		t.Errorf("after half an upload: got %d bytes, want the old ones", len(got))
	}
	fleettest.Must(t, c.Client.WriteFile(t.Context(), s.ID, "large", 0, strings.NewReader("new\n")))
	fleettest.Must(t, c.Client.WriteFile(t.Context(), s.ID, "go", 0, strings.NewReader("")))
	var over strings.Builder
	fleettest.Eventually(t, "the command's end", func() bool {
		over.Reset()
		return c.Client.ReadFile(t.Context(), s.ID, api.SessionRead{Path: "over"}, &over) == nil && over.String() == "x\n"
	})
	if got := c.Do(t, "warmfleet", "session", "list", s.ID, "-o", "name"); got != "\"go\"\n\"large\"\n\"over\"\n" {
		t.Errorf("got %q, want no trace of the upload", got)
	}
	if now, err := c.Client.Session(t.Context(), s.ID); err != nil || now.State != events.SessionActive {
		t.Errorf("got %+v, %v; want it active", now, err)
	}
}
