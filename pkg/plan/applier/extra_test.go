package applier

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// fileExtra is an extra change of a file's content, from old to new.
type fileExtra struct {
	Name, From, To string
	fail           error
}

func (x *fileExtra) now() string {
	b, err := os.ReadFile(x.Name)
	if err != nil {
		return ""
	}
	return string(b)
}

func (x *fileExtra) Look(context.Context) (Standing, error) {
	switch x.now() {
	case x.From:
		return Standing{}, nil
	case x.To:
		return Standing{Made: true}, nil
	}
	return Standing{Moved: true}, nil
}

func (x *fileExtra) Do(context.Context) error {
	if x.fail != nil {
		return x.fail
	}
	return os.WriteFile(x.Name, []byte(x.To), 0o600)
}

func (x *fileExtra) Undo(context.Context) error { return os.WriteFile(x.Name, []byte(x.From), 0o600) }

func (x *fileExtra) Forget(context.Context) error {
	return os.WriteFile(x.Name+".forgotten", nil, 0o600)
}

// extraRequest adds extra changes of the files one and two beside the trees, from "old" to "new".
func extraRequest(t *testing.T, tr trees) Request {
	t.Helper()
	req := tr.request(t)
	for _, name := range []string{"one", "two"} {
		file := filepath.Join(filepath.Dir(tr.orig), name)
		must(t, os.WriteFile(file, []byte("old"), 0o600))
		b, err := json.Marshal(fileExtra{Name: file, From: "old", To: "new"})
		must(t, err)
		req.Extras = append(req.Extras, ExtraSpec{Name: name, Kind: "file", Data: b})
	}
	return req
}

func fileExtras(failing string, fail error) ExtraFunc {
	return func(spec ExtraSpec) (Extra, error) {
		x := &fileExtra{}
		if spec.Name == failing {
			x.fail = fail
		}
		return x, json.Unmarshal(spec.Data, x)
	}
}

func TestSession_Extras(t *testing.T) {
	moved := []string{"two: moved"}
	for _, tc := range []struct {
		name      string
		hook      func(dir string) func(string) error
		fail      error
		made      bool
		conflicts []string
		failed    bool
	}{
		{name: "Made", made: true},
		{name: "SecondFails", fail: errInjected, failed: true},
		{name: "SecondMoved", fail: ErrMoved, conflicts: moved},
		{name: "SecondMovedBefore", hook: func(dir string) func(string) error {
			return func(point string) error {
				if point == "do extra two" {
					return os.WriteFile(filepath.Join(dir, "two"), []byte("theirs"), 0o600)
				}
				return nil
			}
		}, conflicts: moved},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tr := newTrees(t, script(t, baseScript))
			sh(t, tr.ours, "echo A>a; rm b")
			dir := filepath.Dir(tr.orig)
			before, after := snapshot(t, tr.orig), snapshot(t, tr.ours)
			var hook func(string) error
			if tc.hook != nil {
				hook = tc.hook(dir)
			}
			s, err := Open(t.Context(), tr.orig, Options{Hook: hook, Extra: fileExtras("two", tc.fail)})
			must(t, err)
			p, found, err := s.Check(t.Context(), extraRequest(t, tr))
			must(t, err)
			if len(found) > 0 {
				t.Fatalf("conflicts: %v", found)
			}
			must(t, s.Stage(t.Context(), p))
			err = s.Commit(t.Context())
			var late *LateConflict
			switch {
			case tc.conflicts != nil:
				if !errors.As(err, &late) || !cmp.Equal(kinds([]Conflict{late.Conflict}), tc.conflicts) {
					t.Errorf("got %v, want %q", err, tc.conflicts)
				}
			case tc.failed != (err != nil):
				t.Errorf("got %v, want an error: %v", err, tc.failed)
			}
			want, one := before, "old"
			if tc.made {
				want, one = after, "new"
				must(t, s.Finish(t.Context()))
			}
			must(t, s.Close())
			sameTrees(t, "original", snapshot(t, tr.orig), want)
			if got := read(t, dir, "one"); got != one {
				t.Errorf("one: got %q, want %q", got, one)
			}
			if _, err := os.Stat(filepath.Join(dir, "two.forgotten")); err != nil {
				t.Errorf("an extra was not told that it is over: %v", err)
			}
			noJournal(t, tr.orig)
		})
	}
}

// A journal with extra changes is not settled by a session that cannot make them, nor by a reader that does not know them.
func TestSession_ExtrasAreNotLeftOut(t *testing.T) {
	tr := newTrees(t, script(t, baseScript))
	sh(t, tr.ours, "echo A>a")
	dead := false
	hook := func(point string) error {
		if dead = dead || point == "do extra one"; dead {
			return errInjected
		}
		return nil
	}
	s, err := Open(t.Context(), tr.orig, Options{Hook: hook, Extra: fileExtras("", nil)})
	must(t, err)
	p, _, err := s.Check(t.Context(), extraRequest(t, tr))
	must(t, err)
	must(t, s.Stage(t.Context(), p))
	if err := s.Commit(t.Context()); !errors.Is(err, errInjected) {
		t.Fatalf("got %v, want the injected error", err)
	}
	if got := s.journal.Version; got != extrasVersion {
		t.Errorf("version: got %d, want %d", got, extrasVersion)
	}
	must(t, s.Close())
	s, err = Open(t.Context(), tr.orig, Options{})
	must(t, err)
	if _, err := s.Recover(t.Context(), Forward); !errors.Is(err, ErrNoExtra) {
		t.Errorf("got %v, want ErrNoExtra", err)
	}
	must(t, s.Close())
	s, err = Open(t.Context(), tr.orig, Options{Extra: fileExtras("", nil)})
	must(t, err)
	out, err := s.Recover(t.Context(), Forward)
	must(t, err)
	if got := read(t, filepath.Dir(tr.orig), "two"); out != Applied || got != "new" {
		t.Errorf("got %s and %q, want applied and new", out, got)
	}
	must(t, s.Finish(t.Context()))
}
