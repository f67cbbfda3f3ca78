package plans

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/pkg/events"
	"github.com/warmfleet/warmfleet/test/fleettest"
)

// The secrets of case J3. j3Inner lies in j3Outer, and j3JSON has lines that occur in every log.
const (
	j3Key   = "-----BEGIN KEY-----\nQx7vRk2mTz81WcPa\nLm4hYd9sBe60UjNo\nZt3gVi5fXq27KrHw\nGp8nCy1lDu94SaMx\n-----END KEY-----\n"
	j3Inner = "inner-8fa21c77"
	j3Outer = "outer/" + j3Inner + "+q9w8e7"
	j3JSON  = "{\n\"k\": [\n\"v\"\n]\n}"
	j3Env   = "of-the-worker's-environment"
)

// j3Forms are texts that give a secret away: lines, and what encoders make of them.
func j3Forms() []string {
	forms := append(strings.Fields(j3Key)[2:6], j3Inner, "+q9w8e7", "%2Bq9w8e7", j3Env)
	for _, value := range []string{j3Key, j3Outer, j3Inner} {
		forms = append(forms, base64.StdEncoding.EncodeToString([]byte(value))[:16], base64.StdEncoding.EncodeToString([]byte("x" + value))[4:16])
	}
	return forms
}

// givesAway is the first form of a secret in a text, with what stands around it.
func givesAway(text string) string {
	for _, form := range j3Forms() {
		if i := strings.Index(text, form); i >= 0 {
			return text[max(0, i-60):min(len(text), i+60)]
		}
	}
	return ""
}

// Case J3. Secrets of many lines, in many writes, in encodings, in error texts: masked the same in what is shown live, stored and told,
// without masking what is no secret, and without changing a byte of a file.
func TestCase_J3(t *testing.T) {
	for _, a := range fleettest.Accounts(t) {
		t.Run(a.Name, func(t *testing.T) {
			t.Parallel()
			s := &leaky{Cluster: fleettest.StartCluster(t, a)}
			dir := s.Path("private")
			fleettest.Must(t, os.Mkdir(dir, 0o700))
			for name, value := range map[string]string{"KEY": j3Key, "INNER": j3Inner, "OUTER": j3Outer + "\n", "JSON": j3JSON, "SHORT": "ab", "EMPTY": ""} {
				fleettest.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(value), 0o600))
			}
			s.Own(t, dir)
			plain := s.Place
			s.Place = s.With("WARMFLEET_SECRET_ENV=" + j3Env)
			w := s.Worker(t, "w", "--secrets-dir", dir)
			s.Place = plain
			stop := sampleProcesses(t)
			t.Run("Printed", func(t *testing.T) { s.masksOutput(t) })
			t.Run("Errors", func(t *testing.T) { s.masksErrors(t) })
			t.Run("OnlyWhereNamed", func(t *testing.T) { s.keptFromOthers(t) })
			stop()
			s.nothingGivenAway(t, w)
			t.Run("Files", func(t *testing.T) { s.filesAsWritten(t) })
		})
	}
}

// leaky is a fleet all of whose output is kept.
type leaky struct {
	*fleettest.Cluster
	said []string // what commands printed
}

// cli runs the command line and keeps what it prints.
func (s *leaky) cli(t *testing.T, args ...string) fleettest.Result {
	t.Helper()
	r := s.Warmfleet(t, args...)
	s.said = append(s.said, r.Stdout, r.Stderr)
	return r
}

const j3Names = "secrets: [KEY, INNER, OUTER, JSON, SHORT, EMPTY, ENV]\n"

