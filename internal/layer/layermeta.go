package layer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

const (
	metaFile = "layer.json"
	// metaVersion is the form of layer.json; a layer of another form counts as absent.
	metaVersion = 1
)

// Meta is what a layer's record holds beside its name.
type Meta struct {
	// Owners are the owners of entries that are not Self, as numbers of the host the files came from.
	Owners map[Path][2]int
	// Links are groups of paths that are one file, each in byte order.
	Links [][]Path
	Lost  []Lost
	// SelfUID and SelfGID are what Self stood for where the layer was captured, nil where that is not known.
	SelfUID, SelfGID *int
}

// layerMeta is layer.json. Fields may be added, none renamed; another meaning is another V.
type layerMeta struct {
	V int `json:"v"`
	Layer
	Trusted bool     `json:"trusted"`
	Owners  []owned  `json:"owners,omitempty"`
	Links   [][]Path `json:"links,omitempty"`
	SelfUID *int     `json:"self_uid,omitempty"`
	SelfGID *int     `json:"self_gid,omitempty"`
}

// owned is a list because a JSON object could not hold a path that is not UTF-8.
type owned struct {
	Path Path `json:"path"`
	UID  int  `json:"uid"`
	GID  int  `json:"gid"`
}

func (m layerMeta) owners() map[Path][2]int {
	owners := make(map[Path][2]int, len(m.Owners))
	for _, o := range m.Owners {
		owners[o.Path] = [2]int{o.UID, o.GID}
	}
	return owners
}

// readMeta reads the record of the layer whose home directory (that of fs and layer.json) is given.
func readMeta(home string) (layerMeta, error) {
	b, err := os.ReadFile(filepath.Join(home, metaFile))
	if err != nil {
		return layerMeta{}, err
	}
	var m layerMeta
	if err := json.Unmarshal(b, &m); err != nil {
		return layerMeta{}, fmt.Errorf("read %s: %w", metaFile, err)
	}
	if m.V != metaVersion {
		return layerMeta{}, fmt.Errorf("%s has version %d, want %d: %w", metaFile, m.V, metaVersion, fs.ErrNotExist)
	}
	m.ID, m.Dir = filepath.Base(home), filepath.Join(home, treeDir)
	return m, nil
}

// writeMeta replaces the record as a whole.
func writeMeta(home string, m layerMeta) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	tmp := filepath.Join(home, metaFile+".tmp")
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(home, metaFile))
}
