// Package test tests what holds of the repository as a whole: who imports whom. Of the packages below it, plans, applies,
// pools, fleets and faults (build tag fault) test fleets of real processes with what they share in fleettest; escape and
// model go without a fleet, and tour does what the README says.
package test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/warmfleet/warmfleet/"

// rule says which packages of the project a package may import. A name stands for the
// package and for everything below it that has no rule of its own; packages of one rule may
// import each other. The order is from the bottom up: a rule only names those before it.
type rule struct {
	pkg string
	may []string
	why string
}

var everything = []string{"internal", "pkg"}

var rules = []rule{
	{"internal/termsafe", nil, "makes any text safe to show; what shows it is not its business"},
	{"internal/version", nil, "a constant of the build: it needs nothing"},
	{"internal/statedir", nil, "files and locks that any package may keep its data with"},
	{"internal/natsboot", []string{"internal/statedir"}, "starts or reaches a server, whatever is said over it"},
	{"internal/fault", nil, "injects failures into anything, so it can know nothing"},
	{"internal/kv", nil, "keeps records whose meaning belongs to others"},
	{"internal/mask", nil, "hides given bytes in other bytes; what they are is not its business"},
	{"internal/secret", nil, "gets values by name; who asks and what for is not its business"},
	{"internal/credential", nil, "gets a token from a place; what it opens is not its business"},
	{"internal/egress", nil, "reaches listed hosts for anything; what asks is not its business"},
	{"internal/isolate", nil, "is linked into the lean init, where every package costs start-up time and memory"},
	{"internal/reserve", nil, "keeps room free, whoever needs it; what it ends is not its business"},
	{"internal/limit", []string{"internal/isolate"}, "bounds sandboxes whatever runs in them"},
	{"internal/disk", []string{"internal/isolate"}, "bounds what is written, whatever that is; of isolation it uses the kernel's mounts"},
	{"internal/layer", []string{"internal/fault"}, "file trees mean the same whoever makes them"},
	{"internal/layer/drivertest", []string{"internal/disk", "internal/layer"}, "tries drivers on every place they can be used in"},
	{"internal/doctor", []string{"internal/disk", "internal/isolate", "internal/layer", "internal/limit"}, "examines a machine before there is a server, a worker or a plan"},
	{"internal/shelf", []string{"internal/layer"}, "counts bytes and ages of layers; what they are is their holders' business"},
	{"internal/base", []string{"internal/fault", "internal/layer", "internal/shelf", "internal/statedir"}, "makes layers of a directory; what they are for is not its business"},
	{"internal/remotetest", nil, "serves what fetches from it, whoever that is"},
	{"internal/gitrepo", []string{"internal/layer", "internal/shelf", "internal/statedir"}, "makes layers of a repository; what they are for is not its business"},
	{"pkg/objectstore", []string{"internal/fault"}, "keeps bytes under names; users of the store alone need nothing else"},
	{"pkg/events", []string{"internal/fault"}, "scheduler and worker meet here, so it can know neither"},
	{"pkg/session", nil, "states, times and the gate of sessions are the same whoever serves them"},
	{"pkg/api", []string{"pkg/events"}, "types of requests and replies for programs outside the fleet"},
	{"internal/parts", []string{"pkg/api"}, "answers in several messages, whatever is asked"},
	{"pkg/warmpool", nil, "a pure core: what it keeps warm is its caller's business"},
	{"pkg/plan/applier", []string{"internal/fault", "internal/layer", "internal/statedir"}, "changes an original from a difference, whatever plan made it"},
	{"internal/gitcommit", []string{"internal/gitrepo", "internal/layer", "pkg/plan/applier"}, "makes a commit of a difference and brings it to a branch; whose plan it was is not its business"},
	{"pkg/plan/diff", []string{"internal/layer"}, "renders any difference as text; checkpoints and plans are above it"},
	{"pkg/checkpoint", []string{"internal/fault", "internal/kv", "internal/layer", "pkg/objectstore", "pkg/plan/diff"}, "composes layers, store and records; sandboxes come to it through an interface"},
	{"pkg/sandbox", []string{"internal/base", "internal/disk", "internal/egress", "internal/gitrepo", "internal/isolate", "internal/layer", "internal/reserve"}, "composes layers and isolation; plans and messages are above it"},
	{"internal/sandboxtest", everything, "a worker's insides on real parts, for tests of what is built on them"},
	{"pkg/plan/patch", nil, "what a diff makes of files, wherever they are kept"},
	{"pkg/plan", []string{"pkg/plan/patch"}, "the format is read by services and tools that run nothing"},
	{"pkg/poolfile", []string{"pkg/plan"}, "the format is read by services and tools that keep no pool"},
	{"pkg/plan/executor", []string{"internal/egress", "internal/isolate", "internal/mask", "pkg/checkpoint", "pkg/events", "pkg/plan", "pkg/plan/patch"}, "runs steps in any sandbox; queues and claims are above it"},
	{"pkg/image", []string{"internal/mask", "pkg/events", "pkg/plan", "pkg/poolfile"}, "makes images in any sandbox; workers, records and syncs are above it"},
	{"pkg/client", []string{"pkg/api", "pkg/events", "pkg/plan"}, "the SDK must not bring the fleet into programs that only talk to it"},
	{"internal/scheduler", []string{
		"pkg/session",
		"internal/fault", "internal/kv", "internal/parts", "internal/version",
		"pkg/api", "pkg/checkpoint", "pkg/events", "pkg/image", "pkg/objectstore", "pkg/plan", "pkg/plan/diff", "pkg/poolfile", "pkg/warmpool",
	}, "decides and records; it runs nothing, and meets workers in pkg/events only"},
	{"internal/worker", []string{
		"internal/base", "internal/credential", "internal/disk", "internal/egress", "internal/fault", "internal/gitcommit", "internal/gitrepo", "internal/isolate", "internal/kv", "internal/layer", "internal/limit", "internal/mask", "internal/parts", "internal/reserve", "internal/secret", "internal/shelf", "internal/statedir",
		"internal/version",
		"pkg/api", "pkg/checkpoint", "pkg/events", "pkg/objectstore", "pkg/plan", "pkg/plan/applier", "pkg/plan/diff", "pkg/plan/executor",
		"pkg/image", "pkg/poolfile", "pkg/sandbox", "pkg/session", "pkg/warmpool",
	}, "composes what runs a plan, and meets schedulers in pkg/events only"},
	{"internal/fleet", everything, "wires processes of the fleet together and is the only one that knows all of it"},
	{"internal/daemon", []string{"internal/natsboot", "internal/termsafe", "internal/version"}, "what the daemons share; what one does is not its business"},
	{"cmd/warmfleet-init", []string{"internal/isolate"}, "is PID 1 of every sandbox: it stays small"},
	{"cmd", everything, "thin mains on top of everything; nothing imports them"},
	{"bench", everything, "measures everything; nothing imports it"},
	{"test", everything, "tests everything; nothing imports it"},
}

