package plan

import (
	"encoding"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// decoder fills Go values from a tree. The json tags of the structs are the only list of
// keys; every fault is reported and decoding goes on.
type decoder struct{ r *report }

// fromNode is a type that is not one shape in the text.
type fromNode interface {
	fromNode(d *decoder, n *node, path string)
}

func (d *decoder) value(v reflect.Value, n *node, path string) {
	d.r.values[path] = n.at
	if n.shape == null {
		d.r.unreadable(path, "has no value: give it one or remove the key")
		return
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	switch into := v.Addr().Interface().(type) {
	case fromNode:
		into.fromNode(d, n, path)
		return
	case Worder:
		if n.shape == text {
			d.word(into, n, path)
			return
		}
	case encoding.TextUnmarshaler:
		d.text(into, n, path)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.object(v, n, path)
	case reflect.Map:
		d.mapping(v, n, path)
	case reflect.Slice:
		d.list(v, n, path)
	default:
		d.scalar(v, n, path)
	}
}

// want reports a value of the wrong shape.
func (d *decoder) want(n *node, path string, shape shape) bool {
	if n.shape == shape {
		return true
	}
	switch {
	case shape == text && (n.shape == number || n.shape == truth):
		d.r.unreadable(path, "must be text, not %s: put it in quotes", n.shape)
	case n.shape == text && (shape == number || shape == truth):
		d.r.unreadable(path, "must be %s, not the text %s: remove the quotes or correct it", shape, quote(n.text))
	default:
		d.r.unreadable(path, "must be %s, not %s", shape, n.shape)
	}
	return false
}

func (d *decoder) object(v reflect.Value, n *node, path string) {
	if !d.want(n, path, object) {
		return
	}
	fields := keysOf(v.Type())
	seen := map[string]position{}
	for _, m := range n.members {
		at := join(path, m.key)
		if d.refuse(seen, m, at) {
			continue
		}
		i, known := fields[m.key]
		if !known {
			d.unknown(m, at, fields)
			continue
		}
		d.r.keys[at] = m.at
		d.value(v.Field(i), m.value, at)
	}
}

func (d *decoder) unknown(m member, path string, fields map[string]int) {
	if m.key == "<<" {
		d.r.addAt(m.at, path, "merge keys are not part of the format: write the keys out")
		return
	}
	meant := ""
	if !d.r.full() {
		meant = hint(m.key, slices.Collect(maps.Keys(fields)))
	}
	d.r.addAt(m.at, path, "unknown key %s; %s", quote(m.key), meant)
}

// refuse reports a member that is not decoded at all: one whose key came before, or is so
// long that it can only be meant to cost time.
func (d *decoder) refuse(seen map[string]position, m member, path string) bool {
	const mostKey = 255
	first, twice := seen[m.key]
	switch {
	case twice:
		d.r.addAt(m.at, path, "the key %s is given twice, first on line %d: remove one", quote(m.key), first.line)
	case len(m.key) > mostKey:
		d.r.addAt(m.at, path, "the key has %d bytes, at most %d are read", len(m.key), mostKey)
	default:
		seen[m.key] = m.at
		return false
	}
	return true
}

func (d *decoder) mapping(v reflect.Value, n *node, path string) {
	if !d.want(n, path, object) {
		return
	}
	v.Set(reflect.MakeMap(v.Type()))
	seen := map[string]position{}
	for _, m := range n.members {
		at := join(path, m.key)
		if d.refuse(seen, m, at) {
			continue
		}
		d.r.keys[at] = m.at
		one := reflect.New(v.Type().Elem()).Elem()
		d.value(one, m.value, at)
		v.SetMapIndex(reflect.ValueOf(m.key), one)
	}
}

func (d *decoder) list(v reflect.Value, n *node, path string) {
	if !d.want(n, path, list) {
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.items), len(n.items)))
	for i, item := range n.items {
		d.value(v.Index(i), item, index(path, i))
	}
}

func (d *decoder) text(into encoding.TextUnmarshaler, n *node, path string) {
	if n.shape != text && n.shape != number {
		d.want(n, path, text)
		return
	}
	if err := into.UnmarshalText([]byte(n.text)); err != nil {
		d.r.addf(path, "%v", err)
	}
}

func (d *decoder) word(into Worder, n *node, path string) {
	if err := into.SetWord(n.text); err != nil {
		d.r.unreadable(path, "%v", err)
	}
}

func (d *decoder) scalar(v reflect.Value, n *node, path string) {
	switch v.Kind() {
	case reflect.String:
		if d.want(n, path, text) {
			v.SetString(n.text)
		}
	case reflect.Bool:
		if d.want(n, path, truth) {
			v.SetBool(n.text == "true")
		}
	case reflect.Int:
		if !d.want(n, path, number) {
			return
		}
		i, err := strconv.ParseInt(n.text, 10, 0)
		if err != nil {
			d.r.addf(path, "must be a whole number, not %s", quote(n.text))
			return
		}
		v.SetInt(i)
	case reflect.Float64:
		if !d.want(n, path, number) {
			return
		}
		f, err := strconv.ParseFloat(n.text, 64)
		if err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
			d.r.addf(path, "must be a number, not %s", quote(n.text))
			return
		}
		v.SetFloat(f)
	default:
		panic("plan: no decoding for " + v.Type().String())
	}
}

func (n *Network) fromNode(d *decoder, in *node, path string) {
	switch in.shape {
	case text:
		n.Mode = in.text
	case list:
		d.list(reflect.ValueOf(&n.Hosts).Elem(), in, path)
	default:
		d.r.unreadable(path, "must be none, allow or a list of hosts, not %s", in.shape)
	}
}

// keysOf are the keys of a struct and the fields they fill.
func keysOf(t reflect.Type) map[string]int {
	keys := make(map[string]int, t.NumField())
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		keys[name] = i
	}
	return keys
}
