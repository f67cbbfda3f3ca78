// Package applier brings the changes of a sandbox to the original directory: whole, or not at all.
//
// A Session holds the lock of one original. Check compares three states of every changed
// path (what the sandbox started from, what the original is now, what the sandbox made of
// it) and either reports every conflict or returns a Preview of what would be done. Stage
// writes the new content beside the original and a journal that names each operation with the
// states expected before and after it. Commit makes the operations one rename at a time,
// looks at what each one displaced, and takes everything back when that is not what was
// planned. Finish forgets the stage. A crash at any moment is recovered from the journal by the
// next Open and Recover, to exactly before or exactly after.
//
// Everything is reached from the descriptor of the original's root with openat2, without following
// a link and without crossing a mount. Other processes that read the original while Commit
// runs may see some files old and some new, each of them whole. A process that keeps
// writing to a file it opened before the file was replaced writes to the replaced one.
//
// Changes outside the root's files that belong to the same apply (Extra) are in the same journal.
//
// The package knows directories and layer.Change. It must not know sandboxes, plans' events, git
// or NATS: the caller passes the bytes, and a merge function and extra changes where it has them. It needs Linux 5.6
// or newer, /proc, and a file system whose renameat2 can exchange (not NFS).
package applier

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/layer"
)

// Errors of this package, to be told apart with errors.Is.
var (
	// ErrOtherMount: a path of the plan lies on another file system or mount than the root, where no rename reaches.
	ErrOtherMount = errors.New("on another mount than the root")
	// ErrUnsupported: the file system of the root has no renameat2 with exchange.
	ErrUnsupported = errors.New("file system cannot exchange files")
	// ErrForeign: the journal directory belongs to somebody else, or is not a private directory.
	ErrForeign = errors.New("journal directory is not ours")
	// ErrJournal: the journal of an apply that had begun cannot be read; nothing is touched until somebody looks.
	ErrJournal = errors.New("journal is damaged")
	// ErrPending: a left-over journal must be recovered first.
	ErrPending = errors.New("an earlier apply is not finished")
	// ErrOrder: the methods of a Session were called in an order that has no meaning.
	ErrOrder = errors.New("called out of order")
	// ErrContent: the bytes of the sandbox are not those that its change names.
	ErrContent = errors.New("content does not match its digest")
	// ErrInvalid: a change that no tree can hold, such as a path that leaves the root.
	ErrInvalid = errors.New("invalid change")
)

// Content gives the bytes of regular files of the sandbox.
type Content interface {
	// Open returns the content of a regular file. It is called once or more for each path, from one goroutine.
	Open(p layer.Path) (io.ReadCloser, error)
}

// MergeFunc merges a file that both the plan and the original changed. It gets the original's bytes and returns
// the merged ones, or false when they cannot be merged, which leaves the conflict.
type MergeFunc func(ctx context.Context, p layer.Path, original []byte) ([]byte, bool, error)

// MergeLimit is the largest original, in bytes, that is offered to a MergeFunc.
const MergeLimit = 1 << 20

// Request is what to apply.
type Request struct {
	// Plan and Epoch name the claim that applies; they go into the journal. Plan must be a plain file name.
	Plan  string
	Epoch uint64
	// Git says that the root is the work tree of a git repository: its ".git" is left out, and changes inside
	// the ".git" of a nested repository are conflicts.
	Git bool
	// Checkout says that the base is a commit. Of a mode git records only whether the owner may execute; the umask that the
	// original was checked out with, and attributes, are no change of it.
	Checkout bool
	// AllowSpecial lets new setuid and setgid bits, file capabilities and devices through.
	AllowSpecial bool
	// Changes is what the sandbox did, each path once, with digests of regular files on both sides.
	Changes []layer.Change
	Content Content
	// Restore says that Changes is the Inverse of an earlier apply: see restore.go for what is done otherwise then.
	Restore bool
	// Merge is optional; without it a file changed on both sides is a conflict.
	Merge MergeFunc
	// Extras are made together with the files, in order, after the last of them. Options.Extra makes them.
	Extras []ExtraSpec
}

// Kind says why a path is in conflict.
type Kind string

