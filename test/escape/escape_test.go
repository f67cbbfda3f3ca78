// Package escape tries to break out of sandboxes: a table of attempts, each a small program that runs as a step
// would, on every back-end of this machine, as root and as an ordinary user.
//
// Each attempt is also made where nothing isolates ("off"): one that is stopped there too proves nothing, so it has to
// succeed, or to name the privilege that its user lacks. Nothing that an attempt does harms the machine: what is written
// is what was there already, calls that would change the machine get arguments that the kernel refuses after it has asked
// for the privilege.
//
// The package must not know how anything is stopped. A new way out is one more entry of attempts.
package escape

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	osuser "os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"text/tabwriter"

	"golang.org/x/sys/unix"

	"github.com/warmfleet/warmfleet/internal/isolate"
)

const (
	// modeAttempt is the first argument of this binary when it is the program of an attempt.
	modeAttempt = "attempt"
	// columnsFile names the file that a run by one user writes its columns to.
	columnsFile = "ESCAPE_COLUMNS"
	exitStopped = 90
)

func TestMain(m *testing.M) {
	isolate.Main()
	if len(os.Args) == 4 && os.Args[1] == modeAttempt {
		os.Exit(makeAttempt(os.Args[2], os.Args[3]))
	}
	os.Exit(m.Run())
}

// An attempt is one way out.
type attempt struct {
	name string
	// like is the report that it repeats in kind, "" for a class that needs none.
	like string
	// try runs inside, as the step. An error says what stopped it, text how it succeeded.
	try func(s scene) (string, error)
	// after, if set, runs on the host when the step has ended and has the last word.
	after func(s scene, b box) (string, error)
	// needs is the privilege that it takes where nothing isolates, "" when anybody succeeds.
	needs string
	// machine is what even root may lack on some machines.
	machine string
	// network: it is what a step with network may do.
	network bool
	// known is why it succeeds, and no matter: it is in the table of what is not promised.
	known string
	// landlock and bubblewrap are why it may succeed on those rungs, which do not promise to stop it; "" where they do.
	landlock, bubblewrap string
}

// unpromised is why it may succeed on a rung, "" where it must not.
func (a attempt) unpromised(where string) string {
	switch where {
	case whereLand:
		return a.landlock
	case whereBubble:
		return a.bubblewrap
	}
	return ""
}

// Why a rung does not stop something.
const (
	devicesOfHost = "bubblewrap has no read-only devices: the times of /dev/null"
	seenProcesses = "no process namespace: processes of the host are seen, with their arguments"
	seenMachine   = "no /proc of its own: what it tells everybody of the machine"
	seenNames     = "no root of its own: whether a path is there can be told, not what is in it"
	sameUser      = "an ordinary user's own processes: how they are scheduled"
	reachedSocket = "Landlock before its version 9 knows no sockets with a path"
	keptBounding  = "the bounding set of capabilities, which means nothing with no_new_privs"
	keptTimes     = "Landlock does not know times and modes of files"
)

// makeAttempt is the program of an attempt.
func makeAttempt(name, facts string) int {
	if name == typeIn {
		return typeInto(facts)
	}
	var s scene
	if err := json.Unmarshal([]byte(facts), &s); err != nil {
		fmt.Println(err)
		return 1
	}
	all := attempts()
	i := slices.IndexFunc(all, func(a attempt) bool { return a.name == name })
	if i < 0 {
		return 1
	}
	how, err := all[i].try(s)
	if err != nil {
		fmt.Println(err)
		return exitStopped
	}
	fmt.Println(how)
	return 0
}

func attempts() []attempt {
	return slices.Concat(readAttempts(), leakAttempts(), tellingAttempts(), machineAttempts(), knownAttempts(), writeAttempts(), ownerAttempts(), linkAttempts(),
		networkAttempts(), shareAttempts(), processAttempts(), meddleAttempts(), treeAttempts(), namespaceAttempts(), kernelAttempts(), mountAttempts(), terminalAttempts(), foreignAttempts())
}

// outcome is what became of one attempt.
type outcome struct {
	Escaped bool
	How     string // or what stopped it
}

// column is every attempt, by one user, on one back-end.
type column struct {
	User, Where string
	Outcomes    map[string]outcome
}

// TestEscape runs itself as each user, on a terminal of its own, and prints the joint table.
func TestEscape(t *testing.T) {
	if name := os.Getenv(columnsFile); name != "" {
		runColumns(t, name)
		return
	}
	var all []column
	for _, u := range users(t) {
		all = append(all, columnsOf(t, u)...)
	}
	t.Logf("attempts: %d\n%s", len(attempts()), table(all))
}

type user struct {
	name string
	cred *syscall.Credential
}

