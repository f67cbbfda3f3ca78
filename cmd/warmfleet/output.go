package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/mattn/go-isatty"
	"go.yaml.in/yaml/v4"
)

// formats are the values of -o.
var formats = []string{"table", "json", "jsonl", "yaml", "name", "wide"}

// forPeople tells whether data is to be read by people.
func (a *app) forPeople() bool { return a.format == "table" || a.format == "wide" }

// printer writes data to stdout in the format that was asked for; messages go elsewhere.
type printer struct {
	format string
	w      io.Writer
}

// sheet is data with the columns people see of it.
type sheet struct {
	data   any      // what json and yaml print; a slice for lists
	header []string // of the table
	rows   [][]any
	wide   int // how many of the columns are for -o wide only, at the end
}

// one prints a single object.
func (p printer) one(v any, text func(io.Writer)) error {
	switch p.format {
	case "json", "jsonl", "yaml":
		return p.encode(v)
	default:
		text(p.w)
		return nil
	}
}

// list prints a sheet.
func (p printer) list(s sheet) error {
	switch p.format {
	case "json", "yaml":
		return p.encode(s.data)
	case "jsonl":
		return p.lines(s.data)
	case "name":
		for _, row := range s.rows {
			fmt.Fprintln(p.w, row[0])
		}
		return nil
	}
	columns := len(s.header)
	if p.format != "wide" {
		columns -= s.wide
	}
	t := table.NewWriter()
	t.SetOutputMirror(p.w)
	t.SetStyle(table.StyleLight)
	t.AppendHeader(row(s.header, columns))
	for _, r := range s.rows {
		t.AppendRow(table.Row(r[:columns]))
	}
	t.Render()
	return nil
}

func row(cells []string, n int) table.Row {
	var out table.Row
	for _, c := range cells[:n] {
		out = append(out, c)
	}
	return out
}

func (p printer) encode(v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if p.format == "jsonl" {
		b, err = json.Marshal(v)
	}
	if err != nil {
		return err
	}
	if p.format == "yaml" {
		return p.yaml(b)
	}
	_, err = fmt.Fprintf(p.w, "%s\n", b)
	return err
}

// yaml prints JSON as YAML, so that both have the same names.
func (p printer) yaml(b []byte) error {
	var v any
	if err := yaml.Unmarshal(b, &v); err != nil {
		return err
	}
	out, err := yaml.Marshal(v)
	if err != nil {
		return err
	}
	_, err = p.w.Write(out)
	return err
}

func (p printer) lines(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var items []json.RawMessage
	if err := json.Unmarshal(b, &items); err != nil {
		return err
	}
	for _, item := range items {
		if _, err := fmt.Fprintf(p.w, "%s\n", item); err != nil {
			return err
		}
	}
	return nil
}

// terminal tells whether a file is one a person looks at.
func terminal(f *os.File) bool { return isatty.IsTerminal(f.Fd()) }

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
