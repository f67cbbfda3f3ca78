package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/warmfleet/warmfleet/internal/gitrepo"
	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/image"
	"github.com/warmfleet/warmfleet/pkg/poolfile"
)

// Where the steps of an image come from.
const (
	fromPoolFile   = "pool_file"
	fromRepository = "repository"
	fromNowhere    = "none"
)

// apiExplain says how an image of a pool would be made. It builds nothing.
func (w *Worker) apiExplain(ctx context.Context, body []byte) (any, error) {
	var req api.Name
	if err := json.Unmarshal(body, &req); err != nil {
		return nil, fmt.Errorf("worker: read request: %w: %w", errRequest, err)
	}
	spec, _, served := w.poolSpec(req.Name)
	if !served {
		return nil, fmt.Errorf("worker: explain the image of pool %q: %w", req.Name, errNoPool)
	}
	out := api.ImageExplained{Pool: spec.Name, Worker: w.cfg.Name, Repo: spec.Resource.Repo, Looked: []api.ImageLooked{}}
	recipe := image.FromPool(spec.Image)
	e, source := image.Explain(recipe), fromPoolFile
	if spec.Image.Auto {
		source = fromRepository
		var err error
		if e, err = w.look(ctx, spec, &out); err != nil {
			return nil, fmt.Errorf("worker: explain the image of pool %q: %w", req.Name, err)
		}
		e.Recipe = recipe.With(e.Recipe)
	} else if _, err := w.ask(ctx, spec, &out); err != nil {
		return nil, fmt.Errorf("worker: explain the image of pool %q: %w", req.Name, err)
	}
	if len(e.Recipe.Setup)+len(e.Recipe.Warm) == 0 {
		source = fromNowhere
		if !spec.Image.Auto {
			e.Why = []string{"the pool file gives no steps: the image is the clone alone"}
		}
	}
	r := e.Recipe
	out.Source, out.Why, out.Setup, out.Warm = source, list(e.Why), list(r.Setup), list(r.Warm)
	out.Env, out.Secrets, out.TimeoutMS = r.Env, r.Secrets, r.Timeout.Milliseconds()
	return out, nil
}

// look finds the recipe of a repository as it is at the remote now. A file that is refused is an answer, too.
func (w *Worker) look(ctx context.Context, spec poolfile.Pool, out *api.ImageExplained) (image.Explanation, error) {
	tip, err := w.ask(ctx, spec, out)
	if err != nil {
		return image.Explanation{}, err
	}
	remote := w.poolRemote(spec)
	e, looked, err := image.Look(func(path string, limit int64) ([]byte, error) {
		b, err := w.repos.FileAt(ctx, remote, tip, path, limit)
		if errors.Is(err, gitrepo.ErrFileSize) {
			err = fmt.Errorf("%w: %w", image.ErrTooLarge, err)
		}
		return b, err
	})
	for _, l := range looked {
		out.Looked = append(out.Looked, api.ImageLooked{File: l.File, Result: string(l.Result), Why: l.Why})
	}
	if ctx.Err() == nil && errors.Is(err, image.ErrRecipe) {
		e.Recipe, out.Error = image.Recipe{}, oneLine(err.Error())
		return e, nil
	}
	return e, err
}

// ask brings the mirror of a pool's repository to what the remote has now, and notes where that is.
func (w *Worker) ask(ctx context.Context, spec poolfile.Pool, out *api.ImageExplained) (gitrepo.Tip, error) {
	tip, err := w.repos.Sync(ctx, w.poolRemote(spec))
	out.Branch, out.Commit = tip.Branch, tip.Commit
	return tip, err
}

// list is a list that JSON shows as one when it is empty.
func list(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}
