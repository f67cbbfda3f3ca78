package gitrepo

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
)

// remoteRefs is what a remote says it has.
type remoteRefs struct {
	head   string            // what HEAD points at, "" if the remote does not say
	hashes map[string]string // by full name: HEAD, branches, tags, and what else was asked for
}

// advertised is what a remote says about one ref.
type advertised struct {
	ref    string // its full name, "" for a commit
	hash   string
	branch string
}

// format is the object format of the remote.
func (a advertised) format() string { return FormatOf(a.hash) }

// ask asks the remote for HEAD, branches and tags, and for ref where it is a full name of another kind. It is asked for
// a known commit too: who has no access must not get it from the mirror.
func (f fetcher) ask(ctx context.Context, ref string) (remoteRefs, error) {
	refs := remoteRefs{hashes: map[string]string{}}
	args := []string{"ls-remote", "--symref", "origin", "HEAD", headsPrefix + "*", tagsPrefix + "*"}
	if isOther(ref) {
		args = append(args, ref)
	}
	c := f.call(args...)
	c.GitDir = filepath.Join(f.home, "ask")
	if err := skeleton(c.GitDir, "sha1"); err != nil {
		return refs, err
	}
	out, err := f.watched(ctx, c)
	if err != nil {
		return refs, err
	}
	for line := range strings.Lines(string(out)) {
		what, name, _ := strings.Cut(strings.TrimRight(line, "\n"), "\t")
		switch target, symbolic := strings.CutPrefix(what, "ref: "); {
		case symbolic && name == "HEAD":
			refs.head = target
		case fullHash.MatchString(what) && (name == "HEAD" || isFollowed(name) || name == ref):
			refs.hashes[name] = what
		}
	}
	return refs, nil
}

// isOther tells a full name that is no branch and no tag, refs/pull/1/head say.
func isOther(ref string) bool { return strings.HasPrefix(ref, "refs/") && !isFollowed(ref) }

// isFollowed tells names of branches and tags. A tag's commit is advertised beside it, as name^{}.
func isFollowed(name string) bool {
	return (strings.HasPrefix(name, headsPrefix) || strings.HasPrefix(name, tagsPrefix)) && !strings.HasSuffix(name, "^{}")
}

// find resolves a ref as people write it. The default branch is what the remote says, never a guess.
func (r remoteRefs) find(ref string) (advertised, error) {
	names := []string{headsPrefix + ref, tagsPrefix + ref}
	switch {
	case fullHash.MatchString(ref):
		return advertised{hash: ref}, nil
	case ref == "" || ref == "HEAD":
		names = []string{"HEAD"}
	case strings.HasPrefix(ref, "refs/"):
		names = []string{ref}
	}
	for _, n := range names {
		hash := r.hashes[n]
		switch {
		case hash == "":
		case n != "HEAD":
			return advertised{ref: n, hash: hash, branch: branchOf(n)}, nil
		case r.head == "": // detached at the remote
			return advertised{hash: hash}, nil
		default:
			return advertised{ref: r.head, hash: hash, branch: branchOf(r.head)}, nil
		}
	}
	switch {
	case len(r.hashes) == 0 && names[0] == "HEAD":
		return advertised{}, fmt.Errorf("%w: push a first one to the remote", ErrUnborn)
	case len(r.hashes) == 0:
		return advertised{}, fmt.Errorf("%w: %q: %w at the remote", ErrNoRef, ref, ErrUnborn)
	case names[0] == "HEAD":
		return advertised{}, fmt.Errorf("%w: the remote has branches, and no commit on its default one: name a ref", ErrNoRef)
	}
	return advertised{}, fmt.Errorf("%w: revision no longer available: the remote has no %q", ErrNoRef, ref)
}
