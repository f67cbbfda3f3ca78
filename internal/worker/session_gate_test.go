package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// processesIn lists what runs in a sandbox beside its init.
func processesIn(t *testing.T, init int) (found []string) {
	t.Helper()
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", init))
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", init, task.Name()))
		if err == nil && len(b) > 0 {
			found = append(found, string(b))
		}
	}
	return found
}

// While a sandbox is synced nothing of its session runs in it and nothing is written to it, whichever call asks for that: none
// has begun, so there is no child of a shell that could write.
func TestSession_NothingRunsWhileItIsSynced(t *testing.T) {
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
	open := sync.OnceFunc(gate.Unlock)
	defer open()
	s := p.start(t, "api", api.SessionStart{Pool: "api"})
	live := w.session(s.ID)
	ctx := context.WithoutCancel(t.Context())
	calls := []struct {
		verb string
		do   func() error
	}{
		{"exec", func() error {
			return second(c.Exec(ctx, s.ID, api.Exec{Argv: []string{"sh", "-c", "sh -c 'echo exec $(cat VERSION) >>log'"}}, nil, nil))
		}},
		{"exec, detached", func() error {
			return second(c.ExecDetached(ctx, s.ID, api.Exec{Argv: []string{"sh", "-c", "sh -c 'echo detached >there'; exec sleep 600"}}))
		}},
		{"write", func() error { return c.WriteFile(ctx, s.ID, "written", 0, strings.NewReader("x")) }},
		{"write in parts", func() error {
			return c.WriteFile(ctx, s.ID, "large", 0, strings.NewReader(strings.Repeat("x", api.SessionChunk+1)))
		}},
		{"checkpoint", func() error { return second(c.CheckpointSession(ctx, s.ID)) }},
		{"checkpoint that waits", func() error { return second(c.CheckpointIdleSession(ctx, s.ID)) }},
		{"rollback", func() error {
			if err := second(c.RollbackSession(ctx, s.ID, events.NewID())); err == nil || !strings.Contains(err.Error(), "not found") {
				return fmt.Errorf("got %v, want its checkpoint not found", err)
			}
			return nil
		}},
		{"exec again", func() error {
			return second(c.Exec(ctx, s.ID, api.Exec{Argv: []string{"sh", "-c", "echo again >>log"}}, nil, nil))
		}},
	}
	var all sync.WaitGroup
	for n, call := range calls {
		all.Go(func() {
			if err := call.do(); err != nil {
				t.Errorf("%s: %v", call.verb, err)
			}
		})
		until(t, call.verb+" waits", func() bool { return live.gate.Waiting() == n+1 })
		if found := processesIn(t, live.box.sb.Pid()); len(found) > 0 {
			t.Errorf("%s: processes %v run in a sandbox that is synced", call.verb, found)
		}
		if n, err := live.box.sb.Detached(t.Context()); err != nil || n != 0 {
			t.Errorf("%s: %d detached processes run in a sandbox that is synced, %v", call.verb, n, err)
		}
		if got := entries(t, c.ListFiles, s.ID); !slices.Equal(got, []string{".git", "VERSION"}) {
			t.Errorf("%s: got %q, want nothing written yet", call.verb, got)
		}
		if got := content(t, c, s.ID, "VERSION"); got != "v1\n" {
			t.Errorf("%s: a read meanwhile: got %q", call.verb, got)
		}
	}
	open()
	all.Wait()
	if got := content(t, c, s.ID, "log"); got != "exec v2\nagain\n" {
		t.Errorf("got %q, want each command once, on the new commit", got)
	}
	if got, want := entries(t, c.ListFiles, s.ID), []string{".git", "VERSION", "large", "log", "there", "written"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func entries(t *testing.T, list func(context.Context, string, string) ([]api.SessionEntry, error), id string) (names []string) {
	t.Helper()
	all, err := list(t.Context(), id, ".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		names = append(names, e.Name)
	}
	return names
}

// raw asks a session as a program without this project's client would.
func (r *rig) raw(t *testing.T, id, verb string, req any) (code, text string) {
	t.Helper()
	b, err := json.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	m, err := r.js.Conn().Request(r.fleet.Subjects.Session(id, verb), b, patience)
	if err != nil {
		t.Fatal(err)
	}
	return m.Header.Get("Nats-Service-Error-Code"), m.Header.Get("Nats-Service-Error")
}
