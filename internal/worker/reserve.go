package worker

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/reserve"
	"github.com/warmfleet/warmfleet/pkg/events"
)

// keepReserve sets up what keeps the file system of the state directory from filling up.
func (w *Worker) keepReserve() {
	keep := w.cfg.DiskReserve
	var st unix.Statfs_t
	switch {
	case keep < 0:
		keep = 0
	case keep == 0 && unix.Statfs(w.cfg.StateDir, &st) == nil:
		keep = reserve.Default(int64(st.Blocks) * st.Bsize)
	}
	w.reserve = reserve.New(reserve.Config{Dir: w.cfg.StateDir, Keep: keep, Promised: w.disks.Promised, Changed: w.tellReserve})
}

// tellReserve tells people that this worker begins nothing, or does again.
func (w *Worker) tellReserve(low string) {
	kind := events.WorkerResumed
	if low != "" {
		kind = events.WorkerPaused
		w.log.Warn().Str("why", low).Msg("nothing is begun until there is room on the disk")
	} else {
		w.log.Info().Msg("there is room on the disk again")
	}
	w.pooling.tellSoon()
	w.fact(events.NewEvent(events.TypeOf(events.NounWorker, kind), w.cfg.Name, "/worker/"+w.cfg.Name, events.Data{
		Worker: w.cfg.Name, Host: w.cfg.HostID, Reason: low,
	}))
}

// roomFor refuses to begin something while free space is below the reserve.
func (w *Worker) roomFor(what string) error {
	if low := w.reserve.Low(); low != "" {
		return fmt.Errorf("worker: %s: %w: %s: free space there, or lower --disk-reserve", what, unix.ENOSPC, low)
	}
	return nil
}
