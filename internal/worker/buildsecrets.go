package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/internal/mask"
	"github.com/warmfleet/warmfleet/pkg/image"
)

// leastSearched is the shortest secret that is looked for in an image, in bytes: a shorter one is found by chance.
const leastSearched = 8

// errFound ends a walk.
var errFound = errors.New("found")

// searchLayers refuses layers of an image that hold a secret, as it is or encoded: in the name, content, link text or attributes of any
// path, also of one that only the worker can read. warnings name the secrets that are too short to be looked for.
func searchLayers(ctx context.Context, made layer.Chain, secrets map[string][]byte) (warnings []string, err error) {
	for _, name := range slices.Sorted(maps.Keys(secrets)) {
		set := mask.NewSearch(leastSearched, secrets[name])
		if set.Empty() || len(bytes.TrimSpace(secrets[name])) < leastSearched {
			warnings = append(warnings, fmt.Sprintf("secret %s is shorter than %d bytes: nobody looked whether the build left it", name, leastSearched))
			continue
		}
		for _, l := range made {
			if err := searchLayer(ctx, layer.NewTree(layer.Chain{l}), name, set.Search()); err != nil {
				return nil, err
			}
		}
	}
	return warnings, nil
}

func searchLayer(ctx context.Context, tree *layer.Tree, name string, search *mask.Search) error {
	var at layer.Path
	err := tree.Walk(func(e layer.Entry) error {
		at = e.Path
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		texts := []string{string(e.Path), string(e.Link)}
		for key, value := range e.Xattrs {
			texts = append(texts, key, string(value))
		}
		for _, text := range texts {
			search.Reset()
			_, _ = io.WriteString(search, text)
			if search.Found() {
				return errFound
			}
		}
		if e.Type != layer.File || e.HardLink != "" {
			return nil
		}
		return searchFile(ctx, tree, e.Path, search)
	})
	if errors.Is(err, errFound) {
		return fmt.Errorf("worker: secret %s is in %.200q: let no step write it into the workspace: %w", name, at, image.ErrLeft)
	}
	if err != nil {
		return fmt.Errorf("worker: look for secrets in what the build left: %w", err)
	}
	return nil
}

// searchFile reads a file until the secret is found or ctx ends.
func searchFile(ctx context.Context, tree *layer.Tree, path layer.Path, search *mask.Search) error {
	f, err := tree.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	search.Reset()
	buf := make([]byte, 256<<10)
	for {
		n, err := f.Read(buf)
		_, _ = search.Write(buf[:n])
		switch {
		case search.Found():
			return errFound
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
	}
}
