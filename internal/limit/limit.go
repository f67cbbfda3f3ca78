// Package limit bounds memory, processor and processes of sandboxes by control groups, of
// version 2 or 1, whichever has the controllers here.
//
// Groups belong to this process and die with it: their directory is locked for as long as
// the process lives, and the next process removes what it can lock. The package knows
// control groups and package isolate; it must not know plans, workers or layers.
package limit

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate"
)

// Version is which control groups bound sandboxes.
type Version string

// The versions that can be asked for. Auto takes the one that bounds more, which is where the
// kernel has the controllers: it gives each to one version only.
const (
	Auto Version = "auto"
	V2   Version = "v2"
	V1   Version = "v1"
	None Version = "none" // as on a machine where no group may be made
)

// ParseVersion reads the name of a version; "" is Auto.
func ParseVersion(name string) (Version, error) {
	switch v := Version(name); v {
	case "":
		return Auto, nil
	case Auto, V2, V1, None:
		return v, nil
	}
	return "", fmt.Errorf("limit: cgroups is %q: use auto, v2, v1 or none", name)
}

// controllers are what limits need, in the order in which reports name them.
func controllers() []string { return []string{"memory", "cpu", "pids"} }

// guaranteeOf is what a controller gives.
func guaranteeOf(controller string) string {
	return map[string]string{"memory": isolate.Memory, "cpu": isolate.CPU, "pids": isolate.Pids}[controller]
}

// hierarchy is where one version's groups are made.
type hierarchy interface {
	// has tells whether groups bound what a controller is for, and why not.
	has(controller string) (why string, ok bool)
	group(name string) (isolate.Group, error)
	close() error
}

// Groups makes the groups of this process's sandboxes.
type Groups struct {
	version Version // None where no group can be made
	made    hierarchy
	why     map[string]string // controller -> why it bounds nothing
	count   atomic.Int64
}

// Open finds out by doing which controllers this process may make groups with, and removes
// groups of processes that are gone. It never fails: Describe tells what is missing. For
// groups of version 2 it moves this process into a group of its own where it must: call it
// before this process has children, which would stay behind and be in the way.
func Open(want Version) *Groups {
	g := &Groups{version: None, why: map[string]string{}}
	if want == None {
		for _, c := range controllers() {
			g.why[c] = "control groups are switched off by --cgroups none"
		}
		return g
	}
	best := 0
	for _, try := range []struct {
		version Version
		open    func() hierarchy
	}{{V2, openUnified}, {V1, openSplit}} {
		if want == V1 && try.version == V2 || want == V2 && try.version == V1 {
			continue
		}
		h := try.open()
		why := reasons(h)
		if bounded := len(controllers()) - len(why); bounded > best {
			if g.made != nil {
				g.made.close()
			}
			g.version, g.made, g.why, best = try.version, h, why, bounded
			continue
		}
		h.close()
		if best == 0 {
			g.alsoWhy(why)
		}
	}
	return g
}

// reasons are why controllers bound nothing in a hierarchy.
func reasons(h hierarchy) map[string]string {
	why := map[string]string{}
	for _, c := range controllers() {
		if reason, ok := h.has(c); !ok {
			why[c] = reason
		}
	}
	return why
}

// alsoWhy adds what another version lacks.
func (g *Groups) alsoWhy(why map[string]string) {
	for c, reason := range why {
		switch {
		case g.why[c] == "":
			g.why[c] = reason
		case reason != errNoController(c).Error(): // which is no news where version 2 has it
			g.why[c] += "; " + reason
		}
	}
}

// Version is what groups are made of, None where none can be made.
func (g *Groups) Version() Version { return g.version }

// Bounded are the guarantees that groups give here.
func (g *Groups) Bounded() []string {
	var names []string
	for _, c := range controllers() {
		if _, missing := g.why[c]; !missing {
			names = append(names, guaranteeOf(c))
		}
	}
	return names
}

