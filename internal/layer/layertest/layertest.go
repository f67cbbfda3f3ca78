// Package layertest compares directory trees in tests, in everything a layer keeps: kinds, modes, owners, times in
// nanoseconds, attributes, hard-link groups, holes and contents.
//
// It walks by itself and must not use the code it is there to test.
package layertest

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Options leave something out of a comparison.
type Options struct {
	NoOwners, NoTimes, NoDirTimes, NoHoles, NoLinks bool
	// Skip are paths that are left out with everything below.
	Skip []string
}

// Node is one path of a tree, described for comparison.
type Node struct {
	Kind     string
	Mode     uint32
	UID, GID uint32
	MTime    int64 // nanoseconds since 1970
	Size     int64
	Link     string
	Rdev     uint64
	Xattrs   map[string]string
	Group    string  // first path of the hard-link group
	Data     []int64 // offsets where data begins and ends, alternating
	Digest   string
	// Hidden: a file that its owner may not read. Xattrs, Data and Digest are not known.
	Hidden bool
}

// Snapshot is a tree by path; the root is ".".
type Snapshot map[string]Node

// Compare fails the test if the trees at got and want differ.
func Compare(t testing.TB, got, want string, o Options) {
	t.Helper()
	a, err := Take(got)
	if err != nil {
		t.Fatalf("take %q: %v", got, err)
	}
	b, err := Take(want)
	if err != nil {
		t.Fatalf("take %q: %v", want, err)
	}
	if d := Diff(a, b, o); d != "" {
		t.Fatalf("%q differs from %q (-got +want):\n%s", got, want, d)
	}
}

// Diff describes how got differs from want, "" if it does not.
func Diff(got, want Snapshot, o Options) string {
	return cmp.Diff(o.Reduce(got), o.Reduce(want))
}

// Reduce leaves out what the options say.
func (o Options) Reduce(s Snapshot) Snapshot {
	r := Snapshot{}
	for path, n := range s {
		if slices.ContainsFunc(o.Skip, func(p string) bool { return path == p || strings.HasPrefix(path, p+"/") }) {
			continue
		}
		if o.NoOwners {
			n.UID, n.GID = 0, 0
		}
		if o.NoTimes || o.NoDirTimes && n.Kind == "dir" {
			n.MTime = 0
		}
		if o.NoHoles {
			n.Data = nil
		}
		if o.NoLinks {
			n.Group = ""
		}
		r[path] = n
	}
	return r
}
