package gitrepo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	// syncPrefix holds all branches and tags of a remote as it has them, which a pool's sandboxes follow.
	syncPrefix = "refs/fleet/sync/"
	syncHeads  = syncPrefix + "heads/"
	syncTags   = syncPrefix + "tags/"
	// syncDefault is a symbolic ref to the remote's default branch.
	syncDefault = syncPrefix + "default"
)

// Remote is a repository that is followed, and what is followed of it.
type Remote struct {
	URL string
	// Ref is a branch, tag or full commit id; "" is the remote's default branch, whatever it is called then.
	Ref string
	// Credential is asked at each use, nil: the store's own. Its values appear in no argument, file or error.
	Credential func(context.Context) (Credential, error)
	// Who names where Credential has it from, "" for nobody: what one was told is Known to that one alone.
	Who string
	// Submodules are the URLs that Bring may fetch submodules from, since whoever writes to the repository says where they
	// come from: of a repository, or with a slash at the end of all below. None: submodules are left alone.
	Submodules []string
}

// Tip is what a Remote was at.
type Tip struct {
	Commit string
	// Branch is "" for a tag or a commit. FullRef is the remote's name for it, "" for a commit.
	Branch, FullRef string
	// FetchedAt is when the remote was asked, which was after the call of Sync.
	FetchedAt time.Time
}

// Sync fetches all branches and tags of a remote into the worker's mirror of it, and tells what the ref is at.
// Callers at the same time share a fetch, never one that began before they asked. A remote that gives no sign of
// life for the store's timeout fails with ErrStalled; other remotes are not held up by it. Errors: ErrUnborn, ErrNoRef,
// ErrURL, ErrRef, ErrStalled, ErrDenied.
func (s *Store) Sync(ctx context.Context, r Remote) (Tip, error) {
	rem, err := parseRemote(r.URL)
	if err != nil {
		return Tip{}, err
	}
	if err := checkRef(r.Ref); err != nil {
		return Tip{}, err
	}
	// Before callers share: one whose credential is wrong must not fail for the others, nor get what is theirs.
	if err := s.authorizeBy(ctx, &rem, r.Credential); err != nil {
		return Tip{}, fmt.Errorf("gitrepo: sync %q: %w", rem.url, err)
	}
	key := keyOf(rem.key(), rem.cred.User, rem.cred.Password, r.Ref, r.Who)
	t, err := s.syncs.Do(ctx, key, func(ctx context.Context) (Tip, error) { return s.sync(ctx, rem, r) })
	if err != nil {
		return Tip{}, fmt.Errorf("gitrepo: sync %q: %w", rem.url, err)
	}
	return t, nil
}

// Known is what the last Sync of this process found for the same Who, without asking anybody; nothing once the remote denied access.
func (s *Store) Known(r Remote) (Tip, bool) {
	rem, err := parseRemote(r.URL)
	if err != nil {
		return Tip{}, false
	}
	t, ok := s.known.Load(knownKey(rem, r))
	if !ok {
		return Tip{}, false
	}
	return t.(Tip), true
}

// knownKey keeps apart who asked: a credential that the remote denies must not get what another one got.
func knownKey(rem remote, r Remote) string { return keyOf(rem.key(), r.Ref, r.Who) }

func (s *Store) sync(ctx context.Context, rem remote, r Remote) (Tip, error) {
	var found Tip
	err := s.inMirror(ctx, rem, func(f fetcher) error {
		began := time.Now()
		refs, err := f.ask(ctx, r.Ref)
		if errors.Is(err, ErrDenied) {
			s.known.Delete(knownKey(rem, r)) // what it gave before is no longer for this one
		}
		if err != nil {
			return err
		}
		adv, err := refs.find(r.Ref)
		if err != nil {
			return err
		}
		err = f.mending(ctx, adv.format(), func(f fetcher) error {
			t, err := f.follow(ctx, refs, adv)
			found = Tip{Commit: t.commit, Branch: t.branch, FullRef: adv.ref, FetchedAt: began}
			return err
		})
		if err == nil {
			s.known.Store(knownKey(rem, r), found) // with the mirror's lock held: a later Sync stores later
		}
		return err
	})
	return found, err
}