// masksOutput compares what each step printed with what is stored, and with what was shown while it ran.
func (s *leaky) masksOutput(t *testing.T) {
	long := strings.Repeat("x", 65530)
	steps := []struct{ name, script, want string }{
		{"each", "cd $WARMFLEET_SECRETS; cat KEY INNER; echo; cat OUTER JSON; echo; cat ENV; echo", "***\n***\n***\n***\n***\n"},
		{"lines", "while read -r l; do echo \"<$l>\"; done <$WARMFLEET_SECRETS/KEY", strings.Repeat("<***>\n", 6)},
		{"twowrites", "head -c 45 $WARMFLEET_SECRETS/KEY; sleep 0.4; tail -c +46 $WARMFLEET_SECRETS/KEY", "***\n"},
		{"bytewise", "for i in $(seq 20); do head -c $i $WARMFLEET_SECRETS/OUTER | tail -c 1; done; sleep 0.2; tail -c +21 $WARMFLEET_SECRETS/OUTER", "***\n"},
		{"chunks", "head -c 65530 /dev/zero | tr '\\0' x; cat $WARMFLEET_SECRETS/KEY", long + "***\n"},
		{"encoded", "cd $WARMFLEET_SECRETS; base64 KEY; base64 -w 0 OUTER; echo; (printf x; cat OUTER) | base64; perl -pe 's/([^A-Za-z0-9_.~\\n-])/sprintf(\"%%%02X\",ord($1))/ge' OUTER", ""},
		{"json", `echo '{"a": [1, {"b": [2]}]}'; printf '{\n]\n}\n'; cat $WARMFLEET_SECRETS/SHORT; echo " ab cab"; cat $WARMFLEET_SECRETS/EMPTY`, "{\"a\": [1, {\"b\": [2]}]}\n{\n]\n}\nab ab cab\n"},
		{"file", "cp $WARMFLEET_SECRETS/KEY copy; cmp copy $WARMFLEET_SECRETS/KEY && wc -c <copy; grep -c KEY copy; rm copy", fmt.Sprintf("%d\n2\n", len(j3Key))},
		{"cut", "head -c 1048566 /dev/zero | tr '\\0' y; cat $WARMFLEET_SECRETS/KEY; head -c 3000000 /dev/zero | tr '\\0' z; cat $WARMFLEET_SECRETS/OUTER; echo end", ""},
		{"last", "head -c 60 $WARMFLEET_SECRETS/KEY", ""},
	}
	var texts []string
	for _, st := range steps {
		texts = append(texts, "{id: "+st.name+", run: "+fleettest.Quoted(st.script)+"}")
	}
	dir := s.Tree(t, "j3", "echo x >f")
	live := s.cli(t, "run", s.PlanOf(t, "apply: never\n"+j3Names, texts...), "--path", dir).Exits(t, 0)
	id := strings.TrimSpace(s.Do(t, "warmfleet", "plan", "ls", "-o", "name"))
	for _, st := range steps {
		got := s.cli(t, "plan", "logs", id, "--step", st.name).Exits(t, 0).Stdout
		if found := givesAway(got); found != "" {
			t.Errorf("step %s: printed %q", st.name, found)
		}
		if st.want != "" && got != st.want {
			t.Errorf("step %s: got %q, want %q", st.name, fleettest.Tail(got, 300), fleettest.Tail(st.want, 300))
		}
		if st.want == "" && !strings.Contains(got, "***") {
			t.Errorf("step %s: nothing is masked: %q", st.name, fleettest.Tail(got, 300))
		}
		if st.want != "" && !strings.Contains(live.Stderr, st.want) {
			t.Errorf("step %s: shown live as %q", st.name, fleettest.Tail(live.Stderr, 300))
		}
	}
	for _, args := range [][]string{{"plan", "show", id}, {"plan", "show", id, "-o", "json"}, {"plan", "events", id, "-o", "jsonl"}, {"plan", "logs", id, "--follow"}, {"plan", "diff", id}} {
		s.cli(t, args...).Exits(t, 0)
	}
	if got := s.Do(t, "warmfleet", "plan", "diff", id); got != "" {
		t.Errorf("the plan changed %q", got)
	}
}

// masksErrors has a secret in the text of a step that can't be started, of a shell that can't run it, and of a command that fails.
func (s *leaky) masksErrors(t *testing.T) {
	dir := s.Tree(t, "j3e", "echo x >f")
	file := s.PlanOf(t, "apply: never\n"+j3Names,
		`{id: one, run: "printf '#!/%s\\n' $(cat $WARMFLEET_SECRETS/OUTER) >script; chmod 755 script"}`,
		`{id: start, continue_on_error: true, shell: [./script], run: x}`,
		`{id: shell, continue_on_error: true, run: "$(cat $WARMFLEET_SECRETS/INNER)"}`,
		`{id: command, continue_on_error: true, run: ": </$(cat $WARMFLEET_SECRETS/INNER)"}`,
		`{id: two, run: "rm script"}`,
		`{id: last, run: "head -1 $WARMFLEET_SECRETS/KEY >&2; exit 3"}`,
	)
	r := s.cli(t, "run", file, "--path", dir, "-o", "json").Exits(t, 3)
	id := r.View(t).ID
	var told string
	for _, e := range s.Records(t, id) {
		told += e.Event.Data.Error + "\n"
	}
	if !strings.Contains(told, `its interpreter "/***"`) {
		t.Errorf("the events tell %q, want the interpreter masked", told)
	}
	if logs := s.cli(t, "plan", "logs", id).Stdout; strings.Count(logs, "***") < 3 {
		t.Errorf("the log is %q", logs)
	}
	s.cli(t, "plan", "show", id)
	s.cli(t, "plan", "events", id, "-o", "jsonl")
}

