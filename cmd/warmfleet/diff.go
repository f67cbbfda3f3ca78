package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/plan/diff"
)

// diffFlags say in which form a difference is printed.
type diffFlags struct{ patch, stat, nameStatus bool }

func (f *diffFlags) register(c *cobra.Command) {
	c.Flags().BoolVar(&f.stat, "stat", false, "a line for each changed path, with counts")
	c.Flags().BoolVar(&f.nameStatus, "name-status", false, "a letter and a name for each changed path")
	c.Flags().BoolVarP(&f.patch, "patch", "p", false, "the text, beside --stat or --name-status; alone it is the default")
}

const diffForms = `The text is a unified diff that git apply takes; what git has no form for is in lines that it skips. Binary files are named
with their sizes. On a terminal it is coloured, unless NO_COLOR is set, and control characters are spelled out. -o json is an
array of the changed paths: path, old_path, kind, changed, old, new, added, deleted, binary (docs/formats.md).`

// difference is one that can be printed.
type difference struct {
	files func() (json.RawMessage, error) // an array of diff.File
	patch func(w io.Writer) error
}

func (a *app) printDifference(d difference, f diffFlags) error {
	if a.forPeople() && !f.stat && !f.nameStatus {
		return d.patch(diffWriter(a.stdout))
	}
	raw, err := d.files()
	if err != nil {
		return err
	}
	var files []diff.File
	if err := json.Unmarshal(raw, &files); err != nil {
		return fmt.Errorf("read the list of changed paths: %w", err)
	}
	if !a.forPeople() {
		s := sheet{data: raw}
		for _, file := range files {
			s.rows = append(s.rows, []any{diff.Quote(string(file.Path))})
		}
		return a.printer().list(s)
	}
	if f.stat {
		fmt.Fprint(a.stdout, diff.Stat(files))
	}
	if f.nameStatus {
		fmt.Fprint(a.stdout, diff.NameStatus(files))
	}
	if !f.patch {
		return nil
	}
	return d.patch(diffWriter(a.stdout))
}

func (a *app) planDiff() *cobra.Command {
	var f diffFlags
	c := &cobra.Command{
		Use: "diff ID", Short: "Print what a plan changed", Args: args(1, "a plan id"),
		Long: "Print what a plan changed. A large text is cut and says so; checkpoint diff has all of it.\n\n" + diffForms,
		Example: `  warmfleet plan diff ID --stat
  warmfleet plan diff ID | git apply`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := idArg("plan", args[0]); err != nil {
				return err
			}
			return a.with(c.Context(), func(ctx context.Context, h *handle) error {
				d, err := h.Diff(ctx, args[0])
				if err != nil {
					return h.explain(ctx, err, "show as a difference", "plan", args[0])
				}
				return a.printDifference(difference{
					files: func() (json.RawMessage, error) { return d.Files, nil },
					patch: func(w io.Writer) error { _, err := w.Write(textOf(d)); return err },
				}, f)
			})
		},
	}
	f.register(c)
	return c
}

// textOf is the text of a difference, as it was.
func textOf(d api.Diff) []byte {
	if d.Patch != nil {
		return d.Patch
	}
	return []byte(d.Diff)
}
