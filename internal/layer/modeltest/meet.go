package modeltest

import (
	"errors"
	"strings"

	"github.com/warmfleet/warmfleet/internal/layer/layertest"
)

// reveal completes the files that an agent could not read with what is known of them.
func reveal(got, known layertest.Snapshot) layertest.Snapshot {
	full := layertest.Snapshot{}
	for path, n := range got {
		if k, ok := known[path]; ok && n.Hidden {
			n.Hidden, n.Xattrs, n.Data, n.Digest = false, k.Xattrs, k.Data, k.Digest
		}
		full[path] = n
	}
	return full
}

const (
	// wideHole is the size from which a hole has to survive; rim is what a copy-up, which reads a MiB at once from
	// where data begins (OVL_COPY_UP_CHUNK_SIZE in fs/overlayfs/copy_up.c), may fill at its edges.
	wideHole = 5 << 20
	rim      = 2 << 20
)

// smallHole is the size up to which a hole need not survive: whether a file has any is told from how many blocks it
// takes, of which some may be for its attributes.
const smallHole = 16 << 10

// coarse lists the large holes of files in place of their data.
func coarse(tree layertest.Snapshot) layertest.Snapshot {
	for path, n := range tree {
		if n.Kind != "file" {
			continue
		}
		data, end := []int64{}, int64(0)
		for i := 0; i < len(n.Data); i += 2 {
			if n.Data[i]-end > smallHole {
				data = append(data, end, n.Data[i])
			}
			end = n.Data[i+1]
		}
		if n.Size-end > smallHole {
			data = append(data, end, n.Size)
		}
		n.Data = data // the holes
		tree[path] = n
	}
	return tree
}

// roughly tells whether got has the wide holes of want.
func roughly(got, want layertest.Node) bool {
	hole := int64(0) // where the hole before the next data begins
	for i := 0; i <= len(want.Data); i += 2 {
		end := want.Size
		if i < len(want.Data) {
			end = want.Data[i]
		}
		if end-hole >= wideHole && hasData(got, hole+rim, end-rim) {
			return false
		}
		if i < len(want.Data) {
			hole = want.Data[i+1]
		}
	}
	return true
}

func hasData(n layertest.Node, from, to int64) bool {
	for i := 0; i < len(n.Data); i += 2 {
		if n.Data[i] < to && n.Data[i+1] > from {
			return true
		}
	}
	return false
}

// setTimes gives paths below dir their times of change.
func setTimes(dir string, times map[string]int64) error {
	root, err := layertest.OpenFolder(dir)
	if err != nil {
		return err
	}
	for path, ns := range times {
		f, name, closeAll, openErr := reach(root, path)
		if openErr == nil {
			openErr = f.SetMTime(name, ns)
		}
		err = errors.Join(err, openErr, closeAll())
	}
	return errors.Join(err, root.Close())
}

// reach is parent for a caller whose own directories are opened up until closeAll.
func reach(f *layertest.Folder, path string) (at *layertest.Folder, name string, closeAll func() error, err error) {
	var open []*layertest.Folder
	closeAll = func() error {
		var err error
		for i := len(open) - 1; i >= 0; i-- {
			err = errors.Join(err, open[i].Close())
		}
		return err
	}
	at = f
	for {
		next, rest, more := strings.Cut(path, "/")
		if !more {
			return at, next, closeAll, nil
		}
		sub, err := at.Sub(next)
		if err != nil {
			return nil, "", closeAll, err
		}
		open = append(open, sub)
		if err := sub.OpenUp(0o100); err != nil {
			return nil, "", closeAll, err
		}
		at, path = sub, rest
	}
}
