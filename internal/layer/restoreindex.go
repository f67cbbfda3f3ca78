package layer

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

func (r *restorer) sync() error {
	if len(r.touched) == 0 {
		return nil
	}
	return unix.Syncfs(r.root.fd)
}

// index describes the directory as it is now.
func (r *restorer) index() (*Index, error) {
	x := &Index{SelfUID: r.self.SelfUID, SelfGID: r.self.SelfGID, clock: r.scan.clock, lost: r.lost}
	for _, w := range r.wanted {
		if w.do == keep && w.have.known() && !r.touched[w.Path] && w.have.layer == w.layer {
			x.entries = append(x.entries, w.have.indexed)
			continue
		}
		now := &indexed{Entry: w.Entry, layer: w.layer}
		st, err := r.statNow(w)
		if errors.Is(err, fs.ErrNotExist) {
			continue // listed as lost
		}
		if err != nil {
			return nil, fmt.Errorf("stat %q: %w", w.Path, err)
		}
		now.stamp = st
		now.racy = st.ctime >= r.start.UnixNano()
		x.entries = append(x.entries, now)
	}
	for _, lost := range r.scan.lost {
		if !r.touched[lost.Path] {
			x.lost = append(x.lost, lost)
		}
	}
	return x, nil
}

func (r *restorer) statNow(w *wanted) (stamp, error) {
	if !r.touched[w.Path] && w.have != nil {
		return w.have.stamp, nil
	}
	f, name, err := openIn(r.root, w.Path, needRead)
	if err != nil {
		return stamp{}, err
	}
	st, err := f.stat(name)
	return stampOf(st), errors.Join(err, f.close())
}
