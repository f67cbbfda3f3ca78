package worker

import (
	"bytes"
	"encoding/base64"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/pkg/events/eventstest"
)

const (
	testToken = "s3cr3t-canary-0123456789"
	testKey   = "-----BEGIN KEY-----\nMIIEowIBAAKCAQEA7yn3\nbRUDsfl0yqXk1mCkP9c\nVt1r9h2bOqQvM5m4wQk\nzz81Hsa7HqpGk2vYxLc\n-----END KEY-----\n"
)

// withSecrets runs a worker with a directory of secrets and returns the worker's state directory.
func (r *rig) withSecrets(t *testing.T) string {
	t.Helper()
	cfg := r.config(t, "w1")
	cfg.SecretsDir = t.TempDir()
	for name, value := range map[string]string{"TOKEN": testToken + "\n", "KEY": testKey, "SHORT": "ab", "EMPTY": "", "JSON": "{\n\"k\": [\n\"v\"\n]\n}"} {
		if err := os.WriteFile(filepath.Join(cfg.SecretsDir, name), []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(cfg.SecretsDir, "OPEN"), []byte(testToken), 0o644); err != nil {
		t.Fatal(err)
	}
	w, err := New(t.Context(), cfg, r.open(t, eventstest.Connect(t, r.server)), zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	run(t, w)
	return cfg.StateDir
}

// printed is what the fleet kept of a step's output.
func (r *rig) printed(t *testing.T, id string, step int) string {
	t.Helper()
	var out bytes.Buffer
	for c, err := range r.fleet.Output.Read(t.Context(), events.OutputQuery{PlanID: id, Step: &step}) {
		if err != nil {
			t.Fatal(err)
		}
		out.Write(c.Data)
	}
	return out.String()
}

// leaks lists where a text is in what the server stores and in the files of a directory.
func (r *rig) leaks(t *testing.T, dir, text string) []string {
	t.Helper()
	var where []string
	streams := r.js.ListStreams(t.Context())
	for info := range streams.Info() {
		s, err := r.js.Stream(t.Context(), info.Config.Name)
		if err != nil {
			t.Fatal(err)
		}
		for seq := info.State.FirstSeq; seq <= info.State.LastSeq && info.State.Msgs > 0; seq++ {
			if m, err := s.GetMsg(t.Context(), seq); err == nil && bytes.Contains(m.Data, []byte(text)) {
				where = append(where, m.Subject)
			}
		}
	}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil // gone, or a sandbox's own
		}
		if b, err := os.ReadFile(path); err == nil && bytes.Contains(b, []byte(text)) {
			where = append(where, path)
		}
		return nil
	})
	if err != nil || streams.Err() != nil {
		t.Fatal(err, streams.Err())
	}
	return where
}

// Case J3: masked whole, line by line, in two writes, encoded; not too much; files hold what was written.
func TestWorker_Secrets(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	state := r.withSecrets(t)
	w := r.submit(t, `
apply: never
secrets: [TOKEN, KEY, SHORT, EMPTY, JSON]
steps:
  - run: echo $WARMFLEET_SECRETS; stat -c '%a %n' /run/secrets/TOKEN; wc -c </run/secrets/EMPTY; env | grep -c canary || true
  - run: cat /run/secrets/TOKEN; cat /run/secrets/KEY
  - run: head -c 50 /run/secrets/KEY; sleep 0.1; tail -c +51 /run/secrets/KEY >&2
  - run: base64 /run/secrets/KEY; base64 -w 0 /run/secrets/TOKEN
  - run: 'echo ''{"a": [1, {"b": 2}]}''; cat /run/secrets/SHORT; echo " ab abc"'
  - run: cp /run/secrets/KEY copy; cmp copy /run/secrets/KEY && echo same; rm -f copy
  - write_file: {path: plain, content: "x"}
  - run: $(cat /run/secrets/TOKEN) || true; echo done
`)
	r.ends(t, w.PlanID(), events.StateExecuted)
	for step, want := range map[int]string{
		0: "/run/secrets\n400 /run/secrets/TOKEN\n0\n0\n",
		1: "***\n***\n",
		4: "{\"a\": [1, {\"b\": 2}]}\nab ab abc\n",
		5: "same\n",
	} {
		if got := r.printed(t, w.PlanID(), step); got != want {
			t.Errorf("step %d: got %q, want %q", step, got, want)
		}
	}
	for _, step := range []int{2, 3, 7} {
		if got := r.printed(t, w.PlanID(), step); !strings.Contains(got, "***") {
			t.Errorf("step %d: got %q", step, got)
		}
	}
	for _, value := range append(strings.Fields(testKey)[2:6], testToken, base64.StdEncoding.EncodeToString([]byte(testToken))[:30], base64.StdEncoding.EncodeToString([]byte(testKey))[:40]) {
		if where := r.leaks(t, state, value); len(where) > 0 {
			t.Errorf("%q is in %v", value, where)
		}
	}
	other := r.submit(t, "apply: never\nsteps: [{run: ls -A /run/secrets; env | grep WARMFLEET_SECRET || true}]\n")
	r.ends(t, other.PlanID(), events.StateExecuted)
	if got := r.printed(t, other.PlanID(), 0); got != "" {
		t.Errorf("a plan without secrets: got %q", got)
	}
}

// A secret that a worker does not have refuses the plan before its first step, and says where to put it.
func TestWorker_SecretRefusals(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.withSecrets(t)
	for name, want := range map[string]struct{ code, text string }{
		"NONE": {"secret_missing", "--secrets-dir"},
		"OPEN": {"secret_unreadable", "chmod 600"},
	} {
		w := r.submit(t, "apply: never\nsecrets: [TOKEN, "+name+"]\nsteps: [{run: echo new >a}]\n")
		d := r.ends(t, w.PlanID(), events.StateFailed)
		if d.Code != want.code || !strings.Contains(d.Error, want.text) || !strings.Contains(d.Error, name) || strings.Contains(d.Error, testToken) {
			t.Errorf("%s: got %s: %s", name, d.Code, d.Error)
		}
		if seen := r.until(t, w.PlanID(), "the end", func(e events.Event) bool { return e.Data.Final }); count(seen, events.TypeStepStarted) != 0 {
			t.Errorf("%s: a step was started", name)
		}
	}
}
