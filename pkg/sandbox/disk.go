package sandbox

import (
	"context"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/internal/reserve"
)

// HasDisk tells whether a sandbox's workspace would be on a disk of its own, which takes no more than its limit.
func (h Host) HasDisk(s Spec) bool {
	return h.Disks != nil && s.Limits.Disk > 0 && s.Strategy != None && h.Layers.Driver == layer.Overlay && h.Disks.Fits(s.Limits.Disk)
}

func (s *Sandbox) openOnDisk(ctx context.Context) (layer.View, error) {
	var err error
	if s.disk, err = s.host.Disks.Make(ctx, s.spec.Limits.Disk); err != nil {
		return nil, err
	}
	return s.host.Cache.OpenOn(ctx, s.disk, s.spec.Chain)
}

// reserved lets the worker's reserve of free space end a command, until done.
func (s *Sandbox) reserved(in *isolate.Init, end context.CancelCauseFunc) (done func()) {
	if s.host.Reserve == nil {
		return func() {}
	}
	return s.host.Reserve.Enter(reserve.Running{
		Grown: s.written(in),
		End:   func(why string) { end(&isolate.ExceededError{Cause: isolate.CauseDisk, Why: why}) },
	})
}

// written measures what is in the open layer and in caches; of a view that is a plain directory, what it gained since the
// first measurement.
func (s *Sandbox) written(in *isolate.Init) func() (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.view.Mount()
	if m.Upper != "" {
		dirs := append([]string{m.Upper}, in.Written()...)
		return func() (int64, error) { return sizeOf(dirs) }
	}
	return func() (int64, error) {
		before, err := s.before()
		if err != nil {
			return 0, err
		}
		now, err := sizeOf([]string{m.Bind})
		return now - before, err
	}
}

// sizeOf is what directories take on disk together, in bytes.
func sizeOf(dirs []string) (int64, error) {
	var all int64
	for _, dir := range dirs {
		n, err := layer.Layer{Dir: dir}.DiskSize(layer.Allocated)
		if err != nil {
			return 0, err
		}
		all += n
	}
	return all, nil
}
