package worker

import (
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/base"
	"github.com/warmfleet/warmfleet/internal/gitrepo"
	"github.com/warmfleet/warmfleet/internal/shelf"
)

// Unbounded is the BaseBudget of a worker that removes no base for its size.
const Unbounded = -1

// openBases opens what keeps the bases of paths and of repositories, and the budget of both.
func (w *Worker) openBases() error {
	dir := func(name string) string { return filepath.Join(w.cfg.StateDir, name) }
	var err error
	w.bases, err = base.Open(base.Options{Dir: dir("bases"), Cache: w.cache, Own: []string{w.cfg.StateDir}, Log: w.log})
	if err != nil {
		return err
	}
	w.repos, err = gitrepo.OpenStore(gitrepo.Options{Dir: dir("repos"), Cache: w.cache, Timeout: w.cfg.RemoteStall, Log: w.log})
	if err != nil {
		return err
	}
	budget := w.cfg.BaseBudget
	switch budget {
	case Unbounded:
		budget = 0
	case 0:
		if budget, err = shareOf(w.cfg.StateDir); err != nil {
			return err
		}
	}
	w.shelf = shelf.New(shelf.Options{Holders: []shelf.Holder{w.bases, w.repos}, Cache: w.cache, Budget: budget, Log: w.log})
	return nil
}

// shareOf is the default budget: a part of the file system that dir lies on, in bytes.
func shareOf(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("worker: size of the file system of %q: %w", dir, err)
	}
	return int64(st.Blocks) * st.Bsize / shelf.DefaultShare, nil
}
