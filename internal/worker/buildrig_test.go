package worker

import (
	"context"
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// ask publishes a build command of the pool, as a scheduler does, and returns the image's id.
func (p *poolRig) ask(t *testing.T, params events.BuildParams) string {
	t.Helper()
	cmd := events.NewCommand("api", events.VerbBuild, events.NewID())
	var err error
	if cmd.Params, err = json.Marshal(params); err == nil {
		err = p.fleet.Queue.Publish(t.Context(), cmd)
	}
	if err != nil {
		t.Fatal(err)
	}
	return cmd.PlanID
}

// outcome waits for the end of a build: its event is built, skipped or failed.
func (p *poolRig) outcome(t *testing.T, id string) events.Event {
	t.Helper()
	return p.imageEvent(t, id, "built", "skipped", "failed")
}

// imageEvent waits for the first event of a kind about an image.
func (p *poolRig) imageEvent(t *testing.T, id string, kinds ...string) events.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	records, err := p.fleet.Log.Follow(ctx, events.Filter{Subject: "fleet.evt.image." + id + ".*"})
	if err != nil {
		t.Fatal(err)
	}
	var seen []string
	for r := range records {
		for _, kind := range kinds {
			if r.Event.Kind() == kind {
				return r.Event
			}
		}
		seen = append(seen, r.Event.Kind())
	}
	t.Fatalf("image %s: none of %v, only %v", id, kinds, seen)
	return events.Event{}
}

// build asks for a build and waits for its end.
func (p *poolRig) build(t *testing.T, params events.BuildParams) (string, events.Event) {
	t.Helper()
	id := p.ask(t, params)
	return id, p.outcome(t, id)
}

// built is build that must have made an image.
func (p *poolRig) built(t *testing.T, params events.BuildParams) events.Image {
	t.Helper()
	id, e := p.build(t, params)
	if e.Kind() != "built" {
		t.Fatalf("build %s: %s %s", e.Kind(), e.Data.Error, e.Data.Reason)
	}
	var i events.Image
	p.read(t, id, &i)
	return i
}

func (p *poolRig) latest(t *testing.T) events.Latest {
	t.Helper()
	var l events.Latest
	p.read(t, events.LatestKey("api"), &l)
	return l
}

func (p *poolRig) read(t *testing.T, key string, v any) {
	t.Helper()
	e, err := p.fleet.Images.Get(t.Context(), key)
	if err == nil {
		err = json.Unmarshal(e.Value, v)
	}
	if err != nil {
		t.Fatalf("record %s: %v", key, err)
	}
}

// holds is a file of an image, as a worker gets it from the store; "" where it has none.
func (p *poolRig) holds(t *testing.T, i events.Image, path string) string {
	t.Helper()
	r, err := p.builder.cps.Restore(t.Context(), i.Checkpoint)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	tree := layer.NewTree(r.Chain)
	if _, err := tree.Lookup(layer.Path(path)); err != nil {
		return ""
	}
	f, err := tree.Open(layer.Path(path))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	return readAll(t, f)
}

// wantEmpty fails the test where a build left open layers in a worker's cache.
func wantEmpty(t *testing.T, state string) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(state, "layers", "staging*", "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("open layers left: %v, %v", left, err)
	}
}
