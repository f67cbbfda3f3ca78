package plan

import (
	"errors"
	"testing"
)

func TestParseIdentity(t *testing.T) {
	for text, want := range map[string]Identity{
		"Ann <a@example.com>":                {Name: "Ann", Email: "a@example.com"},
		"D'Author \"x\" y <who@example.com>": {Name: "D'Author \"x\" y", Email: "who@example.com"},
		"":                                   {},
		"Ann":                                {},
		"Ann <a@example.com> more":           {},
		"<a@example.com>":                    {},
		"Ann <>":                             {},
		"Ann\n <a@example.com>x":             {},
		"... <a@example.com>":                {},
	} {
		got, err := ParseIdentity(text)
		if got != want || (err != nil) != (want == Identity{}) || err != nil && !errors.Is(err, ErrIdentity) {
			t.Errorf("%q: got %+v, %v, want %+v", text, got, err, want)
		}
	}
}
