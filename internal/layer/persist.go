package layer

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
)

// Persist makes the layers of a chain survive a crash of the machine, those that do not yet:
// it waits for the disk.
func (c *Cache) Persist(ctx context.Context, chain Chain) error {
	var homes []string
	for _, l := range chain {
		home := filepath.Join(c.dir, l.ID)
		m, err := readMeta(home)
		if err != nil {
			return fmt.Errorf("layer: persist %q: %w", l.ID, err)
		}
		if m.Boot != "" {
			homes = append(homes, home)
		}
	}
	if len(homes) == 0 {
		return nil
	}
	if err := errors.Join(ctx.Err(), syncFS(c.dir)); err != nil {
		return fmt.Errorf("layer: persist: %w", err)
	}
	for _, home := range homes {
		m, err := readMeta(home)
		if err == nil {
			m.Boot = ""
			err = writeMeta(home, m)
		}
		if err != nil {
			return fmt.Errorf("layer: persist %q: %w", filepath.Base(home), err)
		}
	}
	return syncDir(c.dir)
}
