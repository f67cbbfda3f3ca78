package image

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// file is the form of .warmfleet/image.yaml.
type file struct {
	Setup []string          `yaml:"setup"`
	Warm  []string          `yaml:"warm"`
	Env   map[string]string `yaml:"env"`
}

// parseFile reads an image file. Unknown keys are refused, so that a misspelled one is not silently without effect.
func parseFile(name string, b []byte) (Recipe, error) {
	var f file
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(&f); err != nil && !errors.Is(err, io.EOF) {
		return Recipe{}, fmt.Errorf("image: %s: %w: %s", name, ErrRecipe, oneLine(err.Error()))
	}
	var second any
	if err := dec.Decode(&second); !errors.Is(err, io.EOF) {
		return Recipe{}, fmt.Errorf("image: %s: %w: one document is expected", name, ErrRecipe)
	}
	return Recipe{Setup: f.Setup, Warm: f.Warm, Env: f.Env}, nil
}

// devcontainers are where a devcontainer may be described, in the order of precedence.
var devcontainers = []string{".devcontainer/devcontainer.json", ".devcontainer.json"}

// devcontainer is what counts of one: the commands that run once a container is made, in their order.
type devcontainer struct {
	OnCreate      command           `json:"onCreateCommand"`
	UpdateContent command           `json:"updateContentCommand"`
	PostCreate    command           `json:"postCreateCommand"`
	ContainerEnv  map[string]string `json:"containerEnv"`
}

// command is shell text, the words of a program, or several of these by name. It becomes steps.
type command []string

// UnmarshalJSON implements json.Unmarshaler.
func (c *command) UnmarshalJSON(b []byte) error {
	var text string
	if json.Unmarshal(b, &text) == nil {
		if strings.TrimSpace(text) != "" {
			*c = command{text}
		}
		return nil
	}
	var words []string
	if json.Unmarshal(b, &words) == nil {
		if len(words) > 0 {
			*c = command{quoteAll(words)}
		}
		return nil
	}
	var named map[string]json.RawMessage
	if err := json.Unmarshal(b, &named); err != nil {
		return errors.New("a command is text, a list of words, or an object of these")
	}
	for _, name := range slices.Sorted(maps.Keys(named)) { // in parallel elsewhere, so any order will do
		if bytes.HasPrefix(bytes.TrimSpace(named[name]), []byte("{")) {
			return fmt.Errorf("command %q: an object in an object", name)
		}
		var one command
		if err := one.UnmarshalJSON(named[name]); err != nil {
			return fmt.Errorf("command %q: %w", name, err)
		}
		*c = append(*c, one...)
	}
	return nil
}

// quoteAll makes one line for a shell of words that it must not look into.
func quoteAll(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}

// parseDevcontainer reads a devcontainer.json, which may have comments and trailing commas.
func parseDevcontainer(name string, b []byte) (Recipe, error) {
	plain := uncomment(b)
	var d devcontainer
	if err := json.Unmarshal(plain, &d); err != nil {
		return Recipe{}, fmt.Errorf("image: %s:%d: %w: %s", name, lineOf(plain, err), ErrRecipe, oneLine(err.Error()))
	}
	r := Recipe{Setup: slices.Concat(d.OnCreate, d.UpdateContent, d.PostCreate)}
	for key, value := range d.ContainerEnv {
		if !strings.Contains(value, "${") { // of a host or container that there is none of here
			if r.Env == nil {
				r.Env = map[string]string{}
			}
			r.Env[key] = value
		}
	}
	return r, nil
}

// lineOf is the line that an error of package json is about, 1 where it does not say.
func lineOf(b []byte, err error) int {
	offset := int64(0)
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		offset = syntax.Offset
	case errors.As(err, &kind):
		offset = kind.Offset
	}
	return 1 + bytes.Count(b[:min(max(offset, 0), int64(len(b)))], []byte("\n"))
}

// uncomment blanks out comments and trailing commas of JSON; lines and offsets stay. A comment that does not end is left,
// so that reading fails.
func uncomment(b []byte) []byte {
	out := bytes.Clone(bytes.TrimPrefix(b, []byte("\xef\xbb\xbf")))
	comma := -1 // the last thing but blanks, if that is a comma
	for i := 0; i < len(out); {
		end := i + 1
		switch rest := out[i:]; {
		case rest[0] == '"':
			end = i + stringEnd(rest)
			comma = -1
		case bytes.HasPrefix(rest, []byte("//")):
			end = i + len(line(rest))
			blank(out[i:end])
		case bytes.HasPrefix(rest, []byte("/*")):
			n := bytes.Index(rest[2:], []byte("*/"))
			if n < 0 {
				return out
			}
			end = i + n + 4
			blank(out[i:end])
		case rest[0] == ',':
			comma = i
		case rest[0] == '}' || rest[0] == ']':
			if comma >= 0 {
				out[comma] = ' '
			}
			comma = -1
		case !strings.ContainsRune(" \t\r\n", rune(rest[0])):
			comma = -1
		}
		i = end
	}
	return out
}

func line(b []byte) []byte {
	if n := bytes.IndexByte(b, '\n'); n >= 0 {
		return b[:n]
	}
	return b
}

// stringEnd is the length of the JSON string that b begins with, all of b where it does not end.
func stringEnd(b []byte) int {
	for i := 1; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(b)
}

func blank(b []byte) {
	for i := range b {
		if b[i] != '\n' {
			b[i] = ' '
		}
	}
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
