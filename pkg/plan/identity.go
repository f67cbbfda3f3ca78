package plan

import (
	"errors"
	"fmt"
	"strings"
)

// ErrIdentity: a text names nobody that git could commit as.
var ErrIdentity = errors.New("plan: no identity")

// ParseIdentity reads "NAME <EMAIL>", the form of git. The error wraps ErrIdentity and says what is wrong.
func ParseIdentity(text string) (Identity, error) {
	name, rest, open := strings.Cut(text, "<")
	email, after, closed := strings.Cut(rest, ">")
	if !open || !closed || after != "" {
		return Identity{}, fmt.Errorf("%w: %s: write NAME <EMAIL>", ErrIdentity, quote(text))
	}
	id := Identity{Name: strings.TrimSpace(name), Email: strings.TrimSpace(email)}
	for _, part := range []struct{ what, value string }{{"name", id.Name}, {"email", id.Email}} {
		if problem := identProblem(part.value); problem != "" {
			return Identity{}, fmt.Errorf("%w: %s: %s: %s", ErrIdentity, quote(text), part.what, problem)
		}
	}
	return id, nil
}

// identity checks an identity, or none.
func (c *checker) identity(at string, id *Identity) {
	if id == nil {
		return
	}
	c.problem(join(at, "name"), identProblem(id.Name))
	c.problem(join(at, "email"), identProblem(id.Email))
}
