package gitrepo

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/internal/statedir"
)

// Names in the store's directory.
const (
	reposDir    = "repos"   // <key>/{record,lock,git}: one source each
	mirrorsDir  = "mirrors" // <key>/{git,lock}: one remote each
	recordFile  = "record"
	lockFile    = "lock"
	workshopDir = "git"
)

// recordVersion is the form of record. Fields may be added, none renamed; another meaning is another version.
const recordVersion = 1

// record is what is stored of one source: which layers hold its objects, and which make up its bases.
type record struct {
	V      int    `json:"v"`
	Source string `json:"source"` // for people
	// Objects are the layers that new bases get, bottom first.
	Objects []objectsRecord `json:"objects"`
	Bases   []baseRecord    `json:"bases"`
	// Garbage are layers that no base needs any more and that were not removed yet.
	Garbage []string `json:"garbage,omitempty"`
}

// objectsRecord is a layer with all objects that are reachable from Tips and not in the layers below.
type objectsRecord struct {
	Layer string   `json:"layer"`
	Tips  []string `json:"tips"`
}

// baseRecord is one base. Its layers stay as they are, so that a commit's base keeps its identity.
type baseRecord struct {
	Key        string    `json:"key"`
	View       string    `json:"view"` // bases of one view check files out alike
	Commit     string    `json:"commit"`
	Branch     string    `json:"branch,omitempty"`
	Submodules []string  `json:"submodules,omitempty"`
	Objects    []string  `json:"objects"` // bottom first
	Files      []string  `json:"files"`   // above them, bottom first
	Used       time.Time `json:"used"`
}

func (b baseRecord) layers() []string { return slices.Concat(b.Objects, b.Files) }

// baseKey names a base: the commit and everything that its private git directory says.
func (src source) baseKey() string {
	return keyOf(src.commit, src.branch, privateConfig(src), string(src.exclude), string(src.attributes))
}

// viewKey names what decides how files look beside the commit.
func (src source) viewKey() string {
	return keyOf(append(slices.Clone(src.core), string(src.attributes))...)
}

func (r *record) find(key string) *baseRecord {
	i := slices.IndexFunc(r.Bases, func(b baseRecord) bool { return b.Key == key })
	if i < 0 {
		return nil
	}
	return &r.Bases[i]
}

// drop forgets a base; its layers become garbage unless something else needs them.
func (r *record) drop(key string) {
	i := slices.IndexFunc(r.Bases, func(b baseRecord) bool { return b.Key == key })
	r.Garbage = append(r.Garbage, r.Bases[i].layers()...)
	r.Bases = slices.Delete(r.Bases, i, i+1)
}

// limit forgets the least recently used bases beyond n.
func (r *record) limit(n int) {
	for len(r.Bases) > n {
		oldest := slices.MinFunc(r.Bases, func(a, b baseRecord) int { return a.Used.Compare(b.Used) })
		r.drop(oldest.Key)
	}
}

func (r *record) objectIDs() []string {
	ids := make([]string, len(r.Objects))
	for i, o := range r.Objects {
		ids[i] = o.Layer
	}
	return ids
}

func (r *record) tips() []string {
	var tips []string
	for _, o := range r.Objects {
		tips = append(tips, o.Tips...)
	}
	return tips
}

// forgetObjects starts a new set of objects for later bases.
func (r *record) forgetObjects() {
	r.Garbage = append(r.Garbage, r.objectIDs()...)
	r.Objects = nil
}

// layers are all layers that are needed.
func (r *record) layers() map[string]bool {
	needed := map[string]bool{}
	for _, id := range r.objectIDs() {
		needed[id] = true
	}
	for _, b := range r.Bases {
		for _, id := range b.layers() {
			needed[id] = true
		}
	}
	return needed
}

// collect removes garbage that nobody uses. What can't be removed now is tried again after the next base.
func (s *Store) collect(home string, rec *record) {
	if len(rec.Garbage) == 0 {
		return
	}
	needed := rec.layers()
	slices.Sort(rec.Garbage)
	var left []string
	for _, id := range slices.Compact(rec.Garbage) {
		if needed[id] {
			continue
		}
		removed, err := s.uses.RemoveUnused(id, func() error { return s.opt.Cache.Remove(id) })
		if err != nil {
			s.opt.Log.Warn().Err(err).Str("layer", id).Msg("remove layer of an old base")
		}
		if !removed {
			left = append(left, id)
		}
	}
	rec.Garbage = left
	if err := s.writeRecord(home, rec); err != nil {
		s.opt.Log.Warn().Err(err).Str("source", rec.Source).Msg("store record of bases")
	}
}

