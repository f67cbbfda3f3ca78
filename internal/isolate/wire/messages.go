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
)

// Spec is how an init makes its sandbox. The first of the descriptors beside it are
// ready-made mounts for Expose, when Mounted.
type Spec struct {
	Version  uint64
	Bare     bool // no namespaces: only run commands
	Network  bool // the host's network is visible
	Expose   []string
	Mounted  bool
	Scratch  int64 // bytes of /tmp, HOME and /dev/shm together; 0: the kernel's default
	NoSetuid bool
}

func (m *Spec) fields(c *codec) {
	c.uint(&m.Version)
	c.bool(&m.Bare)
	c.bool(&m.Network)
	c.strings(&m.Expose)
	c.bool(&m.Mounted)
	c.int(&m.Scratch)
	c.bool(&m.NoSetuid)
}

// Ready is the first answer of an init.
type Ready struct{ Version uint64 }

func (m *Ready) fields(c *codec) { c.uint(&m.Version) }

// Attach asks to show the mount beside it, or Dir when bare, as the workspace.
type Attach struct{ Dir string }

func (m *Attach) fields(c *codec) { c.string(&m.Dir) }

// Exec asks to run a command. Stdout and Stderr are places among the descriptors beside
// it, from 1; 0 is /dev/null.
type Exec struct {
	Argv, Env      []string
	Dir            string // below the workspace
	Stdout, Stderr uint64
	Notify         bool // send KindStarted
}

func (m *Exec) fields(c *codec) {
	c.strings(&m.Argv)
	c.strings(&m.Env)
	c.string(&m.Dir)
	c.uint(&m.Stdout)
	c.uint(&m.Stderr)
	c.bool(&m.Notify)
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
	Terminated bool   // a Signal request reached it while it ran
	Nanos      int64
	Start      string // why it could not be started; then nothing else is set
}

func (m *Exited) fields(c *codec) {
	c.uint(&m.Status)
	c.bool(&m.Terminated)
	c.int(&m.Nanos)
	c.string(&m.Start)
}

// File is a request for a file of the workspace.
type File struct {
	Path     string
	Max      int64  // KindRead: most bytes
	Mode     uint64 // KindWrite: permission bits, 0 keeps what is there or is 0644
	MkdirAll bool
	Content  []byte
}

func (m *File) fields(c *codec) {
	c.string(&m.Path)
	c.int(&m.Max)
	c.uint(&m.Mode)
	c.bool(&m.MkdirAll)
	c.bytes(&m.Content)
}

// Content is a file that was read.
type Content struct {
	Mode uint64 // st_mode
	Data []byte
}

func (m *Content) fields(c *codec) {
	c.uint(&m.Mode)
	c.bytes(&m.Data)
}

// Changes asks to change several paths, all or none. Of each File only Path, Mode and Content are read: Mode is st_mode
// of what is to be there, 0 when the path is to go.
type Changes struct{ List []File }

func (m *Changes) fields(c *codec) {
	n := uint64(len(m.List))
	c.uint(&n)
	if c.read {
		if n > uint64(len(c.buf)) {
			c.fail()
			return
		}
		m.List = make([]File, n)
	}
	for i := range m.List {
		m.List[i].fields(c)
	}
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
	n := uint64(len(m.Entries))
	c.uint(&n)
	if c.read {
		if n > uint64(len(c.buf)) {
			c.fail()
			return
		}
		m.Entries = make([]Info, n)
	}
	for i := range m.Entries {
		m.Entries[i].fields(c)
	}
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
