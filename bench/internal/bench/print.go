package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"math"

	"github.com/jedib0t/go-pretty/v6/table"
)

// printTable writes rows for people.
func printTable(w io.Writer, machine string, rows []Row) {
	fmt.Fprintln(w, machine)
	t := table.NewWriter()
	t.SetOutputMirror(w)
	style := table.StyleLight
	style.Options.SeparateRows, style.Options.DrawBorder, style.Options.SeparateColumns = false, false, false
	t.SetStyle(style)
	t.AppendHeader(table.Row{"bench", "what", "n", "p50", "p99", "unit", "peer", "peer p50", "ratio", "target", ""})
	for _, r := range rows {
		if r.Skipped != "" {
			t.AppendRow(table.Row{r.Bench, r.What, "", "", "", "", "skipped: " + r.Skipped, "", "", "", ""})
			continue
		}
		t.AppendRow(table.Row{
			r.Bench, r.What, r.N, number(&r.P50), number(&r.P99), r.Unit, r.Peer, number(r.PeerP50), number(r.Ratio), r.Target, verdict(r.Met),
		})
	}
	t.Render()
	fmt.Fprintln(w, summary(rows))
}

// summary counts the targets that were missed, which ends no run with an error.
func summary(rows []Row) string {
	var asked, missed int
	for _, r := range rows {
		if r.Met != nil {
			asked++
			if !*r.Met {
				missed++
			}
		}
	}
	return fmt.Sprintf("%d of %d targets missed", missed, asked)
}

func verdict(met *bool) string {
	switch {
	case met == nil:
		return ""
	case *met:
		return "met"
	default:
		return "missed"
	}
}

// number shows three digits that count.
func number(v *float64) string {
	switch {
	case v == nil:
		return ""
	case *v == 0:
		return "0"
	}
	digits := 2 - int(math.Floor(math.Log10(math.Abs(*v))))
	return fmt.Sprintf("%.*f", max(digits, 0), *v)
}

// printJSON writes one object a row.
func printJSON(w io.Writer, rows []Row) error {
	enc := json.NewEncoder(w)
	for _, r := range rows {
		if err := enc.Encode(r); err != nil {
			return err
		}
	}
	return nil
}
