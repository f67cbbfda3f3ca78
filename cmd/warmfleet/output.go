package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"go.yaml.in/yaml/v4"

	"github.com/warmfleet/warmfleet/internal/termsafe"
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

// one prints a single object: as data, by its name, or as text.
func (p printer) one(v any, name string, text func(io.Writer)) error {
	switch p.format {
	case "json", "jsonl", "yaml":
		return p.encode(v)
	case "name":
		_, err := fmt.Fprintln(p.w, name)
		return err
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
			if _, err := fmt.Fprintln(p.w, row[0]); err != nil {
				return err
			}
		}
		return nil
	}
	columns := len(s.header)
	if p.format != "wide" {
		columns -= s.wide
	}
	t := table.NewWriter()
	style := table.StyleLight
	style.Options = table.OptionsNoBordersAndSeparators
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	t.SetStyle(style)
	t.SuppressTrailingSpaces()
	t.AppendHeader(row(s.header, columns))
	for _, r := range s.rows {
		t.AppendRow(cells(r[:columns]))
	}
	_, err := fmt.Fprintln(p.w, t.Render())
	return err
}

func row(cells []string, n int) table.Row {
	var out table.Row
	for _, c := range cells[:n] {
		out = append(out, c)
	}
	return out
}

// cells are a row in which no text can be more than its cell.
func cells(values []any) table.Row {
	out := make(table.Row, len(values))
	for i, v := range values {
		if text, ok := v.(string); ok {
			v = termsafe.Line(text)
		}
		out[i] = v
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
	_, err = fmt.Fprintf(p.w, "%s\n", termsafe.JSON(b))
	return err
}

// yaml prints JSON as YAML, with the same names in the same order.
func (p printer) yaml(b []byte) error {
	var doc yaml.Node
	if err := yaml.Unmarshal(b, &doc); err != nil {
		return err
	}
	block(&doc)
	enc := yaml.NewEncoder(p.w)
	enc.SetIndent(2)
	return errors.Join(enc.Encode(&doc), enc.Close())
}

// block takes JSON's braces and quotes away; what needs quotes gets them back.
func block(n *yaml.Node) {
	if len(n.Content) > 0 || n.Kind == yaml.ScalarNode {
		n.Style = 0
	}
	for _, c := range n.Content {
		block(c)
	}
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
		if _, err := fmt.Fprintf(p.w, "%s\n", termsafe.JSON(item)); err != nil {
			return err
		}
	}
	return nil
}

// oneLine is text as one line that a terminal only shows.
func oneLine(s string) string { return termsafe.Line(strings.Join(strings.Fields(s), " ")) }

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// age is how long ago something was, in the largest two units that matter.
func age(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	d := time.Since(t).Round(time.Second)
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	case d >= time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	default:
		return d.String()
	}
}
