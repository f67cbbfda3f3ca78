package wire

import "syscall"

// Kind says what a frame's body is.
type Kind uint8

// Requests to an init, in the order of its life, then to a mounter; then the answers.
const (
	KindSpec Kind = iota + 1
	KindAttach
	KindDetach
	KindExec
	KindSignal
	KindRead
	KindWrite
	KindStat
	KindList
	KindOverlay
	KindBind

	KindReady   // answer to KindSpec, with Ready
	KindDone    // success, nothing to tell
	KindMount   // success, one mount descriptor beside it
	KindFailed  // with Failure
	KindStarted // first answer to KindExec
	KindExited  // second answer to KindExec, with Exited
	KindContent // answer to KindRead, with Content
	KindInfo    // answer to KindStat, with Info
	KindInfos   // answer to KindList, with Infos

	KindLook   // asks for a file or link, with File; answered with Content
	KindChange // with Changes

	KindDetached // asks how many detached processes run; answered with Detached
	KindPause    // stops every process
	KindResume   // ends that
)

// Spec is how an init makes its sandbox. The first of the descriptors beside it are
// ready-made mounts for Expose, when Mounted.
type Spec struct {
	Version  uint64
	Hosted   bool   // on the host, without namespaces
	Fence    string // what is around each command of a hosted init: a Fence; "": nothing
	Private  string // a hosted init's own directory, of which commands have "home" and "tmp"
	Secrets  string // where it keeps those of commands; "": there
	Network  bool   // the host's network is visible
	Expose   []string
	Mounted  bool
	Caches   []string // names; their mounts come after those of Expose
	Scratch  int64    // bytes of /tmp, HOME and /dev/shm together; 0: the kernel's default
	NoSetuid bool
	Doors    uint64 // how many descriptors, the last ones, lead into the group of the commands
	Listen   uint64 // a TCP port of the sandbox's loopback whose listener comes with Ready; 0: none
	Whole    bool   // there is one door, and it moves a whole process
	// Runsc is gVisor's program, for commands on kernels of their own; "": none. Its mount comes after those of Expose, when Mounted.
	Runsc string
}

func (m *Spec) fields(c *codec) {
	c.uint(&m.Version)
	c.bool(&m.Hosted)
	c.string(&m.Fence)
	c.string(&m.Private)
	c.string(&m.Secrets)
	c.bool(&m.Network)
	c.strings(&m.Expose)
	c.bool(&m.Mounted)
	c.strings(&m.Caches)
	c.int(&m.Scratch)
	c.bool(&m.NoSetuid)
	c.uint(&m.Doors)
	c.uint(&m.Listen)
	c.bool(&m.Whole)
	c.string(&m.Runsc)
}

// Fences that a hosted init can put around each command.
const (
	FenceBubblewrap = "bubblewrap"
	FenceLandlock   = "landlock"
)

// Ready is the first answer of an init; beside it is the listener, where Spec has Listen.
type Ready struct{ Version uint64 }

func (m *Ready) fields(c *codec) { c.uint(&m.Version) }

// Attach asks to show the mount beside it, or Dir when hosted, as the workspace.
type Attach struct{ Dir string }

func (m *Attach) fields(c *codec) { c.string(&m.Dir) }

// Exec asks to run a command. Stdin, Stdout and Stderr are places among the descriptors
// beside it, from 1; 0 is /dev/null.
type Exec struct {
	Argv, Env             []string
	Dir                   string // below the workspace
	Stdin, Stdout, Stderr uint64
	Notify                bool   // send KindStarted
	Log                   string // "": not detached; else the new file that takes the output
	Secrets               []Secret
	SecretsDir            string // where they go, when hosted and not in a file system of the fence
	Processes             uint64 // how many there may be at once, by the kernel's limit for a user; 0: no limit
}

// Secret is a file that one command sees.
type Secret struct {
	Name  string
	Value []byte
}

func (m *Secret) fields(c *codec) {
	c.string(&m.Name)
	c.bytes(&m.Value)
}

func (m *Exec) fields(c *codec) {
	c.strings(&m.Argv)
	c.strings(&m.Env)
	c.string(&m.Dir)
	c.uint(&m.Stdin)
	c.uint(&m.Stdout)
	c.uint(&m.Stderr)
	c.bool(&m.Notify)
	c.string(&m.Log)
	m.Secrets = list(c, m.Secrets, (*Secret).fields)
	c.string(&m.SecretsDir)
	c.uint(&m.Processes)
}

// Signal asks to end the command of frame Exec, politely or at once.
type Signal struct {
	Exec uint64
	Kill bool
}

