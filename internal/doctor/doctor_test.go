package doctor

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/internal/layer"
	"github.com/warmfleet/warmfleet/internal/limit"
)

func TestMain(m *testing.M) {
	isolate.Main()
	os.Exit(m.Run())
}

// guarantees are the names that scripts rely on.
func guarantees() []string {
	return []string{"writes", "hidden_files", "tree_kill", "hidden_env", "network", "unix_sockets", "processes", "memory", "cpu", "pids", "disk"}
}

func TestExamine(t *testing.T) {
	for _, cgroups := range []limit.Version{limit.Auto, limit.None} {
		t.Run(string(cgroups), func(t *testing.T) {
			dir := t.TempDir()
			r, err := Examine(t.Context(), Options{StateDir: dir, Cgroups: cgroups, Log: zerolog.Nop()})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("took %d ms", r.TookMilli)
			for _, name := range guarantees() {
				g, ok := r.Guarantees[name]
				if !ok || g.State != isolate.Enforced && (g.Why == "" || g.Fix == "") {
					t.Errorf("%s: %+v, want a state, and why and fix unless it is enforced", name, g)
				}
			}
			if len(r.Missing) > 0 || r.Missing == nil {
				t.Errorf("missing %v, want an empty list", r.Missing)
			}
			if r.Isolation == string(isolate.RungBare) || r.Layers.Driver != layer.Overlay || r.Drivers["copy"] != "" || len(r.Drivers) != 3 {
				t.Errorf("isolation %s, layers %+v, drivers %v", r.Isolation, r.Layers, r.Drivers)
			}
			if s := r.System; s.Kernel == "" || s.UserNamespaces != "" || s.Seccomp != "" || s.UID != os.Getuid() || (s.IDMap == "") != (s.UID == 0) {
				t.Errorf("system %+v", s)
			}
			if r.State.FileSystem == "" || r.State.FreeBytes == 0 {
				t.Errorf("state directory %+v", r.State)
			}
			sh := slices.IndexFunc(r.Programs, func(p Program) bool { return p.Name == "sh" && p.Visible && strings.HasSuffix(p.Path, "/sh") })
			if sh < 0 || len(r.Programs) != len(programs()) {
				t.Errorf("programs %+v, want all that are looked for, and sh where sandboxes have it", r.Programs)
			}
			if cgroups == limit.None && (r.System.Cgroups != "none" || r.Guarantees["cpu"].State != isolate.Absent || r.Guarantees["pids"].State != isolate.Enforced) {
				t.Errorf("without control groups: %s, cpu %+v, pids %+v", r.System.Cgroups, r.Guarantees["cpu"], r.Guarantees["pids"])
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("left in the state directory: %v, %v", left, err)
			}
		})
	}
}

// deaf is a group that takes limits and does not set them, as where something else does.
type deaf struct{ isolate.Group }

func (deaf) Set(isolate.Limits) error { return nil }

// What is promised and does not hold when it is tried is absent.
func TestExamination_BrokenPromises(t *testing.T) {
	groups := limit.Open(limit.Auto)
	t.Cleanup(func() {
		if err := groups.Close(); err != nil {
			t.Error(err)
		}
	})
	if groups.Version() == limit.None {
		t.Skip("no control groups can be made here")
	}
	e := &examination{dir: t.TempDir(), held: isolate.Report{Rung: rung(), Guarantees: map[string]isolate.Guarantee{}}}
	groups.Describe(&e.held)
	g, err := groups.New()
	if err != nil {
		t.Fatal(err)
	}
	if err := e.try(t.Context(), isolate.LimitTrial{Rung: rung(), Dir: e.subdir("limits"), Group: deaf{g}, Names: groups.Bounded()}); err != nil {
		t.Fatal(err)
	}
	for _, name := range groups.Bounded() {
		if got := e.held.Guarantees[name]; got.State != isolate.Absent || !strings.Contains(got.Why, "it did not hold") || got.Fix == "" {
			t.Errorf("%s: %+v, want absent, with what showed it", name, got)
		}
	}
}

func rung() isolate.Rung {
	if os.Getuid() == 0 {
		return isolate.RungRoot
	}
	return isolate.RungUser
}

func TestExamine_StateDirOfNobody(t *testing.T) {
	file := t.TempDir() + "/file"
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Examine(t.Context(), Options{StateDir: file + "/state", Log: zerolog.Nop()})
	if err == nil || !strings.Contains(err.Error(), "--state-dir") || errors.Is(err, os.ErrExist) {
		t.Errorf("got %v, want the flag to use", err)
	}
}

func TestVersionIn(t *testing.T) {
	for text, want := range map[string]string{
		"git version 2.39.5\n": "2.39.5", "go version go1.26.8 linux/amd64": "1.26.8", "v20.20.2\n": "20.20.2", "GNU Make 4.3\nmore 5.5": "4.3",
		`openjdk version "17.0.15" 2025-04-15`: "17.0.15", "no such option": "",
	} {
		if got := versionIn(text); got != want {
			t.Errorf("versionIn(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestFileSystem(t *testing.T) {
	for kind, want := range map[int64]string{0xef53: "ext4", 0x01021994: "tmpfs", 0xff534d42: "cifs", 0x1234: "0x1234"} {
		if got := fileSystem(kind); got != want {
			t.Errorf("fileSystem(%#x) = %q, want %q", kind, got, want)
		}
	}
}
