package layer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
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
	// Boot, if set, is the boot of the machine during which the layer was written without being synced to the
	// disk: it survives the death of any process, and counts as absent after the machine has started again.
	Boot string `json:"boot,omitempty"`
}

// bootFile is a random id that Linux makes anew at every start (random(4)).
const bootFile = "/proc/sys/kernel/random/boot_id"

// bootID is the id of this boot, "" where the kernel does not tell.
func bootID() string {
	b, err := os.ReadFile(bootFile)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
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

// readMeta reads the record of the layer whose home directory (that of fs and layer.json) is given. It returns
// fs.ErrNotExist for a layer that may not be whole after a crash of the machine, or has another form.
func readMeta(home string) (layerMeta, error) {
	b, err := os.ReadFile(filepath.Join(home, metaFile))
	if err != nil {
		return layerMeta{}, err
	}
	var m layerMeta
	if err := json.Unmarshal(b, &m); err != nil {
		return layerMeta{}, fmt.Errorf("read %s: %w", metaFile, errors.Join(fs.ErrNotExist, err))
	}
	if m.Boot != "" && m.Boot != bootID() {
		return layerMeta{}, fmt.Errorf("written before the machine restarted, and not synced: %w", fs.ErrNotExist)
	}
	if m.V != metaVersion {
		return layerMeta{}, fmt.Errorf("%s has version %d, want %d: %w", metaFile, m.V, metaVersion, fs.ErrNotExist)
	}
	m.ID, m.Dir = filepath.Base(home), filepath.Join(home, treeDir)
	return m, nil
}

// writeMeta replaces the record as a whole, durably if the layer is durable.
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
	if err == nil && m.Boot == "" {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(home, metaFile))
}
