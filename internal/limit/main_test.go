package limit

import (
	"bytes"
	"os"
	"testing"

	"github.com/warmfleet/warmfleet/internal/isolate"
)

func TestMain(m *testing.M) {
	isolate.Main()
	os.Exit(m.Run())
}

// startInit starts an init on an empty workspace, whose commands are in a group.
func startInit(t *testing.T, g isolate.Group) *isolate.Init {
	t.Helper()
	rung := isolate.RungUser
	if os.Getuid() == 0 {
		rung = isolate.RungRoot
	}
	in, err := isolate.Start(t.Context(), isolate.Config{Rung: rung, Group: g})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close() })
	mounter, err := isolate.NewMounter(rung)
	if err != nil {
		t.Fatal(err)
	}
	defer mounter.Close()
	mount, err := mounter.Bind(t.Context(), isolate.Bind{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer mount.Close()
	if err := in.Attach(t.Context(), mount); err != nil {
		t.Fatal(err)
	}
	return in
}

// sh runs a script and returns what it printed.
func sh(t *testing.T, in *isolate.Init, c isolate.Command, script string) string {
	t.Helper()
	var out bytes.Buffer
	c.Argv, c.Env, c.Stdout, c.Stderr = []string{"/bin/sh", "-c", script}, append(in.BaseEnv(), c.Env...), &out, &out
	res, err := in.Exec(t.Context(), c)
	if err != nil || res.ExitCode == nil {
		t.Fatalf("%q: %+v, %v: %s", script, res, err, &out)
	}
	return out.String()
}