// authorizeBy asks a remote's own provider, else the store's.
func (s *Store) authorizeBy(ctx context.Context, r *remote, ask func(context.Context) (Credential, error)) error {
	if ask == nil || r.host == "" {
		return s.authorize(ctx, r)
	}
	cred, err := ask(ctx)
	if err != nil {
		return fmt.Errorf("get credential: %w", err)
	}
	r.cred = cred
	r.secret = append(r.secret, secretForms(cred)...)
	return nil
}

// follow makes the mirror's branches and tags those of the remote, and finds the commit of what was asked for. What moves at
// the remote between answer and fetch is fetched as it was answered, where the remote still gives it away.
func (f fetcher) follow(ctx context.Context, refs remoteRefs, adv advertised) (tip, error) {
	have, err := f.mirrored(ctx)
	if err != nil {
		return tip{}, err
	}
	if !refs.same(have) {
		if err := f.pull(ctx, followedRefs()...); err != nil {
			return tip{}, err
		}
	}
	if err := f.keepDefault(refs.head); err != nil {
		return tip{}, err
	}
	if t, err := f.git.firstCommit(ctx, f.dir, adv.hash); err == nil {
		return tip{commit: t.commit, branch: adv.branch}, nil
	}
	return f.fetch(ctx, adv, keptRef(firstOf(adv.ref, adv.hash)))
}

// followedRefs are the refspecs of all that is followed.
func followedRefs() []string {
	return []string{"+" + headsPrefix + "*:" + syncHeads + "*", "+" + tagsPrefix + "*:" + syncTags + "*"}
}

// same tells whether the mirror's refs are those of the remote already.
func (r remoteRefs) same(have map[string]string) bool {
	n := 0
	for name, hash := range r.hashes {
		if !isFollowed(name) {
			continue
		}
		n++
		if have[syncPrefix+strings.TrimPrefix(name, "refs/")] != hash {
			return false
		}
	}
	return n == len(have)
}

// mirrored lists what Sync keeps in the mirror.
func (f fetcher) mirrored(ctx context.Context) (map[string]string, error) {
	out, err := f.git.Output(ctx, Call{GitDir: f.dir, Args: []string{"for-each-ref", "--format=%(objectname) %(refname)", syncHeads, syncTags}})
	if err != nil {
		return nil, err
	}
	return parseRefs(out), nil
}

// parseRefs reads lines of an object name and a ref.
func parseRefs(out []byte) map[string]string {
	refs := map[string]string{}
	for line := range strings.Lines(string(out)) {
		hash, name, _ := strings.Cut(strings.TrimRight(line, "\n"), " ")
		if fullHash.MatchString(hash) {
			refs[name] = hash
		}
	}
	return refs
}

// keepDefault remembers what the remote's HEAD is, as a symbolic ref of the mirror.
func (f fetcher) keepDefault(head string) error {
	path := filepath.Join(f.dir, filepath.FromSlash(syncDefault))
	name, ok := strings.CutPrefix(head, headsPrefix)
	if !ok {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return writeOnce(path, "ref: "+syncHeads+name+"\n")
}

// FromMirror gives the base of a tip that Sync found, without asking the remote again. Where r lists submodules, they are left to
// Bring, and so are the notes on them.
func (s *Store) FromMirror(ctx context.Context, r Remote, t Tip) (Base, error) {
	rem, err := parseRemote(r.URL)
	if err != nil {
		return Base{}, err
	}
	src, err := s.mirrorSource(rem, tip{commit: t.Commit, branch: t.Branch})
	if err != nil {
		return Base{}, fmt.Errorf("gitrepo: read the mirror of %q: %w", rem.url, err)
	}
	src.fills = len(r.Submodules) > 0
	b, err := s.base(ctx, src)
	s.doubt(rem, err)
	return b, err
}

// Behind counts the commits that one has and the other has not; -1 where the mirror does not know both.
func (s *Store) Behind(ctx context.Context, r Remote, from, to string) (int, error) {
	if from == to {
		return 0, nil
	}
	rem, err := parseRemote(r.URL)
	if err != nil {
		return -1, err
	}
	if !fullHash.MatchString(from) || !fullHash.MatchString(to) {
		return -1, nil
	}
	out, err := s.git.Output(ctx, Call{GitDir: s.mirrorDir(rem), Args: []string{"rev-list", "--count", to, "^" + from}})
	if ExitCode(err) > 0 {
		return -1, nil
	}
	if err != nil {
		return -1, fmt.Errorf("gitrepo: count the commits behind %q: %w", rem.url, err)
	}
	return strconv.Atoi(strings.TrimSpace(string(out)))
}