// The kinds of conflicts.
const (
	KindContent            Kind = "content"               // both changed the bytes, the link text or the device number
	KindMode               Kind = "mode"                  // both changed the permission bits
	KindXattrs             Kind = "xattrs"                // both changed the extended attributes
	KindType               Kind = "type"                  // at least one side made it something else, such as a link of a file
	KindDeletedByOriginal  Kind = "deleted_by_original"   // the plan changed what the original no longer has
	KindModifiedAndDeleted Kind = "modified_and_deleted"  // the plan deletes what the original changed
	KindAddedBoth          Kind = "added_both"            // both added it, and differently
	KindNotEmpty           Kind = "directory_not_empty"   // the plan deletes a directory that holds something else meanwhile
	KindParentMissing      Kind = "parent_missing"        // the directory of a new path is gone
	KindParentReplaced     Kind = "parent_replaced"       // a directory on the way is a link or a file now
	KindSpecial            Kind = "special"               // setuid, setgid, capability or device, and not allowed
	KindNestedGit          Kind = "nested_git"            // inside the .git of a nested repository
	KindModifiedSince      Kind = "modified_since_commit" // recovery only: what the apply wrote was changed afterwards
	KindMoved              Kind = "moved"                 // an extra change met something else than it was made for
)

// Conflict is one path that could not be applied. Detail is for people and may be empty.
type Conflict struct {
	Path   layer.Path `json:"path"`
	Kind   Kind       `json:"kind"`
	Detail string     `json:"detail,omitempty"`
	// Base, Ours and Theirs are the path in what the sandbox started from, as the sandbox made it, and in the original;
	// nil where it does not exist or was not looked at. Of a LateConflict Base is the original as Check saw it.
	Base   *layer.Entry `json:"base,omitempty"`
	Ours   *layer.Entry `json:"ours,omitempty"`
	Theirs *layer.Entry `json:"theirs,omitempty"`
}

// Action names what is done to a path.
type Action string

// The actions of a preview.
const (
	Add     Action = "add"
	Replace Action = "replace" // of content or type
	Remove  Action = "remove"
	Meta    Action = "meta" // mode or extended attributes alone
)

// Step is one path of a preview and what is done to it.
type Step struct {
	Path   layer.Path `json:"path"`
	Action Action     `json:"action"`
}

// Preview is what a checked request would do. Its exported part is for the caller to read; Stage needs the rest.
type Preview struct {
	// Steps has each path once, in byte order; it is empty when the original already is as the plan wants it.
	Steps []Step
	// Replaced is the original's entries, with digests, that a step replaces, removes or gives another mode.
	// Session.OpenOriginal reads the bytes of the regular files among them until Commit is called.
	Replaced []layer.Entry

	req   Request
	ops   []op
	found []*finding // of Steps, in their order
}

// LateConflict is the error of a Commit that found the original changed since Check. Everything was taken back:
// the original is as it was before, with what changed meanwhile.
type LateConflict struct{ Conflict Conflict }

func (e *LateConflict) Error() string {
	return fmt.Sprintf("applier: commit %q: original changed meanwhile (%s)", e.Conflict.Path, e.Conflict.Kind)
}

// Blocked is the error of a recovery that can go neither way. Nothing was changed by it, and the journal stays.
type Blocked struct {
	// Forward is what keeps the apply from being completed, Back what keeps it from being undone.
	Forward, Back []Conflict
}

func (e *Blocked) Error() string {
	return fmt.Sprintf("applier: recover: cannot complete (%s) and cannot undo (%s)", list(e.Forward), list(e.Back))
}

func list(cs []Conflict) string {
	const most = 10
	var b strings.Builder
	for i, c := range cs {
		if i == most {
			fmt.Fprintf(&b, ", and %d more", len(cs)-most)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%q: %s", c.Path, c.Kind)
	}
	return b.String()
}

// Options of a Session.
type Options struct {
	Log zerolog.Logger
	// Hook is called with the name of each step right before it is made; an error from it is that step's failure. It
	// exists so that tests can fail or kill every step. Nil is none.
	Hook func(point string) error
	// Extra makes the extra changes of requests and of journals; nil where there are none.
	Extra ExtraFunc
}
