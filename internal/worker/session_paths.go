package worker

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"syscall"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/pkg/api"
)

// shownPath is how much of a path a message has, in bytes.
const shownPath = 200

// sessionPath is the path of a request, relative to the workspace; "" and "." are the workspace itself. Commands see that at
// isolate.Workspace, so paths below it mean the same here. Everything else is refused instead of being taken for a
// name in the workspace that nobody meant.
func sessionPath(text string) (string, error) {
	name, err := api.OfText(text)
	if err != nil {
		return "", unfit("%v", err)
	}
	if strings.ContainsRune(name, 0) {
		return "", unfit("path %q: has a NUL, which no path can", cutPath(name))
	}
	inside := name
	if path.IsAbs(name) {
		rest, below := strings.CutPrefix(name, isolate.Workspace)
		if !below || rest != "" && rest[0] != '/' {
			return "", outside("path %q: is not below %s: only commands see what is", cutPath(name), isolate.Workspace)
		}
		inside = strings.TrimLeft(rest, "/")
	}
	if at := path.Clean(inside); at == ".." || strings.HasPrefix(at, "../") {
		return "", outside("path %q: leads out of the workspace: name one below it", cutPath(name))
	}
	return inside, nil
}

// errOutside: a path that is not in the workspace.
var errOutside = errors.New("not in the workspace")

// outside is an error that is errOutside, and says no more than its text.
func outside(format string, args ...any) error {
	return &saidError{fmt.Sprintf(format, args...), errOutside}
}

// saidError is an error in words of its own.
type saidError struct {
	text string
	err  error
}

func (e *saidError) Error() string { return e.text }
func (e *saidError) Unwrap() error { return e.err }

func cutPath(name string) string {
	if len(name) > shownPath {
		return name[:shownPath] + "..."
	}
	return name
}

// fileError says of a file call that failed what to do, where that is not plain.
func fileError(verb, name string, err error) error {
	what := map[error]string{
		syscall.ENAMETOOLONG: "a name in it is longer than 255 bytes, or all of it than 4,095: use shorter ones",
		syscall.EINVAL:       "is no file with content, such as a pipe or socket: a command can use it",
		syscall.ELOOP:        "links in it lead in a circle",
	}
	switch verb {
	case "list":
		what[syscall.ENOTDIR] = "is no directory, or a part of it is none: read prints a file"
	case "write":
		what[syscall.ENOENT] = "a link in it leads to what is not there: name the file itself"
		fallthrough
	default:
		what[syscall.ENOTDIR] = "a part of it is a file: name a directory there"
		what[syscall.EISDIR] = "is a directory: name a file in it; list shows them"
	}
	for errno, text := range what {
		if errors.Is(err, errno) {
			return &saidError{fmt.Sprintf("%s %q: %s", verb, cutPath(name), text), err}
		}
	}
	return err
}
