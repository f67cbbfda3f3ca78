package base

import (
	"slices"
	"sync"

	"github.com/warmfleet/warmfleet/internal/layer"
)

// memory keeps the indexes of recently used paths, so that a walk does not begin with reading one.
type memory struct {
	mu   sync.Mutex
	kept []remembered // most recently used last
}

// remembered is an index newer than, or the same as, the stored one of the name.
type remembered struct {
	home, file string
	index      *layer.Index
}

// maxRemembered bounds the memory that indexes take: about 500 bytes a path.
const maxRemembered = 4

func (m *memory) get(home, file string) *layer.Index {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.kept {
		if r.home == home && r.file == file {
			return r.index
		}
	}
	return nil
}

func (m *memory) put(home, file string, index *layer.Index) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kept = slices.DeleteFunc(m.kept, func(r remembered) bool { return r.home == home })
	m.kept = append(m.kept, remembered{home, file, index})
	if len(m.kept) > maxRemembered {
		m.kept = slices.Delete(m.kept, 0, 1)
	}
}