func (m *Signal) fields(c *codec) {
	c.uint(&m.Exec)
	c.bool(&m.Kill)
}

// Exited is the end of a command and of all that it left behind.
type Exited struct {
	Status     uint64 // as wait4 gives it
	Terminated bool   // a Signal request reached it before it ended
	Nanos      int64
	Start      string // why it could not be started; then nothing else is set
	PID        uint64 // of a detached process, which has not ended
	Left       uint64 // how many processes and threads it left behind, where Exec.Processes asked
}

func (m *Exited) fields(c *codec) {
	c.uint(&m.Status)
	c.bool(&m.Terminated)
	c.int(&m.Nanos)
	c.string(&m.Start)
	c.uint(&m.PID)
	c.uint(&m.Left)
}

// Detached is how many detached processes run.
type Detached struct{ Count uint64 }

func (m *Detached) fields(c *codec) { c.uint(&m.Count) }

// File is a request for a file of the workspace.
type File struct {
	Path     string
	Max      int64  // KindRead: most bytes
	Mode     uint64 // KindWrite: permission bits, 0 keeps what is there or is 0644
	MkdirAll bool
	Content  []byte
	// KindRead: at most Max bytes from Offset are wanted, and a file that is no more the one of Stamp, if that is not "", is ESTALE.
	Part   bool
	Offset int64
	Stamp  string
	From   bool // KindWrite: the content is that of the descriptor beside it, from its start to its end
}

func (m *File) fields(c *codec) {
	c.string(&m.Path)
	c.int(&m.Max)
	c.uint(&m.Mode)
	c.bool(&m.MkdirAll)
	c.bytes(&m.Content)
	c.bool(&m.Part)
	c.int(&m.Offset)
	c.string(&m.Stamp)
	c.bool(&m.From)
}

// Content is a file that was read.
type Content struct {
	Mode uint64 // st_mode
	Data []byte
	// Size is that of the whole file, Stamp another one after each change of it; both of a part.
	Size  int64
	Stamp string
}

func (m *Content) fields(c *codec) {
	c.uint(&m.Mode)
	c.bytes(&m.Data)
	c.int(&m.Size)
	c.string(&m.Stamp)
}

// Changes asks to change several paths, all or none. Of each File only Path, Mode and Content are read: Mode is st_mode
// of what is to be there, 0 when the path is to go.
type Changes struct{ List []File }

func (m *Changes) fields(c *codec) {
	m.List = list(c, m.List, (*File).fields)
}

// Info describes a path.
type Info struct {
	Name      string
	Mode      uint64 // st_mode
	Size      int64
	ModTimeNs int64
}

func (m *Info) fields(c *codec) {
	c.string(&m.Name)
	c.uint(&m.Mode)
	c.int(&m.Size)
	c.int(&m.ModTimeNs)
}

// Infos describes the entries of a directory.
type Infos struct{ Entries []Info }

func (m *Infos) fields(c *codec) {
	m.Entries = list(c, m.Entries, (*Info).fields)
}

// Overlay asks a mounter for an overlay; Lowers are top first.
type Overlay struct {
	Lowers      []string
	Upper, Work string
	Volatile    bool
	Live        bool
}

func (m *Overlay) fields(c *codec) {
	c.strings(&m.Lowers)
	c.string(&m.Upper)
	c.string(&m.Work)
	c.bool(&m.Volatile)
	c.bool(&m.Live)
}

// Bind asks a mounter for a view of a directory.
type Bind struct{ Dir string }

func (m *Bind) fields(c *codec) { c.string(&m.Dir) }

// Failure is an error that crossed the socket. Errno, when set, is kept for errors.Is.
type Failure struct {
	Text  string
	Errno uint64
}

func (m *Failure) fields(c *codec) {
	c.string(&m.Text)
	c.uint(&m.Errno)
}

// Error makes Failure an error.
func (m *Failure) Error() string { return m.Text }

// Unwrap gives the errno, so that errors.Is finds fs.ErrNotExist and the like.
func (m *Failure) Unwrap() error {
	if m.Errno == 0 {
		return nil
	}
	return syscall.Errno(m.Errno)
}

// Inner is what a program inside a fence is told of the command that it starts.
type Inner struct {
	Argv, Env []string
	Processes uint64 // how many there may be at once, with those of the fence; 0: no limit
	NoSetuid  bool
	Stay      bool   // until the last process that came of it has ended
	Dir       string // where it starts; "": where the program is
}

func (m *Inner) fields(c *codec) {
	c.strings(&m.Argv)
	c.strings(&m.Env)
	c.uint(&m.Processes)
	c.bool(&m.NoSetuid)
	c.bool(&m.Stay)
	c.string(&m.Dir)
}
