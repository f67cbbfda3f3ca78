package applier

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/internal/layer/layertest"
)

// FuzzRecover opens a root with a journal of any content, in any state, that has the digest and the inode of a real one, and
// recovers it: whatever it says, nothing outside of the root is touched.
func FuzzRecover(f *testing.F) {
	for _, j := range journalSeeds() {
		body, err := json.Marshal(j)
		if err != nil {
			f.Fatal(err)
		}
		for state := range uint8(3) {
			f.Add(body, state, state > 0)
		}
	}
	f.Fuzz(func(t *testing.T, body []byte, state uint8, back bool) {
		dir := t.TempDir()
		root := filepath.Join(dir, "sub", "root")
		fuzzRoot(t, root)
		outside := layertest.Options{NoDirTimes: true, Skip: []string{"sub/root"}}
		before := takeTree(t, dir)
		names := []journalState{stateApplying, stateUndoing, stateDone}
		writeFuzzJournal(t, filepath.Join(root, layer.JournalDir, names[int(state)%len(names)].file()), body)
		s, err := Open(context.Background(), root, Options{})
		if err == nil {
			recoverAny(s, back)
		}
		if d := layertest.Diff(takeTree(t, dir), before, outside); d != "" {
			t.Errorf("outside of the root (-got +want):\n%s", d)
		}
	})
}

func journalSeeds() []journal {
	file := &state{Type: layer.File, Mode: 0o644, Size: 1}
	dir := &state{Type: layer.Dir, Mode: 0o755}
	all := func(path layer.Path, slot string) []op {
		return []op{
			{Kind: opPut, Path: path, New: file, Slot: slot},
			{Kind: opSwap, Path: path, Old: file, New: file, Slot: slot},
			{Kind: opRemove, Path: path, Old: file, Slot: slot},
			{Kind: opRmdir, Path: path, Old: dir, Slot: slot},
			{Kind: opMeta, Path: path, Old: dir, New: dir, Slot: slot},
		}
	}
	return []journal{
		{Version: journalVersion, Plan: "p", Epoch: 1, Ops: all("a", "0")},
		{Version: journalVersion, Plan: "p", Epoch: 1, Ops: all("d", "1")},
		{Version: journalVersion, Plan: "../../../keep", Epoch: 1, Ops: all("../../keep/f", "../../../../keep/f")},
		{Version: journalVersion, Plan: "p", Epoch: 1, Ops: all("/tmp/x", "..")},
		{Version: journalVersion, Plan: "p", Epoch: 1, Ops: all("link/f", "link")},
	}
}

// fuzzRoot makes a root with a stage, beside what has to stay as it is.
func fuzzRoot(t *testing.T, root string) {
	t.Helper()
	stage := filepath.Join(root, layer.JournalDir, "p.1")
	keep := filepath.Join(root, "..", "..", "keep")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{filepath.Join(root, "d"), keep, keep + ".1", stage} {
		must(os.MkdirAll(dir, 0o755))
	}
	must(os.Chmod(filepath.Join(root, layer.JournalDir), 0o700))
	for _, name := range []string{filepath.Join(root, "a"), filepath.Join(root, "d", "b"), filepath.Join(stage, "0"), filepath.Join(stage, "1"), filepath.Join(keep, "f"), filepath.Join(keep+".1", "f")} {
		must(os.WriteFile(name, []byte("x"), 0o644))
	}
	must(os.Symlink("../../keep", filepath.Join(root, "link")))
}

// writeFuzzJournal stores a journal as prepare does, with its own inode where the body is an object.
func writeFuzzJournal(t *testing.T, name string, body []byte) {
	t.Helper()
	file, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if json.Unmarshal(body, &fields) == nil && fields != nil {
		fields["self"] = st.Ino
		if b, err := json.Marshal(fields); err == nil {
			body = b
		}
	}
	if _, err := file.Write(append([]byte(digestOfBytes(body)+"\n"), body...)); err != nil {
		t.Fatal(err)
	}
}

// recoverAny goes as far as the journal lets it; every error is an answer.
func recoverAny(s *Session, back bool) {
	defer s.Close()
	if _, pending := s.Pending(); !pending {
		return
	}
	d := Forward
	if back {
		d = Back
	}
	if _, err := s.Recover(context.Background(), d); err == nil {
		_ = s.Finish(context.Background())
	}
}

func takeTree(t *testing.T, dir string) layertest.Snapshot {
	t.Helper()
	s, err := layertest.Take(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
