package gitrepo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/internal/statedir"
)

// Bounds on what one source keeps.
const (
	maxObjectLayers = 8  // then all but the first become one
	maxFileLayers   = 6  // then a checkout is made anew
	defaultMaxBases = 64 // bases of one source
	usedGrain       = time.Minute
)

// Notes that every base carries, for the plan's first event.
const (
	noteCommitOnly = "git_worktree starts from the commit alone: uncommitted changes and untracked files of the original are not in the sandbox"
	noteBare       = "the repository is bare: there is no work tree to apply to"
)

// Options say where a Store keeps its things.
type Options struct {
	// Dir is the store's own directory; several processes may share it.
	Dir   string
	Cache *layer.Cache
	Log   zerolog.Logger
	// Credential gives what to show a remote that needs it, asked anew for each use; nil: none.
	// The URL it gets has no user part.
	Credential func(ctx context.Context, url string) (Credential, error)
	// MaxBases bounds the bases kept per source, default 64; the least recently used go first.
	MaxBases int
	// Timeout is how long a remote may give no sign of life, DefaultTimeout if zero; a slow one may take longer in all.
	Timeout time.Duration
}

// Base is what a sandbox of a git repository starts from. It is kept until Release.
type Base struct {
	Chain layer.Chain
	// Commit is what HEAD is at; Branch is the branch it is on, "" for a detached HEAD.
	Commit, Branch string
	// Bare tells that the source has no work tree, so that nothing can be applied to its files.
	Bare bool
	// Author is the identity in the source's own configuration, empty where it has none.
	Author Identity
	// Submodules are left as empty directories.
	Submodules []string
	// Notes say in words what is not as in the original.
	Notes   []string
	release func()
}

// Release tells that the base is no longer in use. It may be called more than once.
func (b Base) Release() {
	if b.release != nil {
		b.release()
	}
}

// Store makes bases and keeps them, so that the next one of a commit costs a look-up, one of
// another commit what is new in it. It survives a kill at any moment: its records name only layers
// that are whole, and a base whose layers are gone is made again. Safe for concurrent use.
type Store struct {
	opt     Options
	git     Git
	uses    *statedir.Uses
	fetches statedir.Group[source]
	syncs   statedir.Group[Tip]
	known   sync.Map // Tip of the last Sync, by key
	failed  sync.Map // fetchFailure of a submodule, by key
}

// OpenStore opens or makes the store in o.Dir.
func OpenStore(o Options) (*Store, error) {
	git, err := FindGit()
	if err != nil {
		return nil, err
	}
	if o.MaxBases <= 0 {
		o.MaxBases = defaultMaxBases
	}
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	for _, d := range []string{reposDir, mirrorsDir} {
		if err := os.MkdirAll(filepath.Join(o.Dir, d), 0o700); err != nil {
			return nil, fmt.Errorf("gitrepo: open store: %w", err)
		}
	}
	uses, err := statedir.OpenUses(filepath.Join(o.Dir, "uses"))
	if err != nil {
		return nil, err
	}
	return &Store{opt: o, git: git, uses: uses}, nil
}

// FromPath gives the base of the repository at a path: the commit of its HEAD, or of ref where one
// is given. Uncommitted work is not in it. The repository is only read. Errors: ErrNotRepository,
// ErrUnborn, ErrNoRef, ErrRef.
func (s *Store) FromPath(ctx context.Context, path, ref string) (Base, error) {
	src, err := s.git.pathSource(ctx, path, ref)
	if err != nil {
		return Base{}, err
	}
	return s.base(ctx, src)
}

// FromURL gives the base of a remote repository: the commit of its HEAD, or of ref where one is
// given. Errors: ErrURL, ErrNoRef, ErrRef, ErrDenied, ErrStalled.
func (s *Store) FromURL(ctx context.Context, url, ref string) (Base, error) {
	src, err := s.urlSource(ctx, Remote{URL: url, Ref: ref})
	if err != nil {
		return Base{}, err
	}
	return s.base(ctx, src)
}

// Inspect describes a path, see Git.Inspect.
func (s *Store) Inspect(ctx context.Context, path string) (Info, error) {
	return s.git.Inspect(ctx, path)
}

