package pools

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/pkg/api"
	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// j1Token is what must be nowhere but in its file, in any of its forms.
const j1Token = "S3cr3t/x"

func j1Forms() []string {
	forms := []string{"S3cr3t", url.QueryEscape(j1Token)}
	for _, s := range []string{j1Token, "bot:" + j1Token, url.QueryEscape(j1Token)} {
		forms = append(forms, base64.RawStdEncoding.EncodeToString([]byte(s)), base64.RawURLEncoding.EncodeToString([]byte(s)))
	}
	return forms
}

// leak is the first form of the token in a text, with what stands around it.
func leak(text string) string {
	for _, f := range j1Forms() {
		if i := strings.Index(text, f); i >= 0 {
			return text[max(0, i-100):min(len(text), i+100)]
		}
	}
	return ""
}

// gitServer serves the repositories below a directory over HTTP to who has the token, and refuses in every way under other paths.
func gitServer(t *testing.T, p *fleettest.Place, top string) (address string) {
	t.Helper()
	backend := strings.TrimSpace(p.Sh(t, top, "git --exec-path")) + "/git-http-backend"
	handler := &cgi.Handler{
		Path: backend, Stderr: io.Discard, InheritEnv: []string{"PATH"},
		Env: []string{
			"GIT_PROJECT_ROOT=" + top, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=bot", "GIT_CONFIG_GLOBAL=/dev/null",
			"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
		},
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, given := r.BasicAuth()
		said := fmt.Sprintf("%s %s %s %s", user, password, url.QueryEscape(password), r.Header.Get("Authorization"))
		switch {
		case strings.HasPrefix(r.URL.Path, "/404"):
			http.Error(w, said, http.StatusNotFound)
		case strings.HasPrefix(r.URL.Path, "/500"):
			http.Error(w, said, http.StatusInternalServerError)
		case !given || user != "bot" || password != j1Token || strings.HasPrefix(r.URL.Path, "/401"):
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			http.Error(w, said, http.StatusUnauthorized)
		default:
			handler.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// stalled accepts connections and never says a word.
func stalled(t *testing.T) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fleettest.Must(t, err)
	t.Cleanup(func() { l.Close() }) // connections wait in its backlog
	return "http://" + l.Addr().String()
}

// Case J1. A pool's token reaches the remote and nothing else, whatever the remote answers: no output, log, event, record, argument,
// configuration, sandbox or checkpoint has it.
func TestCase_J1(t *testing.T) {
	t.Parallel()
	for _, a := range fleettest.Accounts(t) {
		t.Run(a.Name, func(t *testing.T) {
			t.Parallel()
			tokenStaysOut(t, a)
		})
	}
}

// secretive is a fleet all of whose output is kept.
type secretive struct {
	*rig
	said []string // what commands printed
}

// cli runs the command line and keeps what it prints.
func (s *secretive) cli(t *testing.T, args ...string) fleettest.Result {
	t.Helper()
	r := s.Warmfleet(t, args...)
	s.said = append(s.said, r.Stdout, r.Stderr)
	return r
}

func (s *secretive) pool(t *testing.T, name string) (p api.Pool) {
	t.Helper()
	fleettest.Must(t, json.Unmarshal([]byte(s.cli(t, "pool", "show", name, "-o", "json").Exits(t, 0).Stdout), &p))
	return p
}

func tokenStaysOut(t *testing.T, a fleettest.Account) {
	s := &secretive{rig: startRig(t, a)}
	top := s.Tree(t, "remotes", fleettest.RemoteScript+"; git -C r.git config http.receivepack true")
	srv := gitServer(t, s.Place, top)
	fleettest.Must(t, os.Mkdir(s.Path("private"), 0o700))
	for name, text := range map[string]string{"token": "username=bot\npassword=" + j1Token + "\n", "wrong": "bot:" + j1Token + "-not"} {
		fleettest.Must(t, os.WriteFile(s.Path("private", name), []byte(text), 0o600))
	}
	s.Own(t, s.Path("private"))
	stop := sampleArguments(t)
	s.Place = s.With("J1_TOKEN=bot:" + j1Token)
	w := s.Worker(t, "w")
	for name, text := range map[string]string{
		"closed":  "resource: {repo: 'http://127.0.0.1:1/r.git'}\ntoken: {env: J1_TOKEN}",
		"denied":  "resource: {repo: '" + srv + "/r.git'}\ntoken: {file: " + s.Path("private", "wrong") + "}\nallow_stale: true",
		"locked":  "resource: {repo: '" + srv + "/401/r.git'}\ntoken: {env: J1_TOKEN}",
		"missing": "resource: {repo: '" + srv + "/404/r.git'}\ntoken: {env: J1_TOKEN}",
		"broken":  "resource: {repo: '" + srv + "/500/r.git'}\ntoken: {env: J1_TOKEN}",
		"nobody":  "resource: {repo: '" + srv + "/r.git'}\nallow_stale: true",
		"branch":  "resource: {repo: '" + srv + "/r.git', ref: nope}\ntoken: {command: [cat, " + s.Path("private", "token") + "]}",
		"stalled": "resource: {repo: '" + stalled(t) + "/r.git'}\ntoken: {env: J1_TOKEN}",
		"good":    "resource: {repo: '" + srv + "/r.git'}\ntoken: {file: " + s.Path("private", "token") + "}\nimage: {setup: ['echo built >built']}",
	} {
		file := s.Path("work", name+".yaml")
		s.Write(t, file, "version: 1\nname: "+name+"\ntarget_size: 1\n"+text+"\n")
		s.cli(t, "pool", "apply", file).Exits(t, 0)
	}
	for name, want := range map[string]string{
		"closed": "", "denied": "check the token", "locked": "check the token", "missing": "not found", "broken": "500", "branch": "nope",
		"stalled": "stalled", "nobody": "none was given",
	} {
		fleettest.Eventually(t, "pool "+name+" to fail", func() bool {
			p := s.pool(t, name)
			return p.State == "failing" && p.Error != ""
		})
		if got := s.pool(t, name).Error; !strings.Contains(got, want) || strings.Contains(got, "\n") {
			t.Errorf("pool %s: got error %q, want one line with %q", name, got, want)
		}
	}
	fleettest.Eventually(t, "a warm sandbox", func() bool { return s.pool(t, "good").Warm == 1 })
	s.plansOfPools(t, top)
	s.refusesURLs(t, srv)
	stop()
	s.wantClean(t, top, w)
	s.refusesSubmission(t, srv)
}

// refusesSubmission: who publishes a plan with a token in its URL has published it; what is recorded of it has it not.
func (s *secretive) refusesSubmission(t *testing.T, srv string) {
	t.Helper()
	id := events.NewID()
	url := strings.Replace(srv, "://", "://bot:S3cr3t%2Fx@", 1) + "/r.git"
	body := `{"v":1,"type":"warmfleet.submit.v1","plan":{"version":1,"name":"x","apply":"never","resource":{"repo":"` + url + `"},"steps":[{"run":"true"}]}}`
	_, err := s.Fleet.JetStream.Publish(t.Context(), s.Fleet.Subjects.Submit(id), []byte(body))
	fleettest.Must(t, err)
	s.Ended(t, id, events.StateRejected)
	if found := leak(s.Messages(t)); found != "" {
		t.Errorf("the token is in a stream: %q", found)
	}
}

// plansOfPools runs plans in pools with the token and without. What one token got is no other's, however stale it may be.
func (s *secretive) plansOfPools(t *testing.T, top string) {
	t.Helper()
	// The text of a plan is stored as it is, so its pattern must not be what it looks for.
	const search = `git config --list --show-origin; env; grep -rlE 'S3c[r]3t|UzN[j]cjN0' / --include='*' --exclude-dir=proc --exclude-dir=sys --exclude-dir=usr 2>/dev/null || true`
	file := s.PlanOf(t, "pool: good\napply: auto\ncommit: {message: by plan, branch: trunk}\nidentity: {name: By, email: by@example.com}", "{id: one, checkpoint: true, run: "+fleettest.Quoted(search+"; cat built; echo B >b")+"}")
	id := strings.TrimSpace(s.cli(t, "submit", file).Exits(t, 0).Stdout)
	v := s.Ended(t, id, events.StateApplied)
	if got := s.Sh(t, top, "git -C r.git log --format=%s trunk; git -C r.git show trunk:b"); got != "by plan\none\nB\n" || v.Commit == nil {
		t.Errorf("the remote has %q", got)
	}
	logs := s.cli(t, "plan", "logs", id).Stdout
	if !strings.Contains(logs, "remote.origin.url=http://127.0.0.1:") || !strings.HasSuffix(logs, "\nbuilt\n") {
		t.Errorf("the step printed %s", logs)
	}
	s.cli(t, "plan", "show", id, "-o", "json")
	s.cli(t, "plan", "events", id, "-o", "jsonl")
	s.cli(t, "plan", "diff", id)
	for _, pool := range []string{"denied", "nobody", "locked"} { // of good's repository, which this worker has
		file := s.Plan(t, "pool: "+pool+"\napply: never\n", "cat b")
		id := strings.TrimSpace(s.cli(t, "submit", file).Exits(t, 0).Stdout)
		waits := s.Until(t, id, "the plan to wait for an image", fleettest.IsType(events.TypeWaiting))
		if waits.Data.Reason == "" {
			t.Errorf("pool %s: the plan waits for no reason", pool)
		}
		s.cli(t, "plan", "cancel", id).Exits(t, 0)
		if r := s.cli(t, "session", "start", "--pool", pool); r.Code == 0 || !strings.Contains(r.Stderr, "denies access") {
			t.Errorf("a session of pool %s: exit code %d, %s", pool, r.Code, r.Stderr)
		}
	}
	if r := s.cli(t, "session", "start", "--pool", "good", "-o", "json").Exits(t, 0); !strings.Contains(r.Stdout, `"id"`) {
		t.Errorf("a session of pool good: %s", r.Stdout)
	}
	s.cli(t, "image", "build", "denied", "--explain").Exits(t, 1)
}

// refusesURLs: a URL with a credential goes nowhere.
func (s *secretive) refusesURLs(t *testing.T, srv string) {
	t.Helper()
	with := strings.Replace(srv, "://", "://bot:S3cr3t%2Fx@", 1) + "/r.git"
	file := s.Plan(t, "apply: never\nresource: {repo: '"+with+"'}", "true")
	s.cli(t, "submit", file).Exits(t, 2)
	s.cli(t, "run", file).Exits(t, 2)
	s.cli(t, "run", s.Plan(t, "apply: never", "true"), "--repo", with).Exits(t, 2)
	s.cli(t, "session", "start", "--repo", with).Exits(t, 2)
	s.Write(t, s.Path("work", "url.yaml"), "version: 1\nname: url\nresource: {repo: '"+with+"'}\n")
	s.cli(t, "pool", "apply", s.Path("work", "url.yaml")).Exits(t, 2)
}

// sampleArguments looks for the token in the arguments of every process until it is stopped.
func sampleArguments(t *testing.T) (stop func()) {
	t.Helper()
	done := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for tick := time.NewTicker(2 * time.Millisecond); ; {
			select {
			case <-done:
				tick.Stop()
				return
			case <-tick.C:
			}
			files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
			for _, f := range files {
				b, err := os.ReadFile(f)
				if err == nil && strings.Contains(string(b), "S3cr3t") && !strings.Contains(string(b), "warmfleet\x00") { // the command line's own --repo
					t.Errorf("arguments: %q", b)
					return
				}
			}
		}
	})
	return func() {
		close(done)
		watching.Wait()
	}
}

