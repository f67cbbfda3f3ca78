package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/warmfleet/warmfleet/pkg/api"
)

func (a *app) imageCommand() *cobra.Command {
	c := &cobra.Command{Use: "image", Short: "Look at images of repositories, and build them"}
	c.AddCommand(a.imageLs(), a.imageShow(), a.imageBuild(), a.imageRm())
	return c
}

func (a *app) imageLs() *cobra.Command {
	var f api.ImageFilter
	c := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List images, oldest first", Args: args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.with(c.Context(), func(ctx context.Context, h *handle) error {
				images, err := h.Images(ctx, f)
				if err != nil {
					return err
				}
				s := sheet{data: images, header: []string{"ID", "POOL", "LATEST", "COMMIT", "SIZE", "BUILT", "LAYERS", "CHECKPOINT", "WORKER"}, wide: 3}
				for _, i := range images {
					s.rows = append(s.rows, []any{i.ID, i.Pool, i.Latest, i.Commit, size(i.SizeBytes), age(i.BuiltAt), i.Layers, i.Checkpoint, i.Worker})
				}
				return a.printer().list(s)
			})
		},
	}
	c.Flags().StringVar(&f.Pool, "pool", "", "only this pool's")
	return c
}

func (a *app) imageShow() *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Aliases: []string{"get", "info"}, Short: "Show an image", Args: args(1, "an image id"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := idArg("image", args[0]); err != nil {
				return err
			}
			return a.with(c.Context(), func(ctx context.Context, h *handle) error {
				i, err := h.Image(ctx, args[0])
				if err != nil {
					return h.explain(ctx, err, "show", "image", args[0])
				}
				return a.printer().one(i, i.ID, func(w io.Writer) { describeImage(w, i) })
			})
		},
	}
}

func describeImage(out io.Writer, i api.Image) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	defer w.Flush()
	for _, l := range [][2]string{
		{"id", i.ID},
		{"pool", i.Pool},
		{"latest", fmt.Sprint(i.Latest)},
		{"repo", i.Repo},
		{"ref", i.Ref},
		{"branch", i.Branch},
		{"commit", i.Commit},
		{"checkpoint", i.Checkpoint},
		{"parent", i.Parent},
		{"recipe", i.Recipe},
		{"worker", i.Worker},
		{"built", age(i.BuiltAt) + " ago"},
		{"layers", fmt.Sprint(i.Layers)},
		{"size", size(i.SizeBytes)},
	} {
		if l[1] != "" {
			fmt.Fprintf(w, "%s\t%s\n", l[0], l[1])
		}
	}
	for _, s := range i.Warnings {
		fmt.Fprintf(w, "warning\t%s\n", oneLine(s))
	}
}

func (a *app) imageBuild() *cobra.Command {
	var scratch, explain bool
	c := &cobra.Command{
		Use: "build POOL", Short: "Build a pool's image now, or say how it would be built", Args: args(1, "a pool's name"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.with(c.Context(), func(ctx context.Context, h *handle) error {
				if explain {
					return a.explainImage(ctx, h, args[0])
				}
				b, err := h.BuildImage(ctx, args[0], scratch)
				if err != nil {
					return h.explain(ctx, err, "build", "pool", args[0])
				}
				return a.printBuilding(b)
			})
		},
	}
	c.Flags().BoolVar(&scratch, "scratch", false, "from a new clone instead of on the last image")
	c.Flags().BoolVar(&explain, "explain", false, "build nothing; say which steps would run, and what in the repository they come from")
	c.MarkFlagsMutuallyExclusive("scratch", "explain")
	return c
}

func (a *app) explainImage(ctx context.Context, h *handle, pool string) error {
	e, err := h.ExplainImage(ctx, pool)
	if err != nil {
		return h.explain(ctx, err, "explain", "pool", pool)
	}
	return a.printer().one(e, pool, func(w io.Writer) { describeExplained(w, e) })
}

// describeExplained says how an image would be made. Texts of the repository are quoted where a terminal would act on them.
func describeExplained(out io.Writer, e api.ImageExplained) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	defer w.Flush()
	row := func(cells ...string) {
		for i, c := range cells {
			cells[i] = shown(c)
		}
		fmt.Fprintln(w, strings.TrimRight(strings.Join(cells, "\t"), "\t"))
	}
	row("pool", e.Pool)
	row("repo", e.Repo)
	if e.Commit != "" {
		row("commit", strings.TrimSpace(e.Commit+" "+e.Branch))
	}
	row("steps from", strings.ReplaceAll(e.Source, "_", " "))
	for _, why := range e.Why {
		row("why", why)
	}
	for _, l := range e.Looked {
		row("looked", l.File, strings.ReplaceAll(l.Result, "_", " "), l.Why)
	}
	for _, name := range slices.Sorted(maps.Keys(e.Env)) {
		row("env", name+"="+e.Env[name])
	}
	if len(e.Secrets) > 0 {
		row("secrets", strings.Join(e.Secrets, ", "))
	}
	for i, s := range e.Setup {
		row(fmt.Sprintf("setup %d", i+1), s)
	}
	for i, s := range e.Warm {
		row(fmt.Sprintf("warm %d", i+1), s)
	}
	if e.Error != "" {
		row("error", e.Error)
	}
}

// shown is a text as a terminal may have it, on one line.
func shown(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}

func (a *app) imageRm() *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use: "rm ID", Aliases: []string{"delete"}, Short: "Delete an image's record; its layers go once nothing names them", Args: args(1, "an image id"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := idArg("image", args[0]); err != nil {
				return err
			}
			return a.with(c.Context(), func(ctx context.Context, h *handle) error {
				done, err := h.DeleteImage(ctx, args[0], force)
				if err != nil {
					return h.explain(ctx, err, "delete", "image", args[0])
				}
				return a.printer().one(done, done.ID, func(w io.Writer) { fmt.Fprintln(w, done.ID) })
			})
		},
	}
	c.Flags().BoolVar(&force, "force", false, "also one that a pool starts from: another is built")
	return c
}
