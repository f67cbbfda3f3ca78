package api

import (
	"time"

	"github.com/warmfleet/warmfleet/pkg/events"
)

// Headers of the messages that answer a session's exec and read; docs/sessions.md says how they go together.
const (
	HeaderStream  = "Fleet-Stream"  // stdout, stderr or exit
	HeaderSeq     = "Fleet-Seq"     // of the messages of one exec, from 1: a gap is lost output
	HeaderDropped = "Fleet-Dropped" // bytes that were left out at this place because nobody read fast enough
	HeaderSize    = "Fleet-Size"    // of the whole file, in bytes
	HeaderMode    = "Fleet-Mode"    // permission bits of the file, octal
	HeaderStamp   = "Fleet-Stamp"   // of the file, another one after each change
)

// Streams of an exec; StreamExit is its last message and carries an ExecEnd.
const (
	StreamStdout = "stdout"
	StreamStderr = "stderr"
	StreamExit   = "exit"
)

// SessionChunk is the most bytes of a file that one SessionWrite should carry: with base64 it stays below the server's
// default limit of 1 MiB a message.
const SessionChunk = 512 << 10

// SessionFileLimit is the largest file, in bytes, that a session writes; it reads larger ones too.
const SessionFileLimit = 16 << 30

// SessionReadLimit is the most bytes that one SessionRead gives.
const SessionReadLimit = 8 << 20

// FlowWindow is how many bytes of a command's output are on their way to a reader that says how far it is: enough to keep a
// connection busy, and well below what makes a server cut a slow client off (64 MiB).
const FlowWindow = 4 << 20

// Flow is what the reader of a command's output publishes on the session's verb flow, every second and whenever it has read
// another quarter of FlowWindow.
type Flow struct {
	// Flow is that of the Exec. Read is how many bytes of output were read of it, of both streams together.
	Flow string `json:"flow"`
	Read int64  `json:"read"`
}

// Exec asks a session to run a command in its workspace. Argv, Env and Dir are as Text has them; package client does that.
type Exec struct {
	Argv []string `json:"argv"`
	// Env are more variables, NAME=value. Dir is a path of the workspace, as in a SessionRead.
	Env []string `json:"env,omitempty"`
	Dir string   `json:"dir,omitempty"`
	// Timeout is a duration as Go writes it; none where absent.
	Timeout string `json:"timeout,omitempty"`
	Stdin   []byte `json:"stdin,omitempty"`
	// Flow, a ULID of the caller's choice, promises a Flow every second: the command then waits for a slow reader, and goes
	// on without one that was not heard of for 5 s. Without it no reader holds a command up, and one that is slow
	// loses output.
	Flow string `json:"flow,omitempty"`
	// Detach lets it go on until a rollback or the end of the session; the reply is a Detached.
	Detach bool `json:"detach,omitempty"`
}

// ExecEnd is how a command ended: one of ExitCode and Signal is set, or neither where it did not start.
type ExecEnd struct {
	ExitCode   *int   `json:"exit_code"`
	Signal     string `json:"signal,omitempty"`
	Cause      string `json:"cause"`
	Error      string `json:"error,omitempty"`
	DurationMS int64  `json:"duration_ms"`
	// Dropped is how many bytes of output nobody read in time.
	Dropped int64 `json:"dropped,omitempty"`
	// Network is what was reached and refused of a list of hosts since the last command's end, NetworkMore how many attempts more.
	Network     []events.NetworkUse `json:"network,omitempty"`
	NetworkMore int                 `json:"network_more,omitempty"`
}

// Detached is a command that goes on by itself; Log is the file that takes its output.
type Detached struct {
	PID int    `json:"pid"`
	Log string `json:"log"`
}

// SessionRead asks for Limit bytes of a file from Offset, at most SessionReadLimit; Limit 0 is all, of a file that is no larger.
// Path is relative to the workspace, or absolute below /workspace, and as Text has it; so are those of the other requests.
type SessionRead struct {
	Path   string `json:"path"`
	Offset int64  `json:"offset,omitempty"`
	Limit  int64  `json:"limit,omitempty"`
	// Stamp is that of a part that was read before: one of another state of the file is refused.
	Stamp string `json:"stamp,omitempty"`
}

// SessionWrite replaces a file whole, with missing parents. A larger one comes in several requests of one Upload, in the order
// of their Offset, and is there only after the one that says Last; without Upload one request is the whole file.
type SessionWrite struct {
	Path   string `json:"path"`
	Mode   uint32 `json:"mode,omitempty"` // permission bits; 0 keeps those of an existing file, else 0644
	Data   []byte `json:"data"`
	Upload string `json:"upload,omitempty"`
	Offset int64  `json:"offset,omitempty"`
	Last   bool   `json:"last,omitempty"`
}

// Written is the reply to a SessionWrite: how many bytes are there, or wait.
type Written struct {
	Size int64 `json:"size"`
}

// SessionPath names a directory to list.
type SessionPath struct {
	Path string `json:"path"`
}

// SessionEntry is an entry of a directory. Type is file, dir, link or other; Name is as Text has it.
type SessionEntry struct {
	Name    string    `json:"name"`
	Type    string    `json:"type"`
	Size    int64     `json:"size"`
	Mode    string    `json:"mode"`
	ModTime time.Time `json:"mod_time"`
}

// SessionCheckpoint names a checkpoint, in requests to roll back and in replies; to take one, only Wait is read.
type SessionCheckpoint struct {
	Checkpoint string `json:"checkpoint"`
	// Wait, to take one: after the commands that run, instead of beside them.
	Wait bool `json:"wait,omitempty"`
	// Fuzzy, in replies: processes ran when it was taken, or were ended for it; files may be half written.
	Fuzzy bool `json:"fuzzy,omitempty"`
}
