package checkpoint_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/internal/sandboxtest"
	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/plan/diff"
)

// Checkpoints of one sandbox, of branches, of sandboxes that share nothing, on workers that took none of them: the same answer.
func TestCompare_AnyTwo(t *testing.T) {
	a := sandboxtest.New(t)
	s := box(t, a)
	sandboxtest.Run(t, s, "echo 1 >f")
	one := take(t, a, s, checkpoint.Step).ID
	sandboxtest.Run(t, s, "rm f; mv d e; chmod 700 a")
	two := take(t, a, s, checkpoint.Step).ID
	if err := a.Manager.RollbackTo(t.Context(), checkpoint.Checkpoint{ID: one, SandboxID: s.ID()}); err != nil {
		t.Fatal(err)
	}
	sandboxtest.Run(t, s, "echo 2 >f; rm a")
	branch := take(t, a, s, checkpoint.Step).ID
	other := box(t, a) // the same files, another base
	sandboxtest.Run(t, other, "echo 1 >f; echo more >>d/b")
	apart := take(t, a, other, checkpoint.Step).ID
	for _, id := range []string{one, two, branch, apart} {
		store(t, a, id)
	}
	b := sandboxtest.Beside(t, a)
	for _, c := range []struct{ name, from, to, want string }{
		{"Base", "", one, "A\tf\n"},
		{"BaseOfLater", "", two, "M\ta\nR100\td/b\te/b\n"},
		{"Forward", one, two, "M\ta\nR100\td/b\te/b\nD\tf\n"},
		{"Back", two, one, "M\ta\nR100\te/b\td/b\nA\tf\n"},
		{"Branches", two, branch, "D\ta\nR100\te/b\td/b\nA\tf\n"},
		{"NothingShared", one, apart, "M\td/b\n"},
		{"Same", two, two, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			for name, bed := range map[string]*sandboxtest.Bed{"itself": a, "another": b} {
				if d := cmp.Diff(c.want, diff.NameStatus(compare(t, bed, c.from, c.to))); d != "" {
					t.Errorf("on %s worker: (-want +got)\n%s", name, d)
				}
			}
		})
	}
}

func compare(t *testing.T, bed *sandboxtest.Bed, from, to string) []diff.File {
	t.Helper()
	restore := func(id string) checkpoint.Restored {
		r, err := bed.Manager.Restore(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Release)
		return r
	}
	top := restore(to)
	low := top.Base()
	if from != "" {
		low = restore(from)
	}
	set, err := checkpoint.Compare(t.Context(), low, top)
	if err != nil {
		t.Fatal(err)
	}
	files, err := set.Files(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return files
}