// maker makes one base. Whoever has it holds the lock of the record.
type maker struct {
	store *Store
	home  string
	rec   *record
	src   source
	w     workshop
}

// make builds what the record lacks and stores the record after each layer, so that a kill wastes one at most.
func (m *maker) make(ctx context.Context) (baseRecord, error) {
	err := statedir.SweepTemp(m.home)
	if err != nil {
		return baseRecord{}, err
	}
	if m.w, err = openWorkshop(m.store.git, m.store.opt.Cache, filepath.Join(m.home, workshopDir), m.src); err != nil {
		return baseRecord{}, err
	}
	objects, err := m.store.chain(m.rec.objectIDs())
	if err != nil {
		m.rec.forgetObjects()
		objects = nil
	}
	if m.w.mtime, err = m.w.commitTime(ctx, m.src.commit, append(objectDirs(objects), m.src.objects)); err != nil {
		return baseRecord{}, err
	}
	if objects, err = m.objects(ctx, objects); err != nil {
		return baseRecord{}, err
	}
	on, files := m.parent()
	out, err := m.w.checkout(ctx, m.src, objects, on)
	if err != nil {
		return baseRecord{}, err
	}
	if !out.delta {
		files = nil
	}
	return baseRecord{
		Key: m.src.baseKey(), View: m.src.viewKey(), Commit: m.src.commit, Branch: m.src.branch, Submodules: out.submodules,
		Objects: m.rec.objectIDs(), Files: append(slices.Clone(files), out.layer.ID),
	}, nil
}

// objects adds the layers that the commit needs beyond have.
func (m *maker) objects(ctx context.Context, have layer.Chain) (layer.Chain, error) {
	found, err := m.w.hasCommit(ctx, have, m.src.commit)
	if err != nil || found {
		return have, err
	}
	if len(have) >= maxObjectLayers {
		merged, err := m.w.mergeObjects(ctx, have[1:])
		if err != nil {
			return nil, err
		}
		m.rec.Garbage = append(m.rec.Garbage, m.rec.objectIDs()...)
		m.rec.Objects = []objectsRecord{m.rec.Objects[0], {Layer: merged.ID, Tips: m.rec.tips()}}
		have = layer.Chain{have[0], merged}
	}
	l, err := m.w.addObjects(ctx, m.src, have, m.rec.tips())
	if err != nil && ExitCode(err) > 0 && ctx.Err() == nil {
		l, err = m.w.addObjects(ctx, m.src, have, m.rec.tips()) // a gc of the source may have moved what was being read
	}
	if err != nil {
		return nil, err
	}
	m.rec.Objects = append(m.rec.Objects, objectsRecord{Layer: l.ID, Tips: []string{m.src.commit}})
	return append(have, l), m.store.writeRecord(m.home, m.rec)
}

// parent finds the most recent checkout that a new one may build on, and its layers.
func (m *maker) parent() (*parent, []string) {
	view := m.src.viewKey()
	bases := slices.Clone(m.rec.Bases)
	slices.SortFunc(bases, func(a, b baseRecord) int { return b.Used.Compare(a.Used) })
	for _, b := range bases {
		if b.View != view || len(b.Files) >= maxFileLayers {
			continue
		}
		chain, err := m.store.chain(b.Files)
		if err != nil {
			continue
		}
		index := filepath.Join(chain[len(chain)-1].Dir, ".git", "index")
		if _, err := os.Lstat(index); err != nil {
			continue
		}
		return &parent{commit: b.Commit, index: index}, b.Files
	}
	return nil, nil
}

// Layers lists every layer that the store's bases are made of. A layer of the cache that neither this
// nor another owner lists was left by a kill.
func (s *Store) Layers() ([]string, error) {
	homes, err := os.ReadDir(filepath.Join(s.opt.Dir, reposDir))
	if err != nil {
		return nil, err
	}
	all := map[string]bool{}
	for _, h := range homes {
		rec, err := s.readRecord(filepath.Join(s.opt.Dir, reposDir, h.Name()), source{})
		if err != nil {
			return nil, err
		}
		for id := range rec.layers() {
			all[id] = true
		}
		for _, id := range rec.Garbage {
			all[id] = true
		}
	}
	ids := make([]string, 0, len(all))
	for id := range all {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids, nil
}
