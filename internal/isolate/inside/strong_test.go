package inside

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The bundle is what the OCI runtime is told: every word of it decides what a command can reach.
func TestStrongOptions_Bundle(t *testing.T) {
	type mount struct {
		Destination, Type, Source string
		Options                   []string
	}
	type set struct{ Bounding, Effective, Permitted, Inheritable, Ambient []string }
	var got struct {
		Process struct {
			User            struct{ UID, GID int }
			Args, Env       []string
			Cwd             string
			NoNewPrivileges bool
			Capabilities    set
		}
		Root struct {
			Path     string
			Readonly bool
		}
		Hostname string
		Mounts   []mount
		Linux    struct{ Namespaces []struct{ Type string } }
	}
	text := strongOptions{caches: []string{"go"}}.bundle()
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	capabilities := []string{"CAP_KILL", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETUID"}
	if diff := cmp.Diff(got.Process.Capabilities, set{Bounding: capabilities, Effective: capabilities, Permitted: capabilities}); diff != "" {
		t.Errorf("capabilities (-got +want): %s", diff)
	}
	if diff := cmp.Diff(got.Process.Args, []string{selfExe, ModeGuest}); diff != "" || len(got.Process.Env) > 0 || !got.Process.NoNewPrivileges || !got.Root.Readonly {
		t.Errorf("got %+v, %+v", got.Process, got.Root)
	}
	writable := []string{"rbind", "rw", "nosuid", "nodev"}
	want := []mount{
		{"/proc", "proc", "proc", []string{"nosuid", "nodev", "noexec"}},
		{"/workspace", "bind", "/workspace", writable},
		{"/tmp", "bind", "/tmp", writable},
		{"/home/sandbox", "bind", "/home/sandbox", writable},
		{"/dev/shm", "bind", "/dev/shm", writable},
		{"/cache/go", "bind", "/cache/go", writable},
		{"/run/strong", "tmpfs", "tmpfs", []string{"ro", "nosuid", "nodev", "noexec", "mode=0755"}},
	}
	if diff := cmp.Diff(got.Mounts, want); diff != "" {
		t.Errorf("mounts (-got +want): %s", diff)
	}
}

func TestOptionsOf(t *testing.T) {
	for _, want := range []strongOptions{{}, {hostNetwork: true, caches: []string{"a", "b"}}} {
		got, err := optionsOf(want.strings())
		if diff := cmp.Diff(got, want, cmp.AllowUnexported(strongOptions{})); diff != "" || err != nil {
			t.Errorf("(-got +want): %s%v", diff, err)
		}
	}
	for _, args := range [][]string{nil, {"true"}, {"maybe", ""}} {
		if _, err := optionsOf(args); err == nil {
			t.Errorf("%q: got no error", args)
		}
	}
}

// Without a network the command's kernel has none of the host's sockets at all.
func TestStrongArgv(t *testing.T) {
	for hostNetwork, want := range map[bool]string{false: "--network=none", true: "--network=host"} {
		argv := strings.Join(strongArgv(strongOptions{hostNetwork: hostNetwork}, "/dir"), " ")
		if !strings.Contains(argv, want+" ") || !strings.Contains(argv, "--root=/dir/root run --bundle=/dir ") || !strings.HasSuffix(argv, " command") {
			t.Errorf("got %s, want %s", argv, want)
		}
	}
}
