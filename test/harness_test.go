package test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io/fs"
	"os"
	"os/exec"
	osuser "os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/warmfleet/warmfleet/internal/isolate"
	"github.com/warmfleet/warmfleet/pkg/events"
)

const (
	// binEnv names a directory with the programs; without it they are built once per run.
	binEnv = "WARMFLEET_TEST_BIN"
	// patience bounds every wait for something that has to happen, on a busy machine.
	patience = 60 * time.Second
	// commandLimit ends a command that hangs.
	commandLimit = 120 * time.Second
)

// atOnce is how many tests run at once unless -parallel says so: they wait for processes more than they compute.
const atOnce = 4

func TestMain(m *testing.M) {
	isolate.Main()
	if err := flag.Set("test.parallel", strconv.Itoa(max(atOnce, runtime.GOMAXPROCS(0)))); err != nil {
		panic(err)
	}
	flag.Parse() // the command line wins
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	if os.Getenv(binEnv) != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "warmfleet-bin-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	os.Setenv(binEnv, dir)
	return m.Run()
}

// programs returns the directory of the built programs.
var programs = sync.OnceValues(func() (string, error) {
	dir := os.Getenv(binEnv)
	if _, err := os.Stat(filepath.Join(dir, "worker")); err == nil {
		return dir, nil
	}
	cmd := exec.Command("go", "build", "-o", dir+"/", "./cmd/...")
	cmd.Dir = ".."
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", errors.New("go build ./cmd/...: " + err.Error() + "\n" + string(out))
	}
	return dir, os.Chmod(dir, 0o755)
})

// account is who runs programs in a test; without credentials it is whoever runs the tests.
type account struct {
	name string
	uid  int
	cred *syscall.Credential
}

func self() account {
	if os.Getuid() == 0 {
		return account{name: "AsRoot"}
	}
	return account{name: "AsUser", uid: os.Getuid()}
}

// ordinary is an account without privileges: nobody for root, else whoever runs the tests.
func ordinary(t testing.TB) account {
	t.Helper()
	if os.Getuid() != 0 {
		return self()
	}
	u, err := osuser.Lookup("nobody")
	if err != nil {
		t.Fatalf("look nobody up: %v", err)
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	return account{name: "AsNobody", uid: uid, cred: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
}

// accounts are whoever runs the tests and, where that is root, also an ordinary user:
// permissions prove nothing as root.
func accounts(t testing.TB) []account {
	t.Helper()
	all := []account{self()}
	if os.Getuid() == 0 {
		all = append(all, ordinary(t))
	}
	return all
}

// eachAccount runs do on a fleet with one worker for each of the accounts.
func eachAccount(t *testing.T, do func(t *testing.T, c *cluster)) {
	t.Helper()
	for _, a := range accounts(t) {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			c := startCluster(t, a)
			c.worker(t, "w")
			do(t, c)
		})
	}
}

// place is a directory with a home and a state directory of its own, for programs that run
// under one account and know nothing else of this machine's environment.
type place struct {
	account
	dir string
	cwd string
	env []string
}

func newPlace(t testing.TB, a account) *place {
	t.Helper()
	dir, err := os.MkdirTemp("", "warmfleet-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeAll(t, dir) })
	p := &place{account: a, dir: dir, cwd: dir}
	must(t, os.Chmod(dir, 0o755))
	for _, name := range []string{"home", "work", "tmp"} {
		must(t, os.Mkdir(p.path(name), 0o755))
	}
	p.env = []string{
		"PATH=" + bin(t) + ":/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME=" + p.path("home"), "TMPDIR=" + p.path("tmp"),
		"XDG_STATE_HOME=" + p.path("state"), "XDG_CONFIG_HOME=" + p.path("config"), "LANG=C.UTF-8", "USER=tester",
	}
	p.own(t, dir)
	return p
}

func bin(t testing.TB) string {
	t.Helper()
	dir, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func (p *place) path(names ...string) string {
	return filepath.Join(append([]string{p.dir}, names...)...)
}

// own gives everything below dir to the place's account.
func (p *place) own(t testing.TB, dir string) {
	t.Helper()
	if p.cred == nil {
		return
	}
	must(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(p.cred.Uid), int(p.cred.Gid))
	}))
}

// command prepares a program of the fleet or of the system, in the place's own environment.
func (p *place) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	path := name
	if dir, err := programs(); err == nil && !strings.Contains(name, "/") {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			path = filepath.Join(dir, name)
		}
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir, cmd.Env = p.cwd, p.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.cred, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// with returns the place with more variables in its environment.
func (p *place) with(env ...string) *place {
	q := *p
	q.env = append(append([]string{}, p.env...), env...)
	return &q
}

// without returns the place without a variable in its environment.
func (p *place) without(name string) *place {
	q := *p
	q.env = nil
	for _, pair := range p.env {
		if !strings.HasPrefix(pair, name+"=") {
			q.env = append(q.env, pair)
		}
	}
	return &q
}

// result is how a command ended.
type result struct {
	code           int // -1: by a signal
	stdout, stderr string
}

// run runs a program to its end, whatever its exit code.
func (p *place) run(t testing.TB, name string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandLimit)
	defer cancel()
	cmd := p.command(ctx, name, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		t.Fatalf("%s %s: %v, %v\n%s", name, strings.Join(args, " "), err, ctx.Err(), stderr.String())
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// warmfleet runs the command line to its end.
func (p *place) warmfleet(t testing.TB, args ...string) result {
	t.Helper()
	return p.run(t, "warmfleet", args...)
}

// do runs a program that has to succeed and returns what it printed.
func (p *place) do(t testing.TB, name string, args ...string) string {
	t.Helper()
	r := p.run(t, name, args...)
	if r.code != 0 {
		t.Fatalf("%s %s: exit code %d\n%s%s", name, strings.Join(args, " "), r.code, r.stdout, r.stderr)
	}
	return r.stdout
}

// sh runs a shell script in a directory; it has to succeed.
func (p *place) sh(t testing.TB, dir, script string) string {
	t.Helper()
	q := *p
	q.cwd = dir
	return q.do(t, "sh", "-euc", "umask 022\n"+script)
}

// exits fails the test unless the command ended with the exit code.
func (r result) exits(t testing.TB, code int) result {
	t.Helper()
	if r.code != code {
		t.Fatalf("got exit code %d, want %d\nstdout: %s\nstderr: %s", r.code, code, r.stdout, r.stderr)
	}
	return r
}

// view reads the JSON of a plan from what the command printed.
func (r result) view(t testing.TB) events.View {
	t.Helper()
	var v events.View
	if err := json.Unmarshal([]byte(r.stdout), &v); err != nil {
		t.Fatalf("read the plan's JSON: %v\nstdout: %s\nstderr: %s", err, r.stdout, r.stderr)
	}
	return v
}

// eventually waits until cond holds.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited %s for: %s", patience, what)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// removeAll also removes directories that nobody may write to.
func removeAll(t testing.TB, dir string) {
	t.Helper()
	err := os.RemoveAll(dir)
	if err == nil {
		return
	}
	filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			os.Chmod(path, 0o700)
		}
		return nil
	})
	if err := os.RemoveAll(dir); err != nil {
		t.Errorf("clean up: %v", err)
	}
}
