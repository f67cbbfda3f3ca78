package plan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// readJSON reads one JSON document; nil means that a fault was reported.
func readJSON(r *report, src []byte) *node {
	dec := json.NewDecoder(bytes.NewReader(src))
	dec.UseNumber()
	in := &jsonReader{r: r, dec: dec, cursor: newCursor(src)}
	n, err := in.value(0)
	if err == nil {
		if _, end := dec.Token(); !errors.Is(end, io.EOF) {
			err = fmt.Errorf("text follows the %s: send one JSON object alone", r.noun)
		}
	}
	if err != nil {
		r.addAt(in.next(), "", "the %s can't be read as JSON: %s", r.noun, strings.TrimPrefix(err.Error(), "json: "))
		return nil
	}
	return n
}

type jsonReader struct {
	r      *report
	dec    *json.Decoder
	cursor *cursor
	values int
}

// next is the position of the token that comes next.
func (in *jsonReader) next() position {
	src := in.cursor.src
	i := int(in.dec.InputOffset())
	for i < len(src) && strings.IndexByte(" \t\r\n,:", src[i]) >= 0 {
		i++
	}
	return in.cursor.position(i)
}

func (in *jsonReader) value(depth int) (*node, error) {
	if depth > maxDepth {
		return nil, errors.New("it is nested too deeply")
	}
	if in.values++; in.values > maxValues {
		return nil, fmt.Errorf("it has more than %d values", maxValues)
	}
	n := &node{at: in.next()}
	tok, err := in.dec.Token()
	if errors.Is(err, io.EOF) {
		return nil, errors.New("it ends in the middle")
	}
	if err != nil {
		return nil, err
	}
	switch t := tok.(type) {
	case json.Delim:
		return n, in.collection(n, t, depth)
	case string:
		n.shape, n.text = text, t
	case json.Number:
		n.shape, n.text = number, t.String()
	case bool:
		n.shape, n.text = truth, strconv.FormatBool(t)
	default:
		n.shape = null
	}
	return n, nil
}

func (in *jsonReader) collection(n *node, open json.Delim, depth int) error {
	n.shape = list
	if open == '{' {
		n.shape = object
	}
	for in.dec.More() {
		var m member
		if n.shape == object {
			m.at = in.next()
			key, err := in.dec.Token()
			if err != nil {
				return err
			}
			m.key, _ = key.(string)
		}
		value, err := in.value(depth + 1)
		if err != nil {
			return err
		}
		m.value = value
		if n.shape == object {
			n.members = append(n.members, m)
		} else {
			n.items = append(n.items, value)
		}
	}
	_, err := in.dec.Token()
	if errors.Is(err, io.EOF) {
		return errors.New("it ends in the middle")
	}
	return err
}
