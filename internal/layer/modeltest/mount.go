package modeltest

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/layer/layertest"
)

// InOverlay does a job in a process that has the overlay mounted for itself.
func InOverlay(job Job, o layertest.Overlay) (r Report, err error) {
	at, err := os.MkdirTemp("", "overlay")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.Remove(at)) }()
	job.Dir, job.Mount = at, &o
	return Process(job, layertest.Namespaces(o.Trusted))
}

// doMounted does a job in its overlay.
func doMounted(job Job) Report {
	if err := job.Mount.Mount(job.Dir); err != nil {
		return Report{Err: "mount: " + err.Error()}
	}
	r := Do(job)
	if err := unix.Unmount(job.Dir, 0); err != nil && r.Err == "" {
		r.Err = "unmount: " + err.Error()
	}
	return r
}
