package image

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
)

// Outcome is what came of a file that Detect looked for.
type Outcome string

// The outcomes. A file that is there is passed over where another one comes before it.
const (
	Used     Outcome = "used"
	Passed   Outcome = "passed_over"
	NotThere Outcome = "not_found"
	Refused  Outcome = "refused"
	// NotLooked is a file that could not count any more, because of what was found before it.
	NotLooked Outcome = "not_looked_at"
)

// Looked is a file that may say how an image is made, and what came of it.
type Looked struct {
	File   string  `json:"file"`
	Result Outcome `json:"result"`
	Why    string  `json:"why,omitempty"`
}

// Candidates are all files that Detect looks for, in the order of precedence.
func Candidates() []string {
	names := append([]string{File}, devcontainers...)
	for _, l := range locks {
		names = append(names, l.file)
	}
	return names
}

// Look is Detect, with what came of each of the candidates. A recipe that is refused, ErrRecipe, comes with them too.
func Look(read Reader) (Explanation, []Looked, error) {
	there := map[string]bool{}
	last := ""
	e, err := Detect(func(path string, limit int64) ([]byte, error) {
		b, err := read(path, limit)
		there[path], last = !errors.Is(err, fs.ErrNotExist), path
		return b, err
	})
	if err != nil && e.Refused == "" {
		e.Refused = last // it could not be read, so nothing was asked for after it
	}
	var all []Looked
	for _, name := range Candidates() {
		found, asked := there[name]
		l := Looked{File: name, Result: Passed, Why: e.why(name)}
		switch {
		case name == e.Refused:
			l.Result, l.Why = Refused, err.Error()
		case slices.Contains(e.Chosen, name):
			l.Result = Used
		case !asked:
			l.Result = NotLooked
		case !found:
			l.Result = NotThere
		}
		all = append(all, l)
	}
	return e, all, err
}

// why is what was decided about a file.
func (e Explanation) why(file string) string {
	for _, line := range e.Why {
		if why, ok := strings.CutPrefix(line, file+": "); ok {
			return why
		}
	}
	return ""
}