// outside says which packages alone may import a module from outside the project.
var outside = []struct {
	path string
	only []string
	why  string
}{
	{"github.com/nats-io/nats-server", []string{"internal/natsboot", "test", "bench"}, "one place starts servers"},
	{"github.com/nats-io/jsm.go", []string{"internal/natsboot", "cmd"}, "a module before its version 1: one place to change"},
	{"github.com/otiai10/copy", []string{"internal/layer", "bench"}, "what it loses is put right in one place"},
	{"github.com/bluekeyes/go-gitdiff", []string{"pkg/plan/patch"}, "what it takes and leaves out is known in one place"},
	{"github.com/spf13/cobra", []string{"cmd", "internal/daemon"}, "the command line ends at the mains"},
	{"github.com/jedib0t/go-pretty", []string{"cmd", "bench"}, "tables are for people"},
	{"go.yaml.in/yaml", []string{"pkg/plan", "pkg/image", "cmd", "internal/scheduler", "internal/worker", "internal/fleet"}, "files of people are read at the edge; no message is YAML"},
	{"github.com/nats-io", []string{
		"internal/natsboot", "internal/kv", "internal/parts", "internal/scheduler", "internal/worker", "internal/fleet", "internal/daemon",
		"pkg/events", "pkg/objectstore", "pkg/client", "cmd", "bench", "test",
	}, "what makes, keeps, runs and applies files works without a server"},
}

type listed struct {
	ImportPath, Name string
	Imports          []string
}

func packages(t *testing.T) []listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Name,Imports", "./...")
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []listed
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	if len(all) < 5 {
		t.Fatalf("go list found %d packages", len(all))
	}
	return all
}

func within(pkg, parent string) bool { return pkg == parent || strings.HasPrefix(pkg, parent+"/") }

// ruleFor is the rule with the longest name that holds pkg.
func ruleFor(pkg string) (rule, bool) {
	var best rule
	for _, r := range rules {
		if within(pkg, r.pkg) && len(r.pkg) > len(best.pkg) {
			best = r
		}
	}
	return best, best.pkg != ""
}

// allowed tells whether a package under r may import pkg.
func allowed(r rule, pkg string) bool {
	of, known := ruleFor(pkg)
	return known && (of.pkg == r.pkg || slices.ContainsFunc(r.may, func(name string) bool {
		return name == of.pkg || (name == "internal" || name == "pkg") && within(of.pkg, name)
	}))
}

func TestImports_FollowTheRules(t *testing.T) {
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, module)
		r, ok := ruleFor(name)
		if !ok {
			t.Errorf("%s has no rule: add one to rules, with its reason", name)
			continue
		}
		for _, imported := range p.Imports {
			if other, ours := strings.CutPrefix(imported, module); ours && !allowed(r, other) {
				t.Errorf("%s imports %s, but %s", name, other, r.why)
			}
		}
	}
}

func TestImports_FromOutsideStayAtTheirPlace(t *testing.T) {
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, module)
		for _, imported := range p.Imports {
			for _, o := range outside {
				if within(imported, o.path) && !isTestSuite(name) && !slices.ContainsFunc(o.only, func(in string) bool { return within(name, in) }) {
					t.Errorf("%s imports %s, but %s", name, imported, o.why)
				}
			}
		}
	}
}

// isTestSuite tells packages that hold conformance suites, which only tests import.
func isTestSuite(pkg string) bool { return strings.HasSuffix(pkg, "test") }

func TestImports_ProgramsLinkNoTestCode(t *testing.T) {
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, module)
		if isTestSuite(name) {
			continue
		}
		for _, imported := range p.Imports {
			if imported == "testing" || strings.HasPrefix(imported, module) && isTestSuite(imported) {
				t.Errorf("%s imports %s, but programs must not link test code", name, imported)
			}
		}
	}
}

func TestImports_RulesOnlyNameWhatIsBelow(t *testing.T) {
	seen := map[string]bool{"internal": true, "pkg": true}
	for _, r := range rules {
		for _, name := range r.may {
			if !seen[name] {
				t.Errorf("the rule of %s names %s, which has no rule before it", r.pkg, name)
			}
		}
		if r.why == "" {
			t.Errorf("the rule of %s has no reason", r.pkg)
		}
		seen[r.pkg] = true
	}
}
