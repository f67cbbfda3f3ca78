package checkpoint

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/warmfleet/warmfleet/internal/kv"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/pkg/objectstore"
)

// Kinds of problems.
const (
	ProblemMissing = "missing" // a record names it and it is not there
	ProblemCorrupt = "corrupt" // its bytes are not those that were stored, or no layer
	ProblemDiffers = "differs" // record and object disagree on size or digest
	ProblemRecord  = "record"  // the record itself can't be read
)

// Problem is one thing that is wrong with what is stored. Its JSON form is an answer of the API.
type Problem struct {
	Kind string `json:"kind"`
	// Object is the stored object, "" if the record is what is wrong.
	Object string `json:"object"`
	// Checkpoints need it, in the order of their ids.
	Checkpoints []string `json:"checkpoints"`
	What        string   `json:"what"`
}

// Verified is what a verification found.
type Verified struct {
	Checkpoints int `json:"checkpoints"`
	// Objects are those that records name; Read of them were read whole, ReadBytes of stored bytes.
	Objects   int       `json:"objects"`
	Read      int       `json:"read"`
	ReadBytes int64     `json:"read_bytes"`
	Problems  []Problem `json:"problems"`
	// Orphans are objects that no record names: of uploads that go on, or garbage that waits for
	// its collection. They are no problem.
	Orphans     []string `json:"orphans"`
	OrphanBytes int64    `json:"orphan_bytes"`
}

// Part is the n-th of t parts of all objects; n = 1 to t together are all of them, each once, as
// long as no object comes or goes. The zero Part is none.
type Part struct{ N, T int }

// ParsePart reads "n/t".
func ParsePart(text string) (Part, error) {
	n, t, ok := strings.Cut(text, "/")
	var p Part
	var err1, err2 error
	p.N, err1 = strconv.Atoi(n)
	p.T, err2 = strconv.Atoi(t)
	if !ok || err1 != nil || err2 != nil || p.N < 1 || p.N > p.T {
		return Part{}, fmt.Errorf("checkpoint: part %q: write n/t with n from 1 to t, as in 1/7", text)
	}
	return p, nil
}

// has decides by the name alone, so that the parts stay the same over days.
func (p Part) has(name string) bool {
	if p.T == 0 {
		return false
	}
	sum := sha256.Sum256([]byte(name))
	return binary.BigEndian.Uint64(sum[:8])%uint64(p.T) == uint64(p.N-1)
}

// verifier is one verification.
type verifier struct {
	store   objectstore.Store
	records kv.Store
	found   Verified
}

// Verify checks that everything that records name is there in the right size, and reads the
// part whole. An object whose bytes are wrong is put in quarantine: nobody uses it any more, and
// who has its layer stores it anew. The error says what kept it from being checked.
func Verify(ctx context.Context, store objectstore.Store, records kv.Store, read Part) (Verified, error) {
	v := &verifier{store: store, records: records, found: Verified{Problems: []Problem{}, Orphans: []string{}}}
	err := v.all(ctx, read)
	if err != nil {
		err = fmt.Errorf("checkpoint: verify: %w", err)
	}
	return v.found, err
}

// VerifyOne reads everything that one record names, its base included.
func VerifyOne(ctx context.Context, store objectstore.Store, records kv.Store, id string) (Verified, error) {
	cp, err := Load(ctx, records, id)
	if err != nil {
		return Verified{}, err
	}
	v := &verifier{store: store, records: records, found: Verified{Checkpoints: 1, Problems: []Problem{}, Orphans: []string{}}}
	if err := v.wanted(ctx, wants([]Checkpoint{cp}), Part{1, 1}); err != nil {
		return v.found, fmt.Errorf("checkpoint: verify %q: %w", id, err)
	}
	return v.found, nil
}

// want is an object that records name, and what they say of it.
type want struct {
	name string
	refs []LayerRef // differing ones; none for a difference
	by   []string
}

func wants(cps []Checkpoint) []want {
	all := map[string]*want{}
	add := func(name, id string) *want {
		w := all[name]
		if w == nil {
			w = &want{name: name}
			all[name] = w
		}
		if !slices.Contains(w.by, id) {
			w.by = append(w.by, id)
		}
		return w
	}
	for _, cp := range cps {
		for _, ref := range append(slices.Clone(cp.Base), cp.Layers...) {
			if w := add(ref.Name, cp.ID); !slices.Contains(w.refs, ref) {
				w.refs = append(w.refs, ref)
			}
		}
		if cp.Delta != "" {
			add(cp.Delta, cp.ID)
		}
	}
	var out []want
	for _, name := range slices.Sorted(maps.Keys(all)) {
		out = append(out, *all[name])
	}
	return out
}

