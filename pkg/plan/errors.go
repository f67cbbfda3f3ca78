package plan

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// ErrInvalid is what every refusal of a plan matches with errors.Is.
var ErrInvalid = errors.New("plan: invalid")

// ErrTooLarge matches a plan that is above a size limit, beside ErrInvalid.
var ErrTooLarge = errors.New("plan: too large")

// Error is one fault of a plan.
type Error struct {
	// Path names the value, as in "steps[2].retry.limit"; "" is the whole plan.
	Path string `json:"path"`
	// Line and Column start at 1; 0 when the plan came from no text.
	Line   int `json:"line,omitempty"`
	Column int `json:"column,omitempty"`
	// Message is one line: what is wrong, why, and what to write instead.
	Message string `json:"message"`
}

// Errors is every fault of a plan, in the order of the text; beyond 200 they are counted.
// It matches ErrInvalid.
type Errors struct {
	// File is the name the plan was read under, "" when it came from no file.
	File string  `json:"file,omitempty"`
	List []Error `json:"errors"`

	tooLarge bool
}

// Error is one line a fault: "file:line:column: path: message".
func (e *Errors) Error() string {
	lines := make([]string, len(e.List))
	for i, one := range e.List {
		lines[i] = e.line(one)
	}
	return strings.Join(lines, "\n")
}

func (e *Errors) line(one Error) string {
	var b strings.Builder
	switch {
	case e.File != "" && one.Line > 0:
		fmt.Fprintf(&b, "%s:%d:%d: ", e.File, one.Line, one.Column)
	case e.File != "":
		fmt.Fprintf(&b, "%s: ", e.File)
	case one.Line > 0:
		fmt.Fprintf(&b, "line %d, column %d: ", one.Line, one.Column)
	}
	if one.Path != "" {
		b.WriteString(one.Path + ": ")
	}
	b.WriteString(one.Message)
	return b.String()
}

// Is reports ErrInvalid always, ErrTooLarge where a size was the reason.
func (e *Errors) Is(target error) bool {
	return target == ErrInvalid || target == ErrTooLarge && e.tooLarge
}

// report collects the faults of one plan and knows where its values stand in the text.
type report struct {
	errs Errors
	// values and keys are positions by path: of a value, and of the key that holds it.
	values, keys map[string]position
	// faulty has the paths that were reported; opaque those whose value could not be read
	// at all, so that nothing inside them can be judged.
	faulty, opaque map[string]bool
	// more counts the faults beyond maxFaults.
	more int
	// noun is what the text is, and empty what is said of one without anything in it.
	noun, empty string
}

// maxFaults bounds what is reported of one plan; a hostile one has a fault every few bytes.
const maxFaults = 200

type position struct{ line, column int }

func newReport(file string) *report {
	return &report{
		errs:   Errors{File: file},
		values: map[string]position{}, keys: map[string]position{},
		faulty: map[string]bool{}, opaque: map[string]bool{}, noun: "plan", empty: emptyPlan,
	}
}

// addf reports a fault at a value, or at the closest value around it that is in the text.
// Only the first fault of a path counts: later ones would follow from it.
func (r *report) addf(path, format string, args ...any) {
	if r.faulty[path] || r.hidden(path) {
		return
	}
	r.faulty[path] = true
	r.addAt(r.find(r.values, path), path, format, args...)
}

// addKeyf reports a fault at the key of a value.
func (r *report) addKeyf(path, format string, args ...any) {
	r.addAt(r.find(r.keys, path), path, format, args...)
}

func (r *report) addAt(at position, path, format string, args ...any) {
	const mostPath = 200
	if r.full() {
		r.more++
		return
	}
	if len(path) > mostPath {
		path = strings.ToValidUTF8(path[:mostPath], "") + "..."
	}
	r.errs.List = append(r.errs.List, Error{
		Path: oneLine(path), Line: at.line, Column: at.column, Message: oneLine(fmt.Sprintf(format, args...)),
	})
}

func (r *report) full() bool { return len(r.errs.List) >= maxFaults }

func (r *report) find(in map[string]position, path string) position {
	for p := path; ; p = parent(p) {
		if at, ok := in[p]; ok {
			return at
		}
		if p == "" {
			return r.values[""]
		}
	}
}

// unreadable reports a value that has the wrong shape; faults inside it are not looked for.
func (r *report) unreadable(path, format string, args ...any) {
	r.addf(path, format, args...)
	r.opaque[path] = true
}

func (r *report) hidden(path string) bool {
	if len(r.opaque) == 0 {
		return false
	}
	for p := path; ; p = parent(p) {
		if r.opaque[p] || p == "" {
			return r.opaque[p]
		}
	}
}

// present tells a value that was written from one that is merely zero.
func (r *report) present(path string) bool {
	_, ok := r.values[path]
	return ok
}

// forget drops what the text said at path, since something else replaced it.
func (r *report) forget(path string) {
	inside := func(p string, _ position) bool { return p == path || strings.HasPrefix(p, path+".") }
	maps.DeleteFunc(r.values, inside)
	maps.DeleteFunc(r.keys, inside)
	delete(r.opaque, path)
}

// err is the report as an error, nil when nothing was wrong.
func (r *report) err() error {
	if len(r.errs.List) == 0 {
		return nil
	}
	slices.SortStableFunc(r.errs.List, func(a, b Error) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	if r.more > 0 {
		r.errs.List = append(r.errs.List, Error{Message: fmt.Sprintf("%d more faults are not shown: correct these first", r.more)})
		r.more = 0
	}
	return &r.errs
}

// parent is the path of what holds the value at path.
func parent(path string) string { return path[:max(0, strings.LastIndexAny(path, ".["))] }

// join is the path of a member.
func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// index is the path of an element.
func index(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }

// oneLine keeps a message on its line whatever the plan's values hold.
func oneLine(s string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return ' '
		}
		return c
	}, s)
}
