package worker

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
)

func readAll(t *testing.T, r io.Reader) string {
	t.Helper()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// note is a recipe whose step notes the commit's version after what was noted before.
const note = `,"target_size":0,"image":{"setup":["cat VERSION >>built"]%s}`

// buildRig is a poolRig with a worker, whose pool notes each build.
func buildRig(t *testing.T) (p *poolRig, w *Worker, stop func()) {
	t.Helper()
	p = newPoolRig(t)
	w, stop = p.worker(t, "w1")
	p.apply(t, fmt.Sprintf(note, ""))
	return p, w, stop
}

// The first image is built from a clone, the next on the last one with one layer more, none when nothing moved.
func TestBuild_FirstThenIncremental(t *testing.T) {
	t.Parallel()
	p, w, stop := buildRig(t)
	commit := p.push(t, "v1")
	p.apply(t, fmt.Sprintf(note, `,"warm":["echo nothing to warm; exit 4"]`))
	first := p.built(t, events.BuildParams{Generation: 2})
	want := events.Image{
		ID: first.ID, Pool: "api", Repo: p.repo, Branch: "trunk", Commit: commit, Checkpoint: first.Checkpoint, Recipe: first.Recipe, Steps: first.Steps,
		Worker: w.cfg.Name, BuiltAt: first.BuiltAt, Took: first.Took, Layers: first.Layers, SizeBytes: first.SizeBytes,
		Warnings: []string{"image: warm step 1 of 1 (echo nothing to warm; exit 4): exit code 4: nothing to warm"},
	}
	if diff := cmp.Diff(first, want); diff != "" {
		t.Errorf("image (-got +want):\n%s", diff)
	}
	if first.Recipe == "" || first.Steps == "" || first.Took <= 0 || first.SizeBytes <= 0 || time.Since(first.BuiltAt) > time.Minute {
		t.Errorf("image %+v, want recipe, steps, times and size", first)
	}
	l := p.latest(t)
	if diff := cmp.Diff(l, events.Latest{Pool: "api", Image: first.ID, Commit: commit, BuiltAt: first.BuiltAt, Generation: 2, Recipe: first.Recipe, CheckedAt: l.CheckedAt}); diff != "" {
		t.Errorf("latest (-got +want):\n%s", diff)
	}
	if _, e := p.build(t, events.BuildParams{Generation: 2}); e.Kind() != "skipped" || e.Data.Reason != "nothing moved" {
		t.Errorf("nothing moved: %s %s", e.Kind(), e.Data.Reason)
	}
	if again := p.latest(t); again.Image != first.ID || !again.CheckedAt.After(l.CheckedAt) || again.Build != nil {
		t.Errorf("after a skipped build: %+v", again)
	}
	p.push(t, "v2")
	second := p.built(t, events.BuildParams{Generation: 2})
	if second.Parent != first.ID || second.Layers != first.Layers+1 || second.Steps != first.Steps {
		t.Errorf("second image on %q with %d layers, want on %s with one more than %d", second.Parent, second.Layers, first.ID, first.Layers)
	}
	if got := p.holds(t, second, "built"); got != "v1\nv2\n" {
		t.Errorf("built holds %q: what the last image had is there", got)
	}
	if got := p.holds(t, second, "VERSION"); got != "v2\n" {
		t.Errorf("VERSION %q", got)
	}
	stop()
	wantEmpty(t, w.cfg.StateDir)
}

// From a new clone: where the recipe is another, where that is asked for, and where the chain is too long.
func TestBuild_FromScratch(t *testing.T) {
	t.Parallel()
	p, _, _ := buildRig(t)
	p.push(t, "v1")
	first := p.built(t, events.BuildParams{})
	p.apply(t, fmt.Sprintf(note, `,"env":{"A":"b"}`))
	other := p.built(t, events.BuildParams{})
	if other.Parent != "" || other.Recipe == first.Recipe || p.holds(t, other, "built") != "v1\n" {
		t.Errorf("another recipe: on %q, built %q; want from scratch", other.Parent, p.holds(t, other, "built"))
	}
	if asked := p.built(t, events.BuildParams{Scratch: true, Force: true}); asked.Parent != "" || asked.ID == other.ID {
		t.Errorf("asked for: on %q, want from scratch", asked.Parent)
	}
	most := 0
	for range maxImageLayers + 1 {
		next := p.built(t, events.BuildParams{Force: true})
		most = max(most, next.Layers)
		if next.Parent != "" {
			continue
		}
		if most != maxImageLayers || next.Layers != first.Layers {
			t.Errorf("from scratch after %d layers, with %d; want after %d, with %d", most, next.Layers, maxImageLayers, first.Layers)
		}
		return
	}
	t.Errorf("a chain of %d layers was built on", most)
}

// A build that fails keeps the last good image and says why; failures in a row are counted; a good one ends that.
func TestBuild_Fails(t *testing.T) {
	t.Parallel()
	p, w, stop := buildRig(t)
	p.push(t, "v1")
	good := p.built(t, events.BuildParams{})
	for i, tc := range []struct{ name, text, says string }{
		{"Step", `,"image":{"setup":["echo why >&2; exit 3"]}`, "image: setup step 1 of 1 (echo why >&2; exit 3): exit code 3: why"},
		{"Hangs", `,"image":{"setup":["sleep 987 & sleep 987"],"timeout":"1s"}`, "not done after 1s, its timeout"},
		{"Killed", `,"image":{"setup":["kill -9 $$"]}`, "ended by signal KILL"},
		{"Left", `,"image":{"setup":["git config core.fsmonitor x"]}`, ".git/config sets core.fsmonitor, which is not on the list"},
		{"NoRepository", `,"image":{"setup":["rm -rf .git"]}`, "missing: .git: a step broke the repository"},
		{"NoSecret", `,"image":{"setup":["true"],"secrets":["NONE"]}`, `secret "NONE"`},
		{"NoToken", `,"token":{"env":"WARMFLEET_TEST_NO_SUCH"}`, "true"}, // a local repository is not asked for one
	} {
		t.Run(tc.name, func(t *testing.T) {
			p.apply(t, tc.text)
			_, e := p.build(t, events.BuildParams{})
			if tc.name == "NoToken" {
				if e.Kind() != "built" {
					t.Errorf("%s %s", e.Kind(), e.Data.Error)
				}
				return
			}
			l := p.latest(t)
			if e.Kind() != "failed" || !strings.Contains(e.Data.Error, tc.says) || strings.Contains(e.Data.Error, "\n") {
				t.Errorf("%s: %q, want failed: %s", e.Kind(), e.Data.Error, tc.says)
			}
			if l.Image != good.ID || l.Error != e.Data.Error || l.Failures != i+1 || l.Build != nil || time.Since(l.FailedAt) > time.Minute {
				t.Errorf("latest %+v, want image %s and failure %d", l, good.ID, i+1)
			}
		})
	}
	if l := p.latest(t); l.Error != "" || l.Failures != 0 {
		t.Errorf("after a good build: %+v", l)
	}
	stop()
	wantEmpty(t, w.cfg.StateDir)
}

func TestBuild_Remote(t *testing.T) {
	t.Parallel()
	p, _, _ := buildRig(t)
	if _, e := p.build(t, events.BuildParams{}); e.Kind() != "failed" || !strings.Contains(e.Data.Error, "no commit yet") {
		t.Errorf("an empty repository: %s %s", e.Kind(), e.Data.Error)
	}
	p.push(t, "v1")
	good := p.built(t, events.BuildParams{})
	if err := os.Rename(p.repo, p.repo+".away"); err != nil {
		t.Fatal(err)
	}
	_, e := p.build(t, events.BuildParams{})
	if l := p.latest(t); e.Kind() != "failed" || l.Image != good.ID || l.Failures != 1 || !strings.Contains(l.Error, p.repo) {
		t.Errorf("an unreachable remote: %s %+v", e.Kind(), l)
	}
	if err := os.Rename(p.repo+".away", p.repo); err != nil {
		t.Fatal(err)
	}
	if _, e := p.build(t, events.BuildParams{}); e.Kind() != "skipped" {
		t.Errorf("once it is back: %s %s", e.Kind(), e.Data.Error)
	}
	if l := p.latest(t); l.Error != "" || l.Failures != 0 {
		t.Errorf("after nothing moved: %+v", l)
	}
}

// A build whose worker was lost is taken by another; one that loses every worker fails.
func TestBuild_WorkerLost(t *testing.T) {
	t.Parallel()
	p := newPoolRig(t)
	p.push(t, "v1")
	p.apply(t, fmt.Sprintf(note, ""))
	begin := func(lost int) string {
		id := p.ask(t, events.BuildParams{})
		got, err := p.fleet.Queue.Pull(t.Context(), events.Pull{Pool: "api", Max: 1, Wait: patience}) // by one that is not heard of again
		if err != nil || len(got) != 1 {
			t.Fatalf("%d commands, %v", len(got), err)
		}
		put(t, p.fleet.Images, events.LatestKey("api"), events.Latest{Pool: "api", Build: &events.Build{ID: id, Worker: "ghost", Since: time.Now(), Attempt: lost}})
		return id
	}
	id := begin(1)
	_, stop := p.worker(t, "heir")
	if e := p.outcome(t, id); e.Kind() != "built" || e.Data.Worker != "heir" {
		t.Errorf("%s by %s: %s", e.Kind(), e.Data.Worker, e.Data.Error)
	}
	stop()
	id = begin(maxBuildAttempts)
	p.worker(t, "last")
	if e := p.outcome(t, id); e.Kind() != "failed" || !strings.Contains(e.Data.Error, "3 workers were lost while they built it") {
		t.Errorf("%s: %s", e.Kind(), e.Data.Error)
	}
}

// A worker that is drained hands its build over at once, and is not counted as lost.
func TestBuild_Drained(t *testing.T) {
	t.Parallel()
	p, _, stop := buildRig(t)
	p.push(t, "v1")
	p.apply(t, `,"image":{"setup":["sleep 3; cat VERSION >built"]},"target_size":0`)
	id := p.ask(t, events.BuildParams{})
	p.imageEvent(t, id, "building")
	stop()
	if b := p.latest(t).Build; b == nil || b.Attempt != 0 || b.WorkerStarted.IsZero() {
		t.Errorf("build %+v, want the worker that began it, and no attempt that counts", b)
	}
	p.worker(t, "heir")
	if e := p.outcome(t, id); e.Kind() != "built" || e.Data.Worker != "heir" {
		t.Errorf("%s by %s: %s", e.Kind(), e.Data.Worker, e.Data.Error)
	}
}

// What others write into the pool's record while an image is built stays; a build in whose place another was asked for changes nothing.
func TestBuild_CompareAndSet(t *testing.T) {
	t.Parallel()
	p, _, _ := buildRig(t)
	p.push(t, "v1")
	p.apply(t, `,"image":{"setup":["sleep 1"]},"target_size":0`)
	id := p.ask(t, events.BuildParams{})
	p.imageEvent(t, id, "building")
	asked := events.Asked{ID: id, At: time.Now().UTC().Round(time.Second), Generation: 2, Why: "refresh"}
	l := p.latest(t)
	l.Asked = &asked
	put(t, p.fleet.Images, events.LatestKey("api"), l)
	if e := p.outcome(t, id); e.Kind() != "built" {
		t.Fatalf("%s %s", e.Kind(), e.Data.Error)
	}
	l = p.latest(t)
	if l.Image != id || l.Asked == nil || *l.Asked != asked {
		t.Errorf("latest %+v, want image %s and what was asked for meanwhile", l, id)
	}
	asked.ID = events.NewID()
	l.Asked = &asked
	put(t, p.fleet.Images, events.LatestKey("api"), l)
	p.ask(t, events.BuildParams{Force: true})
	p.settled(t)
	if diff := cmp.Diff(p.latest(t), l); diff != "" {
		t.Errorf("latest after a build that nobody waits for (-got +want):\n%s", diff)
	}
}

// settled waits until no command of the pool is left.
func (p *poolRig) settled(t *testing.T) {
	t.Helper()
	await(t, "end of the commands", func() bool {
		n, err := p.fleet.Queue.(events.PoolQueues).Depth(t.Context(), "api")
		return err == nil && n.Queued+n.Held == 0
	})
}

// A pool that was removed is not built, and its command is done.
func TestBuild_PoolRemoved(t *testing.T) {
	t.Parallel()
	p, _, _ := buildRig(t)
	p.push(t, "v1")
	if err := p.fleet.Pools.Delete(t.Context(), "api", 0); err != nil {
		t.Fatal(err)
	}
	p.ask(t, events.BuildParams{})
	p.settled(t)
	if _, err := p.fleet.Images.Get(t.Context(), events.LatestKey("api")); err == nil {
		t.Error("a removed pool has a latest image")
	}
}

// A last image that is gone is not built on. Workers tell that it is lost as soon as they need it.
func TestBuild_LastImageGone(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		remove func(t *testing.T, p *poolRig, i events.Image)
	}{
		{"Record", func(t *testing.T, p *poolRig, i events.Image) {
			if err := p.fleet.Images.Delete(t.Context(), i.ID, 0); err != nil {
				t.Fatal(err)
			}
		}},
		{"Checkpoint", func(t *testing.T, p *poolRig, i events.Image) {
			if err := checkpoint.Remove(t.Context(), p.fleet.Checkpoints, i.Checkpoint); err != nil {
				t.Fatal(err)
			}
		}},
		{"Layer", func(t *testing.T, p *poolRig, i events.Image) {
			cp, err := checkpoint.Load(t.Context(), p.fleet.Checkpoints, i.Checkpoint)
			if err == nil {
				err = p.fleet.Store.Delete(t.Context(), cp.Layers[len(cp.Layers)-1].Name)
			}
			if err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			p := newPoolRig(t)
			p.push(t, "v1")
			gone := p.image(t, "echo x >built")
			tc.remove(t, p, gone)
			w, _ := p.worker(t, "w1")
			p.apply(t, fmt.Sprintf(strings.Replace(note, `"target_size":0`, `"target_size":1`, 1), ""))
			p.warm(t, w, "word of the loss", func(s events.Warm) bool { return s.Lost == gone.ID && s.Error != "" })
			i := p.built(t, events.BuildParams{})
			if i.Parent != "" {
				t.Errorf("built on %s, which is gone", i.Parent)
			}
			p.warm(t, w, "a warm one of the next image", func(s events.Warm) bool { return s.Idle == 1 && s.Image == i.ID && s.Lost == "" })
		})
	}
}

