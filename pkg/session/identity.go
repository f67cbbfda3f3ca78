package session

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxIdentity is the most bytes that a name or an address may have.
const MaxIdentity = 1024

// ErrIdentity: git cannot keep a name or address as it was given.
var ErrIdentity = errors.New("session: identity that git cannot hold")

// crud is what git strips from the ends of a name and address (crud() in its ident.c), besides every control byte.
const crud = `.,:;<>"\'`

// Identity is who commits in a session, exactly as given. Empty fields are not set.
type Identity struct{ Name, Email string }

// Check refuses what git would drop or change: newlines, NUL and angle brackets anywhere, and a value that begins
// or ends with what git strips. The error wraps ErrIdentity and names the field.
func (i Identity) Check() error {
	for _, f := range []struct{ what, value string }{{"user", i.Name}, {"email", i.Email}} {
		switch {
		case f.value == "":
		case len(f.value) > MaxIdentity:
			return fmt.Errorf("%w: %s has %d bytes: use at most %d", ErrIdentity, f.what, len(f.value), MaxIdentity)
		case !utf8.ValidString(f.value):
			return fmt.Errorf("%w: %s %q: is not UTF-8", ErrIdentity, f.what, f.value)
		case strings.ContainsAny(f.value, "\n\x00<>"):
			return fmt.Errorf("%w: %s %q: leave newlines, NUL and angle brackets out", ErrIdentity, f.what, f.value)
		case strings.TrimFunc(f.value, stripped) == "":
			return fmt.Errorf("%w: %s %q: has nothing but what git strips: use a letter or digit", ErrIdentity, f.what, f.value)
		case strings.TrimFunc(f.value, stripped) != f.value:
			return fmt.Errorf("%w: %s %q: git would store %q: write that", ErrIdentity, f.what, f.value, strings.TrimFunc(f.value, stripped))
		}
	}
	return nil
}

func stripped(r rune) bool { return r <= ' ' || strings.ContainsRune(crud, r) }

// Env is the environment, as NAME=value, by which every git of the session knows who commits: for commits, and as the
// settings user.name and user.email. It is data: no shell reads it, and no file of the tree has it.
func (i Identity) Env() []string {
	var env []string
	n := 0
	set := func(what, key, value string) {
		if value == "" {
			return
		}
		env = append(env, "GIT_AUTHOR_"+what+"="+value, "GIT_COMMITTER_"+what+"="+value,
			fmt.Sprintf("GIT_CONFIG_KEY_%d=%s", n, key), fmt.Sprintf("GIT_CONFIG_VALUE_%d=%s", n, value))
		n++
	}
	set("NAME", "user.name", i.Name)
	set("EMAIL", "user.email", i.Email)
	if n > 0 {
		env = append(env, fmt.Sprintf("GIT_CONFIG_COUNT=%d", n))
	}
	return env
}