// New makes a group without limits, or returns nil where this process may make none.
func (g *Groups) New() (isolate.Group, error) {
	if g.made == nil {
		return nil, nil
	}
	return g.made.group(strconv.FormatInt(g.count.Add(1), 10))
}

// Close removes the groups of this process. Its sandboxes must be closed.
func (g *Groups) Close() error {
	if g.made == nil {
		return nil
	}
	return g.made.close()
}

// Describe puts into a report what limits hold here, why not more, and what to do.
func (g *Groups) Describe(r *isolate.Report) {
	for _, c := range controllers() {
		name, why := guaranteeOf(c), g.why[c]
		if why == "" {
			r.Guarantees[name] = isolate.Guarantee{State: isolate.Enforced}
			continue
		}
		r.Guarantees[name] = g.lacking(name, why, r)
	}
	DescribeDisk(r, errors.New("nobody tried to make one"))
}

// DescribeDisk puts into a report how the limit of disk holds: why sandboxes have no disk of their own, nil where they do.
func DescribeDisk(r *isolate.Report, why error) {
	if why == nil {
		r.Guarantees[isolate.Disk] = isolate.Guarantee{State: isolate.Enforced}
		return
	}
	r.Guarantees[isolate.Disk] = isolate.Guarantee{
		State: isolate.BestEffort,
		Why: "what a step wrote is measured while it runs, so what it writes between two looks comes on top, and deleted files that are still open are not seen; " +
			"a sandbox has no disk of its own here: " + why.Error(),
		Fix: "run the worker as root where loop devices and mkfs.ext4 are, on Linux 6.15 or later, or put the state directory on a file system of its own, which bounds all plans together",
	}
}

// lacking is what holds where no group bounds something.
func (g *Groups) lacking(name, why string, r *isolate.Report) isolate.Guarantee {
	fix := g.fix(why)
	switch {
	case name == isolate.CPU:
		return isolate.Guarantee{State: isolate.Absent, Why: why, Fix: fix}
	case name == isolate.Pids && r.Rung.CountsProcesses() && countsByNamespace():
		r.ProcessLimit = true
		return isolate.Guarantee{State: isolate.Enforced, Why: "by the kernel's limit of processes of a user (RLIMIT_NPROC), which a sandbox, or a command, has to itself"}
	}
	return isolate.Guarantee{State: isolate.BestEffort, Why: why + "; processes are counted while a step runs, which a burst escapes", Fix: fix}
}

func (g *Groups) fix(why string) string {
	switch {
	case strings.Contains(why, errOthers.Error()):
		return "run the worker in a group of its own: systemd-run --scope -p Delegate=yes COMMAND (with --user as an ordinary user)"
	case unix.Geteuid() != 0:
		return "have control groups delegated: systemd-run --user --scope -p Delegate=yes COMMAND, or Delegate=yes in the worker's unit, or run the worker as root"
	}
	return "in a container: have /sys/fs/cgroup writable (docker run --privileged, or --cgroupns=private with a writable mount), or limit the worker as a whole by its container"
}

// countsByNamespace tells whether the kernel counts RLIMIT_NPROC for each user namespace
// apart, which it does from 5.14 on; before, all sandboxes of a user shared one count.
func countsByNamespace() bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	return atLeast(unix.ByteSliceToString(u.Release[:]), 5, 14)
}

// atLeast compares a release of the kernel, as "6.1.0-18-amd64".
func atLeast(release string, major, minor int) bool {
	var a, b int
	if n, _ := fmt.Sscanf(release, "%d.%d", &a, &b); n != 2 {
		return false
	}
	return a > major || a == major && b >= minor
}

// errNoController says that the hierarchies of version 1 lack a controller.
func errNoController(c string) error {
	return fmt.Errorf("control groups of version 1 have no %s", c)
}

// errOthers reports that other processes share this process's group of version 2.
var errOthers = errors.New("other processes are in the control group of this one")
