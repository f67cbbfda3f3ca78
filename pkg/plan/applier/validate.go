package applier

import (
	"fmt"
	"strings"

	"github.com/warmfleet/warmfleet/internal/layer"
)

// maxPlan bounds Request.Plan so that "<plan>.<epoch>" is a file name (NAME_MAX is 255 bytes).
const maxPlan = 200

// validate refuses what no layer produces, before anything is looked up.
func validate(req Request) error {
	if !plainName(req.Plan) {
		return fmt.Errorf("applier: plan %q is no file name: %w", req.Plan, ErrInvalid)
	}
	seen := make(map[layer.Path]bool, len(req.Changes))
	for i := range req.Changes {
		ch := &req.Changes[i]
		if seen[ch.Path] {
			return fmt.Errorf("applier: change %q occurs twice: %w", ch.Path, ErrInvalid)
		}
		seen[ch.Path] = true
		if why := invalid(ch); why != "" {
			return fmt.Errorf("applier: change %q: %s: %w", ch.Path, why, ErrInvalid)
		}
	}
	return nil
}

// plainName tells whether a plan's name can be the beginning of a file's.
func plainName(s string) bool {
	return s != "" && len(s) <= maxPlan && s[0] != '.' && !strings.ContainsAny(s, "/\x00")
}

// cleanPath tells whether p stays below the root it is looked up in.
func cleanPath(p layer.Path) bool {
	for name := range strings.SplitSeq(string(p), "/") {
		if name == "" || name == "." || name == ".." || strings.ContainsRune(name, 0) {
			return false
		}
	}
	return true
}

func invalid(ch *layer.Change) string {
	if ch.Path == "." {
		if ch.Before == nil || ch.After == nil || ch.Before.Type != layer.Dir || ch.After.Type != layer.Dir {
			return "the root must stay a directory"
		}
		return ""
	}
	if !cleanPath(ch.Path) {
		return "path is not clean"
	}
	if ch.Before == nil && ch.After == nil {
		return "neither side exists"
	}
	for _, e := range []*layer.Entry{ch.Before, ch.After} {
		if e == nil {
			continue
		}
		switch e.Type {
		case layer.File:
			if e.Digest == "" {
				return "no digest"
			}
		case layer.Dir, layer.Symlink, layer.Fifo, layer.Char, layer.Block:
		default:
			return "unknown type " + string(e.Type)
		}
	}
	return ""
}
