// Package isolate runs commands where they can reach nothing but a workspace.
//
// Start makes a sandbox's init: process 1 of new namespaces, with a root of its own.
// It stays, and workspaces are attached to it, commands run in it, files read and written
// through it, until it is closed or dies; its death ends every process of the sandbox,
// and the death of this process ends the init. A Mounter makes the workspaces: mounts
// that are descriptors until an init attaches them, so that nothing has to be unmounted
// after a crash.
//
// Probe finds out by doing which Rung works on this machine, and which guarantees hold.
//
// The package must not know plans, checkpoints, layers' meaning or NATS. It keeps its
// imports few, because the lean init program is built from it.
package isolate

import "errors"

// Rung is a way to isolate; an earlier one is never weaker.
type Rung string

// The rungs. Code in a sandbox never has the host's user id 0, but on the last: under a worker that is real root it is
// HostID outside, else the worker's user. On the first two the init is process 1 of namespaces; on
// the others it is a process of the host, workspaces are directories, and each command is put behind a fence.
const (
	RungRoot       Rung = "namespaces-root" // real root makes namespaces
	RungUser       Rung = "namespaces-user" // an ordinary user does
	RungBubblewrap Rung = "bubblewrap"      // the program bwrap does, which some hosts let have what they deny others
	RungLandlock   Rung = "landlock"        // no namespaces: a Landlock domain and a filter of system calls
	RungStrong     Rung = "gvisor"          // the first or second, and each command on a kernel of its own; only on request
	RungBare       Rung = "bare"            // plain processes; nothing is guaranteed
)

// SandboxID is the user and group id of everything inside a sandbox.
const SandboxID = 1000

// HostID is the host's user and group id of a sandbox whose worker is real root, and of the files
// that it owns. Nobody assigns it: it lies just above the range of systemd's containers
// (524288 to 0x6fffffff) and below 2^31, which some programs can't pass.
const HostID = 0x70000001

// Networks a sandbox can have.
const (
	NetworkNone  = "none"  // a loopback of its own
	NetworkAllow = "allow" // the host's network, its loopback included
	NetworkProxy = "proxy" // a loopback of its own, with ProxyPort served by whoever takes Init.Listener
)

// ProxyPort is the port of a sandbox's loopback that NetworkProxy listens on; it has no other address.
const ProxyPort = 3128

// Workspace is where the workspace appears inside the namespaces.
const Workspace = "/workspace"

var (
	// ErrLost reports that the init or mounter process died, or does not answer.
	ErrLost = errors.New("isolate: process is gone")
	// ErrBare reports a call that needs namespaces, or one that needs none.
	ErrBare = errors.New("isolate: not possible on this rung")
	// ErrTooLarge reports a file beyond the limit given or the protocol's (64 MiB).
	ErrTooLarge = errors.New("isolate: file is too large")
	// ErrChanged reports a file that changed between the reading of its parts.
	ErrChanged = errors.New("isolate: file has changed since its first part was read")
)