// Retain keeps the layers of a chain until release, beyond the life of the Base it came from.
func (s *Store) Retain(chain layer.Chain) (release func(), err error) {
	ids := make([]string, len(chain))
	for i, l := range chain {
		ids[i] = l.ID
	}
	release, err = s.uses.Retain(ids)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		if _, err := s.opt.Cache.Get(id); err != nil {
			release()
			return nil, fmt.Errorf("gitrepo: retain: %w", err)
		}
	}
	return release, nil
}

// base finds or makes the base of a source, under the lock of its record.
func (s *Store) base(ctx context.Context, src source) (Base, error) {
	home := filepath.Join(s.opt.Dir, reposDir, src.key)
	if err := os.MkdirAll(home, 0o700); err != nil {
		return Base{}, fmt.Errorf("gitrepo: base of %q: %w", src.label, err)
	}
	lock, err := statedir.Lock(ctx, filepath.Join(home, lockFile))
	if err != nil {
		return Base{}, err
	}
	defer func() { _ = lock.Close() }()
	rec, err := s.readRecord(home, src)
	if err != nil {
		return Base{}, fmt.Errorf("gitrepo: base of %q: %w", src.label, err)
	}
	b, chain, err := s.findOrMake(ctx, home, rec, src)
	if err != nil {
		return Base{}, fmt.Errorf("gitrepo: base of %q: %w", src.label, err)
	}
	release, err := s.Retain(chain)
	if err != nil {
		return Base{}, err
	}
	return src.base(b, chain, release), nil
}

func (src source) base(b baseRecord, chain layer.Chain, release func()) Base {
	base := Base{
		Chain: chain, Commit: src.commit, Branch: src.branch, Bare: src.bare, Author: src.author,
		Submodules: b.Submodules, release: release,
	}
	if !src.mirror {
		base.Notes = append(base.Notes, noteCommitOnly)
	}
	if src.bare {
		base.Notes = append(base.Notes, noteBare)
	}
	for _, m := range b.Submodules {
		if src.fills {
			break
		}
		base.Notes = append(base.Notes, fmt.Sprintf("submodule %q is not fetched: its directory is empty", m))
	}
	if src.shallow != nil {
		base.Notes = append(base.Notes, "the history is shallow, as in the original")
	}
	return base
}

func (s *Store) findOrMake(ctx context.Context, home string, rec *record, src source) (baseRecord, layer.Chain, error) {
	now := time.Now().UTC()
	if b := rec.find(src.baseKey()); b != nil {
		if chain, err := s.chain(b.layers()); err == nil {
			if now.Sub(b.Used) > usedGrain {
				b.Used = now
				return *b, chain, s.writeRecord(home, rec)
			}
			return *b, chain, nil
		}
		rec.drop(src.baseKey())
	}
	m := maker{store: s, home: home, rec: rec, src: src}
	b, err := m.make(ctx)
	if err != nil {
		return baseRecord{}, nil, err
	}
	b.Used = now
	rec.Bases = append(rec.Bases, b)
	rec.limit(s.opt.MaxBases)
	if err := s.writeRecord(home, rec); err != nil {
		return baseRecord{}, nil, err
	}
	chain, err := s.chain(b.layers())
	if err != nil {
		return baseRecord{}, nil, err
	}
	s.collect(home, rec)
	return b, chain, nil
}

// chain looks layers up; an error if any is gone.
func (s *Store) chain(ids []string) (layer.Chain, error) {
	chain := make(layer.Chain, 0, len(ids))
	for _, id := range ids {
		l, err := s.opt.Cache.Get(id)
		if err != nil {
			return nil, err
		}
		chain = append(chain, l)
	}
	return chain, nil
}

// readRecord reads the record of a source. A damaged one counts as absent: everything can be made again.
func (s *Store) readRecord(home string, src source) (*record, error) {
	rec := &record{V: recordVersion, Source: src.label}
	err := statedir.ReadRecord(filepath.Join(home, recordFile), rec)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return rec, nil
	case errors.Is(err, statedir.ErrDamaged) || err == nil && rec.V != recordVersion:
		s.opt.Log.Warn().Err(err).Str("source", src.label).Msg("record of bases is unusable, starting anew")
		return &record{V: recordVersion, Source: src.label}, nil
	case err != nil:
		return nil, err
	}
	return rec, nil
}

func (s *Store) writeRecord(home string, rec *record) error {
	return statedir.WriteRecord(filepath.Join(home, recordFile), rec)
}
