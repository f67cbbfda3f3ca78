package applier

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/fault"
	"github.com/warmfleet/warmfleet/internal/layer"
)

// The forms of the stored journal. A reader refuses any other.
const (
	journalVersion = 1
	// extrasVersion is a journal with extra changes, which a reader of the first version would leave out.
	extrasVersion = 2
)

// journal is the intention of one apply, written once when everything is staged. Its stored form is a line with the
// digest of the rest, then JSON: fields may be added, none renamed.
type journal struct {
	Version int    `json:"version"`
	Plan    string `json:"plan"`
	Epoch   uint64 `json:"epoch"`
	Ops     []op   `json:"ops"`
	// Extras come after the operations.
	Extras []ExtraSpec `json:"extras,omitempty"`
	// Self is the inode of the journal's own file: one that came by a copy of the tree, or out of an archive, tells
	// nothing about what lies here.
	Self uint64 `json:"self"`
}

func (j *journal) stage() string { return j.Plan + "." + strconv.FormatUint(j.Epoch, 10) }

// journalState is how far an apply got. It is the last part of the journal's file name, so one rename changes it.
type journalState string

const (
	statePrepared journalState = "prepared" // nothing of the original is changed
	stateApplying journalState = "applying" // operations are being made, in order
	stateUndoing  journalState = "undoing"  // operations are being taken back, in reverse
	stateDone     journalState = "done"     // all are made and on disk
)

func (st journalState) file() string { return "journal." + string(st) }

const journalTmp = "journal.tmp"

func (j *journal) encode() ([]byte, error) {
	body, err := json.Marshal(j)
	if err != nil {
		return nil, fmt.Errorf("applier: encode journal: %w", err)
	}
	return append([]byte(digestOfBytes(body)+"\n"), body...), nil
}

func decodeJournal(b []byte) (*journal, error) {
	sum, body, ok := bytes.Cut(b, []byte("\n"))
	if (!ok || string(sum) != digestOfBytes(body)) && !fault.Off("applier.journal-digest") {
		return nil, fmt.Errorf("applier: read journal: wrong digest: %w", ErrJournal)
	}
	j := &journal{}
	if err := json.Unmarshal(body, j); err != nil {
		return nil, fmt.Errorf("applier: decode journal: %w: %w", ErrJournal, err)
	}
	if j.Version != journalVersion && j.Version != extrasVersion {
		return nil, fmt.Errorf("applier: journal of version %d: %w", j.Version, ErrJournal)
	}
	if !plainName(j.Plan) {
		return nil, fmt.Errorf("applier: journal of plan %q, which is no file name: %w", j.Plan, ErrJournal)
	}
	for i := range j.Ops {
		if err := j.Ops[i].valid(); err != nil {
			return nil, err
		}
	}
	return j, nil
}

func (o *op) valid() error {
	needsOld, needsNew := o.Kind != opPut, o.staged() || o.Kind == opMeta
	switch o.Kind {
	case opPut, opSwap, opRemove, opRmdir, opMeta:
		complete := (o.Old != nil || !needsOld) && (o.New != nil || !needsNew)
		if complete && plainName(o.Slot) && (o.Path == "." && o.Kind == opMeta || cleanPath(o.Path)) {
			return nil
		}
	}
	return fmt.Errorf("applier: journal: operation %q on %q: %w", o.Kind, o.Path, ErrJournal)
}

// prepare writes the journal; from then on a crash leaves it prepared.
func (s *Session) prepare() error {
	f, err := openat(s.jdir, journalTmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return fmt.Errorf("applier: create journal: %w", err)
	}
	err = errors.Join(fault.Err("apply.journal"), s.writeJournal(f))
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("applier: write journal: %w", err)
	}
	// The journal's directory may be new itself.
	if err := s.tree.dir.Sync(); err != nil {
		return fmt.Errorf("applier: sync %q: %w", s.tree.dir.Name(), err)
	}
	return s.rename(journalTmp, statePrepared)
}

