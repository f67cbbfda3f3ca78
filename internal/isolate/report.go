package isolate

// State says how far a guarantee holds.
type State string

// The states of a guarantee.
const (
	Enforced   State = "enforced"
	BestEffort State = "best_effort"
	Absent     State = "absent"
)

// Names of the guarantees in a Report.
const (
	Writes      = "writes"       // nothing outside the workspace can be changed
	HiddenFiles = "hidden_files" // the host's files can't be read, but for programs and what is exposed
	TreeKill    = "tree_kill"    // no process outlives its command, whatever it does
	HiddenEnv   = "hidden_env"   // environments of the host can't be read
	Network     = "network"      // without network nothing can be reached
	UnixSockets = "unix_sockets" // servers of the host that listen on Unix sockets can't be reached
	Processes   = "processes"    // processes of the host can't be seen or signalled
	Memory      = "memory"
	CPU         = "cpu"
	Pids        = "pids"
	Disk        = "disk"
	// KernelSurface: system calls of commands are not the host's kernel's. Required where RungStrong is asked for alone.
	KernelSurface = "kernel_surface"
)

// Guarantee is whether something holds here, and if not, why and what to do.
type Guarantee struct {
	State State  `json:"state"`
	Why   string `json:"why,omitempty"`
	Fix   string `json:"fix,omitempty"`
}

// Report is what Probe found. Its JSON is part of the doctor's output.
type Report struct {
	Rung Rung `json:"isolation"`
	// RungWhy says why it is not a better one, RungFix what to do for one; "" for the best.
	RungWhy string `json:"isolation_why,omitempty"`
	RungFix string `json:"isolation_fix,omitempty"`
	// Overlay says whether workspaces can be overlays; otherwise they are copies.
	Overlay    bool                 `json:"overlay"`
	OverlayWhy string               `json:"overlay_why,omitempty"`
	Guarantees map[string]Guarantee `json:"guarantees"`
	// ProcessLimit says that Command.Processes is what bounds processes here.
	ProcessLimit bool `json:"-"`
}

// Unmet lists the guarantees that "required" asks for and that are not enforced, in the
// order of their importance. Network counts when no network is asked for.
func (r Report) Unmet(network string) []string {
	required := []string{Writes, HiddenFiles, TreeKill, HiddenEnv}
	if network == "" || network == NetworkNone {
		required = append(required, Network)
	}
	var unmet []string
	for _, name := range required {
		if r.Guarantees[name].State != Enforced {
			unmet = append(unmet, name)
		}
	}
	return unmet
}

// setAll gives several guarantees the same state.
func (r Report) setAll(g Guarantee, names ...string) {
	for _, name := range names {
		r.Guarantees[name] = g
	}
}

// newReport starts with what this version does not do.
func newReport() Report {
	r := Report{Guarantees: map[string]Guarantee{}}
	r.setAll(Guarantee{
		State: Absent,
		Why:   "not enforced by this version",
		Fix:   "limit the worker process as a whole, for example by its cgroup or container",
	}, Memory, CPU, Pids, Disk)
	r.Guarantees[KernelSurface] = Guarantee{
		State: BestEffort,
		Why:   "commands share the host's kernel, behind a filter of system calls",
		Fix:   "install gVisor's runsc and ask for isolation strong",
	}
	return r
}

// Unisolated is the report of plain processes, with why nothing better is used and what to do.
func Unisolated(why, fix string) Report {
	r := newReport()
	r.Rung = RungBare
	r.OverlayWhy = "needs namespaces"
	r.setAll(Guarantee{State: Absent, Why: why, Fix: fix}, Writes, HiddenFiles, HiddenEnv, Network, UnixSockets, Processes, KernelSurface)
	r.Guarantees[TreeKill] = Guarantee{
		State: BestEffort,
		Why:   "descendants are found by walking /proc, which a fork bomb can outrun: " + why,
		Fix:   fix,
	}
	return r
}
