package worker

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/client"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/plan"
)

// Names are bytes: a file of any name is written, listed, read and given to a command under that name and no other.
func TestSession_NamesOfAnyBytes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := sessions(t, r)
	r.worker(t, "w1")
	s := r.start(t, r.pool, api.SessionStart{Path: r.tree, Host: testHost})
	run1(t, c, s.ID, "sh", "-c", "rm -rf * .[!.]*")
	names := []string{"new\nline", "-dash", " ", "...", "bad\xff", "Zoë", "a\\b", `"quoted"`, strings.Repeat("x", 255), strings.Repeat("é", 127), ".\x01"}
	for _, name := range names {
		if err := c.WriteFile(t.Context(), s.ID, name, 0, strings.NewReader(name)); err != nil {
			t.Errorf("write %q: %v", name, err)
			continue
		}
		if got := content(t, c, s.ID, isolate.Workspace+"/"+name); got != name {
			t.Errorf("read %q: got %q", name, got)
		}
		if got, _, _ := run1(t, c, s.ID, "cat", "--", name); got != name {
			t.Errorf("a command that is given %q: got %q", name, got)
		}
	}
	var got []string
	for _, text := range entries(t, c.ListFiles, s.ID) {
		name, err := api.OfText(text)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, name)
	}
	if d := cmp.Diff(got, slices.Sorted(slices.Values(names))); d != "" {
		t.Errorf("list (-got +want):\n%s", d)
	}
}

// A path that is not what it is taken for is refused in one line that says why, and nothing is made of it.
func TestSession_OddPaths(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := sessions(t, r)
	r.worker(t, "w1")
	s := r.start(t, r.pool, api.SessionStart{Path: r.tree, Host: testHost})
	run1(t, c, s.ID, "sh", "-c", "mkdir -p dir && echo x >file && mkfifo pipe && ln -s loop loop && ln -s /etc out && ln -s nowhere dangling")
	before := entries(t, c.ListFiles, s.ID)
	long, deep := strings.Repeat("x", 256), strings.Repeat("d/", 2100)+"x"
	for _, tc := range []struct{ verb, path, code, text string }{
		{"read", "../x", api.CodeRefused, "leads out of the workspace"},
		{"read", "dir/../../x", api.CodeRefused, "leads out of the workspace"},
		{"write", "../../x", api.CodeRefused, "leads out of the workspace"},
		{"list", "..", api.CodeRefused, "leads out of the workspace"},
		{"read", "/etc/passwd", api.CodeRefused, "is not below /workspace"},
		{"write", "/workspace2/x", api.CodeRefused, "is not below /workspace"},
		{"write", "/workspace/../x", api.CodeRefused, "leads out of the workspace"},
		{"exec", "/etc", api.CodeRefused, "is not below /workspace"},
		{"read", "", api.CodeInvalid, "the path is empty"},
		{"write", "", api.CodeInvalid, "the path is empty"},
		{"read", "dir", api.CodeInvalid, "is a directory: name a file in it"},
		{"write", "dir", api.CodeInvalid, "is a directory: name a file in it"},
		{"write", "new/", api.CodeInvalid, "is a directory: name a file in it"},
		{"read", "file/x", api.CodeInvalid, "a part of it is a file"},
		{"write", "file/x", api.CodeInvalid, "a part of it is a file"},
		{"write", "file/x/y", api.CodeInvalid, "a part of it is a file"},
		{"list", "file", api.CodeInvalid, "is no directory"},
		{"list", "nothing", api.CodeNotFound, "no such file"},
		{"read", "nothing", api.CodeNotFound, "no such file"},
		{"read", long, api.CodeInvalid, `...": a name in it is longer`},
		{"write", long, api.CodeInvalid, `...": a name in it is longer`},
		{"write", deep, api.CodeInvalid, `...": a name in it is longer`},
		{"list", deep, api.CodeInvalid, `...": a name in it is longer`},
		{"read", "pipe", api.CodeInvalid, "is no file with content"},
		{"write", "pipe", api.CodeInvalid, "is no file with content"},
		{"read", "loop", api.CodeRefused, "lead in a circle"},
		{"write", "loop", api.CodeRefused, "lead in a circle"},
		{"read", "out/passwd", api.CodeRefused, "leads out of the workspace"},
		{"write", "out/hacked", api.CodeRefused, "leads out of the workspace"},
	} {
		var err error
		switch tc.verb {
		case "read":
			err = c.ReadFile(t.Context(), s.ID, api.SessionRead{Path: tc.path}, &strings.Builder{})
		case "write":
			err = c.WriteFile(t.Context(), s.ID, tc.path, 0, strings.NewReader("x"))
		case "list":
			err = second(c.ListFiles(t.Context(), s.ID, tc.path))
		case "exec":
			err = second(c.Exec(t.Context(), s.ID, api.Exec{Argv: []string{"true"}, Dir: tc.path}, nil, nil))
		}
		var said *client.Error
		if !errors.As(err, &said) || said.Code != tc.code || !strings.Contains(said.Message, tc.text) || strings.Contains(said.Message, "\n") || len(said.Message) > 400 {
			t.Errorf("%s %.40q: got %v, want %s and %q in a line", tc.verb, tc.path, err, tc.code, tc.text)
		}
	}
	for what, req := range map[string]any{
		"read":  api.SessionRead{Path: "a\x00b"},
		"list":  api.SessionPath{Path: "\x00b64:!"},
		"exec":  api.Exec{Argv: []string{"echo", "a\x00b"}},
		"write": map[string]any{"path": 5},
	} {
		if code, text := r.raw(t, s.ID, what, req); code != api.CodeInvalid || strings.Contains(text, "\n") {
			t.Errorf("%s of %v: got %s, %q; want it refused as invalid", what, req, code, text)
		}
	}
	if d := cmp.Diff(entries(t, c.ListFiles, s.ID), before); d != "" {
		t.Errorf("something was made (-got +want):\n%s", d)
	}
	if got := entries(t, c.ListFiles, s.ID); !slices.Contains(got, "file") || content(t, c, s.ID, "file") != "x\n" {
		t.Errorf("got %q", got)
	}
}

