package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"

	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/events"
)

func (s *Scheduler) imageList(_ context.Context, body []byte) (any, error) {
	var f api.ImageFilter
	if len(body) > 0 {
		if err := json.Unmarshal(body, &f); err != nil {
			return nil, fail(api.CodeInvalid, "request is not JSON: %v", err)
		}
	}
	out := []api.Image{}
	all := s.pools.allImages()
	for _, id := range slices.Sorted(maps.Keys(all)) {
		if i := all[id]; f.Pool == "" || f.Pool == i.Pool {
			out = append(out, s.shownImage(i))
		}
	}
	return out, nil
}

// shownImage is an image as people see it.
func (s *Scheduler) shownImage(i events.Image) api.Image {
	return api.Image{
		ID: i.ID, Pool: i.Pool, Latest: s.pools.get(i.Pool).latest.Image == i.ID, Repo: i.Repo, Ref: i.Ref, Branch: i.Branch, Commit: i.Commit,
		Checkpoint: i.Checkpoint, Parent: i.Parent, Recipe: i.Recipe, Worker: i.Worker, BuiltAt: i.BuiltAt, TookMS: i.Took.Milliseconds(),
		Layers: i.Layers, SizeBytes: i.SizeBytes, Warnings: i.Warnings,
	}
}

func (s *Scheduler) imageGet(ctx context.Context, body []byte) (any, error) {
	req, err := idOf(body)
	if err != nil {
		return nil, err
	}
	i, err := s.loadImage(ctx, req.ID)
	if err != nil {
		return nil, err
	}
	return s.shownImage(i), nil
}

func (s *Scheduler) loadImage(ctx context.Context, id string) (events.Image, error) {
	var i events.Image
	e, err := s.fleet.Images.Get(ctx, id)
	if errors.Is(err, kv.ErrNotFound) {
		err = fail(api.CodeNotFound, "image %s: not found", id)
	}
	if err != nil {
		return i, err
	}
	return i, json.Unmarshal(e.Value, &i)
}

// imageDelete removes an image's record; its layers go with a later collection. One that a pool starts from is refused
// unless forced, and then built anew.
func (s *Scheduler) imageDelete(ctx context.Context, body []byte) (any, error) {
	id, err := idOf(body)
	if err != nil {
		return nil, err
	}
	var req api.Delete
	_ = json.Unmarshal(body, &req) // a bare id is no JSON, and forces nothing
	i, err := s.loadImage(ctx, id.ID)
	if err != nil {
		return nil, err
	}
	p := s.pools.get(i.Pool)
	if p.there && p.latest.Image == i.ID && !req.Force {
		return nil, fail(api.CodeRefused, "image %s: pool %s starts from it: remove the pool, build another, or use --force", i.ID, i.Pool)
	}
	if err := s.fleet.Images.Delete(ctx, i.ID, 0); err != nil {
		return nil, err
	}
	return api.Done{ID: i.ID, State: "deleted"}, nil
}

// imageBuild asks for a build, or a worker of the pool what a build would do.
func (s *Scheduler) imageBuild(ctx context.Context, body []byte) (any, error) {
	var req api.ImageBuild
	if err := json.Unmarshal(body, &req); err != nil {
		return nil, fail(api.CodeInvalid, "request is not JSON: %v", err)
	}
	record, _, _, err := s.loadPool(ctx, req.Pool)
	if err != nil {
		return nil, err
	}
	if !req.Explain {
		return s.askNow(ctx, record, req.Scratch)
	}
	if _, err := s.awaitServed(ctx, req.Pool); err != nil {
		return nil, err
	}
	workers := s.index.workers()
	for _, name := range candidates("", "", workers) {
		if _, serves := workers[name].Pools[req.Pool]; serves {
			return s.askWorker(ctx, name, "explain", api.Name{Name: req.Pool})
		}
	}
	return nil, fail(api.CodeConflict, "pool %s: no live worker serves it, so nobody can look at the repository: start one", req.Pool)
}
