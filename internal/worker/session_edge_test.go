package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/client"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/events/eventstest"
	"github.com/warmfleet/warmfleet/pkg/session"
)

// overHTTP serves the rig's repository, and holds every request while the returned lock is locked.
func (p *poolRig) overHTTP(t *testing.T) *sync.RWMutex {
	t.Helper()
	gate := &sync.RWMutex{}
	git := &cgi.Handler{
		Path: gitAs(t, p.up, "--exec-path") + "/git-http-backend",
		Env:  []string{"GIT_PROJECT_ROOT=" + filepath.Dir(p.repo), "GIT_HTTP_EXPORT_ALL=1"},
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		gate.RLock()
		defer gate.RUnlock()
		git.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	p.repo = s.URL + "/" + filepath.Base(p.repo)
	return gate
}

// While a sandbox is brought to the remote's tip, reads are served at once. Writes and commands wait, a child of a shell as
// anybody, and then run once each in the order in which they came, on the new commit; both times are told.
func TestSession_WriteGate(t *testing.T) {
	t.Parallel()
	p := newPoolRig(t)
	c := sessions(t, p.rig)
	p.push(t, "v1")
	gate := p.overHTTP(t)
	p.image(t, "true")
	w, _ := p.worker(t, "w1")
	p.apply(t, `,"target_size":1,"max_staleness":"0s"`)
	p.warm(t, w, "a warm one", idle(1))
	p.push(t, "v2")
	gate.Lock()
	s := p.start(t, "api", api.SessionStart{Pool: "api"})
	if !s.Syncing {
		gate.Unlock()
		t.Fatalf("got %+v, want one that is brought up to date", s)
	}
	const calls = 12
	live := w.session(s.ID)
	var all sync.WaitGroup
	for n := range calls {
		all.Go(func() {
			var err error
			switch n % 3 {
			case 0:
				err = c.WriteFile(context.WithoutCancel(t.Context()), s.ID, "written", 0, strings.NewReader(fmt.Sprintln(n)))
			case 1:
				_, err = c.Exec(context.WithoutCancel(t.Context()), s.ID, api.Exec{Argv: []string{"sh", "-c", fmt.Sprintf("cat written VERSION >>log; sh -c 'echo %d >>log'", n)}}, nil, nil)
			case 2:
				_, err = c.ExecDetached(context.WithoutCancel(t.Context()), s.ID, api.Exec{Argv: []string{"sh", "-c", fmt.Sprintf("echo %d >>started", n)}})
			}
			if err != nil {
				t.Error(err)
			}
		})
		until(t, "the call waits", func() bool { return live.gate.Waiting() == n+1 })
		if got := content(t, c, s.ID, "VERSION"); got != "v1\n" {
			t.Errorf("a read while it is brought up to date: got %q", got)
		}
	}
	names, err := c.ListFiles(t.Context(), s.ID, ".")
	if err != nil || len(names) != 2 { // .git and VERSION
		t.Errorf("got %+v, %v; want nothing written yet", names, err)
	}
	if rec := live.record(); rec.FirstReadMS == 0 || rec.FirstWriteMS != 0 {
		t.Errorf("got first read %d ms, first write %d ms; want no write yet", rec.FirstReadMS, rec.FirstWriteMS)
	}
	gate.Unlock()
	all.Wait()
	want := ""
	for n := 0; n < calls; n += 3 {
		want += fmt.Sprintf("%d\nv2\n%d\n", n, n+1)
	}
	if got := content(t, c, s.ID, "log"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	until(t, "each detached one ran once", func() bool {
		out, _, _ := run1(t, c, s.ID, "sh", "-c", "sort -n started | tr '\\n' ' '")
		return out == "2 5 8 11 "
	})
	if rec := live.record(); rec.FirstWriteMS < rec.FirstReadMS {
		t.Errorf("got first write after %d ms, first read after %d ms", rec.FirstWriteMS, rec.FirstReadMS)
	}
}

// A process that swaps a directory for a link while files are written through the API: nothing outside the workspace changes.
func TestSession_RacingLinksLeadNowhere(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := sessions(t, r)
	r.worker(t, "w1")
	s := r.start(t, r.pool, api.SessionStart{Path: r.tree, Host: testHost})
	run1(t, c, s.ID, "sh", "-c", "mkdir -p $HOME/out && echo canary >$HOME/out/f")
	// Detached: what a command leaves behind would die with it.
	swap := "while :; do rm -rf d; ln -sT $HOME/out d; rm -rf d; mkdir d; rm -rf d; ln -sT ../../../home/sandbox/out d; done 2>/dev/null"
	if _, err := c.ExecDetached(t.Context(), s.ID, api.Exec{Argv: []string{"sh", "-c", swap}}); err != nil {
		t.Fatal(err)
	}
	wrote := 0
	for n := range 1000 {
		b, err := json.Marshal(api.SessionWrite{Path: "d/f", Data: fmt.Appendf(nil, "hacked %d\n", n), Mode: 0o600})
		if err != nil {
			t.Fatal(err)
		}
		m, err := r.js.Conn().Request(r.fleet.Subjects.Session(s.ID, "write"), b, patience)
		if err != nil {
			t.Fatal(err)
		}
		if m.Header.Get("Nats-Service-Error") == "" {
			wrote++
		}
		var got strings.Builder
		_ = c.ReadFile(t.Context(), s.ID, api.SessionRead{Path: "d/f"}, &got) // it may be away
		if strings.Contains(got.String(), "canary") {
			t.Fatalf("read %d: got what lies outside", n)
		}
	}
	if out, _, _ := run1(t, c, s.ID, "sh", "-c", "cat $HOME/out/f; ls -A $HOME/out"); out != "canary\nf\n" {
		t.Errorf("after 1,000 writes: got %q outside the workspace", out)
	}
	if wrote == 0 || wrote == 1000 {
		t.Errorf("got %d of 1,000 writes done, want some that met a directory and some that met a link", wrote)
	}
}

// A request that does not say what it seems to is refused, and nothing is done.
func TestSession_RequestsAreRead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := sessions(t, r)
	r.worker(t, "w1")
	s := r.start(t, r.pool, api.SessionStart{Path: r.tree, Host: testHost})
	for _, tc := range []struct {
		verb string
		req  any
		text string
	}{
		{"checkpoint", map[string]any{"wait": "yes"}, "cannot unmarshal"},
		{"write", api.SessionWrite{Path: "part", Offset: 7, Data: []byte("x")}, "offset 7 without an upload"},
		{"write", api.SessionWrite{Path: "part", Offset: -1, Data: []byte("x")}, "offset -1 without an upload"},
	} {
		if code, text := r.raw(t, s.ID, tc.verb, tc.req); code != "400" || !strings.Contains(text, tc.text) {
			t.Errorf("%s: got code %q, %q; want 400 and %q", tc.verb, code, text, tc.text)
		}
	}
	if code, text := r.raw(t, s.ID, "checkpoint", nil); code != "" {
		t.Errorf("checkpoint: got code %q, %q", code, text)
	}
	if got := entries(t, c.ListFiles, s.ID); slices.Contains(got, "part") {
		t.Errorf("got %q, want nothing of what was refused", got)
	}
}

// What a name holds is data in git, in every shell, and after a resume; what git cannot hold is refused.
func TestSession_IdentityIsData(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := sessions(t, r)
	r.worker(t, "w1")
	for _, name := range []string{"Conan O'Neil", "$(touch CANARY)`touch CANARY`", "Zoë 李", `a"b\c; touch CANARY #`} {
		s := r.start(t, r.pool, api.SessionStart{Path: r.tree, Host: testHost, User: name, Email: name + "@example.com"})
		for range 2 {
			out, errs, _ := run1(t, c, s.ID, "sh", "-c", "rm -rf g && git init -q g && cd g && git commit -q --allow-empty -m x && git log -1 --format='%an|%cn|%ae' && git config user.name && sh -c 'sh -c env' | grep -c ^GIT_AUTHOR_NAME=; cd ..; ls CANARY g/CANARY 2>/dev/null")
			if want := fmt.Sprintf("%s|%s|%s@example.com\n%s\n1\n", name, name, name, name); out != want {
				t.Errorf("got %q (%s), want %q", out, errs, want)
			}
			end, err := c.EndSession(t.Context(), s.ID)
			if err != nil {
				t.Fatal(err)
			}
			s = r.start(t, "default", api.SessionStart{Checkpoint: end.Checkpoint})
		}
	}
	for _, bad := range []string{"a\nb", "a\x00b", "<a>"} {
		if s := r.start(t, r.pool, api.SessionStart{Path: r.tree, Host: testHost, User: bad}); s.State != events.SessionFailed || s.Code != "invalid" {
			t.Errorf("%q: got %+v, want it refused", bad, s)
		}
	}
}

// A client that goes away leaves its session and its command as they are; the session can be ended once, and every call after
// that says the same.
func TestSession_ClientsComeAndGoAndTheEndIsTheEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := sessions(t, r)
	r.worker(t, "w1")
	s := r.start(t, r.pool, api.SessionStart{Path: r.tree, Host: testHost})
	nc := eventstest.Connect(t, r.server).Conn()
	other, err := client.New(nc, "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, away := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := other.Exec(ctx, s.ID, api.Exec{Argv: []string{"sh", "-c", "echo x >began; while ! test -e go; do sleep 0.05; done; echo x >over"}}, nil, nil)
		left <- err
	}()
	until(t, "its command runs", func() bool {
		return c.ReadFile(t.Context(), s.ID, api.SessionRead{Path: "began"}, &strings.Builder{}) == nil
	})
	away()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	nc.Close()
	if err := c.WriteFile(t.Context(), s.ID, "go", 0, strings.NewReader("")); err != nil {
		t.Fatal(err)
	}
	until(t, "its command went on", func() bool {
		return c.ReadFile(t.Context(), s.ID, api.SessionRead{Path: "over"}, &strings.Builder{}) == nil
	})
	cp, err := c.CheckpointSession(t.Context(), s.ID)
	if err != nil || cp.Fuzzy {
		t.Fatalf("got %+v, %v", cp, err)
	}
	fork := r.start(t, "default", api.SessionStart{Checkpoint: cp.Checkpoint})
	run1(t, c, fork.ID, "sh", "-c", "echo fork >over")
	if got := content(t, c, s.ID, "over"); got != "x\n" {
		t.Errorf("a fork wrote into what it was forked from: %q", got)
	}
	var ends [4]error
	var all sync.WaitGroup
	for i := range ends {
		all.Go(func() {
			end, err := c.EndSession(context.WithoutCancel(t.Context()), s.ID)
			if ends[i] = err; err == nil && end.Checkpoint != cp.Checkpoint {
				t.Errorf("got %+v, want its last checkpoint, since nothing changed: %s", end, cp.Checkpoint)
			}
		})
	}
	all.Wait()
	ok := 0
	for _, err := range ends {
		if err == nil {
			ok++
		} else if !errors.Is(err, client.ErrNoSession) {
			t.Errorf("end beside another end: got %v", err)
		}
	}
	if ok == 0 {
		t.Errorf("got %v, want one end", ends)
	}
	for what, err := range map[string]error{
		"end":        second(c.EndSession(t.Context(), s.ID)),
		"exec":       second(c.Exec(t.Context(), s.ID, api.Exec{Argv: []string{"true"}}, nil, nil)),
		"read":       c.ReadFile(t.Context(), s.ID, api.SessionRead{Path: "a"}, &strings.Builder{}),
		"write":      c.WriteFile(t.Context(), s.ID, "a", 0, strings.NewReader("")),
		"list":       second(c.ListFiles(t.Context(), s.ID, ".")),
		"checkpoint": second(c.CheckpointSession(t.Context(), s.ID)),
		"rollback":   second(c.RollbackSession(t.Context(), s.ID, cp.Checkpoint)),
	} {
		if !errors.Is(err, client.ErrNoSession) {
			t.Errorf("%s after the end: got %v, want ErrNoSession", what, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// Two sessions at once on one pool have a sandbox each.
func TestSession_TwoAtOnceOnOnePool(t *testing.T) {
	t.Parallel()
	p := newPoolRig(t)
	c := sessions(t, p.rig)
	p.push(t, "v1")
	p.image(t, "true")
	w, _ := p.worker(t, "w1")
	p.apply(t, `,"target_size":1`)
	p.warm(t, w, "a warm one", idle(1))
	var all sync.WaitGroup
	var made [2]events.Session
	for i := range made {
		all.Go(func() { made[i] = p.start(t, "api", api.SessionStart{Pool: "api", User: fmt.Sprint("U", i)}) })
	}
	all.Wait()
	for i, s := range made {
		if s.State != events.SessionActive {
			t.Fatalf("got %+v", s)
		}
		out, _, _ := run1(t, c, s.ID, "sh", "-c", fmt.Sprintf("ls; echo %d >mine; git config user.name", i))
		if want := fmt.Sprintf("VERSION\nU%d\n", i); out != want {
			t.Errorf("got %q, want %q", out, want)
		}
	}
	if a, b := w.session(made[0].ID).box.sb.ID(), w.session(made[1].ID).box.sb.ID(); a == b {
		t.Errorf("both are in sandbox %s", a)
	}
}

// The time-outs are those that were asked for, else 30 minutes and 4 hours.
func TestSession_Timeouts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.worker(t, "w1")
	s := r.start(t, r.pool, api.SessionStart{Path: r.tree, Host: testHost})
	if s.IdleTimeout != session.DefaultIdle || s.Timeout != 4*time.Hour || s.ExpiresAt.Sub(s.UsedAt) != session.DefaultIdle {
		t.Errorf("got %s, %s, expires %s after its use", s.IdleTimeout, s.Timeout, s.ExpiresAt.Sub(s.UsedAt))
	}
	s = r.start(t, r.pool, api.SessionStart{Path: r.tree, Host: testHost, IdleTimeout: "3h", Timeout: "2h"})
	if got := s.ExpiresAt.Sub(s.CreatedAt); got != 2*time.Hour {
		t.Errorf("got %s, want the absolute one, 2h", got)
	}
}

func (w *Worker) session(id string) *liveSession {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sessions[id]
}