func (s *Session) writeJournal(f *os.File) error {
	st, err := statOf(f)
	if err != nil {
		return err
	}
	s.journal.Self = st.Ino
	b, err := s.journal.encode()
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return err
}

// mark moves the journal to a state, on disk before it returns.
func (s *Session) mark(to journalState) error {
	if err := s.hook("mark " + string(to)); err != nil {
		return err
	}
	return s.rename(s.state.file(), to)
}

func (s *Session) rename(from string, to journalState) error {
	fd := int(s.jdir.Fd())
	if err := unix.Renameat(fd, from, fd, to.file()); err != nil {
		return fmt.Errorf("applier: mark journal %s: %w", to, err)
	}
	fault.AtEach("apply.marked", string(to))
	s.state = to
	if err := s.jdir.Sync(); err != nil {
		return fmt.Errorf("applier: sync journal: %w", err)
	}
	return nil
}

// forget removes the journal.
func (s *Session) forget() error {
	err := unix.Unlinkat(int(s.jdir.Fd()), s.state.file(), 0)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("applier: remove journal: %w", err)
	}
	if err := s.jdir.Sync(); err != nil {
		return fmt.Errorf("applier: sync journal: %w", err)
	}
	s.journal, s.state = nil, ""
	return nil
}

// settle looks at what an earlier session left: a journal that had begun is kept, and all else is removed.
func (s *Session) settle() error {
	names, err := s.tree.names(layer.JournalDir)
	if err != nil {
		return err
	}
	keep := map[string]bool{lockName: true, ignoreName: true}
	for _, st := range []journalState{stateApplying, stateUndoing, stateDone} {
		if fault.Off("applier.journal") {
			break
		}
		j, err := s.readJournal(st)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%w (%s)", err, s.tree.dir.Name()+"/"+layer.JournalDir+"/"+st.file())
		}
		s.journal = j
		s.state, s.phase = st, phasePending
		keep[st.file()], keep[s.journal.stage()] = true, true
	}
	for _, name := range names {
		if keep[name] {
			continue
		}
		s.log.Info().Str("root", s.tree.dir.Name()).Str("name", name).Msg("removing what an unfinished apply left")
		if err := s.sweep(name); err != nil {
			return err
		}
	}
	return nil
}

func (s *Session) readJournal(st journalState) (*journal, error) {
	f, err := openat(s.jdir, st.file(), unix.O_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("applier: open journal: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		return nil, fmt.Errorf("applier: read journal: %w", err)
	}
	j, err := decodeJournal(b)
	if err != nil {
		return nil, err
	}
	self, err := statOf(f)
	if err != nil {
		return nil, fmt.Errorf("applier: stat journal: %w", err)
	}
	if self.Ino != j.Self && !fault.Off("applier.own-journal") {
		return nil, fmt.Errorf("applier: read journal: it was copied here, remove it with its directory: %w", ErrForeign)
	}
	return j, nil
}

// sweep removes a left-over: a journal that never began, or a stage.
func (s *Session) sweep(name string) error {
	err := unix.Unlinkat(int(s.jdir.Fd()), name, 0)
	if errors.Is(err, unix.EISDIR) {
		return s.removeStage(name)
	}
	if err != nil {
		return fmt.Errorf("applier: remove %q: %w", name, err)
	}
	return nil
}

// removeStage removes a stage, which has no filled directories in it. An absent one is success.
func (s *Session) removeStage(name string) error {
	dir, err := openat(s.jdir, name, unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("applier: open stage %q: %w", name, err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("applier: list stage %q: %w", name, err)
	}
	for _, n := range names {
		if err := removeAt(dir, n); err != nil {
			return err
		}
	}
	return removeAt(s.jdir, name)
}

// removeAt unlinks a name of a directory, or removes it if it is an empty directory. An absent one is success.
func removeAt(dir *os.File, name string) error {
	err := unix.Unlinkat(int(dir.Fd()), name, 0)
	if errors.Is(err, unix.EISDIR) {
		err = unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR)
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("applier: remove %q: %w", name, err)
	}
	return nil
}

// openat opens a name in a directory of ours, for nobody else.
func openat(dir *os.File, name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}
