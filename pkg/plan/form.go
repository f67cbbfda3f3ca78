package plan

import (
	"reflect"
	"time"
)

// Form is another file of people that is read as plans are: the same YAML and JSON, every fault at once with its line
// and column. T is a struct whose json tags are the keys.
type Form[T any] struct {
	// Noun is what messages call the file, Empty what is said of one without anything in it.
	Noun, Empty string
	// Check reports what is wrong with values whose shapes are right.
	Check func(*Checks, *T)
}

// Worder is a struct that may be written as one word instead. SetWord takes the word, or says what is wrong with it.
type Worder interface{ SetWord(word string) error }

// ParseYAML reads and checks a file; its name is only shown in errors. The error is an *Errors with every fault.
func (f Form[T]) ParseYAML(file string, src []byte) (*T, error) { return f.parse(file, src, readYAML) }

// ParseJSON is ParseYAML for the form that is sent.
func (f Form[T]) ParseJSON(src []byte) (*T, error) { return f.parse("", src, readJSON) }

// Validate checks a value that was built in Go; faults have no line and column.
func (f Form[T]) Validate(v *T) error {
	r := f.report("")
	f.Check(&Checks{checker{report: r}}, v)
	return r.err()
}

func (f Form[T]) parse(file string, src []byte, read func(*report, []byte) *node) (*T, error) {
	r, v := f.report(file), new(T)
	if !r.decode(src, read, reflect.ValueOf(v).Elem()) {
		return nil, r.err()
	}
	f.Check(&Checks{checker{report: r}}, v)
	if err := r.err(); err != nil {
		return nil, err
	}
	return v, nil
}

func (f Form[T]) report(file string) *report {
	r := newReport(file)
	r.noun, r.empty = f.Noun, f.Empty
	return r
}

// Checks are the checks of a plan's values, for files that have the same. Each takes the path of the value, as in
// "image.secrets", and reports nothing where nothing is wrong.
type Checks struct{ c checker }

// Addf reports a fault at a value. Only the first fault of a path counts.
func (k *Checks) Addf(path, format string, args ...any) { k.c.addf(path, format, args...) }

// Given tells whether a value was written: zero in the text counts, zero in Go does not.
func (k *Checks) Given(path string, nonZero bool) bool { return k.c.given(path, nonZero) }

// At is the path of an element of a list.
func (k *Checks) At(path string, i int) string { return index(path, i) }

// Version wants the version that the program reads.
func (k *Checks) Version(path string, got, want int) {
	switch {
	case !k.c.present(path) && got == 0:
		k.c.addf(path, "is missing: write version: %d", want)
	case got != want:
		k.c.addf(path, "version %d is unknown: this program reads version %d", got, want)
	}
}

// PoolName wants the name of a pool.
func (k *Checks) PoolName(path, name string) {
	if name == "" {
		k.c.required(path, name)
		return
	}
	k.c.problem(path, poolProblem(name))
}

// Repo wants a git URL without credentials.
func (k *Checks) Repo(path, repo string) {
	if repo == "" {
		k.c.required(path, repo)
		return
	}
	k.c.problem(path, repoProblem(repo))
}

// Ref wants the name of a branch, tag or commit.
func (k *Checks) Ref(path, ref string) { k.c.problem(path, refProblem(ref)) }

// Bounds are the least and the most of a value.
type Bounds[N int | time.Duration] struct{ Least, Most N }

// Duration wants a duration within bounds, or none.
func (k *Checks) Duration(path string, d *Duration, b Bounds[time.Duration]) {
	if d == nil {
		return
	}
	if got := time.Duration(*d); got < b.Least || got > b.Most {
		k.c.addf(path, "%s is out of range: give a time from %s to %s or leave it out", *d, Duration(b.Least), Duration(b.Most))
	}
}

// Whole wants a whole number within bounds, or none.
func (k *Checks) Whole(path string, n *int, b Bounds[int]) {
	if n != nil && (*n < b.Least || *n > b.Most) {
		k.c.addf(path, "%d is out of range: give a number from %d to %d or leave it out", *n, b.Least, b.Most)
	}
}

// Limits wants limits as a plan has them.
func (k *Checks) Limits(path string, l *Limits) { k.c.limits(path, l) }

// Network wants none, allow or a list of hosts.
func (k *Checks) Network(path string, n *Network) { k.c.network(path, n) }

// Identity wants a name and an address as git keeps them, or none.
func (k *Checks) Identity(path string, id *Identity) { k.c.identity(path, id) }

// Env wants names and values of variables that a sandbox may have.
func (k *Checks) Env(path string, env map[string]string) { k.c.env(path, env) }

// Secrets wants distinct names of secrets.
func (k *Checks) Secrets(path string, names []string) {
	for i, name := range names {
		k.c.problem(index(path, i), envNameProblem(name))
	}
	k.c.distinct(path, names)
}
