package worker

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/pkg/checkpoint"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/events/eventstest"
)

const buildToken = "s3cr3t/build+canary=0123"

// buildForms are what no one may find of the token.
func buildForms() []string {
	return []string{
		buildToken, url.QueryEscape(buildToken), url.PathEscape(buildToken), base64.StdEncoding.EncodeToString([]byte(buildToken)),
		base64.StdEncoding.EncodeToString([]byte("user:" + buildToken))[8:36],
	}
}

// logged is a worker's log.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// secretRig is a poolRig with a worker that has secrets and whose log is kept.
func secretRig(t *testing.T) (*poolRig, Config, *logged) {
	t.Helper()
	p := newPoolRig(t)
	cfg := p.config(t, "w1")
	cfg.SecretsDir = t.TempDir()
	for name, value := range map[string]string{"TOKEN": buildToken + "\n", "KEY": testKey, "PIN": "1234567"} {
		if err := os.WriteFile(filepath.Join(cfg.SecretsDir, name), []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	log := &logged{}
	w, err := New(t.Context(), cfg, p.open(t, eventstest.Connect(t, p.server)), zerolog.New(log).Level(zerolog.TraceLevel))
	if err != nil {
		t.Fatal(err)
	}
	run(t, w)
	return p, cfg, log
}

// cmdlines collects the command lines of all processes of this machine until stop.
func cmdlines() (stop func() string) {
	done, out := make(chan struct{}), make(chan string)
	go func() {
		seen := map[string]bool{}
		for open(done) {
			files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
			for _, f := range files {
				if b, err := os.ReadFile(f); err == nil {
					seen[string(b)] = true
				}
			}
		}
		var all strings.Builder
		for line := range seen {
			all.WriteString(line + "\n")
		}
		out <- all.String()
	}()
	return func() string {
		close(done)
		return <-out
	}
}

// A secret that build steps use, print, encode and fail with is nowhere: not in layers, records, events, logs or process lists, and not in
// the repository of a sandbox that is made of the image.
func TestBuild_SecretIsNowhere(t *testing.T) { // alone: other tests put the secret into command lines
	p, cfg, log := secretRig(t)
	p.push(t, "v1")
	p.apply(t, `,"target_size":1,"image":{"secrets":["TOKEN"],"setup":["cat $WARMFLEET_SECRETS/TOKEN; cat $WARMFLEET_SECRETS/TOKEN >&2; wc -c <$WARMFLEET_SECRETS/TOKEN >size; git config user.name builder; sleep 2.03"],
		"warm":["cat $WARMFLEET_SECRETS/TOKEN; base64 $WARMFLEET_SECRETS/TOKEN; exit 5"]}`)
	stop := cmdlines()
	i := p.built(t, events.BuildParams{})
	seen := stop()
	if got := p.holds(t, i, "size"); strings.TrimSpace(got) != fmt.Sprint(len(buildToken)+1) {
		t.Errorf("the step read %q bytes of the secret", got)
	}
	if !strings.Contains(strings.Join(i.Warnings, "\n"), "exit code 5: *** | ***") {
		t.Errorf("warnings %q", i.Warnings)
	}
	if !strings.Contains(seen, "sleep\x002.03") {
		t.Error("the command lines of the steps were not seen")
	}
	if !strings.Contains(p.holds(t, i, ".git/config"), "builder") {
		t.Error("the repository's configuration is not in the image")
	}
	p.apply(t, `,"target_size":0,"image":{"secrets":["TOKEN"],"setup":["cat $WARMFLEET_SECRETS/TOKEN; exit 6"]}`)
	if _, e := p.build(t, events.BuildParams{}); e.Kind() != "failed" || !strings.Contains(e.Data.Error, "exit code 6: ***") {
		t.Errorf("%s %s", e.Kind(), e.Data.Error)
	}
	for _, form := range buildForms() {
		for what, text := range map[string]string{"command lines": seen, "the log": log.String()} {
			if strings.Contains(text, form) {
				t.Errorf("%q is in %s", form, what)
			}
		}
		for _, dir := range []string{cfg.StateDir, p.builder.cfg.StateDir} { // of who built it, and of who got it from the store
			if where := p.leaks(t, dir, form); len(where) > 0 {
				t.Errorf("%q is in %v", form, where)
			}
		}
	}
	if log.String() == "" {
		t.Error("nothing was logged")
	}
}

// A build that leaves a secret in the workspace, in whatever way, is refused before anything of it is stored, with the path.
func TestBuild_SecretLeft(t *testing.T) {
	t.Parallel()
	p, _, _ := secretRig(t)
	p.push(t, "v1")
	const get = "T=$(cat $WARMFLEET_SECRETS/TOKEN); "
	for _, tc := range []struct{ name, step, path string }{
		{"File", get + `mkdir d; echo x$T >d/f`, "d/f"},
		{"CutByABuffer", get + `{ head -c 262134 /dev/zero; printf %s $T; } >f`, "f"},
		{"Base64", get + `printf user:%s $T | base64 -w0 >f`, "f"},
		{"URL", `sed 's,/,%2F,g;s,+,%2B,g;s,=,%3D,g' $WARMFLEET_SECRETS/TOKEN >f`, "f"},
		{"LineOfAKey", `sed -n 3p $WARMFLEET_SECRETS/KEY >f`, "f"},
		{"Name", `T=$(base64 -w0 $WARMFLEET_SECRETS/TOKEN | tr / _); mkdir $T`, ""},
		{"Link", get + `ln -s $T l`, "l"},
		{"SecondName", get + `echo $T >b; ln b a`, "a"},
		{"Unreadable", get + `echo $T >f; chmod 0 f`, "f"},
		{"UnreadableDirectory", get + `mkdir d; echo $T >d/f; chmod 0 d`, "d/f"},
		{"Unstaged", get + `echo $T >.git/info/exclude`, ".git/info/exclude"},
		{"Sparse", get + `truncate -s 64M f; printf %s $T | dd of=f bs=1 seek=50000000 conv=notrunc status=none`, "f"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p.apply(t, fmt.Sprintf(`,"target_size":0,"image":{"secrets":["KEY","TOKEN"],"setup":[%q]}`, tc.step))
			_, e := p.build(t, events.BuildParams{})
			if e.Kind() != "failed" || !strings.Contains(e.Data.Error, fmt.Sprintf("is in %q", tc.path)) && tc.path != "" || !strings.Contains(e.Data.Error, "let no step write it into the workspace") {
				t.Fatalf("%s %q, want failed with %s", e.Kind(), e.Data.Error, tc.path)
			}
			if n := slices.IndexFunc(buildForms(), func(s string) bool { return strings.Contains(e.Data.Error, s) }); n >= 0 {
				t.Errorf("it is in the reason: %q", e.Data.Error)
			}
		})
	}
	if l := p.latest(t); l.Image != "" {
		t.Errorf("latest %+v", l)
	}
	p.noCheckpoint(t)
}

// noCheckpoint fails the test where anything was stored.
func (p *poolRig) noCheckpoint(t *testing.T) {
	t.Helper()
	all, err := checkpoint.All(t.Context(), p.fleet.Checkpoints)
	if err != nil || len(all) > 0 {
		t.Errorf("checkpoints %v, %v, want none", all, err)
	}
}

// A secret that is too short to be told from anything else is not looked for, and the image says so.
func TestBuild_ShortSecret(t *testing.T) {
	t.Parallel()
	p, _, _ := secretRig(t)
	p.push(t, "v1")
	p.apply(t, `,"target_size":0,"image":{"secrets":["PIN","TOKEN"],"setup":["cat $WARMFLEET_SECRETS/PIN"]}`)
	i := p.built(t, events.BuildParams{})
	if want := "secret PIN is shorter than 8 bytes: nobody looked whether the build left it"; !slices.Equal(i.Warnings, []string{want}) {
		t.Errorf("warnings %q, want %q", i.Warnings, want)
	}
}