// A session with a list of hosts reaches what is in it; what it was refused is told with the command's end. So it is after a resume.
func TestSession_NetworkList(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := sessions(t, r)
	r.worker(t, "w1")
	at, _ := greeter(t)
	other, port := greeter(t)
	list := api.Network{Hosts: []string{at, "b.example"}}
	ask := func(id, to string) (api.ExecEnd, string) {
		script := fmt.Sprintf(`p=${http_proxy#http://}; exec 3<>/dev/tcp/${p%%:*}/${p##*:}; printf "CONNECT %s HTTP/1.1\r\n\r\n" >&3; read -r l <&3; [[ $l == *" 200 "* ]]`, to)
		_, errs, end := run1(t, c, id, "bash", "-euc", script)
		return end, errs
	}
	s := r.start(t, r.pool, api.SessionStart{Path: r.tree, Host: testHost, Network: list})
	end, err := c.EndSession(t.Context(), r.start(t, r.pool, api.SessionStart{Path: r.tree, Host: testHost}).ID)
	if err != nil {
		t.Fatal(err)
	}
	resumed := r.start(t, "default", api.SessionStart{Checkpoint: end.Checkpoint, Network: list})
	for _, id := range []string{s.ID, resumed.ID} {
		if got, errs := ask(id, at); got.ExitCode == nil || *got.ExitCode != 0 {
			t.Errorf("a listed host: got %+v, %s", got, errs)
		}
		got, _ := ask(id, other)
		want := []events.NetworkUse{{Host: "127.0.0.1", Verdict: events.NetworkDenied, Why: "it is not in the list", Count: 1}}
		if len(got.Network) == 1 && fmt.Sprint(got.Network[0].Port) == port {
			got.Network[0].Port = 0
		}
		if d := cmp.Diff(got.Network, want); d != "" || got.ExitCode == nil || *got.ExitCode == 0 {
			t.Errorf("another host: got %+v, want exit code 1 and (-got +want):\n%s", got, d)
		}
	}
	for _, bad := range []api.Network{{Hosts: []string{}}, {Hosts: []string{"a b"}}, {Mode: "some"}} {
		if s := r.start(t, r.pool, api.SessionStart{Path: r.tree, Host: testHost, Network: bad}); s.State != events.SessionFailed || s.Code != "invalid_resource" {
			t.Errorf("%+v: got %s, %s; want it refused", bad, s.State, s.Code)
		}
	}
}

// A session of a pool is bound as its warm sandboxes are, unless it asks for something else: then it is not warm, and says why.
func TestSession_NetworkOfAPool(t *testing.T) {
	t.Parallel()
	p := newPoolRig(t)
	c := sessions(t, p.rig)
	p.push(t, "v1")
	p.image(t, "true")
	at, _ := greeter(t)
	w, _ := p.worker(t, "w1")
	p.apply(t, `,"target_size":1,"plan_network":["`+at+`"]`)
	for _, tc := range []struct {
		network             api.Network
		source, note, proxy string
	}{
		{api.Network{}, events.SourceWarm, "", "yes\n"},
		{api.Network{Hosts: []string{at}}, events.SourceWarm, "", "yes\n"},
		{api.Network{Mode: plan.NetworkNone}, events.SourceCold, "cold: network none: warm sandboxes of this pool are made with [" + at + "]", "no\n"},
	} {
		p.warm(t, w, "one warm", idle(1))
		s := p.start(t, "api", api.SessionStart{Pool: "api", Network: tc.network})
		if s.Source != tc.source || !strings.Contains(strings.Join(s.Notes, "\n"), tc.note) || tc.note == "" && len(s.Notes) > 0 {
			t.Errorf("%+v: source %s, notes %q, want %s and %q", tc.network, s.Source, s.Notes, tc.source, tc.note)
		}
		if out, _, _ := run1(t, c, s.ID, "sh", "-c", `test -n "${http_proxy-}" && echo yes || echo no`); out != tc.proxy {
			t.Errorf("%+v: has a proxy: got %q, want %q", tc.network, out, tc.proxy)
		}
	}
}