// Hooks that ordinary tools set up are no part of an image, and no reason to refuse one.
func TestBuild_Hooks(t *testing.T) {
	t.Parallel()
	p, _, _ := buildRig(t)
	p.push(t, "v1")
	p.apply(t, `,"target_size":0,"image":{"setup":["mkdir -p .husky .git/hooks; git config core.hooksPath .husky; printf '#!/bin/sh\nexit 1\n' >.git/hooks/pre-commit; chmod 755 .git/hooks/pre-commit; cp .git/hooks/pre-commit .husky"]}`)
	i := p.built(t, events.BuildParams{})
	if strings.Contains(p.holds(t, i, ".git/config"), "hooksPath") || p.holds(t, i, ".git/hooks/pre-commit") != "" || p.holds(t, i, ".husky/pre-commit") == "" {
		t.Errorf("hooks of the image: config %q", p.holds(t, i, ".git/config"))
	}
	if n := slices.IndexFunc(i.Warnings, func(s string) bool { return strings.Contains(s, "an image has no hooks") }); n < 0 || len(i.Warnings) != 2 {
		t.Errorf("warnings %q", i.Warnings)
	}
	if told := p.imageEvent(t, i.ID, "built").Data.Notes; !slices.Equal(told, i.Warnings) {
		t.Errorf("the event tells %q, want %q", told, i.Warnings)
	}
}

func TestBuild_UnreadableCommand(t *testing.T) {
	t.Parallel()
	p, _, _ := buildRig(t)
	cmd := events.NewCommand("api", events.VerbBuild, events.NewID())
	cmd.Params = json.RawMessage(`{"generation":"x"}`)
	if err := p.fleet.Queue.Publish(t.Context(), cmd); err != nil {
		t.Fatal(err)
	}
	p.settled(t)
}
