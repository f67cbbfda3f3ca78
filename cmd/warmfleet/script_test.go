package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/warmfleet/warmfleet/internal/isolate"
)

// patience bounds every wait for something that has to happen, on a busy machine.
const patience = 60 * time.Second

func TestMain(m *testing.M) {
	isolate.Main()
	testscript.Main(m, map[string]func(){
		"warmfleet": func() { os.Exit(execute(context.Background(), os.Args[1:])) },
	})
}

// TestScripts runs testdata/script/*.txtar; the first word of a name is its category. Beside
// the commands of testscript they have:
//
//	exits CODE COMMAND...          the command ends with the exit code
//	json FILE PATH VALUE           the value at a.0.b of a JSON file, or of stdout, is VALUE
//	has FILE PATH                  there is something at the path
//	set NAME FILE PATH             sets a variable to a value; PATH "-" is the file's only line
//	await FILE PATTERN             waits until a file has a line that matches
//	until PATTERN COMMAND...       runs a command until its output matches
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:   "testdata/script",
		Setup: isolated,
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"exits": exits, "json": jsonIs, "has": jsonHas, "set": set, "await": await, "until": until,
		},
	})
}

// isolated gives a script directories of its own and nothing of this environment. The path
// of the state directory has a space in it, as any path may.
func isolated(e *testscript.Env) error {
	for name, dir := range map[string]string{
		"HOME": "home", "XDG_STATE_HOME": "state dir", "XDG_CONFIG_HOME": "config", "TMPDIR": "tmp",
	} {
		path := filepath.Join(e.WorkDir, dir)
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
		e.Setenv(name, path)
	}
	for _, pair := range []string{"USER=tester", "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@example.com", "GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@example.com"} {
		name, value, _ := strings.Cut(pair, "=")
		e.Setenv(name, value)
	}
	return nil
}

func need(ts *testscript.TestScript, neg bool, args []string, n int, usage string) {
	if neg || len(args) < n {
		ts.Fatalf("usage: %s", usage)
	}
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "exits CODE COMMAND...")
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("got exit code %d, want %d", got, want)
	}
}

// lookup returns what is at a path in a JSON file, and whether anything is.
func lookup(ts *testscript.TestScript, file, path string) (any, bool) {
	var v any
	if err := json.Unmarshal([]byte(ts.ReadFile(file)), &v); err != nil {
		ts.Fatalf("%s is not JSON: %v", file, err)
	}
	if path == "." {
		return v, true
	}
	for key := range strings.SplitSeq(path, ".") {
		switch at := v.(type) {
		case map[string]any:
			next, ok := at[key]
			if !ok {
				return nil, false
			}
			v = next
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i >= len(at) {
				return nil, false
			}
			v = at[i]
		default:
			return nil, false
		}
	}
	return v, true
}

func jsonIs(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, false, args, 3, "json FILE PATH VALUE")
	v, ok := lookup(ts, args[0], args[1])
	got := fmt.Sprint(v)
	if !ok {
		got = "(absent)"
	}
	if (got == args[2]) == neg {
		ts.Fatalf("%s: got %s, want %s", args[1], got, args[2])
	}
}

func jsonHas(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, false, args, 2, "has FILE PATH...")
	for _, path := range args[1:] {
		if _, ok := lookup(ts, args[0], path); ok == neg {
			ts.Fatalf("%s: there: %v", path, ok)
		}
	}
}

func set(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 3, "set NAME FILE PATH")
	if args[2] == "-" {
		ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile(args[1])))
		return
	}
	v, ok := lookup(ts, args[1], args[2])
	if !ok {
		ts.Fatalf("%s: is absent", args[2])
	}
	ts.Setenv(args[0], fmt.Sprint(v))
}

// poll waits for ok, with a deadline.
func poll(ts *testscript.TestScript, what string, ok func() bool) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !ok(); <-tick.C {
		if time.Now().After(end) {
			ts.Fatalf("waited in vain for %s", what)
		}
	}
}

func await(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "await FILE PATTERN")
	pattern, err := regexp.Compile("(?m)" + args[1])
	ts.Check(err)
	poll(ts, args[1], func() bool {
		b, err := os.ReadFile(ts.MkAbs(args[0]))
		return err == nil && pattern.Match(b)
	})
}

func until(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "until PATTERN COMMAND...")
	pattern, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	poll(ts, args[0], func() bool {
		return ts.Exec(args[1], args[2:]...) == nil && pattern.MatchString(ts.ReadFile("stdout"))
	})
}