// users are whoever runs the tests and, where that is root, nobody.
func users(t *testing.T) []user {
	t.Helper()
	if os.Getuid() != 0 {
		return []user{{name: "user"}}
	}
	u, err := osuser.Lookup("nobody")
	if err != nil {
		t.Fatal(err)
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	return []user{{name: "root"}, {name: "user", cred: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}}
}

// columnsOf runs the attempts of one user in a process of that user.
func columnsOf(t *testing.T, u user) []column {
	t.Helper()
	dir := scratch(t)
	program, report := filepath.Join(dir, "escape.test"), filepath.Join(dir, "columns.json")
	copyFile(t, "/proc/self/exe", program, 0o755)
	if u.cred != nil {
		for _, name := range []string{dir, program} {
			must(t, os.Chown(name, int(u.cred.Uid), int(u.cred.Gid)))
		}
	}
	terminal := openTerminal(t)
	cmd := exec.CommandContext(t.Context(), program, "-test.run=^TestEscape$", "-test.v")
	cmd.Dir = dir
	cmd.Env = []string{columnsFile + "=" + report, "TMPDIR=" + dir, "HOME=" + dir, "PATH=/usr/bin:/bin", "CANARY=" + canary}
	out, err := os.Create(filepath.Join(dir, "out"))
	must(t, err)
	defer out.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: u.cred, Setsid: true, Setctty: true, Pdeathsig: syscall.SIGKILL}
	runErr := cmd.Run()
	if runErr != nil {
		said, _ := os.ReadFile(out.Name())
		t.Errorf("as %s: %v\n%s", u.name, runErr, said)
	}
	var columns []column
	if text, err := os.ReadFile(report); err == nil {
		must(t, json.Unmarshal(text, &columns))
	} else if runErr == nil {
		t.Error(err)
	}
	for i := range columns {
		columns[i].User = u.name
	}
	return columns
}

// runColumns makes every attempt on every back-end that this user has.
func runColumns(t *testing.T, report string) {
	s := newScene(t)
	var columns []column
	for _, b := range boxes(t, s) {
		c := column{Where: b.name(), Outcomes: map[string]outcome{}}
		for _, a := range attempts() {
			o := run(t, a, s, b)
			c.Outcomes[a.name] = o
			judge(t, a, b, o)
			if changed := s.restore(t); changed != "" && !b.open() {
				t.Errorf("%s on %s: the host was changed: %s", a.name, b.name(), changed)
			}
		}
		columns = append(columns, c)
	}
	text, err := json.Marshal(columns)
	must(t, err)
	must(t, os.WriteFile(report, text, 0o644))
}

// run makes one attempt.
func run(t *testing.T, a attempt, s scene, b box) outcome {
	t.Helper()
	s.MountPoint = b.mountPoint(s)
	facts, err := json.Marshal(s)
	must(t, err)
	code, said, err := b.exec(t, a.name, string(facts))
	if err != nil {
		t.Fatalf("%s on %s: %v", a.name, b.name(), err)
	}
	if code != 0 && code != exitStopped && code != codeKilled {
		t.Fatalf("%s on %s: could not be made: %d %s", a.name, b.name(), code, said)
	}
	if a.after == nil {
		return outcome{Escaped: code == 0, How: oneLine(said)}
	}
	how, err := a.after(s, b)
	if err != nil {
		how = err.Error()
	}
	return outcome{Escaped: err == nil, How: oneLine(how)}
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// judge fails the test for a hole, and for an attempt that proves nothing.
func judge(t *testing.T, a attempt, b box, o outcome) {
	t.Helper()
	switch {
	case b.name() == whereOff:
		excused := a.machine != "" || a.needs != "" && os.Getuid() != 0
		if !o.Escaped && !excused {
			t.Errorf("%s proves nothing: it is stopped without isolation too: %s", a.name, o.How)
		}
	case b.open():
	case a.unpromised(b.name()) != "":
	case a.known != "" && !o.Escaped:
		t.Errorf("%s on %s is stopped by now (%s): it is no known way any more", a.name, b.name(), o.How)
	case a.known != "" || a.network && b.name() == whereNetwork:
	case o.Escaped:
		t.Errorf("HOLE: %s on %s: %s", a.name, b.name(), o.How)
	}
}

// table shows an attempt a line and a column a back-end.
func table(columns []column) string {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "attempt\tlike")
	for _, c := range columns {
		fmt.Fprintf(w, "\t%s %s", c.User, c.Where)
	}
	fmt.Fprintln(w, "\thow")
	for _, a := range attempts() {
		fmt.Fprintf(w, "%s\t%s", a.name, a.like)
		how := ""
		for _, c := range columns {
			o := c.Outcomes[a.name]
			fmt.Fprintf(w, "\t%s", cell(a, c, o))
			if how == "" && c.Where == whereSandbox {
				how = o.How
			}
		}
		fmt.Fprintf(w, "\t%.100s\n", how)
	}
	w.Flush()
	return out.String()
}

func cell(a attempt, c column, o outcome) string {
	switch {
	case o.Escaped && a.known != "" && c.Where != whereOff:
		return "known"
	case o.Escaped && a.unpromised(c.Where) != "":
		return "not promised"
	case o.Escaped && a.network && c.Where == whereNetwork:
		return "granted"
	case o.Escaped:
		return "SUCCEEDS"
	case c.Where == whereOff && a.machine != "":
		return "needs " + a.machine
	case c.Where == whereOff:
		return "needs " + a.needs
	}
	return "stopped"
}

// openTerminal makes a pseudo terminal and returns the end that programs use.
func openTerminal(t *testing.T) *os.File {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	must(t, err)
	t.Cleanup(func() { master.Close() })
	must(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	must(t, err)
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	must(t, err)
	t.Cleanup(func() { terminal.Close() })
	return terminal
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
