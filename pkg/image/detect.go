package image

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
)

const (
	// File is where a repository says itself how its image is made.
	File = ".warmfleet/image.yaml"
	// maxFile bounds a recipe in a repository, in bytes; maxSteps its steps, maxStep one of them in bytes.
	maxFile  = 256 << 10
	maxSteps = 100
	maxStep  = 16 << 10
)

// ErrRecipe reports a recipe in a repository that cannot be used. Its message names the file, and the line where known.
var ErrRecipe = errors.New("recipe in the repository is refused")

var (
	// ErrNoFile reports a name in the repository that is of no regular file: a directory, a pipe, a link to nowhere it may lead to.
	ErrNoFile = errors.New("no regular file")
	// ErrTooLarge reports a file that has more bytes than were asked for.
	ErrTooLarge = errors.New("too large")
)

// Reader reads a file of the repository, at most limit bytes. Errors: fs.ErrNotExist where there is none, ErrNoFile, ErrTooLarge.
// Links may be followed inside the repository and nowhere else.
type Reader func(path string, limit int64) ([]byte, error)

// tellNoFile makes ErrNoFile of what systems say to that, whoever reads.
func tellNoFile(read Reader) Reader {
	return func(path string, limit int64) ([]byte, error) {
		b, err := read(path, limit)
		for _, said := range []syscall.Errno{syscall.EISDIR, syscall.ENOTDIR, syscall.ELOOP, syscall.EXDEV, syscall.EINVAL, syscall.ENXIO} {
			if errors.Is(err, said) {
				return nil, fmt.Errorf("%w: %w", ErrNoFile, err)
			}
		}
		return b, err
	}
}

// Explanation says what was found and why the recipe is what it is.
type Explanation struct {
	// Found are the files that count, in the order of precedence.
	Found []string `json:"found"`
	// Chosen is the file, or files, that the recipe is of; empty for none.
	Chosen []string `json:"chosen"`
	// Refused is the file that cannot be used, where that is the error.
	Refused string `json:"refused,omitempty"`
	// Why is a line for each thing that was decided.
	Why    []string `json:"why"`
	Recipe Recipe   `json:"recipe"`
}

// Explain is the explanation of a recipe that a pool file gives itself.
func Explain(r Recipe) Explanation {
	return Explanation{Why: []string{"the pool file gives the steps"}, Recipe: r}
}

// Detect finds a recipe by what is in a repository: its own image file, else a devcontainer's commands, else one step for
// each lock file at the top. What bears such a name and is no regular file is passed over. Nothing found is a recipe without
// steps. Errors: ErrRecipe, and what reading fails with.
func Detect(read Reader) (Explanation, error) {
	read = tellNoFile(read)
	var e Explanation
	contents := map[string][]byte{}
	for _, name := range append([]string{File}, devcontainers...) {
		b, err := read(name, maxFile)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case errors.Is(err, ErrNoFile):
			e.Why = append(e.Why, name+": is no regular file, so it is passed over")
			continue
		case errors.Is(err, ErrTooLarge):
			return e, fmt.Errorf("image: read %s: %w: it has more than %d bytes", name, ErrRecipe, maxFile)
		case err != nil:
			return e, fmt.Errorf("image: read %s: %w: %w", name, ErrRecipe, err)
		}
		e.Found, contents[name] = append(e.Found, name), b
	}
	locks, err := findLocks(read)
	if err != nil {
		return e, err
	}
	for _, l := range locks {
		e.Found = append(e.Found, l.file)
	}
	e.Refused, err = e.choose(contents, locks)
	return e, err
}

// choose returns the file that is refused with the error.
func (e *Explanation) choose(contents map[string][]byte, locks []lock) (refused string, err error) {
	if b, ok := contents[File]; ok {
		if err := e.chooseFile(b); err != nil {
			return File, err
		}
		return "", nil
	}
	for _, name := range devcontainers {
		b, ok := contents[name]
		if !ok {
			continue
		}
		done, err := e.chooseContainer(name, b)
		if err != nil {
			return name, err
		}
		if done {
			return "", nil
		}
	}
	e.chooseLocks(locks)
	return "", nil
}

func (e *Explanation) chooseFile(b []byte) (err error) {
	e.Chosen, e.Why = []string{File}, append(e.Why, File+": the repository says itself how its image is made")
	if e.Recipe, err = parseFile(File, b); err != nil {
		return err
	}
	return e.Recipe.check(File)
}

// chooseContainer tells whether a devcontainer has anything to run.
func (e *Explanation) chooseContainer(name string, b []byte) (done bool, err error) {
	r, err := parseDevcontainer(name, b)
	if err != nil {
		return false, err
	}
	if len(r.Setup) == 0 {
		e.Why = append(e.Why, name+": has no onCreateCommand, updateContentCommand or postCreateCommand, so it is passed over")
		return false, nil
	}
	e.Recipe, e.Chosen, e.Why = r, []string{name}, append(e.Why, name+": its commands that run once a container is made")
	return true, r.check(name)
}

func (e *Explanation) chooseLocks(locks []lock) {
	for _, l := range locks {
		e.Chosen, e.Why = append(e.Chosen, l.file), append(e.Why, l.file+": "+l.why)
		if l.setup != "" {
			e.Recipe.Setup = append(e.Recipe.Setup, l.setup)
		}
		if l.warm != "" {
			e.Recipe.Warm = append(e.Recipe.Warm, l.warm)
		}
	}
	if len(locks) == 0 {
		e.Why = append(e.Why, "no "+File+", no devcontainer with commands and no known lock file: the image is the clone alone")
	}
}

// check refuses a recipe beyond the limits.
func (r Recipe) check(file string) error {
	if n := len(r.Setup) + len(r.Warm); n > maxSteps {
		return fmt.Errorf("image: %s: %w: %d steps, the limit is %d", file, ErrRecipe, n, maxSteps)
	}
	if len(r.Env) > maxSteps {
		return fmt.Errorf("image: %s: %w: %d variables, the limit is %d", file, ErrRecipe, len(r.Env), maxSteps)
	}
	for _, list := range [][]string{r.Setup, r.Warm} {
		for i, s := range list {
			if len(s) > maxStep || strings.ContainsRune(s, 0) || strings.TrimSpace(s) == "" {
				return fmt.Errorf("image: %s: %w: step %d: use 1 to %d bytes of shell text", file, ErrRecipe, i+1, maxStep)
			}
		}
	}
	for name, value := range r.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) || len(value) > maxStep {
			return fmt.Errorf("image: %s: %w: env %.80q: use a name without = and up to %d bytes without NUL", file, ErrRecipe, name, maxStep)
		}
	}
	return nil
}