// keptFromOthers: a plan that names nothing has nothing, and a name without value ends a plan before its first step.
func (s *leaky) keptFromOthers(t *testing.T) {
	dir := s.Tree(t, "j3o", "echo x >f")
	other := s.Submit(t, s.Plan(t, "apply: never\n"+fleettest.Resource(dir), "ls -A /run/secrets; env | grep SECRET || true; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n' || true"))
	s.Ended(t, other, events.StateExecuted)
	if got := s.cli(t, "plan", "logs", other).Stdout; strings.Contains(got, "WARMFLEET_SECRETS=") || givesAway(got) != "" {
		t.Errorf("a plan without secrets sees %q", got)
	}
	named := s.Submit(t, s.Plan(t, "apply: never\nsecrets: [KEY]\n"+fleettest.Resource(dir), "ls -A $WARMFLEET_SECRETS; env; cat /proc/self/environ /proc/self/cmdline /proc/1/environ 2>/dev/null | tr '\\0' '\\n' || true"))
	s.Ended(t, named, events.StateExecuted)
	if got := s.cli(t, "plan", "logs", named).Stdout; !strings.HasPrefix(got, "KEY\n") || strings.Contains(got, "***") {
		t.Errorf("a plan with one secret sees %q", got)
	}
	missing := s.Submit(t, s.Plan(t, "apply: never\nsecrets: [KEY, NOBODYS]\n"+fleettest.Resource(dir), "echo ran"))
	v := s.Ended(t, missing, events.StateFailed)
	if fleettest.Deref(v.Code) != "secret_missing" || !strings.Contains(fleettest.Deref(v.Error), "NOBODYS") || s.Count(t, missing, fleettest.IsType(events.TypeStepStarted)) != 0 {
		t.Errorf("an unknown secret: %s %s\n%s", fleettest.Deref(v.Code), fleettest.Deref(v.Error), s.Story(t, missing))
	}
}

// nothingGivenAway looks for the secrets in all that was shown, logged and stored.
func (s *leaky) nothingGivenAway(t *testing.T, w *fleettest.Process) {
	t.Helper()
	s.cli(t, "checkpoint", "ls", "-o", "json")
	exported := s.Path("tmp", "exported")
	for _, id := range strings.Fields(s.cli(t, "checkpoint", "ls", "-o", "name").Stdout) {
		s.Sh(t, s.Path("tmp"), "mkdir -p exported; warmfleet checkpoint export "+id+" | tar -xf - -C exported")
	}
	for what, text := range map[string]string{
		"output": strings.Join(s.said, "\n"), "the worker's log": w.Output.String(), "the scheduler's log": s.Up.Output.String(), "a stream": s.Messages(t),
	} {
		if found := givesAway(text); found != "" {
			t.Errorf("a secret is in %s: %q", what, found)
		}
	}
	if !fleettest.Exists(filepath.Join(exported, "f")) {
		t.Error("no checkpoint could be looked into")
	}
	for _, dir := range []string{s.Path("w"), exported, s.Path("ctl")} {
		fleettest.Must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return nil // what a running fleet removes meanwhile
			}
			b, err := os.ReadFile(path)
			if found := givesAway(string(b)); err == nil && found != "" {
				t.Errorf("a secret is in %s: %q", path, found)
			}
			return nil
		}))
	}
}

// filesAsWritten: what a step writes into the tree is applied byte for byte, and so it is in the diff, as docs/secrets.md says.
func (s *leaky) filesAsWritten(t *testing.T) {
	dir := s.Tree(t, "j3f", "echo x >f")
	v := s.Warmfleet(t, "run", s.Plan(t, "apply: auto\n"+j3Names, "cat $WARMFLEET_SECRETS/KEY $WARMFLEET_SECRETS/JSON | tee f; cat $WARMFLEET_SECRETS/OUTER >>f"), "--path", dir, "-o", "json").Exits(t, 0).View(t)
	if got, want := fleettest.Read(t, dir, "f"), j3Key+j3JSON+j3Outer+"\n"; got != want {
		t.Errorf("the file is %q, want %q", got, want)
	}
	if got := s.Do(t, "warmfleet", "plan", "logs", v.ID); got != "***\n***" {
		t.Errorf("printed %q", got)
	}
	var files []struct{ Path string }
	fleettest.Must(t, json.Unmarshal([]byte(s.Do(t, "warmfleet", "plan", "diff", v.ID, "-o", "json")), &files))
	if len(files) != 1 || files[0].Path != "f" {
		t.Errorf("the diff names %v, want f", files)
	}
}

// sampleProcesses looks for the secrets in arguments and environments of all processes that may be read, until it is stopped. The worker
// itself was given one by its environment.
func sampleProcesses(t *testing.T) (stop func()) {
	t.Helper()
	done := make(chan struct{})
	var watching sync.WaitGroup
	look := func() bool {
		names, _ := filepath.Glob("/proc/[0-9]*")
		for _, dir := range names {
			arguments, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
			environment, _ := os.ReadFile(filepath.Join(dir, "environ"))
			if bytes.Contains(arguments, []byte("worker\x00--name")) {
				environment = nil
			}
			if found := givesAway(string(arguments) + "\n" + string(environment)); found != "" {
				t.Errorf("process %s has %q", dir, found)
				return false
			}
		}
		return true
	}
	watching.Go(func() {
		for tick := time.NewTicker(50 * time.Millisecond); look(); {
			select {
			case <-done:
				tick.Stop()
				return
			case <-tick.C:
			}
		}
	})
	return func() {
		close(done)
		watching.Wait()
	}
}
