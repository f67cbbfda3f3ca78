package diff

import (
	"bytes"
	"cmp"
	"context"
	"hash/maphash"
	"path"
	"slices"

	"github.com/warmfleet/warmfleet/internal/layer"
)

// Bounds of the search for files that were renamed and edited. What they leave out is shown as deleted and added.
const (
	// minSimilar is percent of the larger side that must be the same, as git has it (DEFAULT_RENAME_SCORE in diffcore.h).
	minSimilar = 50
	// maxPairs is how many pairs are compared; beyond it only files of the same base name are, as git does.
	maxPairs = 250_000
	// maxSimilarFile and maxSimilarRead are the largest file that is looked into and the sum of all, in bytes.
	maxSimilarFile = 1 << 20
	maxSimilarRead = 32 << 20
	// maxSpan is where a line without end is cut for the comparison, in bytes, as git does (HASHBASE in diffcore-delta.c).
	maxSpan = 64
)

// pair finds the renames, by new path: first what has the same bytes, then what has similar ones. Each deleted file is used once.
func (s *Set) pair(ctx context.Context) (map[layer.Path]rename, error) {
	p := pairing{set: s, found: map[layer.Path]rename{}, seed: maphash.MakeSeed()}
	for _, ch := range s.changes {
		switch {
		case ch.After == nil && renamable(ch.Before):
			e := *ch.Before
			e.Path = ch.Path
			p.gone = append(p.gone, &candidate{entry: e})
		case ch.Before == nil && renamable(ch.After):
			e := *ch.After
			e.Path = ch.Path
			p.came = append(p.came, &candidate{entry: e})
		}
	}
	p.exact()
	return p.found, p.similar(ctx)
}

// renamable: empty files and short-lived kinds say nothing about where something came from.
func renamable(e *layer.Entry) bool {
	return e.Type == layer.Symlink || e.Type == layer.File && e.Size > 0 && e.Digest != ""
}

type pairing struct {
	set        *Set
	gone, came []*candidate // in byte order of paths
	found      map[layer.Path]rename
	seed       maphash.Seed
}

// candidate is a deleted or added file.
type candidate struct {
	entry layer.Entry
	used  bool
	spans []span // in order of hashes, nil where they were not looked at
}

func (c *candidate) base() string { return path.Base(string(c.entry.Path)) }

// span is how many bytes of a file have a hash.
type span struct {
	hash uint64
	size int64
}

func (p *pairing) take(gone, came *candidate, similarity int) {
	gone.used, came.used = true, true
	p.found[came.entry.Path] = rename{gone.entry, similarity}
}

// exact pairs files of the same bytes, those of the same base name first.
func (p *pairing) exact() {
	type key struct {
		typ  layer.Type
		what string
	}
	of := func(c *candidate) key { return key{c.entry.Type, c.entry.Digest + "\x00" + string(c.entry.Link)} }
	gone := map[key][]*candidate{}
	for _, c := range p.gone {
		gone[of(c)] = append(gone[of(c)], c)
	}
	for _, sameBase := range []bool{true, false} {
		for _, c := range p.came {
			olds := gone[of(c)]
			i := slices.IndexFunc(olds, func(old *candidate) bool { return !sameBase || old.base() == c.base() })
			if c.used || i < 0 {
				continue
			}
			p.take(olds[i], c, 100)
			gone[of(c)] = slices.Delete(slices.Clone(olds), i, i+1)
		}
	}
}

// similar pairs what is left by how much of the bytes is the same.
func (p *pairing) similar(ctx context.Context) error {
	left := func(c *candidate) bool {
		return c.used || c.entry.Type != layer.File || c.entry.Size > maxSimilarFile
	}
	p.gone, p.came = slices.DeleteFunc(p.gone, left), slices.DeleteFunc(p.came, left)
	budget := int64(maxSimilarRead)
	type match struct {
		gone, came *candidate
		score      int
	}
	var matches []match
	for _, pr := range p.pairs() {
		if err := ctx.Err(); err != nil {
			return err
		}
		gone, came := pr[0], pr[1]
		if small, large := minmax(gone.entry.Size, came.entry.Size); small*100 < large*minSimilar {
			continue
		}
		for c, from := range map[*candidate]Content{gone: p.set.req.Base, came: p.set.req.Ours} {
			if err := p.look(c, from, &budget); err != nil {
				return err
			}
		}
		if score := similarity(gone, came); score >= minSimilar {
			matches = append(matches, match{gone, came, score})
		}
	}
	sameBase := func(m match) int {
		if m.gone.base() == m.came.base() {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(matches, func(a, b match) int {
		return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(sameBase(a), sameBase(b)))
	})
	for _, m := range matches {
		if !m.gone.used && !m.came.used {
			p.take(m.gone, m.came, m.score)
		}
	}
	return nil
}

// pairs are those to compare.
func (p *pairing) pairs() [][2]*candidate {
	var all [][2]*candidate
	if len(p.gone)*len(p.came) <= maxPairs {
		for _, came := range p.came {
			for _, gone := range p.gone {
				all = append(all, [2]*candidate{gone, came})
			}
		}
		return all
	}
	only := func(cs []*candidate) map[string]*candidate {
		by := map[string]*candidate{}
		for _, c := range cs {
			if _, twice := by[c.base()]; twice {
				by[c.base()] = nil
			} else {
				by[c.base()] = c
			}
		}
		return by
	}
	gone := only(p.gone)
	for base, came := range only(p.came) {
		if old := gone[base]; old != nil && came != nil {
			all = append(all, [2]*candidate{old, came})
		}
	}
	return all
}

// look reads a candidate's spans, if they are not known, it is text, and the budget allows.
func (p *pairing) look(c *candidate, from Content, budget *int64) error {
	if c.spans != nil || *budget < c.entry.Size {
		return nil
	}
	*budget -= c.entry.Size
	c.spans = []span{}
	text, err := p.set.read(from, c.entry.Path, &c.entry)
	if err != nil || text.binary || !text.whole {
		return err
	}
	sizes := map[uint64]int64{}
	for line := range bytes.Lines(text.bytes) {
		for part := range slices.Chunk(line, maxSpan) {
			sizes[maphash.Bytes(p.seed, part)] += int64(len(part))
		}
	}
	for hash, size := range sizes {
		c.spans = append(c.spans, span{hash, size})
	}
	slices.SortFunc(c.spans, func(a, b span) int { return cmp.Compare(a.hash, b.hash) })
	return nil
}

// similarity is percent of the larger file that is in the other as well.
func similarity(a, b *candidate) int {
	var same int64
	for i, j := 0, 0; i < len(a.spans) && j < len(b.spans); {
		x, y := a.spans[i], b.spans[j]
		switch {
		case x.hash < y.hash:
			i++
		case x.hash > y.hash:
			j++
		default:
			same += min(x.size, y.size)
			i, j = i+1, j+1
		}
	}
	return int(same * 100 / max(a.entry.Size, b.entry.Size))
}

func minmax(a, b int64) (least, most int64) { return min(a, b), max(a, b) }