// wantClean looks for the token everywhere.
func (s *secretive) wantClean(t *testing.T, top string, w *fleettest.Process) {
	t.Helper()
	for _, args := range [][]string{{"pool", "ls", "-o", "json"}, {"image", "ls", "-o", "json"}, {"worker", "ls", "-o", "json"}, {"plan", "ls", "-o", "json"}, {"doctor", "-o", "json"}} {
		s.cli(t, args...)
	}
	exported := s.Path("tmp", "exported")
	for _, id := range strings.Fields(s.cli(t, "checkpoint", "ls", "-o", "name").Stdout) {
		s.Sh(t, s.Path("tmp"), "mkdir -p exported; warmfleet checkpoint export "+id+" | tar -xf - -C exported || true")
	}
	for what, text := range map[string]string{
		"output": strings.Join(s.said, "\n"), "the worker's log": w.Output.String(), "the scheduler's log": s.Up.Output.String(), "a stream": s.Messages(t),
	} {
		if found := leak(text); found != "" {
			t.Errorf("the token is in %s: %q", what, found)
		}
	}
	if !fleettest.Exists(filepath.Join(exported, ".git", "config")) {
		t.Error("no checkpoint could be looked into")
	}
	for _, dir := range []string{s.Path("w"), exported, filepath.Join(top, "r.git"), s.Path("ctl")} {
		fleettest.Must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return nil // what a running fleet removes meanwhile
			}
			b, err := os.ReadFile(path)
			if found := leak(string(b)); err == nil && found != "" {
				t.Errorf("the token is in %s: %q", path, found)
			}
			return nil
		}))
	}
}