func (v *verifier) all(ctx context.Context, read Part) error {
	objects, err := v.store.List(ctx) // before the records: one that is named later is no orphan
	if err != nil {
		return err
	}
	cps, err := v.load(ctx)
	if err != nil {
		return err
	}
	all := wants(cps)
	named := map[string]bool{}
	for _, w := range all {
		named[w.name] = true
	}
	for _, o := range objects {
		if !named[o.Name] {
			v.found.Orphans, v.found.OrphanBytes = append(v.found.Orphans, o.Name), v.found.OrphanBytes+o.Size
		}
	}
	return v.wanted(ctx, all, read)
}

func (v *verifier) load(ctx context.Context) ([]Checkpoint, error) {
	entries, err := v.records.List(ctx, "")
	if err != nil {
		return nil, err
	}
	var cps []Checkpoint
	for _, e := range entries {
		if e.Key == collectedKey {
			continue
		}
		v.found.Checkpoints++
		var cp Checkpoint
		if err := json.Unmarshal(e.Value, &cp); err != nil || cp.ID != e.Key {
			what := fmt.Sprintf("names %q", cp.ID)
			if err != nil {
				what = err.Error()
			}
			v.found.Problems = append(v.found.Problems, Problem{Kind: ProblemRecord, Checkpoints: []string{e.Key}, What: what})
			continue
		}
		cps = append(cps, cp)
	}
	return cps, nil
}

func (v *verifier) wanted(ctx context.Context, all []want, read Part) error {
	v.found.Objects += len(all)
	for _, w := range all {
		kind, err := v.check(ctx, w, read.has(w.name))
		if kind == "" && err != nil {
			return err
		}
		if kind == "" || kind == ProblemMissing && v.withdrawn(ctx, w) {
			continue
		}
		v.found.Problems = append(v.found.Problems, Problem{Kind: kind, Object: w.name, Checkpoints: w.by, What: oneLine(err)})
	}
	return nil
}

// withdrawn tells whether the records that name an object went away while it was looked for.
func (v *verifier) withdrawn(ctx context.Context, w want) bool {
	return !slices.ContainsFunc(w.by, func(id string) bool {
		_, err := v.records.Get(ctx, id)
		return !errors.Is(err, kv.ErrNotFound)
	})
}

// check returns what kind of problem an object has and its description; an error without a kind
// says that it could not be checked.
func (v *verifier) check(ctx context.Context, w want, read bool) (kind string, err error) {
	info, err := v.store.Stat(ctx, w.name)
	if err != nil {
		return kindOf(err), err
	}
	for _, ref := range w.refs {
		if err := ref.fits(info); err != nil {
			return ProblemDiffers, err
		}
	}
	if !read {
		return "", nil
	}
	if err = v.readAll(ctx, w); err == nil {
		return "", nil
	}
	kind = kindOf(err)
	if kind == ProblemCorrupt {
		err = v.quarantine(ctx, info, err)
	}
	return kind, err
}

// quarantine keeps others from using what was found bad, unless it was replaced meanwhile.
func (v *verifier) quarantine(ctx context.Context, o objectstore.Info, why error) error {
	marker, able := v.store.(objectstore.Marker)
	if !able {
		return why
	}
	if err := marker.Quarantine(ctx, o, oneLine(why)); err != nil && !errors.Is(err, objectstore.ErrChanged) {
		return errors.Join(why, err)
	}
	return why
}

func kindOf(err error) string {
	switch {
	case errors.Is(err, objectstore.ErrNotFound):
		return ProblemMissing
	case errors.Is(err, objectstore.ErrCorrupt), errors.Is(err, layer.ErrCorrupt):
		return ProblemCorrupt
	case errors.Is(err, ErrBadLayer), errors.Is(err, layer.ErrLimit):
		return ProblemDiffers
	}
	return ""
}

// readAll reads an object to its end.
func (v *verifier) readAll(ctx context.Context, w want) error {
	v.found.Read++
	if len(w.refs) == 0 {
		_, err := GetDelta(ctx, v.store, w.name)
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, deadline(w.refs[0].Size))
	defer cancel()
	r, err := v.store.Get(ctx, w.name)
	if err != nil {
		return err
	}
	defer r.Close()
	counted := &countingReader{r: r}
	packed, err := layer.Verify(ctx, w.name, counted, layer.Limits{Bytes: w.refs[0].TarSize})
	v.found.ReadBytes += counted.n
	if err != nil {
		return err
	}
	for _, ref := range w.refs {
		if ref.TarSize != packed.TarSize {
			return fmt.Errorf("%w: %s is a tar of %d bytes, the record says %d", ErrBadLayer, w.name, packed.TarSize, ref.TarSize)
		}
	}
	return nil
}

type countingReader struct {
	r io.Reader
	n int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
