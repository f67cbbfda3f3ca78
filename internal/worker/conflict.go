package worker

import (
	"context"
	"fmt"
	"strings"

	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan/applier"
)

// conflict appends how an apply or undo met conflicts. What has no room in that event goes into others before it.
func (j *job) conflict(ctx context.Context, typ string, d events.Data, found []applier.Conflict) error {
	ctx = context.WithoutCancel(ctx)
	pieces := events.SplitConflicts(conflicts(found))
	last := len(pieces) - 1
	for i, p := range pieces[:last] {
		if err := j.writer.Append(ctx, events.TypeConflictPart, events.Data{Conflicts: p, Try: i + 1}); err != nil {
			return settled(err)
		}
	}
	d.Conflicts, d.ConflictCount = pieces[last], len(found)
	return j.end(ctx, typ, d)
}

func conflicts(found []applier.Conflict) []events.Conflict {
	out := make([]events.Conflict, len(found))
	for i, c := range found {
		out[i] = events.Conflict{
			Path: portable(c.Path), Kind: string(c.Kind), Detail: c.Detail,
			Base: fileState(c.Base), Ours: fileState(c.Ours), Theirs: fileState(c.Theirs),
		}
	}
	return out
}

// portable is a path in the form that JSON can hold.
func portable(p layer.Path) string {
	text, err := p.MarshalText()
	if err != nil {
		return string(p)
	}
	return string(text)
}

func fileState(e *layer.Entry) *events.FileState {
	if e == nil {
		return nil
	}
	return &events.FileState{
		Type: string(e.Type), Mode: fmt.Sprintf("%04o", e.Mode), Size: e.Size,
		SHA256: strings.TrimPrefix(e.Digest, "sha256:"), Link: portable(layer.Path(e.Link)),
	}
}

func summary(found []applier.Conflict) string {
	if len(found) == 1 {
		return fmt.Sprintf("%q conflicts with the original (%s), which is as it was", found[0].Path, found[0].Kind)
	}
	return fmt.Sprintf("%d paths conflict with the original, which is as it was; the first is %q (%s)", len(found), found[0].Path, found[0].Kind)
}
