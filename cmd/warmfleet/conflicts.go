package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// shownConflicts is how many conflicts a table has; -o json has all that are kept.
const shownConflicts = 100

// shownDigest is how much of a digest tells two contents apart for people.
const shownDigest = 12

// printConflicts is a table of what an apply or undo met, with the three sides of each path.
func printConflicts(w io.Writer, list []events.Conflict, count int) {
	if len(list) == 0 {
		return
	}
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "CONFLICT\tKIND\tBASE\tOURS\tTHEIRS")
	for _, c := range list[:min(len(list), shownConflicts)] {
		kind := c.Kind
		if c.Detail != "" {
			kind += " (" + quoted(c.Detail) + ")"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", named(c.Path), kind, side(c.Base), side(c.Ours), side(c.Theirs))
	}
	t.Flush()
	if more := max(count, len(list)) - shownConflicts; more > 0 {
		fmt.Fprintf(w, "and %d more: see -o json\n", more)
	}
}

// named is a path of an event as people read it: one that is not UTF-8 with its bytes as escapes.
func named(text string) string {
	var p layer.Path
	if err := p.UnmarshalText([]byte(text)); err != nil {
		return quoted(text)
	}
	return quoted(string(p))
}

// side is a path on one side of a conflict, in a few words.
func side(s *events.FileState) string {
	switch {
	case s == nil:
		return "-"
	case s.Type == "file" && len(s.SHA256) > shownDigest:
		return fmt.Sprintf("%s %s %s", s.Mode, size(s.Size), s.SHA256[:shownDigest])
	case s.Type == "symlink":
		return "-> " + named(s.Link)
	}
	return s.Type + " " + s.Mode
}

func printUndoView(w io.Writer, u *events.UndoView) {
	if u == nil {
		return
	}
	by := ""
	if u.By != "" {
		by = " by " + u.By
	}
	switch {
	case u.Error != nil:
		fmt.Fprintf(w, "undo\t%s%s: %s\n", u.State, by, oneLine(*u.Error))
	case u.Changed != nil:
		fmt.Fprintf(w, "undo\t%s%s, %d paths put back\n", u.State, by, *u.Changed)
	default:
		fmt.Fprintf(w, "undo\t%s%s\n", u.State, by)
	}
}
